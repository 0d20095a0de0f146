"""The parts of each stage: a module for each, under the name of the stage's file."""

LAWS = ("levels", "offset", "nan", "scale", "edge", "one", "dtype", "layout", "memory", "other", "tie")
USUAL = {law: "of a usual kind" for law in LAWS}
"""The excuse of parts whose inputs are not varied: their own cases are all that they are tried on."""
