"""Masks: who may look at whom, as tables of pairs and as predicates that combine (lessons 02 and 08).

A predicate answers, for a batch row, a head, a query position and a key position, whether the query may look at the
key. It is written once and works on whole index grids, so the same predicate serves `materialize` here and PyTorch's
`flex_attention`, whose `mask_mod` has this signature. True always means *may look*.

`visible` makes of all that is said about a call (a mask, causality, a window) what attention reads: once, however many
layers see alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

Mask = Bool[Tensor, "#batch #head #query #key"] | Float[Tensor, "#batch #head #query #key"]
"""Four axes that broadcast to (batch, head, query, key). Bool: True = may look. Float: added to scaled scores."""

GivenMask = Mask | Integer[Tensor, "#batch #head #query #key"]
"""A `Mask` as callers may say it: whole numbers 1 and 0 are True and False."""

SourceMask = (
    Bool[Tensor, "#batch #head #query #source"]
    | Float[Tensor, "#batch #head #query #source"]
    | Integer[Tensor, "#batch #head #query #source"]
)
"""A `GivenMask` over the keys of a source, of which there are not as many as in the mask beside it."""

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


def around(width: int) -> Predicate:
    """The query's own token and `width // 2` tokens on either side. Raises `ValueError` unless width >= 1."""
    if width < 1:
        raise ValueError(f"width={width}: expected a number of tokens >= 1, the query's own included")
    return lambda batch, head, query, key: (query - key).abs() <= width // 2


def backwards(width: int | None) -> Predicate:
    """`window(width)`; `causal` where the width is `None`."""
    return causal if width is None else window(width)


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
    if isinstance(queries, Tensor):
        positions, device = queries, queries.device
    else:
        positions = torch.arange(keys - queries, keys, device=device)
    allowed = evaluate(predicate, batch, heads, positions, torch.arange(keys, device=device))
    return allowed.expand(batch, heads, positions.shape[-1], keys)


def _check_stride(stride: int) -> None:
    if stride < 1:
        raise ValueError(f"stride={stride}: expected a number of tokens >= 1")


PAIRS = 2**22
"""Most pairs of a query and a key for which a model makes a table of causality at once."""


class Visible(NamedTuple):
    """Who may look at whom, as attention reads it: made once by `visible` for all layers that see alike.

    mask:    of the pairs, in which no row is empty; `None`: all of them.
    empty:   queries that may look nowhere, (batch, head, query, 1) or 1 in place; `None`: there are none. In `mask`
             they see every key, so that their softmax and its gradient are finite, and their output is set to zero.
    causal:  whether a query sees besides only keys up to its own place, the last query at the last key. Where `mask`
             says that already it is False.
    window:  and of these how many, the last its own. `None`: all.
    """

    mask: Mask | None = None
    empty: Bool[Tensor, "#batch #head #query 1"] | None = None
    causal: bool = False
    window: int | None = None


def visible(
    mask: Mask | Predicate | Visible | None,
    shape: tuple[int, int, int, int],
    device: torch.device,
    *,
    causal: bool = False,
    window: int | None = None,
    as_table: bool = True,
) -> Visible:
    """What a mask, causality and a window permit together, for attention of that shape, (batch, head, query, key);
    what is a `Visible` already says that itself.

    as_table:  whether causality and the window are always written into the mask. Otherwise they stay beside it where
               kernels need no table, or where it would have more than `PAIRS` pairs.
    """
    if isinstance(mask, Visible):
        if not (as_table and mask.causal):
            return mask
        mask, _, causal, window = mask
    queries, keys = shape[2:]
    causal = (causal or window is not None) and (queries > 1 or window is not None)  # a last query alone sees all
    window = None if window is None or keys <= window else window
    if mask is not None and not isinstance(mask, Tensor):
        places = torch.arange(keys - queries, keys, device=device)
        mask = evaluate(mask, shape[0], shape[1], places, torch.arange(keys, device=device))
    if not causal:
        return settled(mask)
    no_table = mask is None and window is None and (queries == keys or device.type == "cuda")
    if not as_table and (no_table or queries * keys > PAIRS):
        return Visible(mask, None, True, window)
    allowed = materialize(backwards(window), 1, queries, keys, device=device)
    return Visible(allowed) if mask is None and queries <= keys else settled(visible_and(mask, allowed))


def visible_around(
    mask: Mask | Predicate | Visible | None, shape: tuple[int, int, int, int], device: torch.device, width: int
) -> Visible:
    """What a mask permits of the keys that `around(width)` shows a query, for self-attention that is not causal; a
    `Visible` already says that itself."""
    if isinstance(mask, Visible):
        return mask
    places = torch.arange(shape[3], device=device)
    if mask is not None and not isinstance(mask, Tensor):
        mask = evaluate(mask, shape[0], shape[1], places, places)
    return settled(visible_and(mask, evaluate(around(width), 1, 1, places, places)))


def settled(mask: Mask | None) -> Visible:
    """A mask that says all there is to say, without its empty rows."""
    if mask is None:
        return Visible()
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        return Visible(mask | empty, empty)
    empty = (mask == -math.inf).all(-1, keepdim=True)
    return Visible(mask.masked_fill(empty, 0.0), empty)


def visible_and(mask: Mask | None, allowed: Bool[Tensor, "#batch #head #query #key"]) -> Mask:
    """What `mask` permits of what is `allowed`."""
    if mask is None:
        return allowed
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -math.inf)


def addable(mask: Mask | None, dtype: torch.dtype) -> Mask | None:
    """A mask for scores of that dtype: numbers to add become it, where half precision could not hold them, too.

    A softmax does not change where a row's scores all grow alike. So a row that is -10^9 everywhere is brought to 0
    before it is rounded, and not to the -infinity that would make of it a row without keys.
    """
    if mask is None or mask.dtype in (torch.bool, dtype):
        return mask
    if torch.finfo(mask.dtype).max > torch.finfo(dtype).max:
        mask = mask - mask.detach().amax(-1, keepdim=True)
        least = torch.finfo(dtype).min / 2
        mask = mask.masked_fill((mask < least) & (mask > -math.inf), least)
    return mask.to(dtype)
