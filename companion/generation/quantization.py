"""Weights rounded to few bits: int8 with a scale a row, int4 with a scale and a middle for each group of a row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

GROUP = 32
"""Numbers that share a scale in int4."""


def in_eight_bits(weight: Float[Tensor, "*axes d_in"]) -> tuple[Int8[Tensor, "*axes d_in"], Float[Tensor, "*axes"]]:
    """The levels -127 to 127 of each row, and the row's scale (Dettmers et al. 2022, section 2.1)."""
    scale = (weight.abs().amax(-1) / 127).clamp_min(1e-12)
    return (weight / scale[..., None]).round().to(torch.int8), scale


class FourBits(NamedTuple):
    """A matrix (out, d_in) in four bits a number, and two numbers for each `GROUP` of a row: five bits in all.

    levels:         0 to 15, a byte each before they are packed, (out, d_in).
    scale, middle:  a number is (level - 8) scale + middle of its group, (out, group) in bf16, as the kernel has them.
    factor:         of each column, (d_in), by which its input is multiplied first: a power of two, in bf16. `None`: 1.
    """

    levels: Int[Tensor, "out d_in"]
    scale: Float[Tensor, "out group"]
    middle: Float[Tensor, "out group"]
    factor: Float[Tensor, "d_in"] | None = None

    def numbers(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "out d_in"]:
        """The matrix."""
        scale, middle = (part.to(dtype)[..., None] for part in (self.scale, self.middle))
        grid = ((self.levels.to(dtype).unflatten(1, (-1, GROUP)) - 8) * scale + middle).flatten(1)
        return grid if self.factor is None else grid * self.factor.to(dtype)


def in_four_bits(weight: Float[Tensor, "out d_in"]) -> FourBits:
    """Each number at the nearest of its group's 16 levels, which go from the group's least number to its largest."""
    groups = weight.unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1), groups.amax(-1)
    # In bf16, as the kernel has them, before anything is divided by them.
    scale = ((most - least) / 15).clamp_min(1e-12).to(torch.bfloat16)
    middle = (least + 8 * scale.to(weight.dtype)).to(torch.bfloat16)
    levels = nearest_level(groups, scale[..., None], middle[..., None])
    return FourBits(levels.flatten(1), scale, middle)


def nearest_level(numbers: Tensor, scale: Tensor, middle: Tensor) -> Tensor:
    """The level, 0 to 15, that is nearest to each number."""
    scale, middle = scale.to(numbers.dtype), middle.to(numbers.dtype)
    return ((numbers - middle) / scale + 8).round().clamp(0, 15).to(torch.uint8)
