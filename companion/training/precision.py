"""The precision in which products are computed, and seeds that belong to a purpose."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 matrix products for `"bf16"`, nothing for `"fp32"`."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def derived_seed(*numbers: int) -> int:
    """A 64-bit seed from several whole numbers; near numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
