"""A published Marian translator, by our names: the configuration and every tensor (lesson 13)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.files.models import assemble
from companion.files.published.folder import Fields, Places, load_published
from companion.layers.positions import sinusoidal
from companion.transformer import Transformer


def load_marian(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A Marian translator (Junczys-Dowmunt et al. 2018) in Hugging Face's layout, in evaluation mode: the 2017
    encoder-decoder, post-norm, with all sines before all cosines, and one bias per token id on its logits.

    Its decoder starts from the padding token (`special_tokens`). Raises `ValueError` for a field it cannot honour
    (stacks of unequal sizes or tables, say), a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "marian", encoder_decoder=True)
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "is_decoder"):
        fields.only(name, False, default=False)
    for name in ("static_position_embeddings", "share_encoder_decoder_embeddings", "tie_word_embeddings"):
        fields.only(name, True, default=True)
    for name in ("encoder_layerdrop", "decoder_layerdrop", "attention_dropout", "activation_dropout"):
        fields.only(name, 0.0, default=0.0)
    fields.take("extra_pos_embeddings", None)  # counted rows of a table that the sinusoids replaced
    vocab = fields.take("vocab_size")
    fields.only("decoder_vocab_size", vocab, default=vocab)
    config = fields.finish(
        lambda: ModelConfig(
            vocab=vocab,
            d_model=fields.take("d_model"),
            layers=fields.alike("encoder_layers", "decoder_layers", "num_hidden_layers"),
            context=fields.take("max_position_embeddings"),
            attention=AttentionConfig(
                heads=fields.alike("encoder_attention_heads", "decoder_attention_heads"), bias=True
            ),
            feed_forward=FeedForwardConfig(
                d_ff=fields.alike("encoder_ffn_dim", "decoder_ffn_dim"),
                activation=fields.activation("activation_function", "gelu"),
                bias=True,
            ),
            positions=PositionConfig("sinusoidal", layout="half"),
            norm=NormConfig("layer", "post", eps=1e-5),
            embedding=EmbeddingConfig(scaled=fields.take("scale_embedding", False), head="biased"),
            stack="encoder_decoder",
            dropout=fields.take("dropout", 0.1),
        )
    )
    places = Places(load_published(folder, device), folder)
    _check_sinusoids(places, config)
    tables = ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
    places.same([f"{name}.weight" for name in tables], "embedding.weight")
    places.move("final_logits_bias", "head_bias")
    if (bias := places.moved.get("head_bias")) is not None:
        places.moved["head_bias"] = bias.flatten()  # stored (1, vocab)
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
    return assemble(config, places.finish(), folder, dtype)


def _check_sinusoids(places: Places, config: ModelConfig) -> None:
    """Some files carry the sinusoids: they must be the ones that are computed here, and are left out."""
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weight"
        table: Tensor | None = places.given.pop(name, None)
        if table is None:
            continue
        positions = torch.arange(table.shape[0], device=table.device)
        if (
            table.ndim != 2
            or table.shape[1] != config.d_model
            or not torch.allclose(table.float(), sinusoidal(positions, config.d_model, layout="half"), atol=1e-2)
        ):
            raise ValueError(f"{places.folder}: {name} {tuple(table.shape)}: expected sines, then cosines")
