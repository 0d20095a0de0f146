"""The parts of each stage, in a module named after the stage's file."""

LAWS = ("levels", "offset", "nan", "scale", "edge", "one", "dtype", "layout", "memory", "other", "tie")
USUAL = {law: "only ordinary inputs are required" for law in LAWS}
"""Value of `excused` for parts whose inputs are not varied, so that only their own cases are tested."""
