"""Problem sets for students: notebooks without answers, and sealed keys."""
