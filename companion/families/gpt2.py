"""GPT-2 as published (Radford et al. 2019) and its relatives, with their fields, tensors and releases (lesson 13)."""

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
from companion.ground.fields import require_whole

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    vocab_size                       used                    vocab
    n_embd                           used                    d_model
    n_layer                          used                    layers
    n_head                           used                    attention.heads
    n_positions                      used                    context
    n_ctx                            must match n_positions
    n_special                        must be null or 0
    predict_special_tokens           ignored                 2.2; there are no such tokens
    n_inner                          used = null            feed_forward.d_ff; null: 4 d_model
    activation_function              used = "gelu_new"      feed_forward.activation
    layer_norm_epsilon               used = 1e-05           norm.eps
    resid_pdrop                      used = 0.1             dropout
    embd_pdrop                       must match resid_pdrop = 0.1
    attn_pdrop                       must match resid_pdrop = 0.1
    tie_word_embeddings              used = true            embedding.tied
    scale_attn_weights               must be true
    scale_attn_by_inverse_layer_idx  must be false
    reorder_and_upcast_attn          must be false
    is_decoder                       ignored                 2.2 to 4.57; it always is one
    summary_type                     ignored                 2.2 on; of a head that is not read
    summary_use_proj                 ignored                 2.2 on
    summary_activation               ignored                 2.2 on
    summary_proj_to_labels           ignored                 2.2 on
    summary_first_dropout            ignored                 2.2 on
    """
)


def rename(name: str) -> str:
    """Remove the prefix, which does not occur in the first release."""
    return name.removeprefix("transformer.")


def spelled(name: str) -> str:
    return name if name.startswith("lm_head.") else f"transformer.{name}"


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    d_model, d_ff = fields.take("n_embd"), fields.take("n_inner")
    require_whole("d_model", d_model)
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=d_model,
        layers=fields.take("n_layer"),
        context=fields.take("n_positions"),
        attention=AttentionConfig(heads=fields.take("n_head"), bias=True),
        feed_forward=FeedForwardConfig(
            d_ff=4 * d_model if d_ff is None else d_ff,
            activation=fields.activation("activation_function"),
            bias=True,
        ),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=fields.small("layer_norm_epsilon")),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
        dropout=fields.take("resid_pdrop"),
    )


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors.

    Matrices are stored as (in, out), the transpose of those in `nn.Linear`, and query, key and value are fused into
    one. The first release also stores its causal mask, which is dropped.
    """
    mapper.drop(lambda name: name.endswith((".attn.bias", ".attn.masked_bias")))
    mapper.vocabulary("wte.weight", tied=config.embedding.tied)
    mapper.move("wpe.weight", "positions.weight")
    for layer in range(config.layers):
        old, new = f"h.{layer}", f"decoder.blocks.{layer}"
        mapper.pairs(f"{old}.ln_1", f"{new}.attention_norm")
        mapper.pairs(f"{old}.ln_2", f"{new}.feed_forward_norm")
        for part in ("weight", "bias"):
            names = [f"{new}.attention.{name}.{part}" for name in ("query", "key", "value")]
            mapper.move(f"{old}.attn.c_attn.{part}", *names, transpose=True)
            mapper.move(f"{old}.attn.c_proj.{part}", f"{new}.attention.output.{part}", transpose=True)
            mapper.move(f"{old}.mlp.c_fc.{part}", f"{new}.feed_forward.inner.{part}", transpose=True)
            mapper.move(f"{old}.mlp.c_proj.{part}", f"{new}.feed_forward.outer.{part}", transpose=True)
    mapper.pairs("ln_f", "decoder.norm")


FAMILIES = (Family("gpt2", FIELDS, _config, _place, rename, architecture="GPT2LMHeadModel", spelled=spelled),)


def _gpt(d_model: int, layers: int, heads: int, *, context: int = 1024, dropout: float = 0.1) -> ModelConfig:
    """Return a configuration of GPT-2 (Radford et al. 2019) or GPT-3 (Brown et al. 2020).

    Every second layer of GPT-3 uses sparse attention, which does not change the number of parameters. Here all layers
    are dense.
    """
    return ModelConfig(
        vocab=50257,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=AttentionConfig(heads=heads, bias=True),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu_tanh", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=1e-5),
        embedding=EmbeddingConfig(tied=True),
        dropout=dropout,
    )


PRESETS = {
    "gpt2": Preset(2019, 124_439_808, _gpt(768, 12, 12), taught=True),
    "gpt2-medium": Preset(2019, 354_823_168, _gpt(1024, 24, 16), taught=True),
    "gpt2-large": Preset(2019, 774_030_080, _gpt(1280, 36, 20), taught=True),
    "gpt2-xl": Preset(2019, 1_557_611_200, _gpt(1600, 48, 25), taught=True),
    "distilgpt2": Preset(2019, 81_912_576, _gpt(768, 6, 12)),
    "gpt3-175b": Preset(2020, 174_604_259_328, _gpt(12288, 96, 96, context=2048, dropout=0.0), taught=True),
}
