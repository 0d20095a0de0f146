"""Tiled attention as one GPU kernel, forward pass only (Dao et al. 2022; Dao 2023; lesson 12).

`tiled_attention` shows the method in PyTorch, which writes every tile of scores to memory and reads it back. Here the
two inner products, the running maximum and the running sum stay in the registers of one program, so that the only
memory traffic is reading q, k and v and writing the output. The result is the same as with `attend`. The kernel is for
learning and is not faster than `attend`.

Only this module needs Triton, which comes with PyTorch's CUDA builds for Linux. No other module here imports it.
"""

from __future__ import annotations

import math
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from companion.ground.annotations import checked
from companion.ground.arguments import described, heads_fit

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "companion.layers.kernels.triton needs Triton, which comes with PyTorch's CUDA builds for Linux; "
        "attend() needs only PyTorch"
    ) from error


@triton.jit
@no_type_check
def _forward(
    q_start,
    k_start,
    v_start,
    out_start,
    q_batch,
    q_head,
    q_query,
    k_batch,
    k_head,
    k_key,
    v_batch,
    v_head,
    v_key,
    out_batch,
    out_head,
    out_query,
    heads,
    group,
    queries,
    keys,
    scale,
    D_HEAD: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH_K: tl.constexpr,
    WIDTH_V: tl.constexpr,
    CAUSAL: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute one tile of queries, for one head and one row of the batch, by going through all tiles of keys in turn.

    `x_batch`, `x_head`, `x_query` are strides. WIDTH_K and WIDTH_V are d_head and d_v rounded up to a power of two, as
    a tile requires; components beyond the real width are read as zero and do not change any sum.
    """
    # 64 bits, because a batch of long sequences has more than 2^31 elements.
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    tile = tl.program_id(1)
    query = tile * TILE_Q + tl.arange(0, TILE_Q)
    component_k = tl.arange(0, WIDTH_K)
    component_v = tl.arange(0, WIDTH_V)

    q_tile = tl.load(
        q_start + row * q_batch + head * q_head + query.to(tl.int64)[:, None] * q_query + component_k[None, :],
        mask=(query < queries)[:, None] & (component_k < D_HEAD)[None, :],
        other=0.0,
    )
    k_row = k_start + row * k_batch + (head // group) * k_head
    v_row = v_start + row * v_batch + (head // group) * v_head

    largest = tl.full((TILE_Q,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_Q,), tl.float32)
    weighted = tl.zeros((TILE_Q, WIDTH_V), tl.float32)

    offset = keys - queries  # the last query is aligned with the last key
    end = keys
    if CAUSAL:  # no query of the tile sees a key beyond the last query
        end = tl.minimum(keys, (tile + 1) * TILE_Q + offset)
    for start in range(0, end, TILE_K):
        key = start + tl.arange(0, TILE_K)
        k_tile = tl.load(
            k_row + key.to(tl.int64)[:, None] * k_key + component_k[None, :],
            mask=(key < keys)[:, None] & (component_k < D_HEAD)[None, :],
            other=0.0,
        )
        v_tile = tl.load(
            v_row + key.to(tl.int64)[:, None] * v_key + component_v[None, :],
            mask=(key < keys)[:, None] & (component_v < D_V)[None, :],
            other=0.0,
        )
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * scale
        allowed = (key < keys)[None, :] & (query < queries)[:, None]
        if CAUSAL:
            allowed = allowed & (key[None, :] <= query[:, None] + offset)
        scores = tl.where(allowed, scores, float("-inf"))

        # In the online softmax, a new maximum scales down the sums so far. Before a row's first visible key its maximum
        # is -inf, and -inf - (-inf) is not a number.
        raised = tl.maximum(largest, tl.max(scores, 1))
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        terms = tl.exp(scores - shift[:, None])
        shrink = tl.exp(largest - shift)
        total = total * shrink + tl.sum(terms, 1)
        weighted = weighted * shrink[:, None]
        weighted += tl.dot(terms.to(v_tile.dtype), v_tile, input_precision=PRECISION)
        largest = raised

    average = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out_start + row * out_batch + head * out_head + query.to(tl.int64)[:, None] * out_query + component_v[None, :],
        average.to(out_start.dtype.element_ty),
        mask=(query < queries)[:, None] & (component_v < D_V)[None, :],
    )


def _fits(given: dict[str, Any]) -> None:
    """Check the conditions that the annotations of `triton_attention` cannot express."""
    heads_fit(given)
    q, tile = given["q"], given.get("tile", (64, 64))
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"q is {described(q)}: expected float32, bfloat16 or float16")
    if any(size < 16 or size & (size - 1) for size in tile):
        raise ValueError(f"tile={tile}: expected two powers of two >= 16")


@checked(fits=_fits)
def triton_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    causal: bool = False,
    tile: tuple[int, int] = (64, 64),
) -> Float[Tensor, "batch head query d_v"]:
    """Compute softmax(q k^T / sqrt(d_head)) v in one kernel: `attend(q, k, v, causal=causal)` without its gradient.

    The kernel runs on a GPU, in fp32 (products in full precision, without TF32), bf16 or fp16 (sums in fp32). Causal
    attention is aligned lower-right, as in `attend`; a query that sees no key returns zeros.

    Args:
        q: Queries, (batch, head, query, d_head).
        k: Keys, (batch, kv_head, key, d_head).
        v: Values, (batch, kv_head, key, d_v).
        causal: As in `attend`.
        tile: Number of queries and number of keys in a tile, each a power of two and at least 16.

    Returns:
        The weighted averages, (batch, head, query, d_v).

    Raises:
        ValueError: If dtypes differ or are not supported, the number of query heads is not a multiple of the number of
            key heads, the tile size is not allowed, or a tensor requires a gradient while gradients are being recorded.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(
            "q, k or v needs a gradient: this kernel has no backward pass; use torch.no_grad() or attend()"
        )
    # The kernel assumes that neighboring components are adjacent in memory.
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batch, heads, queries, d_head = q.shape
    kv_heads, keys, d_v = v.shape[1:]
    out = q.new_empty(batch, heads, queries, d_v)
    if out.numel() == 0:
        return out
    # The first axis of a grid allows 2^31 - 1 programs, the other axes only 65,535, which is enough for four million
    # tokens in tiles of 64.
    _forward[(batch * heads, triton.cdiv(queries, tile[0]))](
        q,
        k,
        v,
        out,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *out.stride()[:3],
        heads,
        heads // kv_heads,
        queries,
        keys,
        1 / math.sqrt(d_head),
        D_HEAD=d_head,
        D_V=d_v,
        WIDTH_K=max(16, triton.next_power_of_2(d_head)),
        WIDTH_V=max(16, triton.next_power_of_2(d_v)),
        CAUSAL=causal,
        TILE_Q=tile[0],
        TILE_K=tile[1],
        PRECISION="ieee",
    )
    return out
