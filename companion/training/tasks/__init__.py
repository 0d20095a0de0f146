"""Tasks: what a model learns, which is the only thing that differs between runs."""
