"""What a model costs: parameters, FLOPs and bytes, on which chips, and on how many of them.

account   parameters, FLOPs and bytes, counted from a configuration
chips     what a chip can do: published, and measured on this machine
sizing    what training and serving need, and what fits where
tables    the same as text for a terminal
"""

from companion.costs import account, chips, sizing

__all__ = ["account", "chips", "sizing"]
