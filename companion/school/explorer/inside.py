"""Every number inside a model's pass, by the names of the explorer's engine, as Python computes it.

What a module gives is kept under its name. Attention is watched where it happens: whatever the layer is, it calls a
function `attend` with its queries, keys and values as they meet, and that call says the rest. So it is with every
decoder and encoder-decoder of the package, and with a model of your own that keeps the names of the build track.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from companion.layers.attention import attention_weights
from companion.layers.routing import RoutingStats

Rows = dict[str, list[Tensor]]
"""Of each name the rows of a pass, one for each token."""
ATTEND = "attend"


@torch.no_grad()
def inside(model: nn.Module, tokens: Sequence[int], source: Sequence[int] = ()) -> Rows:
    """The numbers of one pass over `tokens`, which of an encoder-decoder look at `source`.

    Raises `ValueError` for a model whose blocks are not called `decoder.blocks.0` and so on.
    """
    found: Rows = {}
    within: list[str] = []
    named = {name: module for name, module in model.named_modules() if name and not isinstance(module, nn.ModuleList)}
    if "decoder.blocks.0" not in named:
        raise ValueError("model: expected one whose first block is called decoder.blocks.0")
    hooks = []
    for name, module in named.items():
        hooks += [
            module.register_forward_pre_hook(_enters(name, within)),
            module.register_forward_hook(_keeps(name, found, within), with_kwargs=True),
        ]
    layers = [module for name, module in named.items() if name.endswith((".attention", ".cross"))]
    try:
        with _attention_watched(layers, within, found):
            given = {"source": torch.tensor([source])} if source else {}
            out = model(torch.tensor([tokens]), **given)
    finally:
        for hook in hooks:
            hook.remove()
    found["logits"] = list((out if isinstance(out, Tensor) else out.logits)[0])
    return found


def _enters(name: str, within: list[str]) -> Any:
    def enter(*_: Any) -> None:
        within.append(name)

    return enter


def _keeps(name: str, found: Rows, within: list[str]) -> Any:
    """A hook that keeps what the module of that name gave, and what of its inputs has a name of its own."""
    block = name.rpartition(".")[0]

    def keep(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        within.pop()
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
    """Whom a mixture of the package, or of the build track, asked."""
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], RoutingStats):
        return {f"{name}.experts": list(out[1].experts[0]), f"{name}.weights": list(out[1].weights[0])}
    logits, top_k = getattr(module, "logits", None), getattr(module, "top_k", None)
    if isinstance(logits, Tensor) and isinstance(top_k, int):
        best, chosen = logits.topk(top_k, dim=-1)
        return {f"{name}.experts": list(chosen), f"{name}.weights": list(best.softmax(-1))}
    return {}


@contextmanager
def _attention_watched(layers: Sequence[nn.Module], within: Sequence[str], found: Rows) -> Iterator[None]:
    """While this lasts, calls of `attend` in the files of these layers say what they were given."""
    places: dict[int, dict[str, Any]] = {}
    for layer in layers:
        names = inspect.unwrap(type(layer).forward).__globals__
        if ATTEND in names:
            places[id(names)] = names
    before = {place: names[ATTEND] for place, names in places.items()}

    def watched(attend: Any) -> Any:
        def call(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
            said = {**kwargs, **({"mask": args[0]} if args else {})}
            name = next((name for name in reversed(within) if name.endswith((".attention", ".cross"))), None)
            if name is not None:
                found.update(_of_attention(name, q, k, v, said))
            return attend(q, k, v, *args, **kwargs)

        return call

    for place, names in places.items():
        names[ATTEND] = watched(before[place])
    try:
        yield
    finally:
        for place, names in places.items():
            names[ATTEND] = before[place]


def _of_attention(name: str, q: Tensor, k: Tensor, v: Tensor, said: Mapping[str, Any]) -> Rows:
    """What attention makes of queries, keys and values, all heads of a row side by side, of the keys that it may see.

    Of a decoder's own tokens these are none behind the query, so that each row is as long as its place.
    """
    options = {
        key: said[key] for key in ("mask", "causal", "window", "score_cap", "sinks") if said.get(key) is not None
    }
    if isinstance(mask := options.get("mask"), Tensor):  # of a model of your own it may have fewer axes
        options["mask"] = mask[(None,) * (4 - mask.ndim)]
    width = said.get("score_width")
    weights = attention_weights(q, k, score_width=width, **options)
    k_each, v_each = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k_each.mT / math.sqrt(q.shape[-1] if width is None else width)
    if (cap := said.get("score_cap")) is not None:
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
