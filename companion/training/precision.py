"""The precision in which products are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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
