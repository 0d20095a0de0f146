"""Masks, which determine the tokens that a token may attend to, as tensors and composable predicates (lessons 02 and
08).

A predicate takes a batch row, a head, a query position and a key position, and returns whether the query may attend to
the key. It works on whole index grids, so the same predicate can be used in `materialize` and in PyTorch's
`flex_attention`, whose `mask_mod` has this signature. True always means *may attend*.

An `AttentionMask` combines a call's mask, its `causal` flag and its window. A model makes one such mask for all layers
with the same window; `attend` or a layer that is called directly makes its own.

Callers may also pass masks of the integers 1 and 0, as returned by the tokenizers of other libraries; True and 1 mean
that a token may be attended to. A floating-point `mask` is added to the scores, but a mask with only ones and zeros is
rejected, because it was probably not meant to be added. A floating-point `attention_mask` of ones and zeros is treated
like an integer one. On a GPU, the contents of a mask are checked only where it enters a model, because the check waits
for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped
from torch import Tensor

from companion.ground.arguments import checks_contents, described

Mask = Bool[Tensor, "#batch #head #query #key"] | Float[Tensor, "#batch #head #query #key"]
"""A mask that broadcasts to (batch, head, query, key): True allows attention, and floats are added to scaled scores."""

GivenMask = Mask | Integer[Tensor, "#batch #head #query #key"]
"""A `Mask` as callers may pass it, where the integers 1 and 0 also stand for True and False."""

SourceMask = (
    Bool[Tensor, "#batch #head #query #source"]
    | Float[Tensor, "#batch #head #query #source"]
    | Integer[Tensor, "#batch #head #query #source"]
)
"""A `GivenMask` over a source's keys. There may be more or fewer of them than keys in self-attention."""

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function (batch index, head index, query position, key position) -> may attend; the four broadcast together."""


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Let a token attend to itself and to earlier tokens: key <= query."""
    return key <= query


def window(width: int) -> Predicate:
    """Let a query attend to the last `width` tokens, including its own, and to no later token.

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
    """Hide the keys from index `lengths[row]` on, which are padding.

    Padding queries are not masked, because hiding columns is enough.
    """
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
    """Let a query attend to its own token and every `stride`-th token before it: the long-range half of `strided`.

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
    outside it. The strided pattern gives a different function from full attention, not a faster way to compute it.

    Raises:
        ValueError: If stride < 1.
    """
    _check_stride(stride)
    return either(window(stride), every(stride))


def own_block(stride: int) -> Predicate:
    """Let a query attend to itself and to earlier tokens in its block of `stride` tokens: the local half of `fixed`.

    Raises:
        ValueError: If stride < 1.
    """
    _check_stride(stride)
    return lambda batch, head, query, key: (key <= query) & (key // stride == query // stride)


def summaries(stride: int, count: int = 1) -> Predicate:
    """Let a query attend to the last `count` tokens of each block of `stride` tokens, up to its own position.

    These tokens are the long-range half of the pattern `fixed`.

    Raises:
        ValueError: If count is not from 1 to stride.
    """
    _check_stride(stride)
    if not 1 <= count <= stride:
        raise ValueError(f"count={count}: expected a number of tokens from 1 to the stride, {stride}")
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
        predicate: The predicate to evaluate.
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
        predicate: The predicate to evaluate.
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
"""Maximum number of query-key pairs for which a model makes a causal mask."""


class AttentionMask(NamedTuple):
    """The keys that each query may attend to, in the form that blocks, layers and kernels read.

    Attributes:
        table: Mask over pairs, in which no row is empty; `None` means that all pairs are allowed.
        empty: Queries that may attend to no key, (batch, head, query, 1), where any axis may have length 1; `None` if
            there are none. In `table`, these queries see every key, so that their softmax and its gradient are finite;
            their output is set to zero.
        causal: Whether keys after a query's own position are hidden too, where the last query is aligned with the last
            key. False if `table` already includes causality.
        window: If `causal`, the number of most recent keys that a query sees, including its own. `None` means all.
    """

    table: Mask | None = None
    empty: Bool[Tensor, "#batch #head #query 1"] | None = None
    causal: bool = False
    window: int | None = None

    @classmethod
    def of(
        cls,
        mask: Mask | Predicate | AttentionMask | None,
        shape: tuple[int, int, int, int],
        device: torch.device,
        *,
        causal: bool = False,
        window: int | None = None,
        dense: bool = False,
    ) -> AttentionMask:
        """Combine a mask with causality and a window.

        Args:
            mask: A mask or a predicate. An `AttentionMask` already includes causality and the window.
            shape: Shape of the attention, (batch, head, query, key).
            device: Device of the result.
            causal: Let a query attend only to keys up to its own position, where the last query is aligned with the
                last key.
            window: If `causal`, number of most recent keys that a query sees, including its own; otherwise width of the
                window around its own position, as in `around`.
            dense: Always write causality and the window into the table. Otherwise they stay separate if kernels need no
                table for them, or if the table would have more than `PAIRS` pairs.

        Raises:
            ValueError: If the shape of the mask does not match.
        """
        queries, keys = shape[2:]
        if isinstance(mask, AttentionMask):
            if not (dense and mask.causal):
                return mask
            table, _, causal, window = mask
        else:
            table = None if mask is None else table_of(mask, shape, torch.arange(keys - queries, keys, device=device))
        if not causal:
            near = None if window is None else materialize(around(window), 1, queries, keys, device=device)
            return cls.from_table(joined(table, near))
        if queries == 1 and window is None:  # a single query is the last one
            return cls.from_table(table)
        window = None if window is None or keys <= window else window
        needless = table is None and window is None and (queries == keys or device.type == "cuda")
        if not dense and (needless or queries * keys > PAIRS):
            return cls(table, None, True, window)
        allowed = materialize(backwards(window), 1, queries, keys, device=device)
        return cls(allowed) if table is None and queries <= keys else cls.from_table(joined(table, allowed))

    @classmethod
    def from_table(cls, table: Mask | None) -> AttentionMask:
        """Make a mask from a table that already includes causality and the window, and may have empty rows."""
        if table is None:
            return cls()
        if table.dtype == torch.bool:
            empty = ~table.any(-1, keepdim=True)
            return cls(table | empty, empty)
        empty = (table == -math.inf).all(-1, keepdim=True)
        return cls(table.masked_fill(empty, 0.0), empty)

    def part(self, queries: slice, keys: slice, device: torch.device) -> AttentionMask:
        """Return the part of a causal mask for these queries and keys; the last of each must be the same token."""
        table = None if self.table is None else cut_table(self.table, queries, keys)
        shape = (1, 1, queries.stop - queries.start, keys.stop - keys.start)
        return self.of(self._replace(table=table), shape, device, dense=True)


MaskLike = GivenMask | Predicate | AttentionMask | None
"""A mask in any form that `attend` and the layers accept."""


def as_mask(mask: MaskLike, *, anywhere: bool = False) -> Mask | Predicate | AttentionMask | None:
    """Check a caller's mask, and convert the integers 1 and 0 to booleans.

    Args:
        mask: The mask to check.
        anywhere: Check the contents even on a GPU, although this requires waiting for it.

    Raises:
        ValueError: If the mask contains other integers, is a floating-point mask of only ones and zeros, or contains
            NaN or plus infinity, which would make a softmax NaN.
    """
    if not isinstance(mask, Tensor) or mask.dtype == torch.bool:
        return mask
    if mask.is_complex():
        raise ValueError(f"mask is {described(mask)}: expected booleans, or floating-point values to add to the scores")
    if (contents := _contents(mask, anywhere)) is not None:
        least, most, ones = contents
        if mask.is_floating_point() and ones and most == 1:
            raise ValueError(
                f"mask is {described(mask)} of ones and zeros: expected booleans, as from mask.bool(), because "
                "floating-point values are added to the scores"
            )
        if math.isnan(most) or most == math.inf:
            raise ValueError(
                f"mask is {described(mask)} with values up to {most}: expected finite values to add to the scores, or "
                "-infinity for masked positions"
            )
        if not mask.is_floating_point() and not ones:
            raise ValueError(
                f"mask is {described(mask)} with values from {least} to {most}: expected 1 for visible positions and "
                "0 for masked ones; floating-point values are added to the scores"
            )
    return mask if mask.is_floating_point() else mask != 0


def check_shape(mask: Shaped[Tensor, "..."], shape: tuple[int, int, int, int]) -> None:
    """Check that a mask, which has four axes, broadcasts to `shape`, (batch, head, token, key).

    Raises:
        ValueError: If the mask does not broadcast to `shape`.
    """
    # Do not use `in`, which a compiler does not support for symbolic sizes.
    if any(got != 1 and got != wanted for got, wanted in zip(mask.shape, shape, strict=True)):
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}: expected (batch, head, token, key), {tuple(shape)}, or 1 in any axis"
        )


def table_of(mask: Mask | Predicate, shape: tuple[int, int, int, int], queries: Int[Tensor, "*batch query"]) -> Mask:
    """Check that a tensor broadcasts to `shape`, or evaluate a predicate for queries at these positions."""
    if not isinstance(mask, Tensor):
        return evaluate(mask, shape[0], shape[1], queries, torch.arange(shape[3], device=queries.device))
    check_shape(mask, shape)
    return mask


def joined(one: Mask | None, other: Mask | None) -> Mask | None:
    """Combine two masks: both must allow a pair, and floating-point masks are added."""
    if one is None or other is None:
        return other if one is None else one
    if one.dtype == torch.bool:
        one, other = other, one
    if other.dtype != torch.bool:
        return one + other
    return one & other if one.dtype == torch.bool else one.masked_fill(~other, -math.inf)


def cut_table(
    mask: Shaped[Tensor, "#batch #head #query #key"], queries: slice, keys: slice
) -> Shaped[Tensor, "#batch #head #some_query #some_key"]:
    """Return the part of a mask for some queries and keys; an axis of length 1 broadcasts and is not cut."""
    mask = mask if mask.shape[2] == 1 else mask[:, :, queries]
    return mask if mask.shape[3] == 1 else mask[..., keys]


def over_columns(
    mask: Shaped[Tensor, "*rows slot"], first: int, end: int, slots: int, gone: Int[Tensor, "batch"] | None
) -> Shaped[Tensor, "*rows column"]:
    """Convert a mask over `slots` slots to one over columns `first` to `end`, where column c is slot c + gone."""
    if mask.shape[-1] == 1 or (gone is None and end - first == mask.shape[-1]):
        return mask
    if gone is None:
        return mask[..., first:end]
    column = torch.arange(first, end, device=mask.device)
    slot = (column + gone[:, None]).clamp(max=slots - 1)  # later columns are in no window
    return mask.expand(len(slot), *mask.shape[1:]).take_along_dim(slot[:, None, None], dim=-1)


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


def padding_of(attention_mask: object, axes: str = "(batch, key)") -> Bool[Tensor, "..."]:
    """Convert an attention mask of any type to a boolean one, which is true for tokens that are not padding.

    Raises:
        ValueError: If it is not a tensor, or contains numbers other than 0 and 1. A floating-point mask of only zeros
            is rejected too: it may be meant as an additive mask, which would hide nothing.
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.is_complex():
        raise ValueError(
            f"attention_mask={described(attention_mask)}: expected a tensor, {axes}, with True for tokens that "
            "are not padding"
        )
    if attention_mask.dtype == torch.bool:
        return attention_mask
    if (contents := _contents(attention_mask, anywhere=True)) is not None:
        least, most, ones = contents
        if not ones:
            raise ValueError(
                f"attention_mask is {described(attention_mask)} with values from {least:g} to {most:g}: expected 1 for "
                "tokens that are not padding, 0 for padding"
            )
        if attention_mask.is_floating_point() and most == 0:
            raise ValueError(
                f"attention_mask is {described(attention_mask)} and all zero: expected True for tokens that are not "
                "padding; zeros added to the scores would mask nothing"
            )
    return attention_mask != 0


def token_mask_of(
    token_mask: object,
    tokens: Int[Tensor, "batch token"],
    attention_mask: Shaped[Tensor, "..."] | None,
    *,
    causal: bool,
) -> Bool[Tensor, "batch token"] | None:
    """Convert `token_mask`, a token mask used in place of `attention_mask`, to a boolean mask; return `None` unchanged.

    Raises:
        ValueError: If `attention_mask` is given too, the stack is not causal, or the shape differs from the shape of
            the tokens.
    """
    if token_mask is None:
        return None
    if attention_mask is not None or not causal:
        raise ValueError("token_mask is only for a decoder, where it is used instead of attention_mask")
    if not isinstance(token_mask, Tensor) or token_mask.shape != tokens.shape:
        raise ValueError(f"token_mask={described(token_mask)}: expected {tuple(tokens.shape)}, one for each token")
    return padding_of(token_mask, "(batch, token)")


def _contents(tensor: Tensor, anywhere: bool) -> tuple[float, float, bool] | None:
    """Return the smallest and the largest element of a tensor, and whether all elements are 0 or 1.

    Return `None` if the contents of this tensor are not checked.
    """
    if not checks_contents(tensor, anywhere):
        return None
    usual = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64)
    numbers = tensor.detach()
    if tensor.dtype not in usual:
        numbers = numbers.float() if tensor.is_floating_point() else numbers.long()
    least, most = (end.item() for end in torch.aminmax(numbers))
    return least, most, least in (0, 1) and most in (0, 1) and bool(((numbers == 0) | (numbers == 1)).all())
