"""`companion selftest`: a training run is killed again and again, and must end with the same weights, bit for bit."""
