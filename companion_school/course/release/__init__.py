"""Problem sets for students: notebooks without answers, and the sealed keys that check them."""
