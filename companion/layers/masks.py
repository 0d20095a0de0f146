"""Masks, which determine the tokens that a token may attend to, as tensors and composable predicates (lessons 02 and
08).

A predicate returns, for a batch row, a head, a query position and a key position, whether the query may attend to the
key. It works on whole index grids, so the same predicate can be used in `materialize` and in PyTorch's
`flex_attention`, whose `mask_mod` has this signature. True always means *may attend*.

`visible` combines a call's mask, causality and window into what attention reads. It runs once for all layers with the
same window.
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
"""Four axes that broadcast to (batch, head, query, key). Bool: True = may attend. Float: added to scaled scores."""

GivenMask = Mask | Integer[Tensor, "#batch #head #query #key"]
"""A `Mask` as callers may pass it: the integers 1 and 0 are True and False."""

SourceMask = (
    Bool[Tensor, "#batch #head #query #source"]
    | Float[Tensor, "#batch #head #query #source"]
    | Integer[Tensor, "#batch #head #query #source"]
)
"""A `GivenMask` over the keys of a source, whose number differs from that of the keys of self-attention."""

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch index, head index, query position, key position) -> may attend, all broadcast against each other."""


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Let a token attend to itself and to earlier tokens: key <= query."""
    return key <= query


def window(width: int) -> Predicate:
    """Let a query attend to the last `width` tokens, including its own, and to nothing after it.

    Raises:
        ValueError: If width < 1.
    """
    if width < 1:
        raise ValueError(f"width={width}: expected a number of tokens >= 1, including the query's own")
    return lambda batch, head, query, key: (key <= query) & (query - key < width)


def around(width: int) -> Predicate:
    """Let a query attend to its own token and `width // 2` tokens on either side.

    Raises:
        ValueError: If width < 1.
    """
    if width < 1:
        raise ValueError(f"width={width}: expected a number of tokens >= 1, including the query's own")
    return lambda batch, head, query, key: (query - key).abs() <= width // 2


def backwards(width: int | None) -> Predicate:
    """Return `window(width)`, or `causal` if the width is `None`."""
    return causal if width is None else window(width)


def padding(lengths: Int[Tensor, "batch"]) -> Predicate:
    """Hide keys from `lengths[row]` on as padding. Padding queries are not masked, because hiding columns is enough."""
    return lambda batch, head, query, key: key < lengths[batch]


def documents(ids: Int[Tensor, "batch token"]) -> Predicate:
    """Let tokens attend only within their own document of a packed row: ids[query] == ids[key]."""
    return lambda batch, head, query, key: ids[batch, query] == ids[batch, key]


def both(*predicates: Predicate) -> Predicate:
    """Allow a pair only if every predicate allows it.

    Raises:
        ValueError: If there is no predicate.
    """
    if not predicates:
        raise ValueError("predicates: expected at least one, got none")
    return lambda *index: reduce(torch.logical_and, (p(*index) for p in predicates))


def either(*predicates: Predicate) -> Predicate:
    """Allow a pair if any predicate allows it.

    Raises:
        ValueError: If there is no predicate.
    """
    if not predicates:
        raise ValueError("predicates: expected at least one, got none")
    return lambda *index: reduce(torch.logical_or, (p(*index) for p in predicates))


def per_head(*predicates: Predicate) -> Predicate:
    """Apply the predicates to the heads in turn: head h gets predicate number h mod the number of predicates.

    Raises:
        ValueError: If there is no predicate.
    """
    if not predicates:
        raise ValueError("predicates: expected at least one, got none")

    def chosen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        turns = enumerate(predicates)
        return reduce(torch.logical_or, ((head % len(predicates) == i) & p(batch, head, query, key) for i, p in turns))

    return chosen


def every(stride: int) -> Predicate:
    """Let a query attend to its own token and each `stride`-th one before it: the long-range half of `strided`.

    Raises:
        ValueError: If stride < 1.
    """
    _check_stride(stride)
    return lambda batch, head, query, key: (key <= query) & ((query - key) % stride == 0)


def strided(stride: int) -> Predicate:
    """Combine `window(stride)` and `every(stride)` in one head: the strided pattern (Child et al. 2019).

    Use `per_head(window(stride), every(stride))` to give the two halves to alternate heads instead. In both cases, a
    query can reach any earlier token in two steps: back by a multiple of the stride, then within the window. For n
    tokens and stride sqrt(n), about 1.5 n^1.5 of the n^2 / 2 causal pairs remain: n^1.5 in the window and 0.5 n^1.5
    outside it. This is a different function from full attention, not a faster way to compute it.

    Raises:
        ValueError: If stride < 1.
    """
    _check_stride(stride)
    return either(window(stride), every(stride))


def own_block(stride: int) -> Predicate:
    """Let a query attend to itself and to earlier tokens of its block of `stride` tokens: the local half of `fixed`.

    Raises:
        ValueError: If stride < 1.
    """
    _check_stride(stride)
    return lambda batch, head, query, key: (key <= query) & (key // stride == query // stride)


def summaries(stride: int, count: int = 1) -> Predicate:
    """Let a query attend to the last `count` tokens of each block of `stride`, up to itself.

    This is the long-range half of `fixed`.

    Raises:
        ValueError: If count is not from 1 to stride.
    """
    _check_stride(stride)
    if not 1 <= count <= stride:
        raise ValueError(f"count={count}: expected between 1 and the stride {stride} tokens at the end of each block")
    return lambda batch, head, query, key: (key <= query) & (key % stride >= stride - count)


def fixed(stride: int, count: int = 1) -> Predicate:
    """Combine `own_block(stride)` and `summaries(stride, count)` in one head: the fixed pattern (Child et al. 2019).

    A query can reach any earlier token in two steps: to the end of that token's block, then back within the block. For
    n tokens, stride sqrt(n) and count 1, about n^1.5 pairs remain, half of them in the blocks and half in the
    summaries. Each further summary adds 0.5 n^1.5.

    Raises:
        ValueError: If count is not from 1 to stride.
    """
    return either(own_block(stride), summaries(stride, count))


def evaluate(
    predicate: Predicate,
    batch: int,
    heads: int,
    queries: Int[Tensor, "*batch query"],
    keys: Int[Tensor, "key"],
) -> Bool[Tensor, "#batch #head #query #key"]:
    """Evaluate a predicate at positions.

    The result has four axes. An axis that the predicate does not depend on may have length 1.

    Args:
        predicate: The predicate.
        batch: Number of rows.
        heads: Number of heads.
        queries: Positions of the queries, (query) or (batch, query).
        keys: Positions of the keys.
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
    """Evaluate a predicate to a boolean tensor (batch, heads, query, key), ready for `attend(mask=...)`.

    Args:
        predicate: The predicate.
        batch: Number of rows.
        queries: The number of queries, the last of which is aligned with the last key; or their positions, (query), or
            (batch, query) if rows are at different positions.
        keys: Number of keys, which are at positions 0 ... keys - 1.
        heads: Number of heads.
        device: Device of the result, if `queries` is a number.
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
"""Maximum number of pairs of a query and a key for which a model makes a causal mask."""


class Visible(NamedTuple):
    """A mask in the form that attention reads, made by `visible` once for all layers with the same window.

    Attributes:
        mask: Mask over pairs, in which no row is empty; `None` means that all pairs are allowed.
        empty: Queries that may attend to no key, (batch, head, query, 1), or 1 in any axis; `None` if there are
            none. In `mask` they see every key, so that their softmax and its gradient are finite, and their output is
            set to zero.
        causal: In addition to `mask`, a query sees only keys up to its own position, with the last query at the last
            key. False if `mask` already includes causality.
        window: If `causal`, the number of most recent keys that a query sees, its own included. `None` means all.
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
    """Combine a mask, causality and a window.

    Args:
        mask: A mask or a predicate. A `Visible` already includes the other arguments.
        shape: Shape of the attention, (batch, head, query, key).
        device: Device of the result.
        causal: As in `attend`.
        window: As in `attend`.
        as_table: Always write causality and the window into the mask. Otherwise they stay separate if kernels need no
            mask for them, or if it would have more than `PAIRS` pairs.
    """
    if isinstance(mask, Visible):
        if not (as_table and mask.causal):
            return mask
        mask, _, causal, window = mask
    queries, keys = shape[2:]
    causal = (causal or window is not None) and (queries > 1 or window is not None)  # a single query is the last one
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
    """Combine a mask with `around(width)`, for self-attention that is not causal; return a `Visible` unchanged."""
    if isinstance(mask, Visible):
        return mask
    places = torch.arange(shape[3], device=device)
    if mask is not None and not isinstance(mask, Tensor):
        mask = evaluate(mask, shape[0], shape[1], places, places)
    return settled(visible_and(mask, evaluate(around(width), 1, 1, places, places)))


def settled(mask: Mask | None) -> Visible:
    """Turn a mask that already includes everything into a `Visible`, without empty rows."""
    if mask is None:
        return Visible()
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        return Visible(mask | empty, empty)
    empty = (mask == -math.inf).all(-1, keepdim=True)
    return Visible(mask.masked_fill(empty, 0.0), empty)


def visible_and(mask: Mask | None, allowed: Bool[Tensor, "#batch #head #query #key"]) -> Mask:
    """Restrict `mask` to the pairs that are `allowed`."""
    if mask is None:
        return allowed
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -math.inf)


def addable(mask: Mask | None, dtype: torch.dtype) -> Mask | None:
    """Convert an additive mask to the dtype of the scores, even if its values do not fit in half precision.

    A softmax does not change if the same amount is added to all scores of a row. Therefore a row that is -10^9
    everywhere is shifted to 0 before it is rounded. Otherwise it would round to -infinity and become a row without
    keys.
    """
    if mask is None or mask.dtype in (torch.bool, dtype):
        return mask
    if torch.finfo(mask.dtype).max > torch.finfo(dtype).max:
        mask = mask - mask.detach().amax(-1, keepdim=True)
        least = torch.finfo(dtype).min / 2
        mask = mask.masked_fill((mask < least) & (mask > -math.inf), least)
    return mask.to(dtype)
