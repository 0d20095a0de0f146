"""The precision in which products are computed, and seeds that belong to a purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

PRECISIONS = ("fp32", "tf32", "bf16")
"""Of matrix products in training."""


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 matrix products for `"bf16"`, those of `tf32` for `"tf32"`, nothing for `"fp32"`."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return tf32(precision)


@contextlib.contextmanager
def tf32(precision: str) -> Iterator[None]:
    """For `"tf32"`: fp32 matrix products of a CUDA GPU take factors rounded to TensorFloat-32 in this block, forward
    and backward: 8 bits of exponent, 10 behind the point, several times as fast. For others, and elsewhere, nothing."""
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = before or precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = before


def derived_seed(*numbers: int) -> int:
    """A 64-bit seed from several whole numbers; near numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
