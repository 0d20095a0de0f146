"""The precision that sums and exponentials are computed in: fp32 or better, since half precision is too coarse."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32 for half precision; fp32 and fp64 as they are."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """`x` in fp32 or better; the same tensor where it already is."""
    return x.to(wide_dtype(x.dtype))
