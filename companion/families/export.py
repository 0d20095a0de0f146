"""Export a model of ours in the layout of a published family, for `transformers`, vLLM and SGLang (lesson 18).

A model can also be written as a GGUF file, for llama.cpp and the programs built on it.

The family's own tables are used in reverse to convert the fields and tensors. Before anything is written, the family
reads the result back, which shows whether it can represent every part of the model. If the family cannot represent a
part, the error names that part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from companion.config.model import ModelConfig, MoEConfig, PositionConfig
from companion.families.registry import families
from companion.files.gguf.architectures import BY_KIND
from companion.files.gguf.writing import GGUFType, Unwritten, tokenizer_keys, write_gguf
from companion.files.models import CONFIG, WEIGHTS, plain_dtype, save_together
from companion.files.published.checkpoint_folder import Fields
from companion.files.published.config_fields import is_dropout
from companion.files.published.export_fields import said
from companion.files.published.family import Family
from companion.files.published.state_dict import StateDictExporter
from companion.ground.fields import shown
from companion.layers.positions import magnitude_of
from companion.transformer import Transformer

ALIKE = 1e-9
"""Relative difference allowed between a number and its value after it has been exported and read back."""

REFUSED = [""] * 99
"""Empty faults that are added if a family could not even read the exported fields. They make every other family count
as closer."""


def export_model(
    folder: str | Path, model: Transformer, *, kind: str | None = None, further: Mapping[str, Any] | None = None
) -> Family:
    """Write the `config.json` and `model.safetensors` of a model in the layout of a published family.

    Args:
        folder: The output folder.
        model: The model to export.
        kind: The `model_type` of the family. The default is the family that needs the fewest fields (not counting
            dropout rates) among all families that can represent the model.
        further: More fields for config.json that do not affect logits, such as `eos_token_id`.

    Returns:
        The family.

    Raises:
        ValueError: If `kind` is unknown, or if the family (by default, every family) lacks a part of the model. The
            message names the missing parts; by default, these are the parts that the closest family lacks. In these
            cases, nothing is written.
    """
    simplest, fields = _simplest(model.config, kind)
    family = families()[simplest]
    tensors = _published(model, family, Path(folder))
    dtype = plain_dtype(model.embedding.weight.dtype)
    about: dict[str, Any] = {"architectures": [family.architecture], "dtype": dtype, "torch_dtype": dtype}
    about |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # otherwise readers use a release's ids
    if not model.config.attending:
        about["use_cache"] = False  # `transformers` has no cache for models with only linear layers
    told = json.dumps(about | fields | dict(further or {}), indent=2) + "\n"
    save_together(Path(folder), {WEIGHTS: tensors}, {CONFIG: told})
    return family


def _published(model: Transformer, family: Family, path: Path) -> dict[str, Tensor]:
    """Return a model's tensors, keyed by their published names."""
    back = StateDictExporter(model.state_dict(), path)
    family.place(back, model.config)
    return {family.theirs(name): tensor for name, tensor in back.finish().items()}


def export_gguf(
    path: str | Path,
    model: Transformer,
    *,
    kind: str | None = None,
    type: GGUFType = "F16",
    tokenizer: str | None = None,
    template: str | None = None,
    special: Mapping[str, int | None] | None = None,
    name: str = "",
) -> str:
    """Write a model as a GGUF file.

    Args:
        path: The output file.
        model: A decoder.
        kind: The `model_type` to export as (default: chosen as in `export_model`, among those that llama.cpp knows).
        type: The GGUF type of the matrices.
        tokenizer: The text of the model's tokenizer.json.
        template: The model's chat template.
        special: Special token ids, keyed by field name, such as `bos_token_id`.
        name: The name of the model.

    Returns:
        llama.cpp's name for the architecture.

    Raises:
        ValueError: If no architecture supports some part of the model, or llama.cpp has no name for the tokenizer. In
            these cases, nothing is written.
    """
    simplest, fields = _simplest(model.config, kind, tuple(BY_KIND))
    architecture = BY_KIND[simplest]
    tensors = _published(model, families()[simplest], Path(path))
    draft = Unwritten(path, architecture, model.config, {name: tuple(one.shape) for name, one in tensors.items()})
    if faults := _faults(model.config, families()[simplest], architecture.fields(draft)):
        raise ValueError(f"{'; '.join(faults[:5])} (in llama.cpp's architecture {architecture.name})")
    keys = None if tokenizer is None else tokenizer_keys(tokenizer, model.config.vocab, special or {})
    write_gguf(
        path, model.config, simplest, fields, tensors, type=type, tokenizer=keys, template=template, name=name
    )  # fmt: skip
    return architecture.name


@lru_cache(maxsize=32)
def simplest_kind(config: ModelConfig, kind: str | None = None) -> str:
    """Return the `model_type` that `export_model` uses for a model. Raises `ValueError` in the same cases as
    `export_model`."""
    return _simplest(config, kind)[0]


def _simplest(
    config: ModelConfig, kind: str | None, among: tuple[str, ...] | None = None
) -> tuple[str, dict[str, Any]]:
    """Choose the `model_type` to export as, from `among` or all known ones; return it with its config.json fields."""
    known = {
        name: family for name, family in families().items() if family.architecture and (among is None or name in among)
    }
    if kind is not None and kind not in known:
        raise ValueError(f"kind={shown(kind)}: expected one of {', '.join(known)}")
    tried = {one: _told(config, known[one]) for one in (known if kind is None else [kind])}
    fit = {one: fields for one, (fields, faults) in tried.items() if not faults}
    if not fit:
        nearest = min(tried, key=lambda one: len(tried[one][1]))
        missing = "; ".join(fault for fault in tried[nearest][1][:5] if fault)
        others = "" if kind is not None else ", the closest one; no published model_type has all parts of this model"
        raise ValueError(f"{missing} (for the model_type {nearest}{others})")
    simplest = min(fit, key=lambda one: (known[one].unread, sum(not is_dropout(name) for name in fit[one])))
    return simplest, fit[simplest]


def _told(config: ModelConfig, family: Family) -> tuple[dict[str, Any], list[str]]:
    """Return a family's config.json fields for a model, and the settings that they cannot express."""
    try:
        fields = {"model_type": family.kind} | said(config, family.own) | dict(family.says(config))
    except ValueError as error:  # the model lacks a part that the family requires
        return {}, [str(error).removeprefix(f"{CONFIG}: "), *REFUSED]
    faults = _faults(config, family, fields)
    return ({} if faults[-1:] == REFUSED[-1:] else fields), faults


def _faults(config: ModelConfig, family: Family, fields: Mapping[str, Any]) -> list[str]:
    """Return the differences between a model and the model that these fields describe, one sentence each."""
    try:
        given = Fields(Path("."), family.kind, family.table, fields)
        read = given.finish(lambda: family.config(given, family.ends(config)))
    except ValueError as error:
        return [str(error).removeprefix(f"{CONFIG}: "), *REFUSED]
    ours, theirs = _flat(asdict(filled_in(config))), _flat(asdict(filled_in(read)))
    return [
        f"{part}={shown(ours.get(part))}: expected {shown(theirs.get(part))}"
        for part in ours | theirs
        if not _alike(ours.get(part), theirs.get(part))
    ]


def filled_in(config: ModelConfig) -> ModelConfig:
    """Return the canonical configuration of a model that computes the same function as the given one.

    Every default is filled in, every pattern has one entry per layer, and settings that matter only in training are
    left out. As far as the families can express them, two configurations of the same function become equal.
    """
    attention, positions, layers = config.attention, config.positions, range(config.layers)
    sizes, window, latent = config.sizes, attention.window, attention.latent
    if window is not None:
        same = positions.scaling is None and window.base == positions.base
        pattern = tuple(map(config.local, layers))
        window = replace(window, pattern=pattern, base=None if same else window.base) if any(pattern) else None
    linear = config.linear_config
    if linear is not None:
        linear = replace(linear, pattern=tuple(map(config.linear, layers))) if config.linears else None
    if latent is not None and latent.eps is None:
        latent = replace(latent, eps=config.norm.eps)
    attention = replace(
        attention,
        kv_heads=sizes.kv_heads,
        d_head=sizes.d_head,
        d_v=sizes.d_v,
        output_bias=attention.biased_output,
        score_width=attention.score_width or float(sizes.d_head + (0 if latent is None else latent.d_rope)),
        window=window,
        latent=latent,
        linear=linear,
    )
    return config.with_(
        attention=attention,
        positions=_plain_positions(config),
        moe=None if config.moe is None else _plain_moe(config, config.moe),
        embedding=replace(config.embedding, rounded=config.embedding.rounded and config.embedding.scaled),
        dropout=0.0,
    )


def _plain_positions(config: ModelConfig) -> PositionConfig:
    order, scaling = config.positions, config.positions.scaling
    if scaling is not None and scaling.kind in ("yarn", "llama3"):
        scaling = replace(scaling, slow=scaling.ramp[0], fast=scaling.ramp[1])
    if scaling is not None and scaling.kind in ("yarn", "longrope"):
        scaling = replace(scaling, magnitude=magnitude_of(scaling))
    turning = tuple(config.layer(layer)[1].kind == "rotary" for layer in range(config.layers))
    if order.kind == "none" or (order.kind == "rotary" and not any(turning)):
        return PositionConfig("none")
    pattern = turning if order.kind == "rotary" else order.pattern
    return replace(order, layout=order.pairing, scaling=scaling, pattern=pattern)


def _plain_moe(config: ModelConfig, moe: MoEConfig) -> MoEConfig:
    mixed = tuple(config.network(layer)[1] is not None for layer in range(config.layers))
    d_ff = config.feed_forward.d_ff
    return replace(
        moe,
        gating="softmax_topk_renormalised" if moe.gating == "topk_softmax" else moe.gating,
        capacity=None,
        noise=0.0,
        group_best=moe.group_best if moe.groups > 1 else 1,
        pattern=mixed,
        plain_d_ff=None if all(mixed) else moe.plain_d_ff or d_ff,
        shared_d_ff=(moe.shared_d_ff or d_ff) if moe.shared else None,
    )


def _flat(parts: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested fields, keyed by dotted names such as `attention.heads`."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def _alike(ours: Any, theirs: Any) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (ours, theirs))
    return abs(ours - theirs) <= ALIKE * abs(ours) if numbers else ours == theirs
