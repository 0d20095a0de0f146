"""The references of stages that are not in `companion/page.py`, as plain files that import each other."""
