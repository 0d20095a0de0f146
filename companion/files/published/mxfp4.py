"""Weights in MXFP4, four bits each, as gpt-oss is released, made into the numbers that they stand for (lesson 19)."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of e2m1: a sign, two bits of exponent, one of mantissa. Codes from 8 on are the same with a minus."""
BIAS = 127
"""What is taken off the exponent of a scale, e8m0."""


def dequantized(
    blocks: UInt8[Tensor, "expert row block byte"], scales: UInt8[Tensor, "expert row block"], dtype: torch.dtype
) -> Float[Tensor, "expert column row"]:
    """The matrices, transposed, of which a row lies there in blocks of 32 numbers with a common scale (Open Compute
    Project 2023, Microscaling formats, sections 5 and 6): number i of a block is LEVELS[code_i] 2^(scale - 127).

    A byte holds two codes, the first in its lower half. In bf16 and fp32 nothing is rounded.
    """
    experts, rows, count, width = blocks.shape
    made = torch.empty(experts, 2 * count * width, rows, dtype=dtype, device=blocks.device)
    if made.is_meta:
        return made
    levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], dtype=dtype, device=blocks.device)
    for matrix, packed, exponents in zip(made, blocks, scales, strict=True):  # one expert at a time: codes take room
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()
        matrix.copy_(torch.ldexp(levels[codes], exponents[..., None].int() - BIAS).flatten(-2).T)
    return made
