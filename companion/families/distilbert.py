"""DistilBERT as published (Sanh et al. 2019): BERT with half as many layers and no segments (lesson 13)."""

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
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    vocab_size                       used                    vocab
    dim                              used                    d_model
    n_layers                         used                    layers
    n_heads                          used                    attention.heads
    hidden_dim                       used                    feed_forward.d_ff
    activation                       used = "gelu"          feed_forward.activation
    max_position_embeddings          used                    context
    sinusoidal_pos_embds             must be false
    dropout                          used = 0.1             dropout
    tie_word_embeddings              must be true
    tie_weights_                     must be true
    """
)


def _config(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    """Return the configuration of a DistilBERT model.

    The names in `given` show whether the file has a masked-token head. Without a head, logits are computed as products
    with the token embeddings.
    """
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("dim"),
        layers=fields.take("n_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(heads=fields.take("n_heads"), bias=True),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("hidden_dim"), activation=fields.activation("activation"), bias=True
        ),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "post", eps=1e-12),
        embedding=EmbeddingConfig(norm=True, head="masked" if "vocab_projector.bias" in given else "linear"),
        stack="encoder",
        dropout=fields.take("dropout"),
    )


def _rename(name: str) -> str:
    """Remove the prefix, which does not occur in models without a head."""
    return name.removeprefix("distilbert.")


def _spelled(name: str) -> str:
    return name if name.startswith("vocab_") else f"distilbert.{name}"


def _says(config: ModelConfig) -> Mapping[str, Any]:
    return {"architectures": ["DistilBertForMaskedLM" if config.embedding.head == "masked" else "DistilBertModel"]}


def _ends(config: ModelConfig) -> Mapping[str, Tensor]:
    import torch

    masked = config.embedding.head == "masked"
    return {"vocab_projector.bias": torch.empty(config.vocab, device="meta")} if masked else {}


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    mapper.drop(lambda name: name == "embeddings.position_ids")
    mapper.same(["embeddings.word_embeddings.weight", "vocab_projector.weight"], "embedding.weight")
    mapper.move("embeddings.position_embeddings.weight", "positions.weight")
    mapper.pairs("embeddings.LayerNorm", "embedding_norm")
    for layer in range(config.layers):
        old, new = f"transformer.layer.{layer}", f"encoder.blocks.{layer}"
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
            mapper.pairs(f"{old}.attention.{short}_lin", f"{new}.attention.{name}")
        mapper.pairs(f"{old}.sa_layer_norm", f"{new}.attention_norm")
        mapper.pairs(f"{old}.ffn.lin1", f"{new}.feed_forward.inner")
        mapper.pairs(f"{old}.ffn.lin2", f"{new}.feed_forward.outer")
        mapper.pairs(f"{old}.output_layer_norm", f"{new}.feed_forward_norm")
    if config.embedding.head == "masked":
        mapper.move("vocab_projector.bias", "head_bias")
        mapper.pairs("vocab_transform", "transform.dense")
        mapper.pairs("vocab_layer_norm", "transform.norm")


FAMILIES = (
    Family(
        "distilbert",
        FIELDS,
        _config,
        _place,
        _rename,
        writes=False,
        architecture="DistilBertForMaskedLM",
        spelled=_spelled,
        says=_says,
        ends=_ends,
    ),
)

PRESETS = {
    "distilbert-base": Preset(
        2019,
        66_985_530,
        ModelConfig(
            vocab=30522,
            d_model=768,
            layers=6,
            context=512,
            attention=AttentionConfig(heads=12, bias=True),
            feed_forward=FeedForwardConfig(d_ff=3072, activation="gelu", bias=True),
            positions=PositionConfig("learned"),
            norm=NormConfig("layer", "post", eps=1e-12),
            embedding=EmbeddingConfig(norm=True, head="masked"),
            stack="encoder",
            dropout=0.1,
        ),
    )
}
