"""Sliding-window attention: `attend` with `masks.window`, in O(n w) operations and memory for n tokens (lesson 12)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from companion.ground.annotations import checked
from companion.ground.arguments import heads_fit
from companion.ground.fields import require_share, require_whole
from companion.layers.attention import attend


def _fits(given: dict[str, Any]) -> None:
    """Check the conditions that the annotations of `sliding_window_attention` cannot express."""
    heads_fit(given)
    require_whole("width", given["width"])
    require_share("dropout", given.get("dropout", 0.0))
    if given.get("block") is not None:
        require_whole("block", given["block"])


@checked(fits=_fits)
def sliding_window_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    width: int,
    *,
    dropout: float = 0.0,
    block: int | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """Compute `attend(q, k, v, mask=window(width))` only along the band (Beltagy et al. 2020; lesson 12).

    The b queries of a block together see b + width - 1 keys, and the keys of all blocks are overlapping views of the
    sequence. At any length, a query therefore costs 2 (b + width - 1) (d_head + d_v) floating-point operations per
    head: O(query width) in total.

    Args:
        q: Queries, (batch, head, query, d_head).
        k: Keys, (batch, kv_head, key, d_head).
        v: Values, (batch, kv_head, key, d_v).
        width: Number of tokens that a query sees, including its own; the last query is aligned with the last key.
        dropout: Probability of dropping a weight, as in `attend`.
        block: Number of queries in a block; default: the width, but at least 32, because many tiny products are slow.

    Returns:
        The weighted averages, (batch, head, query, d_v).

    Raises:
        ValueError: If width or block is below 1, or the number of query heads is not a multiple of the number of key
            heads.
    """
    if block is None:
        block = max(width, 32)
    batch, n = q.shape[0], q.shape[2]
    if n == 0:
        return attend(q, k, v, dropout=dropout)
    block = min(block, n)
    blocks = -(-n // block)
    span = block + width - 1
    # Pad so that query i sees keys i ... i + width - 1: in front as far as query 0 looks back, and at the end up to a
    # whole number of blocks.
    behind = blocks * block - n
    front = n + width - 1 - k.shape[2]  # negative if no query reaches the first keys, which are then cut off
    q = F.pad(q, (0, 0, 0, behind))
    k, v = (F.pad(x, (0, 0, front, behind)).unfold(2, span, block).transpose(-2, -1) for x in (k, v))
    q = q.unflatten(2, (blocks, block))
    row = torch.arange(block, device=q.device).view(1, 1, block, 1)
    column = torch.arange(span, device=q.device).view(1, 1, 1, span)
    start = block * torch.arange(blocks, device=q.device).view(-1, 1, 1, 1)
    allowed = (column >= row) & (column < row + width) & (start + column >= front)
    out = attend(*(_blocks_as_rows(x) for x in (q, k, v)), mask=allowed.repeat(batch, 1, 1, 1), dropout=dropout)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :n]


def _blocks_as_rows(x: Float[Tensor, "batch head block token wide"]) -> Float[Tensor, "batch_block head token wide"]:
    return x.transpose(1, 2).flatten(0, 1)
