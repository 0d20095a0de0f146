"""Configurations of models: frozen, validated values that can be stored as JSON.

model            the configuration of a model, and its groups
parameter_count  the number of parameters of a model, and whether this machine could hold them
"""
