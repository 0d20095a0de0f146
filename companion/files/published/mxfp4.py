"""Dequantize MXFP4 weights, which take four bits each, as in gpt-oss (lesson 19)."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of e2m1, which has a sign, two bits of exponent and one of mantissa. Codes 8 to 15 are negative."""
BIAS = 127
"""The exponent bias of a scale, which is stored in e8m0."""


def dequantized(
    blocks: UInt8[Tensor, "expert row block byte"], scales: UInt8[Tensor, "expert row block"], dtype: torch.dtype
) -> Float[Tensor, "expert column row"]:
    """Return the dequantized matrices, transposed.

    Each row is stored in blocks of 32 elements that share a scale (Open Compute Project 2023, Microscaling formats,
    sections 5 and 6). Element i of a block is LEVELS[code_i] 2^(scale - 127). A byte holds two codes, with the first
    one in the lower half. The result is exact in bf16 and in fp32.
    """
    experts, rows, count, width = blocks.shape
    made = torch.empty(experts, 2 * count * width, rows, dtype=dtype, device=blocks.device)
    if made.is_meta:
        return made
    levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], dtype=dtype, device=blocks.device)
    for matrix, packed, exponents in zip(made, blocks, scales, strict=True):  # one expert at a time, to save memory
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()
        matrix.copy_(torch.ldexp(levels[codes], exponents[..., None].int() - BIAS).flatten(-2).T)
    return made
