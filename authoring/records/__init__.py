"""Training runs that are too long for a lesson and whose results ship as records.

`python -m authoring.records NAME` makes a record.
"""
