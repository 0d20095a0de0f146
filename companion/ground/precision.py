"""The precision of sums and exponentials, which is fp32 or wider because half precision is too coarse."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return fp32 for a half-precision dtype; return fp32 and fp64 unchanged."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Convert `x` to fp32; return the same tensor if it is already fp32 or wider."""
    return x.to(wide_dtype(x.dtype))
