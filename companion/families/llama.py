"""LLaMA as published (Touvron et al. 2023; Grattafiori et al. 2024), with its fields, tensors and releases (lesson 13).

Mistral, Mixtral, Qwen 2 and 3, Gemma 2 and 3, OLMo 2 and 3, SmolLM 3, GLM-4, Phi-3 and 4, Granite, EXAONE 4, ERNIE 4.5,
Seed-OSS, DeepSeek, gpt-oss, Llama 4, Qwen3-Next, Qwen3.5, Kimi Linear, StarCoder2, Command R and MiniMax-M2 are
variants of LLaMA with different norms, windows, positions, multipliers, attention or experts. The file of each family
contains only the differences and imports the rest from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RotaryScaling,
)
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import positions, window

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    vocab_size                       used                    vocab
    hidden_size                      used                    d_model
    num_hidden_layers                used                    layers
    num_attention_heads              used                    attention.heads
    num_key_value_heads              used = null            attention.kv_heads; null: as many as heads
    head_dim                         used = null            attention.d_head; null: d_model / heads
    attention_bias                   used = false           attention.bias
    intermediate_size                used                    feed_forward.d_ff
    mlp_bias                         used = false           feed_forward.bias
    hidden_act                       used = "silu"          feed_forward.activation, of the gate
    max_position_embeddings          used                    context
    rope_theta                       used = 10000.0         positions.base
    rope_scaling                     used = null            positions.scaling; up to 4.57
    rope_parameters                  used = null            positions; 5.0 on
    partial_rotary_factor            must be 1.0 or null
    rms_norm_eps                     used = 1e-06           norm.eps
    tie_word_embeddings              used = false           embedding.tied
    pretraining_tp                   must be 1
    is_decoder                       ignored                 2.2 to 4.57; it always is one
    is_llama_config                  ignored                 by hand
    unsloth_fixed                    ignored                 by hand
    rope_interleaved                 must be false
    """
)
"""Rows that LLaMA shares with its relatives, which override or extend them."""

GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
"""Our names for gated networks, keyed by the activation of the gate."""
_WIDTHS = ("moe_intermediate_size", "shared_intermediate_size", "intermediate_size")
"""Fields that may contain d_ff; the first one that a family takes is used."""


def configuration(
    fields: Fields,
    types: Sequence[str] = (),
    turning: Sequence[bool] = (True,),
    local_base: str | None = None,
    attention: AttentionConfig | None = None,
) -> ModelConfig:
    """Return the configuration that the shared fields describe.

    Args:
        fields: The fields of config.json.
        types: Type of each layer, as in `layer_types`. The list is empty if all layers are global.
        turning: For each layer, whether it rotates queries and keys.
        local_base: See `companion.files.published.rope.positions`.
        attention: The attention configuration, if it differs from LLaMA's.

    Raises:
        ValueError: If no gated network has this activation, or a field cannot be honored.
    """
    order, local = positions(fields, turning, local_base)
    named = fields.table.get("hidden_activation")
    gate = "hidden_act" if named is None or named.kind != "used" else "hidden_activation"
    activation: Any = GATED.get(fields.activation(gate))
    eps = "rms_norm_eps" if "rms_norm_eps" in fields.table else "layer_norm_eps"
    if activation is None:
        raise fields.refuse(gate, fields.take(gate), "the silu or gelu of a gate")

    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=attention
        or AttentionConfig(
            heads=fields.take("num_attention_heads"),
            kv_heads=fields.take("num_key_value_heads"),
            d_head=fields.take("head_dim"),
            bias=said(fields, "attention_bias"),
            window=window(fields, types, fields.take("sliding_window"), local) if types else None,
        ),
        feed_forward=FeedForwardConfig(
            fields.take(next(name for name in _WIDTHS if name in fields.table and fields.table[name].kind == "used")),
            activation,
            bias=said(fields, "mlp_bias"),
        ),
        positions=order,
        norm=NormConfig("rms", eps=fields.small(eps)),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
    )


def said(fields: Fields, name: str) -> Any:
    """Return a field's value, or the only allowed value if this family does not use the field."""
    policy = fields.table[name]
    return fields.take(name) if policy.kind == "used" else policy.values[0]


def layers_of(fields: Fields) -> int:
    """Return the number of layers after checking that lists of that length are safe to build."""
    layers = fields.take("num_hidden_layers")
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= 10_000:
        raise fields.refuse("num_hidden_layers", layers, "a whole number from 1 to 10,000")
    return layers


def place_all_but_networks(
    mapper: StateDictMapper,
    config: ModelConfig,
    linear: Callable[[StateDictMapper, ModelConfig, int], None] | None = None,
) -> None:
    """Map all tensors except those of the feed-forward networks.

    Args:
        mapper: The published tensors, to be mapped to ours.
        config: The configuration of the model.
        linear: Function that maps a linear-attention layer except for its norms. Without this function, every layer is
            mapped as attention.
    """
    mapper.drop(lambda name: name.endswith(".rotary_emb.inv_freq"))
    mapper.vocabulary("model.embed_tokens.weight", tied=config.embedding.tied)
    # The norms of a block, in the order in which they are applied.
    norms = {
        "pre": (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "feed_forward_norm")),
        "after": (
            ("post_attention_layernorm", "attention_norm"),
            ("post_feedforward_layernorm", "feed_forward_norm"),
        ),
        "parallel_shared": (("input_layernorm", "attention_norm"),),
        "both": (
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "attention_out_norm"),
            ("pre_feedforward_layernorm", "feed_forward_norm"),
            ("post_feedforward_layernorm", "feed_forward_out_norm"),
        ),
    }
    parts = ("weight", "bias") if config.norm.kind == "layer" and config.norm.bias else ("weight",)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}", f"decoder.blocks.{layer}"
        for theirs, ours in norms[config.norm.placement]:
            mapper.pairs(f"{old}.{theirs}", f"{new}.{ours}", parts)
        if config.linear(layer) and linear is not None:
            linear(mapper, config, layer)
        else:
            _place_attention(mapper, config.attention, f"{old}.self_attn", f"{new}.attention")
    mapper.pairs("model.norm", "decoder.norm", parts)


LATENT = {"kv_a_proj_with_mqa": "down", "kv_a_layernorm": "latent_norm", "kv_b_proj": "up", "o_proj": "output"}
"""Our names for the modules of latent attention, keyed by their published names. `_OF_QUERIES` has the modules of the
queries, first for queries that have a latent of their own, then for queries without one."""
_OF_QUERIES = {"q_a_proj": "query_down", "q_a_layernorm": "query_norm", "q_b_proj": "query"}, {"q_proj": "query"}


def _place_attention(mapper: StateDictMapper, attention: AttentionConfig, old: str, new: str) -> None:
    if attention.latent is not None:
        for theirs, ours in (LATENT | _OF_QUERIES[attention.latent.q_lora_rank is None]).items():
            mapper.move(f"{old}.{theirs}.weight", f"{new}.{ours}.weight")
    else:
        if attention.qk_norm in ("head", "width"):
            for short, name in (("q", "query"), ("k", "key")):
                mapper.move(f"{old}.{short}_norm.weight", f"{new}.{name}_norm.weight")
        if attention.sinks:
            mapper.move(f"{old}.sinks", f"{new}.sinks")
        if attention.gate is not None:
            mapper.pairs(f"{old}.gate_proj", f"{new}.gate", ("weight", "bias")[: 1 + attention.bias])
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            biased = attention.biased_output if short == "o" else attention.bias
            parts = ("weight", "bias") if biased else ("weight",)
            mapper.pairs(f"{old}.{short}_proj", f"{new}.{name}", parts)


def place(mapper: StateDictMapper, config: ModelConfig) -> None:
    place_all_but_networks(mapper, config)
    for layer in range(config.layers):
        place_network(mapper, config, f"model.layers.{layer}.mlp", f"decoder.blocks.{layer}.feed_forward")


def place_network(mapper: StateDictMapper, config: ModelConfig, old: str, new: str) -> None:
    """Map one gated network."""
    for short, name in (("gate", "gate"), ("up", "inner"), ("down", "outer")):
        mapper.pairs(f"{old}.{short}_proj", f"{new}.{name}", ("weight", "bias")[: 1 + config.feed_forward.bias])


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return configuration(fields)


FAMILIES = (Family("llama", FIELDS, _config, place, architecture="LlamaForCausalLM"),)


def decoder(
    d_model: int,
    layers: int,
    heads: int,
    d_ff: int,
    *,
    context: int,
    eps: float,
    kv_heads: int | None = None,
    base: float = 10000.0,
    moe: MoEConfig | None = None,
    vocab: int = 32000,
    tied: bool = False,
    d_head: int | None = None,
) -> ModelConfig:
    """Return the configuration of a decoder like those in both papers of Touvron et al. 2023."""
    return ModelConfig(
        vocab=vocab,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=AttentionConfig(heads=heads, kv_heads=kv_heads, d_head=d_head),
        feed_forward=FeedForwardConfig(d_ff=d_ff),
        positions=PositionConfig("rotary", base=base, layout="half"),
        norm=NormConfig("rms", eps=eps),
        embedding=EmbeddingConfig(tied=tied),
        moe=moe,
    )


def changed(config: ModelConfig, **groups: Mapping[str, Any]) -> ModelConfig:
    """Return `config` with some fields of its groups changed, as in `attention={"bias": True}`."""
    return config.with_(**{name: replace(getattr(config, name), **fields) for name, fields in groups.items()})


def _llama3(d_model: int, layers: int, d_ff: int, *, factor: float, **changes: Any) -> ModelConfig:
    """Return a configuration of Llama 3 (Grattafiori et al. 2024), whose frequencies are scaled for longer texts."""
    plain = decoder(d_model, layers, 32, d_ff, context=131072, eps=1e-5, kv_heads=8, base=5e5, vocab=128256, **changes)
    return changed(plain, positions={"scaling": RotaryScaling("llama3", factor, 8192, slow=1.0, fast=4.0)})


PRESETS = {
    "llama-7b": Preset(2023, 6_738_415_616, decoder(4096, 32, 32, 11008, context=2048, eps=1e-6), taught=True),
    "llama-2-70b": Preset(
        2023, 68_976_648_192, decoder(8192, 80, 64, 28672, context=4096, eps=1e-5, kv_heads=8), taught=True
    ),
    "llama-2-7b": Preset(2023, 6_738_415_616, decoder(4096, 32, 32, 11008, context=4096, eps=1e-5, kv_heads=32)),
    "tinyllama-1.1b": Preset(2024, 1_100_048_384, decoder(2048, 22, 32, 5632, context=2048, eps=1e-5, kv_heads=4)),
    "llama-3.1-8b": Preset(2024, 8_030_261_248, _llama3(4096, 32, 14336, factor=8.0)),
    "llama-3.2-1b": Preset(
        2024, 1_235_814_400, changed(_llama3(2048, 16, 8192, factor=32.0, tied=True), attention={"d_head": 64})
    ),
}
