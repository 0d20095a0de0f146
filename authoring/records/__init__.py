"""Runs that are too long for a lesson, made by a command and shipped as records: `python -m authoring.records NAME`."""
