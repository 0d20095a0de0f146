"""Tiled attention, which computes the function of `attend` in memory that grows linearly with the length (lesson 12).

With n tokens and h heads of width d, the formula of `attend(backend="reference")` takes 4 n^2 d h floating-point
operations and stores h n^2 weights for its backward pass. Tiles take the same number of operations and store none of
the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from companion.ground.annotations import checked
from companion.ground.arguments import heads_fit
from companion.ground.fields import require
from companion.ground.precision import wide, wide_dtype
from companion.layers.attention import attend
from companion.layers.masks import Predicate, both, cut_table, evaluate
from companion.layers.masks import causal as causal_predicate


def _fits(given: dict[str, Any]) -> None:
    """Check the conditions that the annotations of `tiled_attention` cannot express."""
    heads_fit(given)
    tile = given.get("tile", (1, 1))
    require(min(tile) >= 1, "tile", tile, "at least one query and one key")


@checked(fits=_fits)
def tiled_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: Bool[Tensor, "#batch #head #query #key"] | Predicate | None = None,
    causal: bool = False,
    tile: tuple[int, int] = (128, 128),
) -> Float[Tensor, "batch head query d_v"]:
    """Compute softmax(q k^T / sqrt(d_head)) v, one tile of the scores at a time (Dao et al. 2022; lesson 12).

    The result is exact for any tile size, because the softmax is computed online (Milakov and Gimelshein 2018). Over
    the keys seen so far, each query stores the largest score m, the sum l of exp(score - m), and the sum a of exp(score
    - m) times value. A new tile that raises m to m' scales l and a by exp(m - m') and adds its own terms. At the end, a
    / l is the weighted average.

    For the backward pass, q, k, v, the output and one log-sum-exp per query and head are stored, and each tile of
    scores is computed again. No intermediate tensor is larger than a tile of scores. If every tile is visited, the
    number of operations per head is 2 query key (d_head + d_v) in the forward pass, and 2 query key (3 d_head + 2 d_v)
    in the backward pass, which has five products instead of two. Half-precision inputs are computed in fp32 within a
    tile. Second derivatives are computed with the plain formula, which stores all scores at once.

    This implementation is easy to read: it computes one small product after another. In practice, use the fused kernels
    of `attend`: they avoid the round trips to memory, which is what makes the method fast.

    Args:
        q: Queries, (batch, head, query, d_head).
        k: Keys, (batch, kv_head, key, d_head).
        v: Values, (batch, kv_head, key, d_v).
        mask: Boolean tensor with four axes, where True means that the query may attend to the key; or a predicate,
            which is evaluated tile by tile, so that the mask takes no memory.
        causal: As in `attend`, the last query is aligned with the last key. Tiles without an allowed pair are skipped.
        tile: Number of queries and of keys in a tile.

    Returns:
        The weighted averages, (batch, head, query, d_v).

    Raises:
        ValueError: If the number of query heads is not a multiple of the number of key heads, the mask is
            floating-point, or a tile is empty.
    """
    out: Tensor = _Tiled.apply(q, k, v, mask, causal, tile)
    return out


class _Tiled(torch.autograd.Function):
    """Forward and backward pass of `tiled_attention`.

    Tensors without a suffix are complete; `_i` is a tile of queries, `_j` a tile of keys, and P_ij the softmax weights
    between them.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Predicate | None, causal: bool, tile: tuple[int, int]
    ) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        logsumexp = q.new_empty(q.shape[:3], dtype=wide_dtype(q.dtype))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows, columns in _tiles(q.shape, k.shape, mask, causal, tile, q.device):
            q_i = wide(q[:, :, rows]) * scale
            largest = q_i.new_full(q_i.shape[:3], -math.inf)
            total = torch.zeros_like(largest)
            weighted = q_i.new_zeros(*q_i.shape[:3], v.shape[-1])
            for some, allowed in columns:
                scores = _scores(q_i, _spread(k[:, :, some], q), allowed)
                raised = torch.maximum(largest, scores.amax(-1))
                # Before a row's first visible key, its maximum is -inf, and -inf - (-inf) is NaN.
                shift = raised.masked_fill(raised == -math.inf, 0.0)
                terms = torch.exp(scores - shift[..., None])
                shrink = torch.exp(largest - shift)
                total = total * shrink + terms.sum(-1)
                weighted = weighted * shrink[..., None] + terms @ _spread(v[:, :, some], q)
                largest = raised
            empty = total == 0
            out[:, :, rows] = (weighted / total.masked_fill(empty, 1.0)[..., None]).to(out.dtype)
            # An empty row gets +inf, so that exp(score - logsumexp) is zero for it in the backward pass.
            logsumexp[:, :, rows] = torch.where(empty, math.inf, largest + total.log())
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.mask, ctx.causal, ctx.tile = mask, causal, tile
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients.

        With S = scale q k^T, P = softmax(S), O = P v and a loss L, they are

            dV = P^T dO        dP = dO V^T        dS = P * (dP - D)        dQ = scale dS K        dK = scale dS^T Q

        where D = sum over keys of P dP = sum over d_v of O dO. D is the only quantity that connects the tiles of a row,
        and it is known from the output before any tile is visited (Dao et al. 2022, appendix B.2).
        """
        q, k, v, out, logsumexp = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True; the sums below would not record a graph
            formula = attend(q, k, v, mask=ctx.mask, causal=ctx.causal, backend="reference")
            wanted = [x for x, needed in zip((q, k, v), ctx.needs_input_grad, strict=False) if needed]
            found = iter(torch.autograd.grad(formula, wanted, dout, create_graph=True))
            return *(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None, None, None
        working = wide_dtype(q.dtype)
        dq, dk, dv = (torch.zeros_like(x, dtype=working) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows, columns in _tiles(q.shape, k.shape, ctx.mask, ctx.causal, ctx.tile, q.device):
            q_i, dout_i = wide(q[:, :, rows]) * scale, wide(dout[:, :, rows])
            correction = (dout_i * out[:, :, rows]).sum(-1, keepdim=True)
            for some, allowed in columns:
                k_j, v_j = _spread(k[:, :, some], q), _spread(v[:, :, some], q)
                weights = torch.exp(_scores(q_i, k_j, allowed) - logsumexp[:, :, rows, None])
                dscores = weights * (dout_i @ v_j.transpose(-2, -1) - correction)
                dq[:, :, rows] += scale * (dscores @ k_j)
                dk[:, :, some] += _gather(dscores.transpose(-2, -1) @ q_i, k)
                dv[:, :, some] += _gather(weights.transpose(-2, -1) @ dout_i, v)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _tiles(
    queries: torch.Size,
    keys: torch.Size,
    mask: Tensor | Predicate | None,
    causal: bool,
    tile: tuple[int, int],
    device: torch.device,
) -> Iterator[tuple[slice, Iterator[tuple[slice, Tensor | None]]]]:
    """Yield each tile of queries, with the tiles of keys to visit and their allowed pairs (`None` means all)."""
    batch, heads, n, _ = queries
    offset = keys[2] - n  # the last query is aligned with the last key
    predicate = None if isinstance(mask, Tensor) else mask
    if causal:
        predicate = causal_predicate if predicate is None else both(causal_predicate, predicate)

    def columns(first: int, last: int) -> Iterator[tuple[slice, Tensor | None]]:
        for start in range(0, keys[2], tile[1]):
            end = min(start + tile[1], keys[2])
            if causal and start > last - 1 + offset:
                return
            allowed = None
            if isinstance(mask, Tensor):
                allowed = cut_table(mask, slice(first, last), slice(start, end))
            if predicate is not None and not (predicate is causal_predicate and end - 1 <= first + offset):
                positions = torch.arange(first + offset, last + offset, device=device)
                asked = evaluate(predicate, batch, heads, positions, torch.arange(start, end, device=device))
                allowed = asked if allowed is None else allowed & asked
            if allowed is None or allowed.any():
                yield slice(start, end), allowed

    for first in range(0, n, tile[0]):
        last = min(first + tile[0], n)
        yield slice(first, last), columns(first, last)


def _scores(q_i: Tensor, k_j: Tensor, allowed: Tensor | None) -> Tensor:
    scores = q_i @ k_j.transpose(-2, -1)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def _spread(x_j: Tensor, q: Tensor) -> Tensor:
    """Repeat the keys or values of a tile for each query head that shares them."""
    return wide(x_j).repeat_interleave(q.shape[1] // x_j.shape[1], dim=1)


def _gather(dx_j: Tensor, x: Tensor) -> Tensor:
    """Sum the gradients of the query heads that share a key head (the backward pass of `_spread`)."""
    return dx_j.unflatten(1, (x.shape[1], -1)).sum(2)
