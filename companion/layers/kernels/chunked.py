"""Causal attention some queries at a time: no table of all pairs for long prompts and windows (lesson 12)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from companion.layers import masks
from companion.layers.masks import Visible, visible

LEAST = 256
"""Queries at once at least, however narrow the window: many tiny products are slow."""


Kernel = Callable[..., Tensor]
"""Attention as some way computes it: (q, k, v, mask=Visible) -> what the queries take of the values."""


def in_chunks(
    kernel: Kernel,
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    seen: Visible,
) -> Float[Tensor, "batch head query d_v"]:
    """Causal attention of queries that are the last of the keys, as `kernel` computes it for a few of them over the
    keys that they can reach: there is never a table of more than about `masks.PAIRS` pairs, whatever the length."""
    queries, keys, width = q.shape[2], k.shape[2], seen.window
    at_once, before = _queries_at_once(keys, width), keys - queries
    parts = []
    for start in range(0, queries, at_once):
        some = q[:, :, start : start + at_once]
        end = max(0, before + start + some.shape[2])
        first = 0 if width is None else max(0, before + start + 1 - width)
        mask = seen.mask
        if mask is not None:
            mask = mask if mask.shape[2] == 1 else mask[:, :, start : start + at_once]
            mask = mask if mask.shape[3] == 1 else mask[..., first:end]
        shape = (*some.shape[:3], end - first)
        here = visible(mask, shape, q.device, causal=True, window=width)
        parts.append(kernel(some, k[:, :, first:end], v[:, :, first:end], mask=here))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _queries_at_once(keys: int, width: int | None) -> int:
    """With a window at least half as many as it is wide, because all read the keys before them."""
    if width is None:
        return max(1, masks.PAIRS // keys)
    return min(max(1, masks.PAIRS // min(keys, 2 * width)), max(width, LEAST))
