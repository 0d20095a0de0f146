"""BART as published (Lewis et al. 2020), a close relative of the 2017 Transformer (lesson 13).

The encoder and the decoder each have their own learned positions and their own norm before the first block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.families.marian import place_stacks
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    is_encoder_decoder               must be true
    vocab_size                       used                    vocab
    d_model                          used                    d_model
    encoder_layers                   used                    layers
    decoder_layers                   must match encoder_layers
    num_hidden_layers                must match encoder_layers
    encoder_attention_heads          used                    attention.heads
    decoder_attention_heads          must match encoder_attention_heads
    encoder_ffn_dim                  used                    feed_forward.d_ff
    decoder_ffn_dim                  must match encoder_ffn_dim
    max_position_embeddings          used                    context
    activation_function              used = "gelu"          feed_forward.activation
    scale_embedding                  used = false           embedding.scaled
    dropout                          used = 0.1             dropout
    normalize_before                 must be false
    normalize_embedding              must be true
    add_final_layer_norm             must be false
    add_bias_logits                  must be false
    static_position_embeddings       must be false
    extra_pos_embeddings             must be 2
    tie_word_embeddings              must be true
    is_decoder                       must be false
    decoder_start_token_id           writing
    force_bos_token_to_be_generated  ignored                 3.0 to 4.0; forced_bos_token_id says it
    init_std                         ignored                 2.9 on
    """
)
UNUSED = 2
"""Rows at the start of each position table that no token reads, because positions begin after the padding id, 1."""


def _config(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("d_model"),
        layers=fields.take("encoder_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(heads=fields.take("encoder_attention_heads"), bias=True),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("encoder_ffn_dim"), activation=fields.activation("activation_function"), bias=True
        ),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "post", eps=1e-5),
        embedding=EmbeddingConfig(
            scaled=fields.take("scale_embedding"),
            norm=True,
            apart=True,
            head="biased" if "final_logits_bias" in given else "linear",
        ),
        stack="encoder_decoder",
        dropout=fields.take("dropout"),
    )


def _rename(name: str) -> str:
    """Add the prefix that is missing in the first releases."""
    return f"model.{name}" if name.startswith(("shared.", "encoder.", "decoder.")) else name


def _says(config: ModelConfig) -> Mapping[str, Any]:
    return {"num_hidden_layers": config.layers}


def _ends(config: ModelConfig) -> Mapping[str, Tensor]:
    import torch

    biased = config.embedding.head == "biased"
    return {"final_logits_bias": torch.empty(1, config.vocab, device="meta")} if biased else {}


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    for stack, positions, norm in (
        ("encoder", "source_positions", "source_norm"),
        ("decoder", "positions", "embedding_norm"),
    ):
        mapper.from_row(UNUSED, f"model.{stack}.embed_positions.weight", f"{positions}.weight")
        mapper.pairs(f"model.{stack}.layernorm_embedding", norm)
    place_stacks(mapper, config)


FAMILIES = (
    Family(
        "bart",
        FIELDS,
        _config,
        _place,
        _rename,
        architecture="BartForConditionalGeneration",
        says=_says,
        ends=_ends,
        unread=True,
    ),
)


def _bart(d_model: int, layers: int, heads: int, vocab: int = 50265, head: Any = "linear") -> ModelConfig:
    """Return a configuration of BART (Lewis et al. 2020, section 2.1)."""
    return ModelConfig(
        vocab=vocab,
        d_model=d_model,
        layers=layers,
        context=1024,
        attention=AttentionConfig(heads=heads, bias=True),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "post", eps=1e-5),
        embedding=EmbeddingConfig(norm=True, apart=True, head=head),
        stack="encoder_decoder",
        dropout=0.1,
    )


PRESETS = {
    "bart-base": Preset(2019, 139_417_344, _bart(768, 6, 12)),
    "bart-large-cnn": Preset(2019, 406_336_600, _bart(1024, 12, 16, 50264, "biased")),
}
"""The parameter counts leave out the four position rows that no token reads, two in each stack. The count of
bart-large-cnn includes the bias of its head, which is zero."""
