"""Read rotary positions, their scaling, and windows from the configurations of LLaMA and related models (lesson 13).

Up to version 4 of `transformers`, the base is in `rope_theta`, and any scaling is in `rope_scaling`. From version 5 on,
both are in `rope_parameters`; Gemma 3 and OLMo 3 have such an object for each kind of layer. Meanings and defaults
follow `modeling_rope_utils` in `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from companion.config.model import PositionConfig, RotaryScaling, WindowConfig
from companion.files.published.config_fields import alike
from companion.ground.fields import is_number, shown

if TYPE_CHECKING:
    from companion.config.model import ModelConfig
    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.config_fields import Policy

GLOBAL, LOCAL, LINEAR = "full_attention", "sliding_attention", "linear_attention"
"""Kinds of layers in `layer_types`."""
_KEYS = {
    "default": ("factor",),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"),
}
"""The keys that each kind of scaling may have, in addition to its kind and base."""
_NEEDED = {
    "default": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""The keys that a kind of scaling must have. Kinds that are not listed need only the factor."""
_PICTURES = ("mrope_section", "mrope_interleaved")
"""Keys that assign frequencies to time, rows and columns of an image. They are ignored, because a text token has the
same position in all three."""
_ORIGINAL, _SHARE = "original_max_position_embeddings", "partial_rotary_factor"


def positions(
    fields: Fields, turning: Sequence[bool] = (True,), local_base: str | None = None
) -> tuple[PositionConfig, float | None]:
    """Return the rotary positions of a configuration, and the base of its local layers if that base is different.

    Args:
        fields: The fields of config.json.
        turning: Whether each layer rotates queries and keys.
        local_base: The field outside of `rope_parameters` that contains the base of local layers, whose frequencies are
            then not scaled. If it is `None`, all layers rotate in the same way.

    Raises:
        ValueError: If the scaling is unknown, lacks a key, or contradicts itself. The message names the field.
    """
    said = [name for name in ("rope_scaling", "rope_parameters") if fields.given.get(name) is not None]
    if len(said) == 2 and fields.given["rope_scaling"] != fields.given["rope_parameters"]:
        raise fields.refuse("rope_scaling", fields.given["rope_scaling"], "null, because rope_parameters differ")
    name = said[0] if said else ""
    values = fields.given[name] if said else {}
    if not isinstance(values, Mapping):
        raise fields.refuse(name, values, "an object with a rope_type, or null")
    local = None
    if local_base is not None and name == "rope_parameters":
        if not set(values) <= {GLOBAL, LOCAL}:
            raise fields.refuse(name, values, f"objects for {GLOBAL} and {LOCAL} only")
        local = _part(fields, f"{name}.{LOCAL}", values.get(LOCAL) or {}, local_base, {"default": ()}).base
        name, values = f"{name}.{GLOBAL}", values.get(GLOBAL) or {}
    elif local_base is not None:
        local = _part(fields, "", {}, local_base, _KEYS).base
        if "type" in values:  # some versions of the released code overlook this
            raise fields.refuse(f"{name}.type", values["type"], "rope_type instead of type")
    kinds = _KEYS if _ORIGINAL not in fields.table else {kind: _KEYS[kind] for kind in ("default", "longrope")}
    outer = _row(fields.table, "positions.base", "rope_theta")
    own = replace(_part(fields, name, values, outer, kinds), layout="half", pattern=shortest(turning))
    return own, None if own.scaling is None and local == own.base else local


def window(fields: Fields, types: Sequence[str], width: Any, base: float | None) -> WindowConfig | None:
    """Return the window of the local layers, or `None` if there are no local layers.

    Args:
        fields: The fields of config.json.
        types: The kind of each layer.
        width: The width of the window in tokens.
        base: The base of the local layers' rotary positions, or `None` if all layers have the same base.

    Raises:
        ValueError: If there are local layers but `width` is `None`.
    """
    pattern = [kind == LOCAL for kind in types]
    if not any(pattern):
        return None
    if width is None:
        raise fields.refuse("sliding_window", width, "a number of tokens, because some layers are local")
    return WindowConfig(width, shortest(pattern), base)


def layer_types(fields: Fields, usual: Sequence[str], other: str = LOCAL) -> Sequence[str]:
    """Return the kind of each layer from the field `layer_types`, or `usual` if the field is null or left out.

    Raises:
        ValueError: If the field does not name the kind of every layer as either `GLOBAL` or `other`.
    """
    said = fields.take("layer_types")
    if said is None:
        return usual
    if not isinstance(said, list) or any(kind not in (GLOBAL, other) for kind in said) or len(said) != len(usual):
        raise fields.refuse("layer_types", said, f"the types of {len(usual)} layers, each {GLOBAL} or {other}")
    return said


def shortest(pattern: Sequence[bool]) -> tuple[bool, ...]:
    """Return the shortest prefix of a pattern that gives the whole pattern when it is repeated."""
    length = next(n for n in range(1, len(pattern) + 1) if all(x == pattern[i % n] for i, x in enumerate(pattern)))
    return tuple(pattern[:length])


def _row(table: Mapping[str, Policy], part: str, usual: str) -> str:
    """Return the field whose value becomes `part` of our configuration, or `usual` if the table has no such field."""
    return next((name for name, one in table.items() if one.kind == "used" and one.note.startswith(part)), usual)


def _part(
    fields: Fields, name: str, values: Mapping[str, Any], outer: str, kinds: Mapping[str, Sequence[str]]
) -> PositionConfig:
    """Return the positions described by an object such as `rope_scaling`.

    Args:
        fields: The fields of config.json.
        name: The object's name, for messages.
        values: The object.
        outer: The field that contains the base if it is outside of the object.
        kinds: The allowed kinds of scaling, each with its keys.
    """
    if not isinstance(values, Mapping):
        raise fields.refuse(name, values, "an object with a rope_type, or null")

    def wrong(key: str, value: Any, expected: str) -> ValueError:
        return fields.refuse(f"{name}.{key}", value, expected)

    values = {key: value for key, value in values.items() if value is not None or key in ("rope_type", "type")}
    values = {key: value for key, value in values.items() if key not in _PICTURES}
    kind = values.pop("rope_type", values.get("type", "default"))
    if _ORIGINAL in fields.table and kind in ("su", "yarn"):  # earlier names in Phi-3
        kind = values["type"] = "longrope"
    if values.pop("type", kind) != kind or not isinstance(kind, str) or kind not in kinds:
        raise wrong("rope_type", kind, "one of " + ", ".join(map(repr, kinds)))
    base = fields.take(outer) if outer in fields.table else 10000.0
    if outer in fields.given and not is_number(base):
        raise fields.refuse(outer, base, "a number from 1 to 1e12")
    if "rope_theta" in values:
        if outer in fields.given and not alike(base, values["rope_theta"]):
            raise wrong("rope_theta", values["rope_theta"], f"{shown(base)}, as {outer} outside of it")
        base = values.pop("rope_theta")
    if not is_number(base) or not 1 <= base <= 1e12:
        raise fields.refuse(outer, base, "a number from 1 to 1e12")
    share = _share(fields, name, values)
    if unknown := [key for key in values if key not in kinds[kind]]:
        raise wrong(unknown[0], values[unknown[0]], f"only the keys of the kind {kind!r}")
    if kind == "default" and values.get("factor", 1) != 1:
        raise wrong("factor", values["factor"], "1, because a scaling of the kind 'default' scales nothing")
    for key, value in values.items():
        if key in ("short_factor", "long_factor"):
            if not isinstance(value, list) or not all(map(is_number, value)):
                raise wrong(key, value, "a list of finite numbers")
        elif key != "truncate" and not is_number(value):
            raise wrong(key, value, "a finite number")
    for key in _NEEDED.get(kind, ("factor",)):
        if key not in values:
            raise ValueError(f"{fields.path}: {name}.{key} is missing")
    scaling = None if kind == "default" else _scaling(fields, name, kind, values)
    return PositionConfig("rotary", base=base, partial_rotary_factor=share, scaling=scaling)


def _share(fields: Fields, name: str, values: dict[str, Any]) -> float:
    """Return the fraction of each head that is rotated, and remove its entry from `values` if there is one."""
    field = _row(fields.table, "positions.partial_rotary_factor", _SHARE)
    if field not in fields.table or fields.table[field].kind != "used":
        if (share := values.pop(_SHARE, 1.0)) != 1.0:
            raise fields.refuse(
                f"{name}.{_SHARE}", share, "1.0: versions of the released code treat others differently"
            )
        return 1.0
    outside = fields.take(field)
    share = values.pop(_SHARE, outside)
    if field in fields.given and not alike(share, outside):
        raise fields.refuse(f"{name}.{_SHARE}", share, f"{shown(outside)}, as {field} outside of it")
    if not is_number(share) or not 0 < share <= 1:
        raise fields.refuse(field, share, "a number above 0 and at most 1")
    return share


def _scaling(fields: Fields, name: str, kind: Any, values: Mapping[str, Any]) -> RotaryScaling:
    context = fields.take("max_position_embeddings")
    outside = fields.take(_ORIGINAL) if _ORIGINAL in fields.table else values.get(_ORIGINAL, context)
    original = values.get(_ORIGINAL, outside)
    if not alike(original, outside):  # Phi-3 has it twice
        raise fields.refuse(f"{name}.{_ORIGINAL}", original, f"{shown(outside)}, as {_ORIGINAL} outside of it")
    if kind == "dynamic" and original != context:
        expected = f"{shown(context)}, as max_position_embeddings, which released code uses"
        raise fields.refuse(f"{name}.{_ORIGINAL}", original, expected)
    if kind == "longrope":
        return _longrope(fields, original, values)
    return RotaryScaling(
        kind,
        values["factor"],
        original=None if kind == "linear" else original,
        slow=values.get("low_freq_factor") if kind == "llama3" else values.get("beta_slow") or None,
        fast=values.get("high_freq_factor") if kind == "llama3" else values.get("beta_fast") or None,
        magnitude=_magnitude(values) if kind == "yarn" else None,
        whole=values.get("truncate", True),
    )


def _longrope(fields: Fields, original: Any, values: Mapping[str, Any]) -> RotaryScaling:
    """Return a longrope scaling. The factor is at least 1, regardless of the fields."""
    context = fields.take("max_position_embeddings")
    for name, length in ((_ORIGINAL, original), ("max_position_embeddings", context)):
        if not isinstance(length, int) or isinstance(length, bool) or length < 2:
            raise fields.refuse(name, length, "a whole number >= 2")
    return RotaryScaling(
        "longrope",
        max(values.get("factor", context / original), 1.0),
        original,
        magnitude=values.get("attention_factor"),
        short=tuple(values["short_factor"]),
        long=tuple(values["long_factor"]),
    )


def _magnitude(values: Mapping[str, Any]) -> float | None:
    """Return the factor that multiplies cosines and sines, or `None` for the factor in the YaRN paper."""
    if "attention_factor" in values:
        return values["attention_factor"]
    above, below = values.get("mscale"), values.get("mscale_all_dim")
    if not above or not below:
        return None
    return _grown(values["factor"], above) / _grown(values["factor"], below)


def _grown(factor: float, share: float) -> float:
    return 0.1 * share * math.log(max(factor, 1)) + 1.0


def scaled(config: ModelConfig, table: Mapping[str, Policy], *, parameters: bool) -> dict[str, Any] | None:
    """Return `rope_parameters` or `rope_scaling` for a configuration; this is the inverse of `positions`.

    Args:
        config: The configuration of the model.
        table: The family's policies, which determine the keys.
        parameters: Whether to return `rope_parameters` instead of `rope_scaling`, which is `None` if nothing is scaled
            or if the family gives local layers a base of their own.
    """
    order, window = config.positions, config.attention.window
    if order.kind != "rotary":
        return None
    values: dict[str, Any] = {"rope_type": "default"}
    if order.scaling is not None:
        values = _scaling_said(config, order.scaling)
    by_kind = any("attention.window.base" in policy.note for policy in table.values())
    if not parameters and (order.scaling is None or by_kind):
        return None
    values["rope_theta"] = order.base
    if any(
        policy.kind == "used" and policy.note.startswith("positions.partial_rotary_factor") for policy in table.values()
    ):
        values[_SHARE] = order.partial_rotary_factor
    if not by_kind:
        return values
    local = order.base if window is None or window.base is None else window.base
    return {GLOBAL: values, LOCAL: {"rope_type": "default", "rope_theta": local}}


def _scaling_said(config: ModelConfig, scaling: RotaryScaling) -> dict[str, Any]:
    from companion.layers.positions import magnitude_of

    low, high = scaling.ramp
    said: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.original is not None:
        said[_ORIGINAL] = scaling.original
    if scaling.kind == "llama3":
        return said | {"low_freq_factor": low, "high_freq_factor": high}
    if scaling.kind == "longrope":
        said |= {"short_factor": list(scaling.short or ()), "long_factor": list(scaling.long or ())}
    if scaling.kind == "yarn":
        said |= {"beta_fast": high, "beta_slow": low, "truncate": scaling.whole}
    attention, width = config.attention, config.attention.score_width
    if attention.latent is not None and width is not None and scaling.kind == "yarn" and scaling.factor > 1:
        # DeepSeek multiplies scores by one factor (see `sharpened`), and cosines and sines by the rest of the
        # magnitude.
        sharper = ((config.sizes.d_head + attention.latent.d_rope) / width) ** 0.25
        grown = magnitude_of(scaling) * sharper
        share, all_dim = ((x - 1) / (0.1 * math.log(scaling.factor)) for x in (grown, sharper))
        return said | {"mscale": share, "mscale_all_dim": all_dim}
    return said if scaling.magnitude is None else said | {"attention_factor": scaling.magnitude}


def sharpened(fields: Fields) -> float:
    """Return the factor by which DeepSeek multiplies attention scores when frequencies are scaled.

    The factor is m^2 with m = 0.1 mscale_all_dim ln(factor) + 1, as in the released code, and 1 without
    `mscale_all_dim`. Call `positions` first, because this function does not check the fields.
    """
    values = fields.given.get("rope_parameters") or fields.given.get("rope_scaling") or {}
    share = values.get("mscale_all_dim")
    return _grown(values["factor"], share) ** 2 if share else 1.0
