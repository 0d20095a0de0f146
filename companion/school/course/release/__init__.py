"""Making a problem set: notebooks without answers, sealed keys, and the proof that nothing leaks."""
