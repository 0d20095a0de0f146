"""The frequencies that positions turn at, and how they are slowed down for longer texts (lessons 04 and 05)."""

from __future__ import annotations

import math
import sys

import torch
from jaxtyping import Float
from torch import Tensor

from companion.config.groups import RotaryScaling


def frequencies(width: int, base: float | Tensor, like: Tensor) -> Float[Tensor, "*rows pair"]:
    """omega_i = base^(-2i / width) for i = 0 ... width/2 - 1: one frequency for each pair of components, in the dtype
    and on the device of `like`."""
    exponent = torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width
    return base**-exponent


def scaled_frequencies(
    width: int, base: float, scaling: RotaryScaling, places: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*rows pair"]:
    """The frequencies by the equations of `RotaryScaling`, for tokens at these positions (floating, of the dtype that
    angles are computed in). Those of `"dynamic"` are (batch, 1, pair) where rows have positions of their own."""
    if scaling.kind == "dynamic":
        return frequencies(width, _larger_base(width, base, scaling, places), places)
    omega = frequencies(width, base, places)
    if scaling.kind == "linear":
        return omega / scaling.factor
    if scaling.kind == "yarn":
        kept = _kept_by_pair(width, base, scaling, omega)
    else:
        assert scaling.original is not None
        slow, fast = scaling.ramp
        turns = scaling.original * omega / (2 * math.pi)
        kept = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return (1 - kept) * omega / scaling.factor + kept * omega


def _larger_base(
    width: int, base: float, scaling: RotaryScaling, places: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*rows 1"]:
    """The base for a text as long as the furthest position of each row says. It stays on the device."""
    assert scaling.original is not None
    length = (places.amax(-1, keepdim=True) + 1).clamp(min=scaling.original)
    stretch = scaling.factor * length / scaling.original - (scaling.factor - 1)
    larger = base * stretch ** (width / (width - 2)) if width > 2 else base + 0 * stretch  # one pair: omega is 1
    return larger[..., None] if places.ndim > 1 else larger


def _kept_by_pair(width: int, base: float, scaling: RotaryScaling, omega: Tensor) -> Float[Tensor, "pair"]:
    """The share of each pair's frequency that yarn leaves alone: a ramp in the number of the pair (Peng et al. 2023,
    section 3.2, with the ramp of the released code, which is linear in the pair and not in its turns).

    omega_j = base^(-2j / width) makes t turns in C tokens where j = width ln(C / (2 pi t)) / (2 ln base).
    """
    assert scaling.original is not None
    slow, fast = scaling.ramp
    least, most = sys.float_info.min, sys.float_info.max  # a logarithm of 0 or of infinity would be no place
    ratios = (min(max(scaling.original / (2 * math.pi * turns), least), most) for turns in (fast, slow))
    first, last = (width * math.log(ratio) / (2 * math.log(base)) for ratio in ratios)
    if scaling.whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    pair = torch.arange(width // 2, device=omega.device, dtype=omega.dtype)
    return 1 - ((pair - first) / (last - first or 0.001)).clamp(0, 1)


def magnitude_of(scaling: RotaryScaling) -> float:
    """By how much turning also stretches queries and keys: sqrt(1 / t) of Peng et al. 2023, eq. 22; 1 but for yarn."""
    if scaling.kind != "yarn":
        return 1.0
    return 0.1 * math.log(scaling.factor) + 1 if scaling.magnitude is None else scaling.magnitude
