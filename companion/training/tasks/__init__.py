"""What a run learns: a task is the one thing that differs between runs."""
