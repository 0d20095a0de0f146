"""What a model is, as frozen values that travel as JSON.

model            the configuration of a model, and its groups
parameter_count  how many numbers a model learns, and whether this machine could hold them
"""
