"""StarCoder2 as published (Lozhkov et al. 2024): LLaMA with layer norms, biases and ungated networks (lesson 13)."""

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
    WindowConfig,
)
from companion.families import llama
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import positions

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
    num_key_value_heads              used = 2               attention.kv_heads
    head_dim                         used = null            attention.d_head; null: d_model / heads
    use_bias                         used = true            attention.bias
    intermediate_size                used                    feed_forward.d_ff
    hidden_act                       used = "gelu_pytorch_tanh"  feed_forward.activation
    attention_softmax_in_fp32        ignored                 by hand; the same softmax, computed in single precision
    scale_attention_softmax_in_fp32  ignored                 the same
    scale_attn_weights               must be null or true
    mlp_type                         must be "default"
    max_position_embeddings          used                    context
    rope_theta                       used = 10000.0         positions.base
    rope_scaling                     used = null            positions.scaling; up to 4.57
    rope_parameters                  used = null            positions; 5.0 on
    sliding_window                   used = null            attention.window.width; null: none
    norm_type                        must be "layer_norm"
    norm_epsilon                     used = 1e-05           norm.eps
    layer_norm_epsilon               must match norm_epsilon
    tie_word_embeddings              used = true            embedding.tied
    residual_dropout                 used = 0.0             dropout
    activation_function              ignored                 by hand; hidden_act says it
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    width, biased = fields.take("sliding_window"), fields.flag("use_bias")
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(
            heads=fields.take("num_attention_heads"),
            kv_heads=fields.take("num_key_value_heads"),
            d_head=fields.take("head_dim"),
            bias=biased,
            window=None if width is None else WindowConfig(width),
        ),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("intermediate_size"), activation=fields.activation("hidden_act"), bias=biased
        ),
        positions=positions(fields)[0],
        norm=NormConfig("layer", eps=fields.small("norm_epsilon")),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
        dropout=fields.take("residual_dropout"),
    )


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    llama.place_all_but_networks(mapper, config)
    for layer in range(config.layers):
        for short, name in (("c_fc", "inner"), ("c_proj", "outer")):
            old, new = f"model.layers.{layer}.mlp.{short}", f"decoder.blocks.{layer}.feed_forward.{name}"
            mapper.pairs(old, new, ("weight", "bias")[: 1 + config.feed_forward.bias])


FAMILIES = (Family("starcoder2", FIELDS, _config, _place, architecture="Starcoder2ForCausalLM"),)

PRESETS = {
    "starcoder2-3b": Preset(
        2024,
        3_030_371_328,
        ModelConfig(
            vocab=49152,
            d_model=3072,
            layers=30,
            context=16384,
            attention=AttentionConfig(heads=24, kv_heads=2, bias=True, window=WindowConfig(4096)),
            feed_forward=FeedForwardConfig(d_ff=12288, activation="gelu_tanh", bias=True),
            positions=PositionConfig("rotary", base=999999.4420358813, layout="half"),
            norm=NormConfig("layer", eps=1e-5),
            embedding=EmbeddingConfig(tied=True),
            dropout=0.1,
        ),
    ),
}
