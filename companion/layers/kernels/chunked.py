"""Causal attention in chunks of queries, which needs no mask of all pairs for long prompts and windows (lesson 12)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from companion.layers import masks
from companion.layers.masks import AttentionMask

LEAST = 256
"""A chunk may have this many queries even if the window is narrower, because many tiny products are slow."""


Kernel = Callable[..., Tensor]
"""An implementation of attention: (q, k, v, mask=AttentionMask) -> weighted averages of the values."""


def in_chunks(
    kernel: Kernel,
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    mask: AttentionMask,
) -> Float[Tensor, "batch head query d_v"]:
    """Compute causal attention one chunk of queries at a time, using only the keys that the chunk can reach.

    At any length, no mask has more than about `masks.PAIRS` pairs.

    Args:
        kernel: Computes the attention of one chunk.
        q: Queries, the last of which is aligned with the last key, (batch, head, query, d_head).
        k: Keys, (batch, kv_head, key, d_head).
        v: Values, (batch, kv_head, key, d_v).
        mask: The causal mask, with the window of the layer if it has one.

    Returns:
        The weighted averages, (batch, head, query, d_v).
    """
    queries, keys, width = q.shape[2], k.shape[2], mask.window
    at_once, before = _queries_at_once(keys, width), keys - queries
    parts = []
    for start in range(0, queries, at_once):
        stop = min(start + at_once, queries)
        first = 0 if width is None else max(0, before + start + 1 - width)
        some, reached = slice(start, stop), slice(first, max(0, before + stop))
        here = mask.part(some, reached, q.device)
        parts.append(kernel(q[:, :, some], k[:, :, reached], v[:, :, reached], mask=here))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _queries_at_once(keys: int, width: int | None) -> int:
    """Return the number of queries in a chunk.

    A chunk has about `PAIRS` pairs. With a window, its number of queries is at most the window's width or `LEAST`,
    whichever is larger.
    """
    if width is None:
        return max(1, masks.PAIRS // keys)
    return min(max(1, masks.PAIRS // min(keys, 2 * width)), max(width, LEAST))
