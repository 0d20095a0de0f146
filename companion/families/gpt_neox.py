"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023) as published (lesson 13).

Attention and the feed-forward network run in parallel, and a quarter of each head is rotated.
"""

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
    attention_bias                   used = true            attention.bias
    intermediate_size                used                    feed_forward.d_ff
    hidden_act                       used = "gelu"          feed_forward.activation
    max_position_embeddings          used                    context
    rotary_emb_base                  used = 10000.0         positions.base
    rope_theta                       must match rotary_emb_base
    rotary_pct                       used = 0.25            positions.partial_rotary_factor
    partial_rotary_factor            must match rotary_pct
    rope_scaling                     used = null            positions.scaling; up to 4.57
    rope_parameters                  used = null            positions; 5.0 on
    use_parallel_residual            used = true            norm.placement
    layer_norm_eps                   used = 1e-05           norm.eps
    tie_word_embeddings              used = false           embedding.tied
    hidden_dropout                   used = 0.0             dropout
    is_decoder                       ignored                 5.0 on; it always is one
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    side_by_side = fields.flag("use_parallel_residual")
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(heads=fields.take("num_attention_heads"), bias=fields.take("attention_bias")),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("intermediate_size"), activation=fields.activation("hidden_act"), bias=True
        ),
        positions=positions(fields)[0],
        norm=NormConfig("layer", "parallel" if side_by_side else "pre", eps=fields.small("layer_norm_eps")),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
        dropout=fields.take("hidden_dropout"),
    )


def _rename(name: str) -> str:
    return "lm_head.weight" if name == "embed_out.weight" else name.removeprefix("gpt_neox.")


def _spelled(name: str) -> str:
    return "embed_out.weight" if name == "lm_head.weight" else f"gpt_neox.{name}"


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors.

    The rows of the fused query, key and value matrix are grouped by head. Early files also store the causal mask and
    the rotary frequencies, which are dropped.
    """
    mapper.drop(lambda name: name.endswith((".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")))
    mapper.vocabulary("embed_in.weight", tied=config.embedding.tied)
    sizes, parts = config.sizes, ("weight", "bias")[: 1 + config.attention.bias]
    for layer in range(config.layers):
        old, new = f"layers.{layer}", f"decoder.blocks.{layer}"
        mapper.pairs(f"{old}.input_layernorm", f"{new}.attention_norm")
        mapper.pairs(f"{old}.post_attention_layernorm", f"{new}.feed_forward_norm")
        for part in parts:
            names = {f"{old}.attention.{name}.{part}": sizes.d_head for name in ("query", "key", "value")}
            mapper.groups(f"{old}.attention.query_key_value.{part}", sizes.heads, names)
        for name in ("query", "key", "value"):
            mapper.pairs(f"{old}.attention.{name}", f"{new}.attention.{name}", parts)
        mapper.pairs(f"{old}.attention.dense", f"{new}.attention.output", parts)
        mapper.pairs(f"{old}.mlp.dense_h_to_4h", f"{new}.feed_forward.inner")
        mapper.pairs(f"{old}.mlp.dense_4h_to_h", f"{new}.feed_forward.outer")
    mapper.pairs("final_layer_norm", "decoder.norm")


FAMILIES = (Family("gpt_neox", FIELDS, _config, _place, _rename, architecture="GPTNeoXForCausalLM", spelled=_spelled),)


def _pythia(d_model: int, layers: int, heads: int) -> ModelConfig:
    """Return a configuration of Pythia (Biderman et al. 2023, table 1)."""
    return ModelConfig(
        vocab=50304,
        d_model=d_model,
        layers=layers,
        context=2048,
        attention=AttentionConfig(heads=heads, bias=True),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu", bias=True),
        positions=PositionConfig("rotary", layout="half", partial_rotary_factor=0.25),
        norm=NormConfig("layer", "parallel", eps=1e-5),
        embedding=EmbeddingConfig(tied=False),
    )


PRESETS = {
    "pythia-70m": Preset(2023, 70_426_624, _pythia(512, 6, 8)),
    "pythia-160m": Preset(2023, 162_322_944, _pythia(768, 12, 12)),
    "pythia-1.4b": Preset(2023, 1_414_647_808, _pythia(2048, 24, 16)),
}
