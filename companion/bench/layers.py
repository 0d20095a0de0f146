"""Single layers side by side: a mixture of experts in every way it can be computed, and attention at every length."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.sizes import Size
from companion.bench.tolerance import differs
from companion.config.model import FeedForwardConfig, MoEConfig
from companion.layers.attention import attend
from companion.layers.experts import Way
from companion.layers.feedforward import FeedForward
from companion.layers.kernels.tiled import tiled_attention
from companion.layers.moe import MoE

DENSE = "dense, same active FLOPs"
MOST_BYTES = 4 * 2**30
"""Contenders that would take more memory than this in one intermediate tensor are left out."""

Layer = Callable[[Tensor], Tensor]


# Mixture of experts


def moe(size: Size, setting: Setting) -> list[Comparison]:
    """Our mixture in each of its ways against transformers' Mixtral block in each of its own, and against one dense
    network as wide as all the experts that a token visits."""
    few = size.visitors[1]
    works = ((size.visitors[0], False), (size.visitors[0], True), (few, False))
    return [moe_of(size, setting, tokens, backward) for tokens, backward in works]


def moe_of(size: Size, setting: Setting, tokens: int, backward: bool) -> Comparison:
    """The same for so many tokens, forward alone or with the backward pass."""
    config, network, d_model = size.experts, size.config.feed_forward, size.config.d_model
    flops = tokens * (config.top_k * 6 * d_model * network.d_ff + 2 * d_model * config.experts) * (3 if backward else 1)
    passes = "forward and backward" if backward else "forward"
    comparison = Comparison(
        part="moe",
        title=f"mixture of {config.experts} experts, top {config.top_k}, {tokens:,} tokens, {passes} "
        f"(d_model {d_model}, d_ff {network.d_ff})",
        size=size.name,
        items=tokens,
        flops=flops,
        least=flops / setting.chip.flops,
    )
    torch.manual_seed(2)
    ours = MoE(d_model, network, config)
    x, out_gradient = torch.randn(2, 1, tokens, d_model)
    contenders: dict[str, tuple[Layer, nn.Module]] = {OURS: (partial(_ours, ours, "auto"), ours)}
    for way in get_args(Way):
        if way == "gather" and setting.device.type == "cpu":
            comparison.omit("ours, gather", "refused", "it copies matrices lest a GPU wait; a CPU reads them in place")
        elif way != "auto":
            contenders[f"ours, {way}"] = partial(_ours, ours, way), ours
    _add_mixtral(ours, size, comparison, contenders)

    def check(name: str) -> str | None:
        if (heavy := _gathered(name, size, tokens, dtype)) > MOST_BYTES:
            raise ValueError(f"it would copy {heavy / 1e9:.1f} GB of experts' matrices")
        got = _outcome(*contenders[name], x, out_gradient)
        return differs(expected, got, ("output", "input's gradient", "router's gradient"), dtype)

    for dtype in setting.dtypes:
        for _, module in contenders.values():
            module.to(setting.device, dtype)
        x, out_gradient = x.to(setting.device, dtype), out_gradient.to(setting.device, dtype)
        expected = _outcome(*contenders[OURS], x, out_gradient)
        for name in [*contenders][1:]:
            if not comparison.admits(name, partial(check, name)):
                del contenders[name]
    torch.manual_seed(3)
    dense = FeedForward(d_model, FeedForwardConfig(config.top_k * network.d_ff, network.activation))
    contenders[DENSE] = (dense.to(setting.device, setting.dtype),) * 2
    pass_of = _both_passes if backward else _forward_pass
    return comparison.time({name: pass_of(*each, x, out_gradient) for name, each in contenders.items()}, setting)


def _ours(ours: MoE, way: Way, x: Tensor) -> Tensor:
    return ours(x, experts=way)[0]


def _outcome(layer: Layer, module: nn.Module, x: Tensor, out_gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of the input and of the router."""
    module.zero_grad(set_to_none=True)
    leaf = x.clone().requires_grad_()
    out = layer(leaf)
    out.backward(out_gradient)
    router = module.router if isinstance(module, MoE) else module.gate
    assert leaf.grad is not None
    return out.detach(), leaf.grad, router.weight.grad.clone()  # type: ignore[union-attr, operator]


def _forward_pass(layer: Layer, module: nn.Module, x: Tensor, out_gradient: Tensor) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def _both_passes(layer: Layer, module: nn.Module, x: Tensor, out_gradient: Tensor) -> Callable[[], Any]:
    leaf = x.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        for p in module.parameters():
            p.grad = None
        layer(leaf).backward(out_gradient)

    return run


def _gathered(name: str, size: Size, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of the experts' matrices that a contender copies for every token; 0 for those that copy none."""
    if name != "transformers, batched_mm":
        return 0
    return tokens * size.experts.top_k * 3 * size.config.d_model * size.config.feed_forward.d_ff * dtype.itemsize


def _add_mixtral(ours: MoE, size: Size, comparison: Comparison, contenders: dict[str, tuple[Layer, nn.Module]]) -> None:
    """transformers' block with our weights, once for each way in which it computes its experts."""
    if importlib.util.find_spec("transformers") is None:
        comparison.omit("transformers", "missing", "not installed (pip install transformers)")
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        ways = ["eager", *ALL_EXPERTS_FUNCTIONS.valid_keys()]
        network = size.config.feed_forward
        blocks = {f"transformers, {way}": mixtral_block(ours, size.experts, network, way) for way in ways}
    except Exception as error:  # its interface has changed
        comparison.omit("transformers", "failed", f"{type(error).__name__}: {error}")
        return
    contenders |= {name: (block, block) for name, block in blocks.items()}


def mixtral_block(ours: MoE, config: MoEConfig, network: FeedForwardConfig, way: str) -> nn.Module:
    """`MixtralSparseMoeBlock` with the weights of `ours`, computing its experts in the given way."""
    from transformers.models.mixtral.configuration_mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    assert ours.gate is not None
    theirs = MixtralConfig(
        hidden_size=ours.inner.shape[1],
        intermediate_size=network.d_ff,
        num_local_experts=config.experts,
        num_experts_per_tok=config.top_k,
        hidden_act="silu",
        router_jitter_noise=0.0,
    )
    theirs._experts_implementation = way
    block: nn.Module = MixtralSparseMoeBlock(theirs)
    block.load_state_dict(
        {
            "gate.weight": ours.router.weight.detach(),
            "experts.gate_up_proj": torch.cat((ours.gate, ours.inner), dim=2).transpose(1, 2).detach(),
            "experts.down_proj": ours.outer.transpose(1, 2).detach(),
        }
    )
    return block


# Attention


def attention(size: Size, setting: Setting) -> list[Comparison]:
    """Causal self-attention of one row at each length: every backend, forward alone, and forward and backward."""
    return [attention_at(size, setting, n, backward) for backward in (False, True) for n in size.lengths]


def _backends(setting: Setting, backward: bool) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """What computes the same attention; `attend` with its default backend is ours."""
    backends: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        OURS: partial(attend, causal=True),
        "reference": partial(attend, causal=True, backend="reference"),
        "sdpa": partial(attend, causal=True, backend="sdpa"),
        "tiled": partial(tiled_attention, causal=True),
    }
    if not backward and (setting.device.type == "cuda" or "TRITON_INTERPRET" in os.environ):
        backends["triton"] = _triton  # the kernel has no backward pass
    return backends


def _triton(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from companion.layers.kernels.triton import triton_attention  # where there is no Triton, it is left out

    return triton_attention(q, k, v, causal=True)


def attention_at(size: Size, setting: Setting, length: int, backward: bool) -> Comparison:
    """The same at one length."""
    sizes = size.config.sizes
    pairs = length * (length + 1) // 2
    flops = sizes.heads * 2 * (sizes.d_head + sizes.d_v) * pairs * (3 if backward else 1)
    passes = "forward and backward" if backward else "forward"
    comparison = Comparison(
        part="attention",
        title=f"causal attention, {passes} ({sizes.heads} heads of {sizes.d_head})",
        size=size.name,
        items=length,
        flops=flops,
        least=flops / setting.chip.flops,
        length=length,
    )
    torch.manual_seed(4)
    shapes = ((sizes.heads, sizes.d_head), (sizes.kv_heads, sizes.d_head), (sizes.kv_heads, sizes.d_v))
    q, k, v = (torch.randn(1, heads, length, width, device=setting.device) for heads, width in shapes)
    out_gradient = torch.randn(1, sizes.heads, length, sizes.d_v, device=setting.device)
    backends = _backends(setting, backward)
    kept: dict[str, int] = {}

    def check(name: str) -> str | None:
        square = sizes.heads * length**2 * dtype.itemsize
        if name == "reference" and square > MOST_BYTES:
            raise ValueError(f"its weights would take {square / 1e9:.1f} GB")
        got, kept[name] = _attended(backends[name], leaves, gradient, backward)
        whats = ("output", "queries' gradient", "keys' gradient", "values' gradient")
        return differs(expected, got, whats, dtype)

    for dtype in setting.dtypes:
        leaves = [t.detach().to(dtype).requires_grad_(backward) for t in (q, k, v)]
        gradient = out_gradient.to(dtype)
        expected = _attended(backends[OURS], leaves, gradient, backward)[0]
        backends = {name: run for name, run in backends.items() if comparison.admits(name, partial(check, name))}
    runs: dict[str, Callable[[], Any]] = {
        name: partial(_attend_once, run, leaves, gradient, backward) for name, run in backends.items()
    }
    return comparison.time(runs, setting, kept=kept if backward else None)


def _attend_once(run: Callable[..., Tensor], leaves: list[Tensor], gradient: Tensor, backward: bool) -> Tensor:
    for leaf in leaves:
        leaf.grad = None
    with torch.set_grad_enabled(backward):
        out = run(*leaves)
    if backward:
        out.backward(gradient)
    return out


def _attended(
    run: Callable[..., Tensor], leaves: list[Tensor], gradient: Tensor, backward: bool
) -> tuple[list[Tensor], int]:
    """Output and gradients, and how many bytes besides q, k and v are kept for the backward pass."""
    given = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = _attend_once(run, leaves, gradient, backward)
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [out.detach(), *grads], sum(found.values())
