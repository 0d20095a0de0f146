"""Low-rank adapters of a model, and their files in the layout of peft, which loads them on the published form of the
model (lesson 20).

    adapter_config.json         rank, alpha, and the names of the layers that have a change
    adapter_model.safetensors   base_model.model.NAME.lora_A.weight, (rank, in), and lora_B.weight, (out, rank)

NAME is what the published layout calls the layer. Where that has one matrix for several layers of ours, as `qkv_proj`
or GPT-2's `c_attn`, peft has one A for it; so have ours, and one B below the other. Which names those are is found by
sending the numbers of rows in place of weights through the family's own table.

A model that was read from a published folder remembers what kind that was, and its adapters have the names of that
kind; those of any other model have the names of the kind that `export_model` takes.

What cannot be said so is refused by name. For models that one machine cannot hold, peft itself, with trl, is the tool.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.families.export import simplest_kind
from companion.families.registry import families
from companion.files.models import assemble, bare_model, load_tensors, read_config, save_together
from companion.files.published.checkpoint_folder import became_by
from companion.files.published.config_fields import Policy, rows
from companion.files.published.state_dict import WayBack
from companion.ground.atomic import read_together
from companion.ground.fields import require
from companion.layers.attention import Attention
from companion.layers.feedforward import FeedForward
from companion.layers.gated_delta_net import LinearAttention
from companion.layers.latent import LatentAttention
from companion.layers.low_rank import LowRank, low_rank_layers
from companion.transformer import Transformer

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BEFORE = "base_model.model."
"""What peft puts before a layer's published name."""
Targets = Literal["attention", "all"]
"""Layers that get a change: those of attention, or those of feed-forward networks too, but in a model with experts.
Routers, experts, embeddings and the head get none."""
_HOLDERS: dict[str, tuple[type[nn.Module], ...]] = {
    "attention": (Attention, LatentAttention, LinearAttention),
    "all": (Attention, LatentAttention, LinearAttention, FeedForward),
}

_RATES = ("strength", "decay", "decay_down")
"""The narrow layers that say how fast a state of linear attention learns and fades; files and modules name them
differently, so that peft would not find them."""


@dataclass(frozen=True)
class Part:
    """One of our layers as a part of a published one, whose row `places[i]` is row `rows[i]` of ours."""

    layer: str
    places: Tensor
    rows: Tensor


def targeted(model: Transformer, targets: Targets = "all") -> list[str]:
    """The names of the linear layers that get a change. Raises `ValueError` for other targets."""
    require(targets in _HOLDERS, "targets", targets, "'attention' or 'all'")
    # In a model with experts peft takes the names of networks beside them for the experts' own (0.21).
    kinds = _HOLDERS["attention" if model.config.moe is not None else targets]
    found: list[str] = []
    for name, module in model.named_modules():
        layers = module.named_children() if isinstance(module, kinds) else ()
        found += [f"{name}.{at}" for at, layer in layers if isinstance(layer, nn.Linear) and at not in _RATES]
    return found


@lru_cache(maxsize=8)
def published_layers(config: ModelConfig, kind: str | None = None) -> dict[str, list[Part]]:
    """Each linear layer of a published layout that has linear layers of ours, and those, in the order of its rows.

    kind:  the layout, a `model_type`. `None`: the one that `export_model` takes.

    Raises `ValueError` as `export_model` does.
    """
    family = families()[simplest_kind(config, kind)]
    model = bare_model(config)
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    ours, starts, first = {}, {}, 0
    for name, tensor in model.state_dict().items():
        ours[name] = tensor
        if name in linear:
            starts[name] = first
            ours[name] = torch.arange(first, first := first + len(tensor))[:, None]
    back = WayBack(ours, Path("."))
    family.place(back, config)
    found = {}
    for name, tensor in back.finish().items():
        if tensor.is_meta or not name.endswith(".weight"):
            continue
        rows = tensor.flatten()
        # Transformers has the modules of a text model without the prefix that the tensors of its files have.
        module = family.theirs(name).replace("model.language_model.", "model.").removesuffix(".weight")
        found[module] = [
            Part(one.removesuffix(".weight"), here, rows[here] - start)
            for one, start in starts.items()
            if len(here := ((rows >= start) & (rows < start + len(ours[one]))).nonzero()[:, 0])
        ]
    return found


def adapt(
    model: Transformer, rank: int, *, alpha: float | None = None, targets: Targets = "all", kind: str | None = None
) -> None:
    """Put a `LowRank` in the place of each targeted linear layer, in place, and freeze everything else. The logits stay
    what they were, bit for bit.

    alpha:  `None`: twice the rank.
    kind:   the published layout whose fused layers share a `down`, see above; the model remembers it. `None`: that of
            the folder that the model was read from, or the one of `export_model`; a model that no layout has keeps one
            `down` for each layer, and cannot be saved.

    Raises `ValueError` for a rank below 1, an alpha that is not above 0, other targets, and a model that has adapters.
    """
    if low_rank_layers(model):
        raise ValueError(
            "model: expected one without adapters, got one that has some; merged_model(model) is such a one"
        )
    wanted = set(targeted(model, targets))
    try:
        groups = [[part.layer for part in parts] for parts in _published(model, kind).values()]
        model.published_kind = kind or model.published_kind
    except ValueError:
        if kind is not None:
            raise
        groups = [[name] for name in sorted(wanted)]
    model.requires_grad_(False)
    for group in groups:
        down = None
        for name in (name for name in group if name in wanted):
            made = LowRank(model.get_submodule(name), rank, 2.0 * rank if alpha is None else alpha, down=down)  # type: ignore[arg-type]
            down = made.down
            above, _, place = name.rpartition(".")
            setattr(model.get_submodule(above), place, made)


def merged_model(model: Transformer) -> Transformer:
    """A plain model with W + (alpha / rank) B A in the place of every adapter: the same logits, up to rounding. What
    has none is shared with `model`, not copied; it is in evaluation mode."""
    kept = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, layer in low_rank_layers(model).items():
        del kept[f"{name}.down"], kept[f"{name}.up"]
        kept[f"{name}.weight"] = layer.matrix()
    merged = assemble(model.config, kept, Path("merged"), None)
    merged.published_kind = model.published_kind
    return merged


def adapter_tensors(model: Transformer, kind: str | None = None) -> dict[str, Shaped[Tensor, "..."]]:
    """The adapters of a model by peft's names.

    Raises `ValueError` for a model without any, one that no published layout has, and a published layer of which only
    some parts have a change.
    """
    layers, tensors = _layers(model), {}
    for name, parts in _published(model, kind).items():
        if chosen := [layers[part.layer] for part in parts if part.layer in layers]:
            if len(chosen) < len(parts) or any(layer.down is not chosen[0].down for layer in chosen):
                raise ValueError(f"{name}: expected a change of all of its parts, with one A; peft has one for it")
            tensors[f"{BEFORE}{name}.lora_A.weight"] = chosen[0].down.detach()
            up = chosen[0].up.new_empty(sum(len(part.rows) for part in parts), chosen[0].rank)
            for part, layer in zip(parts, chosen, strict=True):
                up[part.places] = layer.up.detach()[part.rows]
            tensors[f"{BEFORE}{name}.lora_B.weight"] = up
    return tensors


@torch.no_grad()
def put_adapters(model: Transformer, tensors: Mapping[str, Tensor], kind: str | None = None) -> None:
    """Copy what `adapter_tensors` gave, or peft wrote, into the adapters of a model.

    Raises `ValueError`, with nothing changed, unless every adapter has its two tensors, of its shape, and no other is
    there.
    """
    layers, left = _layers(model), dict(tensors)
    moves: list[tuple[list[tuple[Part, LowRank]], Tensor, Tensor]] = []
    for name, parts in _published(model, kind).items():
        here = [(part, layers[part.layer]) for part in parts if part.layer in layers]
        if not here:
            continue
        rank, rows = here[0][1].rank, sum(len(part.rows) for part, _ in here)
        found = []
        for one, shape in (("A", (rank, here[0][1].in_features)), ("B", (rows, rank))):
            tensor = left.pop(key := f"{BEFORE}{name}.lora_{one}.weight", None)
            if tensor is None or tuple(tensor.shape) != shape:
                got = "none" if tensor is None else str(tuple(tensor.shape))
                raise ValueError(f"{key}: expected a tensor of shape {shape}, got {got}")
            found.append(tensor)
        moves.append((here, found[0], found[1]))
    if left:
        raise ValueError(f"{min(left)}: expected the adapters of this model alone, got another's")
    for here, down, up in moves:
        for part, layer in here:
            layer.down.copy_(down)
            layer.up[part.rows] = up[part.places].to(layer.up)


def adapter_config(model: Transformer, kind: str | None = None) -> dict[str, Any]:
    """What peft's adapter_config.json says of the adapters of a model."""
    names = [name.removeprefix(BEFORE) for name in adapter_tensors(model, kind)]
    layers = list(_layers(model).values())
    modules = sorted({name.removesuffix(f".lora_{one}.weight") for name in names for one in "AB" if f"_{one}." in name})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": layers[0].rank,
        "lora_alpha": layers[0].alpha,
        "target_modules": modules,
        "fan_in_fan_out": simplest_kind(model.config, kind or model.published_kind) == "gpt2",
        "bias": "none",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def save_adapters(folder: str | Path, model: Transformer, *, kind: str | None = None) -> None:
    """Write the adapters of a model as peft does, and nothing else of it. Raises `ValueError` as `adapter_tensors`."""
    folder = Path(folder)
    told = json.dumps(adapter_config(model, kind), indent=2) + "\n"
    save_together(folder, {ADAPTER_WEIGHTS: adapter_tensors(model, kind)}, {ADAPTER: told})


def load_adapters(folder: str | Path, model: Transformer, *, kind: str | None = None) -> None:
    """Give a model, in place, the adapters that `save_adapters` or peft wrote for it.

    kind:  the published layout whose names the file has. `None`: of those that can say the model, the first that has
           them, beginning with that of the folder the model was read from.

    Raises `ValueError` for a file that is missing or damaged, adapters of another model, and what peft can and this
    cannot: other kinds than LoRA, ranks or scales that differ, biases, DoRA, experts, adapters that come with a change
    of the model below them (PiSSA, OLoRA, CorDA, LoftQ), and every field of adapter_config.json that is not known.
    """
    folder = Path(folder)
    where = folder / ADAPTER
    said, tensors = read_together(
        folder, lambda: (read_config(folder, ADAPTER), load_tensors(folder / ADAPTER_WEIGHTS))
    )
    for name, value in {"peft_type": None, "r": None, "lora_alpha": None, **said}.items():
        policy = FIELDS.get(name)
        if policy is None and not value:  # a feature of another version of peft, which is off
            continue
        became = became_by(where, name, value, policy, "it may change what the adapters compute")
        if became.refused is not None:
            raise ValueError(became.refused)
    for name, kinds, wanted in (("r", int, "a whole number >= 1"), ("lora_alpha", int | float, "a number > 0")):
        value = said.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool) or not value > 0:
            raise ValueError(f"{where}: {name}={value!r}: expected {wanted}")
    names = set()
    for key in tensors:
        name, _, end = key.removeprefix(BEFORE).rpartition(".lora_")
        if end not in ("A.weight", "B.weight"):
            raise ValueError(
                f"{folder / ADAPTER_WEIGHTS}: {key}: expected lora_A.weight and lora_B.weight of linear layers inside "
                "the blocks; changes of the token embeddings or the head are not read: merge them into the model with "
                "peft's merge_and_unload(), and load the merged model"
            )
        names.add(name)
    kind, layers = _layout_of(model, names, kind)
    if unknown := sorted(names - set(layers)):
        raise ValueError(f"{folder / ADAPTER_WEIGHTS}: {unknown[0]}: expected a linear layer of this model")
    ours = {part.layer for name in names for part in layers[name]}
    inside = set(targeted(model, "all"))
    if outside := sorted(names - {name for name in names if all(part.layer in inside for part in layers[name])}):
        raise ValueError(
            f"{folder / ADAPTER_WEIGHTS}: {outside[0]}: expected layers of attention and feed-forward networks alone; "
            "merge the others into the model with peft's merge_and_unload(), and load the merged model"
        )
    adapt(model, said["r"], alpha=said["lora_alpha"], kind=kind)
    for name in inside - ours:
        _take_off(model, name)
    put_adapters(model, tensors, kind)


def _published(model: Transformer, kind: str | None = None) -> dict[str, list[Part]]:
    """`published_layers` of a model's configuration; `None` is the kind that the model remembers, if there is one."""
    return published_layers(model.config, kind or model.published_kind)


def _layout_of(model: Transformer, names: Collection[str], kind: str | None) -> tuple[str, dict[str, list[Part]]]:
    """The layout that calls all of these layers so, or the first tried, and its layers."""
    first = kind or simplest_kind(model.config, model.published_kind)
    for one in [first] if kind else dict.fromkeys((first, simplest_kind(model.config), *families())):
        with suppress(ValueError):
            layers = published_layers(model.config, one)
            if layers.keys() >= set(names):
                return one, layers
    return first, published_layers(model.config, first)


def _take_off(model: Transformer, name: str) -> None:
    """The layer itself in the place of its adapter."""
    layer = model.get_submodule(name)
    assert isinstance(layer, LowRank)
    plain = nn.Linear(1, 1, bias=layer.bias is not None)
    plain.in_features, plain.out_features = layer.in_features, layer.out_features
    plain.weight, plain.bias = layer.weight, layer.bias
    above, _, place = name.rpartition(".")
    setattr(model.get_submodule(above), place, plain)


def _layers(model: Transformer) -> dict[str, LowRank]:
    if not (layers := low_rank_layers(model)):
        raise ValueError("model: expected one with adapters, got one without; adapt(model, rank) gives it some")
    return layers


_DRAWN = (True, False, None, "gaussian", "eva", "orthogonal")
_BELOW = "as others also change the weights below the adapters"
FIELDS = {"init_lora_weights": Policy("init_lora_weights", "must be", _BELOW, _DRAWN)} | rows(
    """
    peft_type                        must be "LORA"
    r                                neutral                 checked by itself, as is the next
    lora_alpha                       neutral
    bias                             must be "none" or null
    rank_pattern                     must be {} or null
    alpha_pattern                    must be {} or null
    target_modules                   neutral                 the tensors say which layers have a change
    exclude_modules                  neutral                 the same
    layers_to_transform              neutral                 the same
    layers_pattern                   neutral                 the same
    fan_in_fan_out                   neutral                 how the layers of the model below are stored
    lora_dropout                     neutral                 of training
    task_type                        neutral
    base_model_name_or_path          neutral
    revision                         neutral
    auto_mapping                     neutral
    inference_mode                   neutral
    peft_version                     neutral
    runtime_config                   neutral
    megatron_core                    neutral                 the name of a library
    qalora_group_size                neutral                 of use_qalora
    eva_config                       neutral                 how A was drawn
    corda_config                     neutral                 of init_lora_weights, as the next two
    loftq_config                     neutral
    lora_ga_config                   neutral
    """
)
"""The fields of adapter_config.json that may be anything but off. All the others, known to this reader or not, may
change what is computed."""
