"""LLaMA and its kin, by our names: the configuration and every tensor (lesson 13).

Mistral, Mixtral, Qwen 2 and 3, Gemma 2 and 3, OLMo 2 and SmolLM 3 are LLaMA with other norms, windows, positions or
experts; what each says differently stands in the table of `policy`, and here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
)
from companion.files.models import raise_faults
from companion.files.published.folder import Fields
from companion.files.published.places import Places
from companion.files.published.policy import alike
from companion.files.published.reader import Reader
from companion.files.published.rotary import GLOBAL, LOCAL, layer_types, positions, window
from companion.ground.fields import shown

GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
"""Our name of a gated network, by the activation of its gate."""


def _plain(fields: Fields, types: Sequence[str] = (), turning: Sequence[bool] = (True,)) -> ModelConfig:
    """What all of them say alike.

    types:    the kind of each layer, where not all are global.
    turning:  which layers turn queries and keys.
    """
    order, local = positions(fields, turning)
    gate = "hidden_activation" if "hidden_activation" in fields.table else "hidden_act"
    activation: Any = GATED.get(fields.activation(gate))
    if activation is None:
        raise fields.refuse(gate, fields.take(gate), "a silu or a gelu, which gate")

    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(
            heads=fields.take("num_attention_heads"),
            kv_heads=fields.take("num_key_value_heads"),
            d_head=fields.take("head_dim"),
            bias=_said(fields, "attention_bias"),
            window=window(fields, types, fields.take("sliding_window"), local) if types else None,
        ),
        feed_forward=FeedForwardConfig(
            fields.take("moe_intermediate_size" if "moe_intermediate_size" in fields.table else "intermediate_size"),
            activation,
            bias=_said(fields, "mlp_bias"),
        ),
        positions=order,
        norm=NormConfig("rms", eps=fields.small("rms_norm_eps")),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
    )


def _said(fields: Fields, name: str) -> Any:
    """A field that some kinds take, and of the others the one value that it must have."""
    policy = fields.table[name]
    return fields.take(name) if policy.kind == "taken" else policy.values[0]


def _llama(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return _plain(fields)


def _mistral(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    width, layers = fields.take("sliding_window"), _layers(fields)
    types = [GLOBAL if width is None else LOCAL] * layers
    if layer_types(fields, types) != types:
        raise fields.refuse("layer_types", fields.take("layer_types"), f"{layers} times {types[0]}, as sliding_window")
    return _plain(fields, types)


def _mixtral(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    experts = MoEConfig(fields.take("num_local_experts"), fields.take("num_experts_per_tok"))
    return _mistral(fields, given).with_(moe=experts)


def _qwen2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = _plain(fields, _qwen_layers(fields))
    return config.with_(attention=replace(config.attention, output_bias=False))


def _qwen3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = _plain(fields, _qwen_layers(fields))
    return config.with_(attention=replace(config.attention, qk_norm="head"))


def _qwen_layers(fields: Fields) -> Sequence[str]:
    used, first = fields.take("use_sliding_window"), fields.take("max_window_layers")
    if not isinstance(used, bool):
        raise fields.refuse("use_sliding_window", used, "true or false")
    if used and (isinstance(first, bool) or not isinstance(first, int)):
        raise fields.refuse("max_window_layers", first, "a whole number")
    windowed = used and fields.take("sliding_window") is not None
    usual = [LOCAL if windowed and layer >= first else GLOBAL for layer in range(_layers(fields))]
    types = layer_types(fields, usual)
    if LOCAL in types and not used:
        raise fields.refuse("use_sliding_window", used, f"true, because layer_types names {LOCAL}")
    return types


def _qwen3_moe(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config, normalised = _plain(fields), fields.take("norm_topk_prob")
    said = [name for name in ("num_experts", "num_local_experts") if fields.take(name) is not None]
    experts = fields.take(said[0]) if said else 128
    if len(said) == 2 and not alike(experts, fields.take(said[1])):
        raise fields.refuse(said[1], fields.take(said[1]), f"{shown(experts)}, as {said[0]}")
    if not isinstance(normalised, bool):
        raise fields.refuse("norm_topk_prob", normalised, "true or false")
    return config.with_(
        attention=replace(config.attention, qk_norm="head"),
        moe=MoEConfig(
            experts,
            fields.take("num_experts_per_tok"),
            "softmax_topk_renormalised" if normalised else "softmax_topk",
        ),
    )


def _gemma2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return _gemma(fields, [LOCAL if layer % 2 == 0 else GLOBAL for layer in range(_layers(fields))])


def _gemma3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    every = fields.take("sliding_window_pattern")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise fields.refuse("sliding_window_pattern", every, "a whole number >= 1")
    config = _gemma(fields, [LOCAL if (layer + 1) % every else GLOBAL for layer in range(_layers(fields))])
    return config.with_(attention=replace(config.attention, qk_norm="head"))


def _gemma(fields: Fields, usual: Sequence[str]) -> ModelConfig:
    config, width = _plain(fields, layer_types(fields, usual)), fields.take("query_pre_attn_scalar")
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= 10**6:
        raise fields.refuse("query_pre_attn_scalar", width, "a whole number from 1 to 1,000,000")
    return config.with_(
        attention=replace(config.attention, score_width=width, score_cap=_said(fields, "attn_logit_softcapping")),
        norm=replace(config.norm, placement="both", unit_offset=True),
        embedding=replace(
            config.embedding, scaled=True, rounded=True, logit_cap=fields.take("final_logit_softcapping")
        ),
    )


def _olmo2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = _plain(fields)
    return config.with_(
        attention=replace(config.attention, qk_norm="width"), norm=replace(config.norm, placement="after")
    )


def _smollm3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    layers, used = _layers(fields), fields.take("use_sliding_window")
    if not isinstance(used, bool):
        raise fields.refuse("use_sliding_window", used, "true or false")
    turning, every = fields.take("no_rope_layers"), fields.take("no_rope_layer_interval")
    if turning is None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise fields.refuse("no_rope_layer_interval", every, "a whole number >= 1")
        turning = [int((layer + 1) % every != 0) for layer in range(layers)]
    known = isinstance(turning, list) and all(type(one) is int and one in (0, 1) for one in turning)
    if not known or len(turning) != layers:
        raise fields.refuse("no_rope_layers", turning, f"{layers} times 1 or 0")
    windowed = used and fields.take("sliding_window") is not None
    types = layer_types(fields, [LOCAL if windowed and not one else GLOBAL for one in turning])
    if LOCAL in types and not used:
        raise fields.refuse("use_sliding_window", used, f"true, because layer_types names {LOCAL}")
    return _plain(fields, types, [one == 1 for one in turning])


def _layers(fields: Fields) -> int:
    """How many layers there are, as a number that lists can be made of."""
    layers = fields.take("num_hidden_layers")
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= 10_000:
        raise fields.refuse("num_hidden_layers", layers, "a whole number from 1 to 10,000")
    return layers


def _stack(places: Places, config: ModelConfig) -> None:
    """Everything but the feed-forward networks."""
    places.drop(lambda name: name.endswith(".rotary_emb.inv_freq"))
    places.vocabulary("model.embed_tokens.weight", tied=config.embedding.tied)
    # The norms of a block, in the order in which they stand there.
    norms = {
        "pre": (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "feed_forward_norm")),
        "after": (
            ("post_attention_layernorm", "attention_norm"),
            ("post_feedforward_layernorm", "feed_forward_norm"),
        ),
        "both": (
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "attention_out_norm"),
            ("pre_feedforward_layernorm", "feed_forward_norm"),
            ("post_feedforward_layernorm", "feed_forward_out_norm"),
        ),
    }
    attention = config.attention
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}", f"decoder.blocks.{layer}"
        for theirs, ours in norms[config.norm.placement]:
            places.move(f"{old}.{theirs}.weight", f"{new}.{ours}.weight")
        if attention.qk_norm is not None:
            for short, name in (("q", "query"), ("k", "key")):
                places.move(f"{old}.self_attn.{short}_norm.weight", f"{new}.attention.{name}_norm.weight")
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            biased = attention.biased_output if short == "o" else attention.bias
            parts = ("weight", "bias") if biased else ("weight",)
            places.pairs(f"{old}.self_attn.{short}_proj", f"{new}.attention.{name}", parts)
    places.move("model.norm.weight", "decoder.norm.weight")


def _dense(places: Places, config: ModelConfig) -> None:
    _stack(places, config)
    for layer in range(config.layers):
        for short, name in (("gate", "gate"), ("up", "inner"), ("down", "outer")):
            old, new = f"model.layers.{layer}.mlp.{short}_proj", f"decoder.blocks.{layer}.feed_forward.{name}"
            places.pairs(old, new, ("weight", "bias") if config.feed_forward.bias else ("weight",))


def _experts(names: Mapping[str, str]) -> Any:
    """What places a model with experts, whose three matrices have these names, by ours."""

    def place(places: Places, config: ModelConfig) -> None:
        assert config.moe is not None
        if config.moe.experts > len(places.given) and not any(".experts.gate_up_proj" in name for name in places.given):
            # before as many names are made, be it without their tensors
            raise_faults(places.folder, [f"experts={config.moe.experts}, expected fewer than there are tensors"])
        _stack(places, config)
        for layer in range(config.layers):
            old, new = f"model.layers.{layer}.mlp", f"decoder.blocks.{layer}.feed_forward"
            places.move(f"{old}.gate.weight", f"{new}.router.weight")
            if f"{old}.experts.gate_up_proj" in places.given:
                places.experts(f"{old}.experts.gate_up_proj", f"{new}.gate", f"{new}.inner")
                places.experts(f"{old}.experts.down_proj", f"{new}.outer")
                continue
            for ours, theirs in names.items():
                every = [f"{old}.experts.{expert}.{theirs}.weight" for expert in range(config.moe.experts)]
                places.stack(every, f"{new}.{ours}")

    return place


def _of_mixtral(name: str) -> str:
    return name.replace(".block_sparse_moe.", ".mlp.")


READERS = {
    "llama": Reader(_llama, _dense),
    "mistral": Reader(_mistral, _dense),
    "mixtral": Reader(_mixtral, _experts({"gate": "w1", "inner": "w3", "outer": "w2"}), _of_mixtral),
    "qwen2": Reader(_qwen2, _dense),
    "qwen3": Reader(_qwen3, _dense),
    "qwen3_moe": Reader(_qwen3_moe, _experts({"gate": "gate_proj", "inner": "up_proj", "outer": "down_proj"})),
    "gemma2": Reader(_gemma2, _dense),
    "gemma3_text": Reader(_gemma3, _dense),
    "olmo2": Reader(_olmo2, _dense),
    "smollm3": Reader(_smollm3, _dense),
}
"""By `model_type`. Experts are read as released, three matrices each, or fused, as `transformers` 5 holds them."""
