"""Tasks define what a model learns; kinds of runs differ only in their task."""
