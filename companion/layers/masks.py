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


def per_head(*predicates: Predicate) -> Predicate:
    """Head h follows predicate h mod the number of predicates: 0, 1, 0, 1, ... for two.

    Raises `ValueError` if there is none.
    """
    if not predicates:
        raise ValueError("predicates: expected at least one, got none")

    def chosen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        turns = enumerate(predicates)
        return reduce(torch.logical_or, ((head % len(predicates) == i) & p(batch, head, query, key) for i, p in turns))

    return chosen


def every(stride: int) -> Predicate:
    """The query's own token and each `stride`-th before it: the far-reaching half of `strided`.

    Raises `ValueError` unless stride >= 1.
    """
    _check_stride(stride)
    return lambda batch, head, query, key: (key <= query) & ((query - key) % stride == 0)


def strided(stride: int) -> Predicate:
    """The strided pattern (Child et al. 2019): `window(stride)` or `every(stride)`, in one head.

    With `per_head(window(stride), every(stride))` the two halves go to alternate heads instead. Either way two steps
    lead from a query to any token before it: back by a multiple of the stride, then within the window. For n tokens
    and stride sqrt(n), about 1.5 n^1.5 pairs are left of the n^2 / 2 that are causal: n^1.5 in the window, 0.5 n^1.5
    outside it. Another function than full attention, not a faster way to the same one.

    Raises `ValueError` unless stride >= 1.
    """
    _check_stride(stride)
    return either(window(stride), every(stride))


def own_block(stride: int) -> Predicate:
    """What came before the query in its own block of `stride` tokens, and itself: the near half of `fixed`.

    Raises `ValueError` unless stride >= 1.
    """
    _check_stride(stride)
    return lambda batch, head, query, key: (key <= query) & (key // stride == query // stride)


def summaries(stride: int, count: int = 1) -> Predicate:
    """The last `count` tokens of each block of `stride`, up to the query: the far-reaching half of `fixed`.

    Raises `ValueError` unless 1 <= count <= stride.
    """
    _check_stride(stride)
    if not 1 <= count <= stride:
        raise ValueError(f"count={count}: expected between 1 and the stride {stride} tokens at the end of each block")
    return lambda batch, head, query, key: (key <= query) & (key % stride >= stride - count)


def fixed(stride: int, count: int = 1) -> Predicate:
    """The fixed pattern (Child et al. 2019): `own_block(stride)` or `summaries(stride, count)`, in one head.

    Two steps lead from a query to any token before it: to the end of that token's block, then back within the block.
    For n tokens, stride sqrt(n) and count 1 about n^1.5 pairs are left: half in the blocks, half in the summaries, and
    another 0.5 n^1.5 for each further summary.

    Raises `ValueError` unless 1 <= count <= stride.
    """
    return either(own_block(stride), summaries(stride, count))


def evaluate(
    predicate: Predicate,
    batch: int,
    heads: int,
    queries: Int[Tensor, "*batch query"],
    keys: Int[Tensor, "key"],
) -> Bool[Tensor, "#batch #head #query #key"]:
    """The predicate at these positions, four axes long; an axis that it does not depend on may stay 1.

    queries:  positions, (query) or (batch, query).
    keys:     positions.
    """
    rows = torch.arange(batch, device=queries.device).view(-1, 1, 1, 1)
    head = torch.arange(heads, device=queries.device).view(1, -1, 1, 1)
    return predicate(rows, head, queries.reshape(-1, 1, queries.shape[-1], 1), keys.view(1, 1, 1, -1))


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
    allowed = evaluate(predicate, batch, heads, positions, torch.arange(keys, device=device))
    return allowed.expand(batch, heads, positions.shape[-1], keys)


def _check_stride(stride: int) -> None:
    if stride < 1:
        raise ValueError(f"stride={stride}: expected a number of tokens >= 1")
