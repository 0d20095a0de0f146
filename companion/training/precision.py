"""Precision of matrix products in training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

PRECISIONS = ("fp32", "tf32", "bf16")
"""Precisions of matrix products in training."""


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context for matrix products in this precision.

    The context uses bfloat16 for `"bf16"` and `tf32` for `"tf32"`, and changes nothing for `"fp32"`.
    """
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return tf32(precision)


@contextlib.contextmanager
def tf32(precision: str) -> Iterator[None]:
    """If `precision` is `"tf32"`, use TensorFloat-32 for fp32 matrix products on a CUDA GPU in the `with` block.

    The setting applies to both the forward and the backward pass. Factors are then rounded to 8 exponent bits and 10
    mantissa bits, which makes products several times as fast. For other precisions and devices, nothing changes.
    """
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = before or precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32 = before
