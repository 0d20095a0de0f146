"""Add low-rank adapters (LoRA) to a model, and read and write their files in the layout of peft (lesson 20).

peft can apply these files to the published form of the model:

    adapter_config.json         rank, alpha, and the names of the layers that have an adapter
    adapter_model.safetensors   base_model.model.NAME.lora_A.weight, (rank, in), and lora_B.weight, (out, rank)

NAME is the published name of the layer. Some published layouts fuse several of our layers into one matrix, such as
`qkv_proj` or GPT-2's `c_attn`. peft has a single A for such a matrix, so our layers share one too, and their Bs are
stacked by rows. To find the fused layers, the family's own table of tensors is applied to row indices instead of
weights.

A model that was read from a published folder stores its `model_type`, and its adapters are named according to that
layout. For any other model, adapters are named according to the layout that `export_model` chooses.

If a peft file uses a feature that cannot be represented here, it is rejected with an error that names the feature. For
models that do not fit on one machine, use peft with trl instead.
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
from companion.files.published.state_dict import StateDictExporter
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
"""Prefix that peft puts before a layer's published name."""
Targets = Literal["attention", "all"]
"""Layers that get an adapter: those of attention, or those of the feed-forward networks as well.

In a model with experts, both values select only attention. Routers, experts, embeddings and the head get no adapter.
"""
_HOLDERS: dict[str, tuple[type[nn.Module], ...]] = {
    "attention": (Attention, LatentAttention, LinearAttention),
    "all": (Attention, LatentAttention, LinearAttention, FeedForward),
}

_RATES = ("strength", "decay", "decay_down")
"""The narrow layers of linear attention that set how strongly its state is written and how fast it decays.

Their names in published files differ from those of the modules, so peft would not find them.
"""


@dataclass(frozen=True)
class Part:
    """One of our layers inside a published layer: our row `rows[i]` is the published row `places[i]`."""

    layer: str
    places: Tensor
    rows: Tensor


def targeted(model: Transformer, targets: Targets = "all") -> list[str]:
    """Return the names of the linear layers that get an adapter. Raises `ValueError` for unknown targets."""
    require(targets in _HOLDERS, "targets", targets, "'attention' or 'all'")
    # In a model with experts, peft 0.21 confuses the names of the other networks with the names of the experts.
    kinds = _HOLDERS["attention" if model.config.moe is not None else targets]
    found: list[str] = []
    for name, module in model.named_modules():
        layers = module.named_children() if isinstance(module, kinds) else ()
        found += [f"{name}.{at}" for at, layer in layers if isinstance(layer, nn.Linear) and at not in _RATES]
    return found


@lru_cache(maxsize=8)
def published_layers(config: ModelConfig, kind: str | None = None) -> dict[str, list[Part]]:
    """Map each linear layer of a published layout to those of our linear layers that make it up.

    Args:
        config: The configuration of the model.
        kind: The layout, as a `model_type` (default: the one that `export_model` chooses).

    Returns:
        The parts of each published module, keyed by its name.

    Raises:
        ValueError: In the same cases as `export_model`.
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
    back = StateDictExporter(ours, Path("."))
    family.place(back, config)
    found = {}
    for name, tensor in back.finish().items():
        if tensor.is_meta or not name.endswith(".weight"):
            continue
        rows = tensor.flatten()
        # The modules of a text model in transformers lack the prefix that its tensors have in files.
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
    """Replace each targeted linear layer of a model, in place, with a `LowRank`, and freeze everything else.

    The logits stay the same, bit for bit.

    Args:
        model: A model without adapters.
        rank: The rank of every adapter.
        alpha: The numerator of the scale alpha / rank (default: twice the rank).
        targets: The layers that get an adapter.
        kind: The published layout whose fused layers share a `down` matrix (see above). The model stores this layout.
            The default is the layout that the model was read from, or else the layout that `export_model` chooses. In a
            model that no layout can represent, each layer has its own `down` matrix, and the adapters cannot be saved.

    Raises:
        ValueError: If the rank is below 1, alpha is not positive, the targets are unknown, or the model already has
            adapters.
    """
    if low_rank_layers(model):
        raise ValueError("model: expected a model without adapters; merged_model(model) returns one")
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
    """Return a plain model in which W + (alpha / rank) B A replaces every adapter.

    The logits stay the same, up to rounding. Tensors without an adapter are shared with `model` rather than copied. The
    new model is in evaluation mode.
    """
    kept = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, layer in low_rank_layers(model).items():
        del kept[f"{name}.down"], kept[f"{name}.up"]
        kept[f"{name}.weight"] = layer.matrix()
    merged = assemble(model.config, kept, Path("merged"), None)
    merged.published_kind = model.published_kind
    return merged


def adapter_tensors(model: Transformer, kind: str | None = None) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the adapter tensors of a model, keyed by peft's names.

    Raises:
        ValueError: If the model has no adapters, if no published layout can represent it, or if only some parts of a
            published layer have an adapter.
    """
    layers, tensors = _layers(model), {}
    for name, parts in _published(model, kind).items():
        if chosen := [layers[part.layer] for part in parts if part.layer in layers]:
            if len(chosen) < len(parts) or any(layer.down is not chosen[0].down for layer in chosen):
                raise ValueError(f"{name}: expected its parts to share one matrix A, as in peft")
            tensors[f"{BEFORE}{name}.lora_A.weight"] = chosen[0].down.detach()
            up = chosen[0].up.new_empty(sum(len(part.rows) for part in parts), chosen[0].rank)
            for part, layer in zip(parts, chosen, strict=True):
                up[part.places] = layer.up.detach()[part.rows]
            tensors[f"{BEFORE}{name}.lora_B.weight"] = up
    return tensors


@torch.no_grad()
def put_adapters(model: Transformer, tensors: Mapping[str, Tensor], kind: str | None = None) -> None:
    """Copy tensors from `adapter_tensors`, or from a file that peft wrote, into the adapters of a model.

    Raises:
        ValueError: If an adapter lacks one of its two tensors, if a shape differs, or if there are additional tensors.
            In these cases the model is not changed.
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
        raise ValueError(f"{min(left)}: expected only adapters of this model, got an adapter of another model")
    for here, down, up in moves:
        for part, layer in here:
            layer.down.copy_(down)
            layer.up[part.rows] = up[part.places].to(layer.up)


def adapter_config(model: Transformer, kind: str | None = None) -> dict[str, Any]:
    """Return the contents of peft's adapter_config.json for the adapters of a model."""
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
    """Write only the adapters of a model, in the same files that peft writes. Raises `ValueError` in the same cases as
    `adapter_tensors`."""
    folder = Path(folder)
    told = json.dumps(adapter_config(model, kind), indent=2) + "\n"
    save_together(folder, {ADAPTER_WEIGHTS: adapter_tensors(model, kind)}, {ADAPTER: told})


def load_adapters(folder: str | Path, model: Transformer, *, kind: str | None = None) -> None:
    """Load adapters that `save_adapters` or peft wrote, and add them to a model in place.

    Args:
        folder: The folder that contains both files.
        model: The model that the adapters belong to, without adapters.
        kind: The published layout whose names the file uses. By default, all layouts that can represent the model are
            tried, beginning with the one that the model was read from, and the first layout that has all the names is
            used.

    Raises:
        ValueError: If a file is missing or damaged, if the adapters belong to another model, or if they use features of
            peft that are not supported here: methods other than LoRA, ranks or scales that differ between layers,
            biases, DoRA, adapters of experts, methods that also change the base model (PiSSA, OLoRA, CorDA, LoftQ), and
            any unknown field of adapter_config.json that is not switched off.
    """
    folder = Path(folder)
    where = folder / ADAPTER
    said, tensors = read_together(
        folder, lambda: (read_config(folder, ADAPTER), load_tensors(folder / ADAPTER_WEIGHTS))
    )
    for name, value in {"peft_type": None, "r": None, "lora_alpha": None, **said}.items():
        policy = FIELDS.get(name)
        if policy is None and not value:  # a feature of another version of peft that is switched off
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
                "the blocks; changes to the token embeddings or the head cannot be read; merge them into the model "
                "with "
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
            f"{folder / ADAPTER_WEIGHTS}: {outside[0]}: expected only layers of attention and feed-forward networks; "
            "merge the others into the model with peft's merge_and_unload(), and load the merged model"
        )
    adapt(model, said["r"], alpha=said["lora_alpha"], kind=kind)
    for name in inside - ours:
        _take_off(model, name)
    put_adapters(model, tensors, kind)


def _published(model: Transformer, kind: str | None = None) -> dict[str, list[Part]]:
    """Return `published_layers` for a model; `kind=None` means the layout stored in the model, if there is one."""
    return published_layers(model.config, kind or model.published_kind)


def _layout_of(model: Transformer, names: Collection[str], kind: str | None) -> tuple[str, dict[str, list[Part]]]:
    """Return the first layout that has all of these layer names, or else the first one tried, together with its
    layers."""
    first = kind or simplest_kind(model.config, model.published_kind)
    for one in [first] if kind else dict.fromkeys((first, simplest_kind(model.config), *families())):
        with suppress(ValueError):
            layers = published_layers(model.config, one)
            if layers.keys() >= set(names):
                return one, layers
    return first, published_layers(model.config, first)


def _take_off(model: Transformer, name: str) -> None:
    """Replace an adapter with its original linear layer."""
    layer = model.get_submodule(name)
    assert isinstance(layer, LowRank)
    plain = nn.Linear(1, 1, bias=layer.bias is not None)
    plain.in_features, plain.out_features = layer.in_features, layer.out_features
    plain.weight, plain.bias = layer.weight, layer.bias
    above, _, place = name.rpartition(".")
    setattr(model.get_submodule(above), place, plain)


def _layers(model: Transformer) -> dict[str, LowRank]:
    if not (layers := low_rank_layers(model)):
        raise ValueError("model: expected a model with adapters; adapt(model, rank) adds them")
    return layers


_DRAWN = (True, False, None, "gaussian", "eva", "orthogonal")
_BELOW = "as others also change the weights below the adapters"
FIELDS = {"init_lora_weights": Policy("init_lora_weights", "must be", _BELOW, _DRAWN)} | rows(
    """
    peft_type                        must be "LORA"
    r                                ignored                 checked by itself, as is the next
    lora_alpha                       ignored
    bias                             must be "none" or null
    rank_pattern                     must be {} or null
    alpha_pattern                    must be {} or null
    target_modules                   ignored                 the tensors say which layers have a change
    exclude_modules                  ignored                 the same
    layers_to_transform              ignored                 the same
    layers_pattern                   ignored                 the same
    fan_in_fan_out                   ignored                 how the layers of the model below are stored
    lora_dropout                     ignored                 of training
    task_type                        ignored
    base_model_name_or_path          ignored
    revision                         ignored
    auto_mapping                     ignored
    inference_mode                   ignored
    peft_version                     ignored
    runtime_config                   ignored
    megatron_core                    ignored                 the name of a library
    qalora_group_size                ignored                 of use_qalora
    eva_config                       ignored                 how A was drawn
    corda_config                     ignored                 of init_lora_weights, as the next two
    loftq_config                     ignored
    lora_ga_config                   ignored
    """
)
"""The fields of adapter_config.json that may be set. All others must be off, because they may change what the adapters
compute."""
