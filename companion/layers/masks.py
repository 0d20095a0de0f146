"""Masks: who may look at whom, as predicates that combine (lessons 02 and 08).

A predicate answers, for a batch row, a head, a query position and a key position, whether the query may look at the
key. It is written once and works on whole index grids, so the same predicate serves `materialize` here and PyTorch's
`flex_attention`, whose `mask_mod` has this signature. True always means *may look*.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch index, head index, query position, key position) -> may look, all broadcast against each other."""


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A token sees itself and what came before it: key <= query."""
    return key <= query


def window(width: int) -> Predicate:
    """The last `width` tokens up to and including the query's own, and nothing after it.

    Raises `ValueError` unless width >= 1.
    """
    if width < 1:
        raise ValueError(f"width={width}: expected a number of tokens >= 1, the query's own included")
    return lambda batch, head, query, key: (key <= query) & (query - key < width)


def padding(lengths: Int[Tensor, "batch"]) -> Predicate:
    """Keys from `lengths[row]` on are padding and hidden; query rows are left alone (they hide columns, not rows)."""
    return lambda batch, head, query, key: key < lengths[batch]


def documents(ids: Int[Tensor, "batch token"]) -> Predicate:
    """Tokens of different documents packed in one row do not see each other: ids[query] == ids[key]."""
    return lambda batch, head, query, key: ids[batch, query] == ids[batch, key]


def both(*predicates: Predicate) -> Predicate:
    """May look only if every predicate says so. Raises `ValueError` if there is none."""
    if not predicates:
        raise ValueError("predicates: expected at least one, got none")
    return lambda *index: reduce(torch.logical_and, (p(*index) for p in predicates))


def either(*predicates: Predicate) -> Predicate:
    """May look if any predicate says so. Raises `ValueError` if there is none."""
    if not predicates:
        raise ValueError("predicates: expected at least one, got none")
    return lambda *index: reduce(torch.logical_or, (p(*index) for p in predicates))


def materialize(
    predicate: Predicate,
    batch: int,
    queries: int | Int[Tensor, "*batch query"],
    keys: int,
    *,
    heads: int = 1,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "batch head query key"]:
    """The predicate as a boolean tensor (batch, heads, query, key), ready for `attend(mask=...)`.

    queries:  how many queries there are, the last of them aligned with the last key; or their positions, (query) or
              (batch, query), when rows stand at different places.
    keys:     how many keys there are, at positions 0 ... keys - 1.
    """
    if isinstance(queries, int):
        positions = torch.arange(keys - queries, keys, device=device)
    else:
        positions, device = queries, queries.device
    positions = positions.reshape(-1, 1, positions.shape[-1], 1)
    rows = torch.arange(batch, device=device).view(-1, 1, 1, 1)
    head = torch.arange(heads, device=device).view(1, -1, 1, 1)
    key = torch.arange(keys, device=device).view(1, 1, 1, -1)
    return predicate(rows, head, positions, key).expand(batch, heads, positions.shape[-2], keys)
