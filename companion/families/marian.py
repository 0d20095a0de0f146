"""Marian's translation models as published, close relatives of the 2017 Transformer (lesson 13).

They are post-norm. In their position vectors all sines come before all cosines, the logits have one bias per token id,
and the decoder starts from the padding token.
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
from companion.files.published.family import Family

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    is_encoder_decoder               must be true
    vocab_size                       used                    vocab
    decoder_vocab_size               must match vocab_size
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
    normalize_embedding              must be false
    add_final_layer_norm             must be false
    add_bias_logits                  must be false
    static_position_embeddings       must be true
    share_encoder_decoder_embeddings must be true
    tie_word_embeddings              must be true
    is_decoder                       must be false
    decoder_start_token_id           writing
    force_bos_token_to_be_generated  must be false
    extra_pos_embeddings             ignored                 3.0 to 4.0; rows of a table that sinusoids replaced
    classif_dropout                  ignored                 2.9 to 3.0
    init_std                         ignored                 2.9 on
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("d_model"),
        layers=fields.take("encoder_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(heads=fields.take("encoder_attention_heads"), bias=True),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("encoder_ffn_dim"), activation=fields.activation("activation_function"), bias=True
        ),
        positions=PositionConfig("sinusoidal", layout="half"),
        norm=NormConfig("layer", "post", eps=1e-5),
        embedding=EmbeddingConfig(scaled=fields.take("scale_embedding"), head="biased"),
        stack="encoder_decoder",
        dropout=fields.take("dropout"),
    )


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    _check_sinusoids(mapper, config)
    place_stacks(mapper, config)


def place_stacks(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map the table that the encoder and the decoder share, the bias of the logits, and the blocks of both."""
    tables = ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
    mapper.same([f"{name}.weight" for name in tables], "embedding.weight")
    if config.embedding.head == "biased":
        mapper.row("final_logits_bias", "head_bias")
    for stack in ("encoder", "decoder"):
        for layer in range(config.layers):
            old, new = f"model.{stack}.layers.{layer}", f"{stack}.blocks.{layer}"
            sublayers = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if stack == "decoder" else {})
            for theirs, ours in sublayers.items():
                for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                    mapper.pairs(f"{old}.{theirs}.{short}_proj", f"{new}.{ours}.{name}")
                mapper.pairs(f"{old}.{theirs}_layer_norm", f"{new}.{ours}_norm")
            mapper.pairs(f"{old}.fc1", f"{new}.feed_forward.inner")
            mapper.pairs(f"{old}.fc2", f"{new}.feed_forward.outer")
            mapper.pairs(f"{old}.final_layer_norm", f"{new}.feed_forward_norm")


def _check_sinusoids(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Remove the sinusoids that some files contain, after comparing them with those computed here.

    Raises:
        ValueError: If the sinusoids differ.
    """
    import torch

    from companion.layers.positions import sinusoidal

    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weight"
        table: Tensor | None = mapper.given.pop(name, None)
        if table is None:
            continue
        fits = table.ndim == 2 and table.shape[1] == config.d_model
        if table.is_meta and fits:
            continue
        positions = torch.arange(table.shape[0] if fits else 0, device=table.device)
        if not fits or (
            not torch.allclose(table.float(), sinusoidal(positions, config.d_model, layout="half"), atol=1e-2)
        ):
            raise ValueError(
                f"{mapper.folder}: {name} of shape {tuple(table.shape)}: expected sinusoidal positions, first the "
                "sines and then the cosines"
            )


FAMILIES = (Family("marian", FIELDS, _config, _place, architecture="MarianMTModel"),)
