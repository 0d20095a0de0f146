"""What attention costs, and who pays less (lesson 12): tiled, linear and sliding-window attention.

With n tokens, heads of width d and h heads, the formula of `attend(backend="reference")` takes 4 n^2 d h floating-point
operations and keeps h n^2 weights for its backward pass. Three ways out, of two kinds:

  tiled_attention            the same function. As many operations, but memory that grows with n and not with n^2.
  sliding_window_attention   the same function as `attend` with `masks.window`: O(n w) operations and memory.
  linear_attention           another function: no softmax. O(n d^2) operations, and a state of fixed size when it steps.

The strided and fixed sparse patterns are predicates: `masks.strided` and `masks.fixed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from companion.layers.attention import attend
from companion.layers.masks import Predicate, both, evaluate
from companion.layers.masks import causal as causal_predicate


def tiled_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: Bool[Tensor, "#batch #head #query #key"] | Predicate | None = None,
    causal: bool = False,
    tile: tuple[int, int] = (128, 128),
) -> Float[Tensor, "batch head query d_v"]:
    """softmax(q k^T / sqrt(d_head)) v, one tile of the scores at a time (Dao et al. 2022; lesson 12).

    Exact, for any tile: the softmax is taken online (Milakov and Gimelshein 2018). Of the keys seen so far, each query
    keeps the largest score m, the sum l of exp(score - m), and the sum a of exp(score - m) times value. A new tile that
    raises m to m' scales l and a by exp(m - m'), adds its own terms, and at the end a / l is the weighted average.

    mask:    boolean tensor with four axes, True = may look; or a predicate, which is asked tile by tile, so that the
             mask needs no memory of its own.
    causal:  as in `attend`: the last query is at the last key. Tiles in which nobody may look are skipped.
    tile:    queries and keys in a tile.

    Memory: the backward pass keeps q, k, v, the output and one log-sum-exp per query and head, and computes each tile
    again; nothing larger than a tile of scores lives in between. Operations per head, with every tile visited:
    2 query key (d_head + d_v) forward and 2 query key (3 d_head + 2 d_v) backward, five products for the forward's two.
    Half precision is computed in fp32 within a tile. The gradient cannot be differentiated again.

    This is the method made readable, one small product after another. The fused kernels of `attend` do the same without
    the round trips to memory that make the method fast: prefer them.

    Raises `ValueError` if the head counts do not divide, the mask is floating, or a tile is empty.
    """
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"k has kv_head={k.shape[1]}: expected a divisor of the {q.shape[1]} heads of q")
    if min(tile) < 1:
        raise ValueError(f"tile={tile}: expected at least one query and one key")
    if isinstance(mask, Tensor) and (mask.dtype != torch.bool or mask.ndim != 4):
        raise ValueError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}: expected torch.bool with four axes, "
            "each (batch, head, query, key) or 1 in place"
        )
    out: Tensor = _Tiled.apply(q, k, v, mask, causal, tile)
    return out


class _Tiled(torch.autograd.Function):
    """The two passes of `tiled_attention`. Names of tensors without a suffix are whole; `_i` is a tile of queries, `_j`
    a tile of keys, and P_ij the softmax weights between them."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Predicate | None, causal: bool, tile: tuple[int, int]
    ) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        logsumexp = q.new_empty(q.shape[:3], dtype=_working_dtype(q))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows, columns in _tiles(q.shape, k.shape, mask, causal, tile, q.device):
            q_i = _working(q[:, :, rows]) * scale
            largest = q_i.new_full(q_i.shape[:3], -math.inf)
            total = torch.zeros_like(largest)
            weighted = q_i.new_zeros(*q_i.shape[:3], v.shape[-1])
            for some, allowed in columns:
                scores = _scores(q_i, _spread(k[:, :, some], q), allowed)
                raised = torch.maximum(largest, scores.amax(-1))
                # Before a row's first visible key its maximum is -inf, and -inf - (-inf) is not a number.
                shift = raised.masked_fill(raised == -math.inf, 0.0)
                terms = torch.exp(scores - shift[..., None])
                shrink = torch.exp(largest - shift)
                total = total * shrink + terms.sum(-1)
                weighted = weighted * shrink[..., None] + terms @ _spread(v[:, :, some], q)
                largest = raised
            empty = total == 0
            out[:, :, rows] = (weighted / total.masked_fill(empty, 1.0)[..., None]).to(out.dtype)
            # A row that sees nothing gets +inf, so that exp(score - logsumexp) is zero for it in the backward pass.
            logsumexp[:, :, rows] = torch.where(empty, math.inf, largest + total.log())
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.mask, ctx.causal, ctx.tile = mask, causal, tile
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """With S = scale q k^T, P = softmax(S), O = P v and a loss L:

            dV = P^T dO        dP = dO V^T        dS = P * (dP - D)        dQ = scale dS K        dK = scale dS^T Q

        where D = sum over keys of P dP = sum over d_v of O dO: the one quantity that ties a row's tiles together is
        known from the output, before any tile is visited (Dao et al. 2022, appendix B.2).
        """
        q, k, v, out, logsumexp = ctx.saved_tensors
        working = _working_dtype(q)
        dq, dk, dv = (torch.zeros_like(x, dtype=working) for x in (q, k, v))
        scale = 1 / math.sqrt(q.shape[-1])
        for rows, columns in _tiles(q.shape, k.shape, ctx.mask, ctx.causal, ctx.tile, q.device):
            q_i, dout_i = _working(q[:, :, rows]) * scale, _working(dout[:, :, rows])
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
    """Each tile of queries with the tiles of keys that it has to visit, and who may look there (`None`: everyone)."""
    batch, heads, n, _ = queries
    offset = keys[2] - n  # the last query is at the last key
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
                allowed = _cut(_cut(mask, 2, first, last), 3, start, end)
            if predicate is not None and not (predicate is causal_predicate and end - 1 <= first + offset):
                positions = torch.arange(first + offset, last + offset, device=device)
                asked = evaluate(predicate, batch, heads, positions, torch.arange(start, end, device=device))
                allowed = asked if allowed is None else allowed & asked
            if allowed is None or allowed.any():
                yield slice(start, end), allowed

    for first in range(0, n, tile[0]):
        last = min(first + tile[0], n)
        yield slice(first, last), columns(first, last)


def _cut(mask: Tensor, axis: int, start: int, end: int) -> Tensor:
    """The part of a mask that belongs to a tile; an axis of one broadcasts and stays."""
    return mask if mask.shape[axis] == 1 else mask.narrow(axis, start, end - start)


def _scores(q_i: Tensor, k_j: Tensor, allowed: Tensor | None) -> Tensor:
    scores = q_i @ k_j.transpose(-2, -1)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _working(x: Tensor) -> Tensor:
    return x.to(_working_dtype(x))


def _spread(x_j: Tensor, q: Tensor) -> Tensor:
    """Keys or values of a tile, one copy for each query head that shares them."""
    return _working(x_j).repeat_interleave(q.shape[1] // x_j.shape[1], dim=1)


def _gather(dx_j: Tensor, x: Tensor) -> Tensor:
    """The gradient of `_spread`: what the query heads that share a key head sent it, added up."""
    return dx_j.unflatten(1, (x.shape[1], -1)).sum(2)


def sliding_window_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    width: int,
    *,
    dropout: float = 0.0,
    block: int | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """`attend(q, k, v, mask=window(width))`, computed along the band only (Beltagy et al. 2020; lesson 12).

    A block of b queries together sees b + width - 1 keys, cut out of the sequence as overlapping views. So a query
    costs 2 (b + width - 1) (d_head + d_v) floating-point operations per head, whatever the length: O(query width).

    width:    tokens that a query sees, its own included; the last query is at the last key.
    dropout:  probability of dropping a weight, as in `attend`.
    block:    queries in a block; default: the width, and at least 32, because many tiny products are slow.

    Raises `ValueError` unless width >= 1 and block >= 1, or if the head counts do not divide.
    """
    if width < 1:
        raise ValueError(f"width={width}: expected a number of tokens >= 1, the query's own included")
    if block is None:
        block = max(width, 32)
    if block < 1:
        raise ValueError(f"block={block}: expected at least one query")
    batch, n = q.shape[0], q.shape[2]
    if n == 0:
        return attend(q, k, v, dropout=dropout)
    block = min(block, n)
    blocks = -(-n // block)
    span = block + width - 1
    # Pad so that query i sees keys i ... i + width - 1: in front up to the first query's reach, behind to whole blocks.
    behind = blocks * block - n
    front = n + width - 1 - k.shape[2]  # negative where the first keys are beyond everyone's reach: cut off
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


def positive_features(x: Float[Tensor, "*axes d_head"]) -> Float[Tensor, "*axes d_head"]:
    """phi(x) = elu(x) + 1: x + 1 above zero, exp(x) below (Katharopoulos et al. 2020, eq. 7).

    Written out, because elu(x) + 1 rounds to zero in fp32 from about -17 on, and a sum of zeros cannot be divided by.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def linear_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    causal: bool = False,
    real: Bool[Tensor, "batch key"] | None = None,
    chunk: int = 64,
) -> Float[Tensor, "batch head query d_v"]:
    """sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j), phi = elu + 1 (Katharopoulos et al. 2020; lesson 12).

    Another function than softmax attention, not a faster way to it: a model trained with one does not run with the
    other. Without a softmax in between, (phi(Q) phi(K)^T) V = phi(Q) (phi(K)^T V), and the right side never forms the
    query-by-key matrix: 2 (query + key) d_head (d_v + 1) operations per head, linear in the length. (The 1 is the
    normaliser, carried along as one more value that is 1 everywhere.)

    causal:  the j <= i alone; as many queries as keys. Folded from `linear_attention_step` over chunks.
    real:    which keys are real; the others are padding and left out. A query with no key gives zeros.
    chunk:   tokens computed at once where causal. Within a chunk the cost is quadratic: 2 chunk (d_head + d_v + 1)
             operations a token and head, on top of the above.

    Raises `ValueError` if the head counts do not divide, chunk < 1, or causal with different lengths.
    """
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: expected at least one token")
    if not causal:
        _check_groups(q, k)
        return _normalise(_read(positive_features(q), _sum_of_outer_products(*_features(k, v, real))))
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"k has {k.shape[2]} tokens and q has {q.shape[2]}: expected as many where causal=True")
    outs, state = [], None
    for start in range(0, max(q.shape[2], 1), chunk):
        some = slice(start, start + chunk)
        out, state = linear_attention_step(
            q[:, :, some], k[:, :, some], v[:, :, some], state, real=None if real is None else real[:, some]
        )
        outs.append(out)
    return torch.cat(outs, dim=2)


def linear_attention_step(
    q: Float[Tensor, "batch head token d_head"],
    k: Float[Tensor, "batch kv_head token d_head"],
    v: Float[Tensor, "batch kv_head token d_v"],
    state: Float[Tensor, "batch kv_head d_head d_v+1"] | None = None,
    *,
    real: Bool[Tensor, "batch token"] | None = None,
) -> tuple[Float[Tensor, "batch head token d_v"], Float[Tensor, "batch kv_head d_head d_v+1"]]:
    """Causal linear attention as a recurrent network: the next tokens, and the state after them (lesson 12).

        S_t = S_(t-1) + phi(k_t) [v_t, 1]^T        [a_t, l_t] = phi(q_t)^T S_t        out_t = a_t / l_t

    One token at a time for decoding, or several at once, which gives the same. Where a key-value cache grows with every
    token, this state has d_head (d_v + 1) numbers per key head at any length. It is a value: the old state stays good.

    state:  what the last step returned; `None` at the beginning.
    real:   which tokens are real; the others leave the state alone.

    Raises `ValueError` if the head counts do not divide.
    """
    _check_groups(q, k)
    read, (keys, values) = positive_features(q), _features(k, v, real)
    # Here and now, the quadratic formula for these tokens among themselves; from before, the state.
    group = q.shape[1] // k.shape[1]
    scores = (read @ keys.repeat_interleave(group, dim=1).transpose(-2, -1)).tril()
    totals = scores @ values.repeat_interleave(group, dim=1)
    added = _sum_of_outer_products(keys, values)
    if state is None:
        return _normalise(totals), added
    return _normalise(totals + _read(read, state)), state + added


def _check_groups(q: Tensor, k: Tensor) -> None:
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"k has kv_head={k.shape[1]}: expected a divisor of the {q.shape[1]} heads of q")


def _features(k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """phi(k), zero for padding, and v with the normaliser's 1 appended."""
    features = positive_features(k)
    if real is not None:
        features = features.masked_fill(~real[:, None, :, None], 0.0)
    return features, F.pad(v, (0, 1), value=1.0)


def _sum_of_outer_products(
    keys: Float[Tensor, "batch kv_head key d_head"], values: Float[Tensor, "batch kv_head key d_v"]
) -> Float[Tensor, "batch kv_head d_head d_v"]:
    return keys.transpose(-2, -1) @ values


def _read(
    queries: Float[Tensor, "batch head query d_head"], state: Float[Tensor, "batch kv_head d_head d_v"]
) -> Float[Tensor, "batch head query d_v"]:
    return queries @ state.repeat_interleave(queries.shape[1] // state.shape[1], dim=1)


def _normalise(totals: Float[Tensor, "batch head query d_v_1"]) -> Float[Tensor, "batch head query d_v"]:
    """The weighted sum over the sum of the weights; zeros where there was nothing to sum."""
    weighted, weight = totals[..., :-1], totals[..., -1:]
    return weighted / weight.masked_fill(weight == 0, 1.0)
