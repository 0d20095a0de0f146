"""Costs of a model: parameters, FLOPs and bytes, and the chips that it needs.

account   parameters, FLOPs and bytes, computed from a configuration
chips     limits of a chip, published or measured on this machine
sizing    what training and serving need, and which machines have room for it
tables    the same figures as text for a terminal
"""

from companion.costs import account, chips, sizing

__all__ = ["account", "chips", "sizing"]
