"""Problem sets to hand out: notebooks without answers, and sealed keys."""
