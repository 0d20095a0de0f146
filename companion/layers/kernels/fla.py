"""The gated delta rule with the kernels of flash-linear-attention (Yang and Zhang 2024), which need a GPU.

The kernels compute in half precision and do not return what each token wrote, so they are used in training and in calls
without a cache. `companion.layers.linear_attention` does everything else, including the variants that the kernels do
not support.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Callable[..., tuple[Tensor, Any]]


@cache
def kernels() -> tuple[Kernel, Kernel] | None:
    """Return the kernels for a decay per head and for a decay per channel; `None` if the library is not installed."""
    if find_spec("fla") is None:
        return None
    by_head = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    return by_head, import_module("fla.ops.kda").chunk_kda


def serves(x: Tensor) -> bool:
    """Return whether the kernels support this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def by_library(
    q: Float[Tensor, "batch head token d_head"],
    k: Float[Tensor, "batch head token d_head"],
    v: Float[Tensor, "batch head token d_v"],
    log_decay: Float[Tensor, "batch head token #d_head"] | None,
    strength: Float[Tensor, "batch head token"] | None,
) -> Float[Tensor, "batch head token d_v"] | None:
    """Compute the `out` of `recurrence` for q, k and v in half precision.

    Returns `None` if these kernels do not support the call.
    """
    if log_decay is None or strength is None or not all(map(serves, (q, k, v))):
        return None
    found = kernels()
    if found is None:
        return None
    q, k, v, log_decay = (x.transpose(1, 2).contiguous() for x in (q, k, v, log_decay))  # (batch, token, head, ...)
    by_head, by_channel = found
    one = log_decay.shape[-1] == 1
    asked = {"g": log_decay[..., 0] if one else log_decay, "beta": strength.transpose(1, 2).contiguous(), "scale": 1.0}
    out, _ = (by_head if one else by_channel)(q, k, v, **asked, output_final_state=False)
    return out.transpose(1, 2)
