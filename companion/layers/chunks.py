"""Causal attention some queries at a time: no mask of all pairs for long prompts and windows (lesson 12)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from companion.layers.masks import causal, materialize, window

PAIRS = 2**22
"""Most pairs of a query and a key for which causal attention makes a mask at once."""
LEAST = 256
"""Queries at once at least, however narrow the window: many tiny products are slow."""

Some = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Attention of some queries: (q, k, v, which keys each may see) -> what they take of the values."""


def in_chunks(
    some: Some,
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    width: int | None = None,
    mask: Tensor | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """Causal attention of queries that are the last of the keys, as `some` computes it for a few of them over the keys
    that they can reach: there is never a mask of more than about `PAIRS` pairs, whatever the length.

    width:  tokens that a query sees, its own included. `None`: all before it.
    mask:   who else may not look, four axes, as `attend` takes it.
    """
    queries, keys = q.shape[2], k.shape[2]
    at_once, before = _chunk(queries, keys, width), keys - queries
    parts = []
    for start in range(0, queries, at_once):
        part = q[:, :, start : start + at_once]
        end = before + start + part.shape[2]
        first = 0 if width is None else max(0, before + start + 1 - width)
        allowed = materialize(
            causal if width is None else window(width), 1, part.shape[2], end - first, device=q.device
        )
        if mask is not None:
            here = mask if mask.shape[2] == 1 else mask[:, :, start : start + at_once]
            here = here if here.shape[3] == 1 else here[..., first:end]
            allowed = _both(here, allowed)
        parts.append(some(part, k[:, :, first:end], v[:, :, first:end], allowed))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _chunk(queries: int, keys: int, width: int | None) -> int:
    """Queries at once: with a window at least half as many as it is wide, because all read the keys before them."""
    if width is None:
        return max(1, PAIRS // keys)
    at_once = max(1, PAIRS // min(keys, 2 * width))
    return min(at_once, max(width, LEAST))


def _both(mask: Tensor, allowed: Bool[Tensor, "1 1 query key"]) -> Tensor:
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)
