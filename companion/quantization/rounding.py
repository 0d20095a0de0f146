"""Weight quantization: int8 with one scale per row, or int4 with a scale and a zero point per group of elements."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

GROUP = 32
"""Number of elements that share a scale in int4."""


def in_eight_bits(weight: Float[Tensor, "*axes d_in"]) -> tuple[Int8[Tensor, "*axes d_in"], Float[Tensor, "*axes"]]:
    """Quantize each row to the values -127 to 127 (Dettmers et al. 2022, section 2.1).

    Returns:
        The quantized values, and the scale of each row.
    """
    scale = (weight.abs().amax(-1) / 127).clamp_min(1e-12)
    return (weight / scale[..., None]).round().to(torch.int8), scale


class FourBits(NamedTuple):
    """A matrix (out, d_in) quantized to four bits per element.

    Including the two parameters of each group, an element takes five bits.

    Attributes:
        levels: quantized values from 0 to 15, (out, d_in), which take one byte each until they are packed.
        scale, middle: an element is (level - 8) scale + middle, with the scale and middle of its group; both are
            (out, group) in bf16, as in the kernel.
        factor: (d_in), powers of two in bf16 that multiply the inputs of the columns before the product. `None` means
            that all factors are 1.
    """

    levels: Int[Tensor, "out d_in"]
    scale: Float[Tensor, "out group"]
    middle: Float[Tensor, "out group"]
    factor: Float[Tensor, "d_in"] | None = None

    def numbers(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "out d_in"]:
        """Dequantize the matrix."""
        scale, middle = (part.to(dtype)[..., None] for part in (self.scale, self.middle))
        grid = ((self.levels.to(dtype).unflatten(1, (-1, GROUP)) - 8) * scale + middle).flatten(1)
        return grid if self.factor is None else grid * self.factor.to(dtype)


def in_four_bits(weight: Float[Tensor, "out d_in"]) -> FourBits:
    """Quantize each element to the nearest of its group's 16 levels, which span the group's minimum to its maximum."""
    groups = weight.unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1), groups.amax(-1)
    # Round to bf16 first, as the kernel does, because the elements are divided by these.
    scale = ((most - least) / 15).clamp_min(1e-12).to(torch.bfloat16)
    middle = (least + 8 * scale.to(weight.dtype)).to(torch.bfloat16)
    levels = nearest_level(groups, scale[..., None], middle[..., None])
    return FourBits(levels.flatten(1), scale, middle)


def nearest_level(numbers: Tensor, scale: Tensor, middle: Tensor) -> Tensor:
    """Return the level from 0 to 15 that is nearest to each element."""
    scale, middle = scale.to(numbers.dtype), middle.to(numbers.dtype)
    return ((numbers - middle) / scale + 8).round().clamp(0, 15).to(torch.uint8)
