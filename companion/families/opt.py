"""OPT as published (Zhang et al. 2022): GPT-3's layers with ReLU, and learned positions after two unused rows
(lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    vocab_size                       used                    vocab
    hidden_size                      used                    d_model
    word_embed_proj_dim              must match hidden_size
    num_hidden_layers                used                    layers
    num_attention_heads              used                    attention.heads
    enable_bias                      used = true            attention.bias
    ffn_dim                          used                    feed_forward.d_ff
    activation_function              used = "relu"          feed_forward.activation
    max_position_embeddings          used                    context
    do_layer_norm_before             used = true            norm.placement
    _remove_final_layer_norm         must be false
    layer_norm_elementwise_affine    must be true
    tie_word_embeddings              used = true            embedding.tied
    dropout                          used = 0.1             dropout
    init_std                         ignored                 4.18 on
    prefix                           ignored                 4.18 to 4.57; of pipelines
    """
)
UNUSED = 2
"""Rows at the start of the position table that no token reads, because positions begin after the padding id, 1."""


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    biased, before = fields.flag("enable_bias"), fields.flag("do_layer_norm_before")
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(heads=fields.take("num_attention_heads"), bias=biased),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("ffn_dim"), activation=fields.activation("activation_function"), bias=biased
        ),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "pre" if before else "post", eps=1e-5),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
        dropout=fields.take("dropout"),
    )


def _rename(name: str) -> str:
    """Remove the prefixes, which do not occur in the first releases."""
    return name.removeprefix("model.").removeprefix("decoder.")


def _spelled(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.decoder.{name}"


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    mapper.vocabulary("embed_tokens.weight", tied=config.embedding.tied)
    mapper.from_row(UNUSED, "embed_positions.weight", "positions.weight")
    parts = ("weight", "bias")[: 1 + config.attention.bias]
    for layer in range(config.layers):
        old, new = f"layers.{layer}", f"decoder.blocks.{layer}"
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
            mapper.pairs(f"{old}.self_attn.{short}_proj", f"{new}.attention.{name}", parts)
        mapper.pairs(f"{old}.self_attn_layer_norm", f"{new}.attention_norm")
        mapper.pairs(f"{old}.fc1", f"{new}.feed_forward.inner", parts)
        mapper.pairs(f"{old}.fc2", f"{new}.feed_forward.outer", parts)
        mapper.pairs(f"{old}.final_layer_norm", f"{new}.feed_forward_norm")
    if config.norm.placement == "pre":
        mapper.pairs("final_layer_norm", "decoder.norm")


FAMILIES = (
    Family("opt", FIELDS, _config, _place, _rename, architecture="OPTForCausalLM", spelled=_spelled, unread=True),
)


def _opt(d_model: int, layers: int, heads: int) -> ModelConfig:
    """Return a configuration of OPT (Zhang et al. 2022, table 1)."""
    return ModelConfig(
        vocab=50272,
        d_model=d_model,
        layers=layers,
        context=2048,
        attention=AttentionConfig(heads=heads, bias=True),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="relu", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=1e-5),
        embedding=EmbeddingConfig(tied=True),
        dropout=0.1,
    )


PRESETS = {
    "opt-125m": Preset(2022, 125_237_760, _opt(768, 12, 12)),
    "opt-1.3b": Preset(2022, 1_315_753_984, _opt(2048, 24, 32)),
}
"""The parameter counts leave out the two position rows that no token reads."""
