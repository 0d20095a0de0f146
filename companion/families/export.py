"""A model of ours in the layout of a published family, for everybody who reads that: `transformers`, vLLM, SGLang
(lesson 18); and as a GGUF file, for llama.cpp and what is built on it.

Fields and tensors go through the family's own tables, from right to left. What is to be written is then read by the
family, before it is: so a part of the model that it cannot say is found, and refused by name.
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
from companion.files.published.state_dict import WayBack
from companion.ground.fields import shown
from companion.layers.positions import magnitude_of
from companion.transformer import Transformer

ALIKE = 1e-9
"""How far a number may be, as a share, from what it was before it went there and back."""

REFUSED = [""] * 99
"""Behind a sentence of a family that could not even read what was to be written: others are nearer."""


def export_model(
    folder: str | Path, model: Transformer, *, kind: str | None = None, further: Mapping[str, Any] | None = None
) -> Family:
    """Write `config.json` and `model.safetensors` of a model as a published family has them; the family.

    kind:     its `model_type`. `None`: of those that have all parts of the model, the one that says it in the fewest
              fields, rates of dropout left out.
    further:  fields of config.json that say nothing about logits, such as `eos_token_id`.

    Raises `ValueError`, with nothing written, for a kind that is not known, and naming the parts of the model that the
    family does not have, or those that the nearest one does not.
    """
    simplest, fields = _simplest(model.config, kind)
    family = families()[simplest]
    tensors = _published(model, family, Path(folder))
    dtype = plain_dtype(model.embedding.weight.dtype)
    about: dict[str, Any] = {"architectures": [family.architecture], "dtype": dtype, "torch_dtype": dtype}
    about |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # else readers take a release's own
    if not model.config.attending:
        about["use_cache"] = False  # `transformers` has no cache of linear layers alone
    told = json.dumps(about | fields | dict(further or {}), indent=2) + "\n"
    save_together(Path(folder), {WEIGHTS: tensors}, {CONFIG: told})
    return family


def _published(model: Transformer, family: Family, path: Path) -> dict[str, Tensor]:
    """A model's tensors by their published names."""
    back = WayBack(model.state_dict(), path)
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
        path: the file.
        model: a decoder.
        kind: the `model_type` as which it is published. Default: as in `export_model`, of those that llama.cpp knows.
        type: of the matrices.
        tokenizer: the text of its tokenizer.json.
        template: its chat template.
        special: ids with a meaning, by `bos_token_id` and its kin.
        name: what it is called.

    Returns:
        The architecture, as llama.cpp calls it.

    Raises:
        ValueError: with nothing written, for a part of the model that no architecture has, and a tokenizer that
            llama.cpp has no name for.
    """
    simplest, fields = _simplest(model.config, kind, tuple(BY_KIND))
    architecture = BY_KIND[simplest]
    tensors = _published(model, families()[simplest], Path(path))
    draft = Unwritten(path, architecture, model.config, {name: tuple(one.shape) for name, one in tensors.items()})
    if faults := _faults(model.config, families()[simplest], architecture.fields(draft)):
        raise ValueError(f"{'; '.join(faults[:5])} (as llama.cpp has it in the architecture {architecture.name})")
    keys = None if tokenizer is None else tokenizer_keys(tokenizer, model.config.vocab, special or {})
    write_gguf(
        path, model.config, simplest, fields, tensors, type=type, tokenizer=keys, template=template, name=name
    )  # fmt: skip
    return architecture.name


@lru_cache(maxsize=32)
def simplest_kind(config: ModelConfig, kind: str | None = None) -> str:
    """The `model_type` as which `export_model` writes a model. Raises `ValueError` as it does."""
    return _simplest(config, kind)[0]


def _simplest(
    config: ModelConfig, kind: str | None, among: tuple[str, ...] | None = None
) -> tuple[str, dict[str, Any]]:
    """The kind to write a model as, of all or `among` some, and the fields that say it."""
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
        others = "" if kind is not None else ", the nearest of the published kinds, none of which has all of this model"
        raise ValueError(f"{missing} (as a {nearest} has it{others})")
    simplest = min(fit, key=lambda one: (known[one].unread, sum(not is_dropout(name) for name in fit[one])))
    return simplest, fit[simplest]


def _told(config: ModelConfig, family: Family) -> tuple[dict[str, Any], list[str]]:
    """What a config.json of that family says of a model, and what it does not say of it."""
    try:
        fields = {"model_type": family.kind} | said(config, family.own) | dict(family.says(config))
    except ValueError as error:  # of a part that it must have
        return {}, [str(error).removeprefix(f"{CONFIG}: "), *REFUSED]
    faults = _faults(config, family, fields)
    return ({} if faults[-1:] == REFUSED[-1:] else fields), faults


def _faults(config: ModelConfig, family: Family, fields: Mapping[str, Any]) -> list[str]:
    """How a model differs from what these fields say."""
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
    """The same function with every default filled in, every pattern as long as there are layers, and what matters in
    training alone left out: equal for any two configurations of one function, as far as families write them."""
    attention, positions, layers = config.attention, config.positions, range(config.layers)
    sizes, window, latent = config.sizes, attention.window, attention.latent
    if window is not None:
        same = positions.scaling is None and window.base == positions.base
        pattern = tuple(map(config.local, layers))
        window = replace(window, pattern=pattern, base=None if same else window.base) if any(pattern) else None
    linear = config.memory
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
    """Parts within parts by one name: attention.heads."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def _alike(ours: Any, theirs: Any) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (ours, theirs))
    return abs(ours - theirs) <= ALIKE * abs(ours) if numbers else ours == theirs
