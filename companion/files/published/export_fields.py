"""Convert one of our configurations to the fields of a published config.json (lesson 18).

For this purpose, the tables of `companion.families` are read from right to left. The note of a used field begins with
the part of a `ModelConfig` that the field sets, so it also says where to find the value to export. `VALUES` and `NAMED`
contain functions for fields whose value differs from this part. This module does not check that the fields are
complete. `export_model` checks this by reading the fields back and comparing the configurations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from companion.config.model import ModelConfig
from companion.files.published.checkpoint_folder import ACTIVATIONS
from companion.files.published.config_fields import Policy
from companion.files.published.rope import GLOBAL, LINEAR, LOCAL, scaled

GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "swiglu_clamped": "silu"}
"""Published names of activations, keyed by our names for the gated networks that use them."""
_PLAIN = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
_PART = re.compile(r"[a-z_]+(\.[a-z_]+)*(?=$|[,;:])")


def _turning(config: ModelConfig) -> list[int]:
    return [int(config.layer(layer)[1].kind == "rotary") for layer in range(config.layers)]


def _mixed(config: ModelConfig) -> list[bool]:
    return [config.network(layer)[1] is not None for layer in range(config.layers)]


def _plain_width(config: ModelConfig) -> int:
    moe = config.moe
    return config.feed_forward.d_ff if moe is None or moe.plain_d_ff is None else moe.plain_d_ff


def _shared_width(config: ModelConfig) -> int | None:
    return None if config.moe is None else config.moe.shared_d_ff or config.feed_forward.d_ff


def _interval(config: ModelConfig) -> int | None:
    """Return n if exactly every n-th layer uses attention, otherwise `None`."""
    every = next(iter(config.attending), config.layers) + 1
    same = all(config.linear(layer) == bool((layer + 1) % every) for layer in range(config.layers))
    return every if same else None


VALUES: dict[str, Callable[[ModelConfig], Any]] = {
    "attention.kv_heads": lambda config: config.sizes.kv_heads,
    "attention.d_head": lambda config: config.sizes.d_head,
    "attention.d_v": lambda config: config.sizes.d_v,
    "attention.output_bias": lambda config: config.attention.biased_output,
    "attention.qk_norm": lambda config: config.attention.qk_norm is not None,
    "attention.window": lambda config: config.attention.window is not None,
    "attention.window.pattern": lambda config: [
        LOCAL if config.local(layer) else GLOBAL for layer in range(config.layers)
    ],
    "attention.linear.pattern": lambda config: [
        LINEAR if config.linear(layer) else GLOBAL for layer in range(config.layers)
    ],
    "feed_forward.activation": lambda config: (GATES | _PLAIN)[config.feed_forward.activation],
    "positions.layout": lambda config: config.positions.pairing == "interleaved",
    "positions.pattern": _turning,
    "moe.gating": lambda config: config.moe is None or config.moe.gating not in ("softmax_topk", "sigmoid_topk"),
    "moe.plain_d_ff": _plain_width,
    "moe.shared_d_ff": _shared_width,
}
"""Functions from a configuration to the value of a field, keyed by the part of the configuration that the field
sets."""

NAMED: dict[str, Callable[[ModelConfig], Any]] = {
    "do_layer_norm_before": lambda config: config.norm.placement == "pre",
    "use_parallel_residual": lambda config: config.norm.placement == "parallel",
    "logit_scale": lambda config: 1 / config.embedding.logit_divisor,
    "attention_multiplier": lambda config: (config.attention.score_width or config.sizes.d_head) ** -0.5,
    "first_k_dense_replace": lambda config: ([*_mixed(config), True]).index(True),
    "full_attention_interval": _interval,
    "mlp_layer_types": lambda config: ["sparse" if mixed else "dense" for mixed in _mixed(config)],
    "mlp_only_layers": lambda config: [layer for layer, mixed in enumerate(_mixed(config)) if not mixed],
    "moe_layers": lambda config: [layer for layer, mixed in enumerate(_mixed(config)) if mixed],
    "topk_method": lambda config: "greedy" if config.moe is None or config.moe.groups == 1 else "group_limited_greedy",
    "query_pre_attn_scalar": lambda config: round(config.attention.score_width or config.sizes.d_head),
}
"""Similar functions, keyed by field name, for fields that express a part of the configuration in their own way."""

LEFT_OUT = {
    "decoder_sparse_step",
    "global_attn_every_n_layers",
    "interleave_moe_layer_step",
    "max_window_layers",
    "no_rope_layer_interval",
    "sliding_window_pattern",
}
"""Fields that are not written, because other fields name the kind of each layer."""


def said(config: ModelConfig, table: Mapping[str, Policy]) -> dict[str, Any]:
    """Return the config.json fields for a configuration, as far as a family's table can express it."""
    config = config.with_(attention=replace(config.attention, linear=config.linear_config))  # fill in every size
    fields: dict[str, Any] = {}
    for name, policy in table.items():
        if policy.kind == "used" and name not in LEFT_OUT:
            value = _value(config, name, table)
            if value is not None or "null" in policy.note:
                fields[name] = value
        elif policy.kind == "must be" and policy.values[0] is not None:
            fields[name] = policy.values[0]
    equal = {name: policy.equals for name, policy in table.items() if policy.kind == "must match"}
    return fields | {name: fields[other] for name, other in equal.items() if other in fields}


def _value(config: ModelConfig, name: str, table: Mapping[str, Policy]) -> Any:
    """Return the value of a field for a configuration, or `None` if the field has no value."""
    if name in NAMED:
        return NAMED[name](config)
    if name in ("rope_scaling", "rope_parameters"):
        return scaled(config, table, parameters=name == "rope_parameters")
    part = _PART.match(table[name].note)
    if part is None:
        return None
    if part.group() in VALUES:
        return VALUES[part.group()](config)
    found: Any = config
    for step in part.group().split("."):
        found = getattr(found, step, None)
    return found
