"""The gated delta rule in chunks and token by token, and what a layer keeps beside what attention does (lesson 17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.sizes import Size
from companion.bench.tolerance import differs
from companion.config.model import LinearConfig, ModelConfig
from companion.costs.account import cache_bytes, forward_flops
from companion.ground.display import readable_bytes
from companion.layers.kernels import fla
from companion.layers.linear_attention import recurrence

BY_TOKEN = "ours, token by token"
LIBRARY = "flash-linear-attention"
WAYS = (OURS, "ours, chunks of 16", BY_TOKEN)
"""The same function: in the chunks that a layer takes, in smaller ones, and by the recurrence as it is defined."""


def linear(size: Size, setting: Setting) -> list[Comparison]:
    """A row of each length, forward; and forward and backward."""
    return [linear_at(size, setting, n, backward) for backward in (False, True) for n in size.lengths]


def linear_config(size: Size) -> ModelConfig:
    """One layer of that size, linear, with as many heads as attention has, as wide."""
    attention = replace(size.config.attention, linear=LinearConfig())
    return size.config.with_(layers=1, attention=attention)


def linear_at(size: Size, setting: Setting, length: int, backward: bool) -> Comparison:
    """The same at one length."""
    config = linear_config(size)
    sizes, flops = config.sizes, forward_flops(config, length).scores * (3 if backward else 1)
    comparison = Comparison(
        part="linear",
        title=f"gated delta rule, {'forward and backward' if backward else 'forward'} ({sizes.heads} heads of "
        f"{sizes.d_head})",
        size=size.name,
        items=length,
        flops=flops,
        least=flops / setting.chip.flops,
        length=length,
    )
    inputs = drawn_inputs(sizes.heads, length, sizes.d_head, setting.device)
    towards = torch.randn(1, sizes.heads, length, sizes.d_head, device=setting.device)
    ways: dict[str, Callable[[], list[Tensor]]] = {
        name: partial(_run, inputs, chunk, towards if backward else None)
        for name, chunk in zip(WAYS, (None, 16, 1), strict=True)
    }
    if fla.serves(inputs[0].to(setting.dtype)) and fla.kernels() is not None:
        ways[f"{LIBRARY}, {setting.precision}"] = partial(_by_library, inputs, setting, towards if backward else None)
    expected = ways[OURS]()

    def check(name: str) -> str | None:
        whats = ("output", *(f"gradient of {part}" for part in ("q", "k", "v", "decay", "strength")))
        return differs(expected, ways[name](), whats, setting.dtype if name.startswith(LIBRARY) else torch.float32)

    runs: dict[str, Callable[[], Any]] = {
        name: run for name, run in ways.items() if comparison.admits(name, partial(check, name))
    }
    attention = config.with_(attention=replace(config.attention, linear=None))
    state, cache = (readable_bytes(cache_bytes(one, length, dtype=setting.dtype)) for one in (config, attention))
    comparison.remarks.append(f"a row keeps {state} a layer, at this length and any longer; with attention {cache}")
    return comparison.time(runs, setting)


def drawn_inputs(heads: int, length: int, d_head: int, device: torch.device) -> list[Tensor]:
    """Queries, keys of length one, values, decays and strengths as a layer makes them, in fp32, as it computes them."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, heads, length, d_head, device=device) for _ in range(3))
    decay, strength = (torch.randn(1, heads, length, device=device) for _ in range(2))
    return [F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, F.logsigmoid(decay + 3)[..., None], strength.sigmoid()]


def _with_gradients(
    inputs: list[Tensor], towards: Tensor | None, rule: Callable[[Sequence[Tensor]], Tensor]
) -> list[Tensor]:
    """Output, and gradients where there is something to go back from."""
    leaves = [x.detach().requires_grad_(towards is not None) for x in inputs]
    with torch.set_grad_enabled(towards is not None):
        out = rule(leaves)
    return [out] if towards is None else [out.detach(), *torch.autograd.grad(out, leaves, towards.to(out.dtype))]


def _run(inputs: list[Tensor], chunk: int | None, towards: Tensor | None) -> list[Tensor]:
    def rule(leaves: Sequence[Tensor]) -> Tensor:
        q, k, v, log_decay, strength = leaves
        return recurrence(q, k, v, log_decay=log_decay, strength=strength, chunk=chunk, keep=False).out

    return _with_gradients(inputs, towards, rule)


def _by_library(inputs: list[Tensor], setting: Setting, towards: Tensor | None) -> list[Tensor]:
    """The same by the kernels of flash-linear-attention, in half precision; decays and strengths stay in fp32."""

    def rule(leaves: Sequence[Tensor]) -> Tensor:
        out = fla.by_library(*leaves)
        assert out is not None
        return out

    halves = [x.to(setting.dtype) for x in inputs[:3]]
    return _with_gradients([*halves, *inputs[3:]], towards, rule)
