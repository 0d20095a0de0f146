"""Costs of a model: parameters, FLOPs and bytes, and the chips that it needs.

account   parameters, FLOPs and bytes, counted from a configuration
chips     limits of a chip: published, and measured on this machine
sizing    what training and serving need, and what fits where
tables    the same as text for a terminal
"""

from companion.costs import account, chips, sizing

__all__ = ["account", "chips", "sizing"]
