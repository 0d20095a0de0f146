"""Compute all activations of a forward pass in Python, using the names of the explorer's engine.

The output of each module is stored under the module's name. Attention layers call a function `attend` with their
queries, keys and values; wrapping that function gives access to the scores and weights. This works for every decoder
and encoder-decoder in the package, and for your own model if its modules have the build track's names.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.ground.fields import require
from companion.layers.attention import attention_weights
from companion.layers.routing import RoutingStats
from companion.layers.stack import Memory
from companion.transformer import Transformer

Rows = dict[str, list[Tensor]]
"""The rows of a pass, one per token, for each name."""
ATTEND = "attend"
WATCHED = (".attention", ".cross")
ONE = threading.RLock()
"""Lock that is held while a model runs, because recording a pass patches Python modules that models share."""


@torch.no_grad()
def inside(model: nn.Module, tokens: Sequence[int], source: Sequence[int] = (), off: Collection[str] = ()) -> Rows:
    """Compute the activations of one pass.

    Args:
        model: A model from the package or the build track.
        tokens: Token ids that the decoder reads.
        source: Token ids that the encoder of an encoder-decoder reads; empty for a decoder.
        off: Heads and experts to switch off (see `switched_off`).

    Returns:
        The rows of every module's output and of the intermediate results of attention, and the logits.

    Raises:
        ValueError: The model's blocks are not named `decoder.blocks.0` and so on, or `switched_off` raises an error.
    """
    found: Rows = {}
    with switched_off(model, off, found), ExitStack() as hooks:
        for name, module in _layers(model).items():
            hooks.callback(module.register_forward_hook(_keeps(name, found), with_kwargs=True).remove)
        logits = logits_of(model, torch.tensor([tokens]), memory_of(model, source))
    found["logits"] = list(logits[0])
    return found


def memory_of(model: Any, source: Sequence[int]) -> Any:
    """Encode a source once for all tokens that an encoder-decoder generates. Return `None` for an empty source."""
    if not len(source):
        return None
    ids = torch.tensor([source])
    if isinstance(model, Transformer):
        return model.encode(ids)
    return ids, model.encode(ids, torch.ones_like(ids, dtype=torch.bool))  # a Translator from stage 8


def logits_of(model: Any, tokens: Int[Tensor, "batch token"], memory: Any = None) -> Float[Tensor, "batch token vocab"]:
    """Return the logits of a model from the package or the build track.

    Args:
        model: The model.
        tokens: Ids that the decoder reads.
        memory: Encoded source from `memory_of`; `None` for a decoder.
    """
    if memory is None:
        out = model(tokens)
    elif isinstance(model, Transformer):
        out = model(tokens, source=memory)
    else:
        ids, states = memory
        out = model(ids, torch.ones_like(ids, dtype=torch.bool), tokens, states)
    return out if isinstance(out, Tensor) else out.logits


@contextmanager
def switched_off(model: nn.Module, off: Collection[str], found: Rows | None = None) -> Iterator[None]:
    """Context manager that switches off heads and experts. Only one thread at a time can be in this context.

    Args:
        model: The model.
        off: Names such as "decoder.blocks.0.attention.2" for head 2, whose output becomes 0, and
            "decoder.blocks.0.feed_forward.5" for expert 5, which the router then cannot choose.
        found: Mapping that receives attention's intermediate results for each pass in the context.

    Raises:
        ValueError: A name in `off` does not exist in the model, all experts of a layer would be off, or the model's
            blocks are not named `decoder.blocks.0` and so on.
    """
    layers, within = _layers(model), list[str]()
    numbers = _by_layer(layers, off)

    def leave(*_: Any) -> None:
        within.pop()

    with ONE, ExitStack() as hooks:
        for name, module in layers.items():
            hooks.callback(module.register_forward_pre_hook(lambda *_, name=name: within.append(name)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
            if name.endswith("feed_forward") and numbers.get(name):
                _close(module, numbers[name], hooks)
        hooks.enter_context(_attention_watched(layers, within, numbers, {} if found is None else found))
        yield


@torch.no_grad()
def patched(
    model: nn.Module,
    tokens: Sequence[int],
    source: Sequence[int],
    states: Float[Tensor, "column d_model"],
    *,
    layer: int,
    first: int,
    off: Collection[str] = (),
) -> Float[Tensor, "column token vocab"]:
    """Compute one pass for each state, with the state in place of the residual stream at one position.

    Args:
        model: The model.
        tokens: Ids that the decoder reads in each pass.
        source: Ids that the encoder of an encoder-decoder reads; empty for a decoder.
        states: The states to insert.
        layer: Number of the block after which the stream is replaced; 0 for the input of the first block.
        first: Position of the first state; each further state is inserted one position further to the right.
        off: Heads and experts to switch off (see `switched_off`).

    Returns:
        The logits of all passes, one per state.
    """
    block = model.get_submodule(f"decoder.blocks.{max(layer - 1, 0)}")
    columns = torch.arange(len(states))

    def put(*passed: Any) -> Any:
        given = passed[-1]  # the block's input in a pre-hook, and its output in a forward hook
        x, *others = given if isinstance(given, tuple) else (given,)
        x = x.index_put((columns, first + columns), states.to(x.dtype))
        return (x, *others) if isinstance(given, tuple) else x

    with switched_off(model, off):
        memory = memory_of(model, source)
        hook = block.register_forward_hook(put) if layer else block.register_forward_pre_hook(put)
        try:
            return logits_of(model, torch.tensor([tokens]).expand(len(states), -1), _for_each(memory, len(states)))
        finally:
            hook.remove()


def _for_each(memory: Any, rows: int) -> Any:
    """Repeat the encoded source for a batch of this size."""
    if isinstance(memory, Memory):
        return memory.select(torch.zeros(rows, dtype=torch.long))
    return memory if memory is None else tuple(x.expand(rows, *x.shape[1:]) for x in memory)


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the model's modules by name. Raise `ValueError` if the first block is not named decoder.blocks.0."""
    named = {name: module for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)}
    if "decoder.blocks.0" not in named:
        raise ValueError("model: expected a model whose first block is named decoder.blocks.0")
    return named


def _by_layer(layers: Mapping[str, nn.Module], off: Collection[str]) -> dict[str, list[int]]:
    """Return the indices of the heads and experts to switch off, by the name of their layer."""
    numbers: dict[str, list[int]] = {}
    for name in off:
        layer, _, number = name.rpartition(".")
        fits = layer in layers and number.isdecimal() and layer.endswith((*WATCHED, ".feed_forward"))
        require(fits, "off", name, "names of heads and experts, as decoder.blocks.0.attention.2")
        numbers.setdefault(layer, []).append(int(number))
    return numbers


def _close(layer: nn.Module, experts: list[int], hooks: ExitStack) -> None:
    """Exclude experts from an MoE layer by setting their router logits and selection biases to minus infinity."""
    router = getattr(layer, "router", None)
    if not isinstance(router, nn.Module):
        raise ValueError(f"off={experts}: expected indices of experts, but this layer has no experts")

    def ruled_out(_: Any, __: Any, logits: Tensor) -> Tensor:
        count = logits.shape[-1]
        require(max(experts) < count, "off", max(experts), f"experts from 0 to {count - 1}")
        require(len(set(experts)) < count, "off", f"all {count} experts", "one that is left on")
        return logits.index_fill(-1, torch.tensor(experts, device=logits.device), -math.inf)

    hooks.callback(router.register_forward_hook(ruled_out).remove)
    bias = getattr(layer, "bias", None)
    if isinstance(bias, Tensor):
        layer.bias = bias.index_fill(-1, torch.tensor(experts), -math.inf)
        hooks.callback(setattr, layer, "bias", bias)


def _keeps(name: str, found: Rows) -> Any:
    """Return a hook that stores the output of the module with this name, and its input if the input has a name."""
    block = name.rpartition(".")[0]

    def keep(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out
        if not isinstance(first, Tensor) or first.ndim < 2 or isinstance(module, nn.Dropout):
            return
        x = args[0][0] if args and isinstance(args[0], Tensor) else None
        rows = list(first[0]) if first.ndim == 3 else list(first)
        found[name] = rows
        if name.endswith("blocks.0") and x is not None:
            found[f"{name.split('.')[0]}.embedding"] = list(x)
        elif name.endswith(("cross_norm", "feed_forward_norm")) and x is not None:
            after = "cross" if name.endswith("feed_forward_norm") and f"{block}.cross" in found else "attention"
            found[f"{block}.after_{after}"] = list(x)
        elif name.endswith("feed_forward.outer") and x is not None:
            found[f"{block}.hidden"] = list(x)
        elif name.endswith("feed_forward"):
            found.update(_of_experts(name, module, out))

    return keep


def _of_experts(name: str, module: nn.Module, out: Any) -> Rows:
    """Return the chosen experts and their weights for an MoE layer from the package or the build track."""
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], RoutingStats):
        return {f"{name}.experts": list(out[1].experts[0]), f"{name}.weights": list(out[1].weights[0])}
    logits, top_k = getattr(module, "logits", None), getattr(module, "top_k", None)
    if isinstance(logits, Tensor) and isinstance(top_k, int):
        best, chosen = logits.topk(top_k, dim=-1)
        return {f"{name}.experts": list(chosen), f"{name}.weights": list(best.softmax(-1))}
    return {}


@contextmanager
def _attention_watched(
    layers: Mapping[str, nn.Module], within: Sequence[str], off: Mapping[str, Sequence[int]], found: Rows
) -> Iterator[None]:
    """Wrap the layers' `attend` function to record its intermediate results in `found` and zero the heads in `off`.

    Calls from other threads, such as a notebook cell that trains, are not affected.
    """
    places: dict[int, dict[str, Any]] = {}
    for name, layer in layers.items():
        names = inspect.unwrap(type(layer).forward).__globals__
        if name.endswith(WATCHED) and ATTEND in names:
            places[id(names)] = names
    before, mine = {place: names[ATTEND] for place, names in places.items()}, threading.get_ident()

    def watched(attend: Any) -> Any:
        def call(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
            name = next((name for name in reversed(within) if name.endswith(WATCHED)), None)
            heads = attend(q, k, v, *args, **kwargs)
            if threading.get_ident() != mine or name is None:
                return heads
            said = {**kwargs, **({"mask": args[0]} if args else {})}
            found.update(_of_attention(name, q, k, v, said))
            if (closed := off.get(name)) is None:
                return heads
            count = heads.shape[1]
            require(max(closed) < count, "off", f"{name}.{max(closed)}", f"heads from 0 to {count - 1}")
            return heads.index_fill(1, torch.tensor(closed), 0)

        return call

    for place, names in places.items():
        names[ATTEND] = watched(before[place])
    try:
        yield
    finally:
        for place, names in places.items():
            names[ATTEND] = before[place]


def _of_attention(name: str, q: Tensor, k: Tensor, v: Tensor, said: Mapping[str, Any]) -> Rows:
    """Compute scores, weights and head outputs from the arguments of `attend`, with all heads of a row concatenated.

    In a decoder's self-attention, row i contains only the i + 1 keys up to the query's position.
    """
    options = {key: said[key] for key in ("mask", "causal", "window", "softcap", "sinks") if said.get(key) is not None}
    if isinstance(mask := options.get("mask"), Tensor):  # a mask from your own model may have fewer axes
        options["mask"] = mask[(None,) * (4 - mask.ndim)]
    width = said.get("score_width")
    weights = attention_weights(q, k, score_width=width, **options)
    k_each, v_each = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k_each.mT / math.sqrt(q.shape[-1] if width is None else width)
    if (cap := said.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    causal = name.startswith("decoder") and not name.endswith("cross")
    ends = [i + 1 if causal else k.shape[2] for i in range(q.shape[2])]

    def rows(table: Tensor) -> list[Tensor]:
        return [table[0, :, i, :end].flatten() for i, end in enumerate(ends)]

    def side_by_side(heads: Tensor) -> list[Tensor]:
        return list(heads[0].transpose(0, 1).flatten(1))

    return {
        f"{name}.turned_query": side_by_side(q),
        f"{name}.turned_key": side_by_side(k),
        f"{name}.values": side_by_side(v),
        f"{name}.scores": rows(scores),
        f"{name}.weights": rows(weights),
        f"{name}.heads": side_by_side(weights @ v_each),
    }
