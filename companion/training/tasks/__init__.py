"""Tasks define what a model learns; they are the only difference between kinds of runs."""
