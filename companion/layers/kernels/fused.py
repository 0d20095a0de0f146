"""Attention with PyTorch's fused operator, in the variant that suits the mask."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.compiler import is_compiling

from companion.ground.precision import wide
from companion.layers.kernels.chunked import Kernel, in_chunks
from companion.layers.masks import AttentionMask, Mask, addable

FEW = 16
"""Up to this number of queries, scores are computed a second time, so that keys need not be copied."""
LEAST = 2**12
"""Minimum number of query-key pairs for which it pays to pad q, k and v to the same width, which fused kernels require.
On two cores, fused kernels are four to fourteen times as fast for 256 to 1,024 tokens."""


def fused(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: AttentionMask,
    dropout: float = 0.0,
    score_width: float | None = None,
    sinks: Float[Tensor, "head"] | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """Compute `attend` without softcapping.

    If causality is not already part of the mask's table, no table of all pairs is built to express it. PyTorch needs no
    table if there are as many queries as keys, and it has a GPU kernel for fewer queries than keys. Otherwise queries
    are computed in chunks.
    """
    if sinks is not None:
        return _with_sinks(q, k, v, mask, sinks, partial(fused, dropout=dropout), score_width)
    if q.shape[3] != v.shape[3] and (is_compiling() or q.shape[2] * k.shape[2] >= LEAST):
        widest, width = max(q.shape[3], v.shape[3]), v.shape[3]
        score_width = q.shape[3] if score_width is None else score_width
        q, k, v = (x if x.shape[3] == widest else F.pad(x, (0, widest - x.shape[3])) for x in (q, k, v))
        return fused(q, k, v, mask=mask, dropout=dropout, score_width=score_width)[..., :width]
    table, empty, causal, window = mask
    shares = q.shape[1] != k.shape[1] and (table is None or table.shape[1] == 1) and q.device.type == "cpu"
    if q.shape[2] == 1 and shares and not causal:
        # Heads that share keys become queries of one head; otherwise the operator would read the keys once per head.
        some = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
        return fused(some, k, v, mask=mask, dropout=dropout, score_width=score_width).reshape(*q.shape[:3], -1)
    operator = partial(
        F.scaled_dot_product_attention,
        dropout_p=dropout,
        scale=None if score_width is None else score_width**-0.5,  # `None`: PyTorch's default, 1 / sqrt(d_head)
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if not causal:
        out = operator(q, k, v, attn_mask=addable(table, q.dtype))
        return out if empty is None else out.masked_fill(empty, 0.0)
    queries, keys = q.shape[2], k.shape[2]
    if table is None and window is None and queries == keys:
        return operator(q, k, v, is_causal=True)  # PyTorch aligns this top-left, which is right only for equal lengths
    recording = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))  # the next kernel has no gradient
    if table is None and window is None and queries < keys and q.is_cuda and not recording and not is_compiling():
        from torch.nn.attention.bias import causal_lower_right  # loads the compiler, which takes two seconds

        return operator(q, k, v, attn_mask=causal_lower_right(queries, keys))
    return in_chunks(partial(fused, dropout=dropout, score_width=score_width), q, k, v, mask)


def _with_sinks(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, sinks: Tensor, kernel: Kernel, score_width: float | None
) -> Tensor:
    """Compute attention with sinks by adding one more key, whose value is zero, before all others.

    Queries and keys get one more component: s sqrt(width) in the queries, 1 in the key of the sink and 0 in all other
    keys. The operator then needs no mask for the sink, and its backward pass computes the sink's gradient.

    With few queries, as in generation, keys are not copied to make room for the sink. Without the sink, the weights are
    e^z / Z, where Z is the sum of e^z over the keys. To include the sink, the output is multiplied by Z / (Z + e^s) =
    sigmoid(ln Z - s).
    """
    table, _, causal, window = mask
    if not causal and q.shape[2] <= FEW:
        share = torch.sigmoid(_log_sum(q, k, table, score_width) - sinks.view(-1, 1, 1))
        return kernel(q, k, v, mask=mask, score_width=score_width) * share.to(q.dtype)
    if causal and (table is not None or window is not None):
        some = partial(_with_sinks, sinks=sinks, kernel=kernel, score_width=score_width)
        return in_chunks(some, q, k, v, mask)
    width = q.shape[-1]
    more = 8 - width % 8  # kernels need a multiple of 8
    asked = (sinks * math.sqrt(score_width or width)).to(q.dtype).view(-1, 1, 1).expand(*q.shape[:3], 1)
    q = F.pad(torch.cat([q, asked], -1), (0, more - 1))
    answer = F.pad(k.new_ones(1), (width, more - 1)).expand(*k.shape[:2], 1, -1)
    k, v = torch.cat([answer, F.pad(k, (0, more))], 2), F.pad(v, (0, 0, 1, 0))
    alike = causal and q.shape[2] == k.shape[2] - 1
    if alike:  # add a first query that sees only the sink, so that there are as many queries as keys
        q = F.pad(q, (0, 0, 1, 0))
    if table is not None:
        table = table.expand(*table.shape[:3], k.shape[2] - 1)
        mask = mask._replace(table=F.pad(table, (1, 0), value=float(table.dtype == torch.bool)))
    out = kernel(q, k, v, mask=mask, score_width=score_width or width)
    return out[:, :, 1:] if alike else out


def _log_sum(
    q: Tensor, k: Tensor, table: Mask | None, score_width: float | None
) -> Float[Tensor, "batch head query 1"]:
    """Compute ln of the sum over the keys of exp(z).

    The queries of heads that share keys are treated as queries of one head, so that no keys are copied.
    """
    shared = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    scores = (wide(shared) @ wide(k).mT).view(*q.shape[:3], -1) / math.sqrt(score_width or q.shape[-1])
    added = addable(table, q.dtype)
    if added is not None:
        scores = scores.masked_fill(~added, -math.inf) if added.dtype == torch.bool else scores + added
    return scores.logsumexp(-1, keepdim=True)
