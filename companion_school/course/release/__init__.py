"""Making a problem set: notebooks without answers, and sealed keys."""
