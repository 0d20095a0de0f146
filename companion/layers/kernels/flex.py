"""Attention compiled for its mask, by PyTorch's `flex_attention` (Dong et al. 2024; lesson 12).

On a GPU a kernel is compiled for the predicate, which skips blocks of keys that no query sees. The numbers are those of
`attend`, which reads a mask that has been written out for every pair. For long sequences with few visible pairs. Like
triton.py it stands beside the model, which does not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from companion.ground.boundary import heads_fit, settle_mask
from companion.ground.door import checked
from companion.layers.masks import GivenMask, Predicate, both, evaluate, visible
from companion.layers.masks import causal as causal_predicate


@checked(fits=heads_fit, settles=settle_mask)
def flex_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: GivenMask | Predicate | None = None,
    causal: bool = False,
) -> Float[Tensor, "batch head query d_v"]:
    """`attend(q, k, v, mask=mask, causal=causal)`: compiled on a GPU, the plain formula on a CPU.

    Its table of blocks is made anew in every call, by asking the predicate about every pair once: a byte for each pair
    for a moment, times batch and heads where the predicate depends on them.

    Raises `ValueError` if the head counts do not divide, the mask has not four axes, or a gradient is to be taken on a
    CPU, where PyTorch has none.
    """
    # Imported here: it loads a compiler, and other attention does not need one.
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as pytorchs

    on_cpu = q.device.type == "cpu"
    if on_cpu and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(
            "flex_attention has no backward pass on the CPU: expected tensors on a GPU, torch.no_grad(), or attend()"
        )
    run: Any = pytorchs if on_cpu else _compiled(pytorchs)
    grouped = q.shape[1] != k.shape[1]
    if isinstance(mask, Tensor) and mask.dtype != torch.bool:
        seen = visible(mask, (*q.shape[:3], k.shape[2]), q.device, causal=causal)
        assert seen.mask is not None and seen.empty is not None
        bias = seen.mask.expand(*q.shape[:3], k.shape[2])
        out = run(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[b, h, i, j], enable_gqa=grouped)
        return out.masked_fill(seen.empty, 0.0)
    offset = k.shape[2] - q.shape[2]
    rules: list[Predicate] = [causal_predicate] if causal else []
    if isinstance(mask, Tensor):
        wide = mask.expand(*q.shape[:3], k.shape[2])
        rules.append(lambda b, h, query, key: wide[b, h, query - offset, key])
    elif mask is not None:
        rules.append(mask)
    if not rules:
        return run(q, k, v, enable_gqa=grouped)
    allowed = both(*rules)
    # Asked about one pair, the predicate shows by its shape whether it depends on the batch row and on the head.
    pair = torch.zeros(1, dtype=torch.long, device=q.device)
    asked = mask if isinstance(mask, Tensor) else evaluate(allowed, q.shape[0], q.shape[1], pair, pair)
    rows, heads = asked.shape[:2]
    blocks = create_block_mask(
        lambda b, h, i, j: allowed(b, h, i + offset, j), rows, heads, q.shape[2], k.shape[2], device=str(q.device)
    )
    return run(q, k, v, block_mask=blocks, enable_gqa=grouped)


@lru_cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
