"""Tasks, which define what a model learns and are the only difference between kinds of runs."""
