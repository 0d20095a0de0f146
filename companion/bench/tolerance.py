"""How far what others compute may be from ours before they are timed: rounding, and no more."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def difference(expected: Tensor, got: Tensor) -> float:
    """Root mean square of the difference over that of `expected`; infinite where shapes differ or numbers are not."""
    if expected.shape != got.shape:
        return float("inf")
    expected, got = expected.detach().double().cpu(), got.detach().double().cpu()
    error = float((expected - got).square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-30))
    return error if error == error else float("inf")


def differs(expected: Sequence[Tensor], got: Sequence[Tensor], whats: Sequence[str], dtype: torch.dtype) -> str | None:
    """A line about what of `got` is too far from `expected`, or `None` if rounding explains all of it."""
    most = 1e-4 if dtype == torch.float32 else 5e-2
    for a, b, what in zip(expected, got, whats, strict=False):
        if not (error := difference(a, b)) <= most:
            return f"its {what} differs from ours by {error:.1e} of its size; {most:.0e} is allowed"
    return None
