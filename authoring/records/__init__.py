"""Training runs that are too long for a lesson and ship as records. `python -m authoring.records NAME` makes one."""
