"""A published GPT-2 (Radford et al. 2019), by our names: the configuration and every tensor (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping

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
from companion.ground.fields import require_whole


def _rename(name: str) -> str:
    """The first release has neither the prefix nor a head."""
    return name.removeprefix("transformer.")


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


def _place(places: Places, config: ModelConfig) -> None:
    """Matrices are stored (in, out), the transpose of `nn.Linear`'s, and query, key and value are one. The first
    release keeps its causal mask as a tensor."""
    places.drop(lambda name: name.endswith((".attn.bias", ".attn.masked_bias")))
    places.vocabulary("wte.weight", tied=config.embedding.tied)
    places.move("wpe.weight", "positions.weight")
    for layer in range(config.layers):
        old, new = f"h.{layer}", f"decoder.blocks.{layer}"
        places.pairs(f"{old}.ln_1", f"{new}.attention_norm")
        places.pairs(f"{old}.ln_2", f"{new}.feed_forward_norm")
        for part in ("weight", "bias"):
            names = [f"{new}.attention.{name}.{part}" for name in ("query", "key", "value")]
            places.move(f"{old}.attn.c_attn.{part}", *names, transpose=True)
            places.move(f"{old}.attn.c_proj.{part}", f"{new}.attention.output.{part}", transpose=True)
            places.move(f"{old}.mlp.c_fc.{part}", f"{new}.feed_forward.inner.{part}", transpose=True)
            places.move(f"{old}.mlp.c_proj.{part}", f"{new}.feed_forward.outer.{part}", transpose=True)
    places.pairs("ln_f", "decoder.norm")


READERS = {"gpt2": Reader(_config, _place, _rename)}
"""By `model_type`."""
