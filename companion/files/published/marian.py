"""A published Marian translator, by our names: the configuration and every tensor (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.files.published.folder import Fields
from companion.files.published.places import Places
from companion.files.published.reader import Reader
from companion.layers.positions import sinusoidal


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


def _place(places: Places, config: ModelConfig) -> None:
    _check_sinusoids(places, config)
    tables = ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
    places.same([f"{name}.weight" for name in tables], "embedding.weight")
    places.move("final_logits_bias", "head_bias")
    if (bias := places.moved.get("head_bias")) is not None and bias.ndim == 2 and bias.shape[0] == 1:
        places.moved["head_bias"] = bias[0]  # stored (1, vocab)
    for stack in ("encoder", "decoder"):
        for layer in range(config.layers):
            old, new = f"model.{stack}.layers.{layer}", f"{stack}.blocks.{layer}"
            sublayers = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if stack == "decoder" else {})
            for theirs, ours in sublayers.items():
                for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                    places.pairs(f"{old}.{theirs}.{short}_proj", f"{new}.{ours}.{name}")
                places.pairs(f"{old}.{theirs}_layer_norm", f"{new}.{ours}_norm")
            places.pairs(f"{old}.fc1", f"{new}.feed_forward.inner")
            places.pairs(f"{old}.fc2", f"{new}.feed_forward.outer")
            places.pairs(f"{old}.final_layer_norm", f"{new}.feed_forward_norm")


def _check_sinusoids(places: Places, config: ModelConfig) -> None:
    """Some files carry the sinusoids: they must be the ones that are computed here, and are left out."""
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weight"
        table: Tensor | None = places.given.pop(name, None)
        if table is None:
            continue
        fits = table.ndim == 2 and table.shape[1] == config.d_model
        if table.is_meta and fits:
            continue
        positions = torch.arange(table.shape[0] if fits else 0, device=table.device)
        if not fits or (
            not torch.allclose(table.float(), sinusoidal(positions, config.d_model, layout="half"), atol=1e-2)
        ):
            raise ValueError(f"{places.folder}: {name} {tuple(table.shape)}: expected sines, then cosines")


READERS = {"marian": Reader(_config, _place)}
"""By `model_type`: the 2017 encoder-decoder, post-norm, with all sines before all cosines, and one bias per token id on
its logits. Its decoder starts from the padding token."""
