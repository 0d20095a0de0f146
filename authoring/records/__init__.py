"""Training runs that are too long for a lesson, shipped as records. `python -m authoring.records NAME` makes one."""
