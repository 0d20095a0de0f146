"""A published BERT (Devlin et al. 2019), by our names: the configuration and every tensor (lesson 13)."""

from __future__ import annotations

from pathlib import Path

import torch

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
from companion.transformer import Transformer


def load_bert(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A BERT (Devlin et al. 2019) in Hugging Face's layout, in evaluation mode: an encoder, post-norm.

    The tensors say which of its ends the file has: the masked-token head, the pooler, the classifier of sentence pairs.
    Without a masked-token head, logits are products with the table of tokens.
    Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "bert")
    for name in ("is_decoder", "add_cross_attention"):
        fields.only(name, False, default=False)
    fields.only("position_embedding_type", "absolute", default="absolute")
    fields.only("tie_word_embeddings", True, default=True)
    dropout = fields.take("hidden_dropout_prob", 0.1)
    fields.only("attention_probs_dropout_prob", dropout, default=0.1)
    # Without a head, names have no prefix; the first releases call a norm's gain and bias gamma and beta.
    given = {}
    for name, tensor in load_published(folder, device).items():
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        given[name.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    masked = any(name.startswith("cls.predictions.") for name in given)
    pooled = any(name.startswith("pooler.") for name in given)
    classifier = given.get("cls.seq_relationship.weight")
    config = fields.finish(
        lambda: ModelConfig(
            vocab=fields.take("vocab_size"),
            d_model=fields.take("hidden_size"),
            layers=fields.take("num_hidden_layers"),
            context=fields.take("max_position_embeddings"),
            attention=AttentionConfig(heads=fields.take("num_attention_heads"), bias=True),
            feed_forward=FeedForwardConfig(
                d_ff=fields.take("intermediate_size"),
                activation=fields.activation("hidden_act", "gelu"),
                bias=True,
            ),
            positions=PositionConfig("learned"),
            norm=NormConfig("layer", "post", eps=fields.take("layer_norm_eps", 1e-12)),
            embedding=EmbeddingConfig(
                norm=True,
                segments=fields.take("type_vocab_size", 2),
                head="masked" if masked else "linear",
                pooled=pooled,
                classes=0 if classifier is None or not pooled else classifier.shape[0],
            ),
            stack="encoder",
            dropout=dropout,
        )
    )
    places = Places(given, folder)
    places.drop(lambda name: name == "embeddings.position_ids")
    places.same(["embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"], "embedding.weight")
    places.move("embeddings.position_embeddings.weight", "positions.weight")
    places.move("embeddings.token_type_embeddings.weight", "segments.weight")
    places.pairs("embeddings.LayerNorm", "embedding_norm")
    for layer in range(config.layers):
        old, new = f"encoder.layer.{layer}", f"encoder.blocks.{layer}"
        for name in ("query", "key", "value"):
            places.pairs(f"{old}.attention.self.{name}", f"{new}.attention.{name}")
        places.pairs(f"{old}.attention.output.dense", f"{new}.attention.output")
        places.pairs(f"{old}.attention.output.LayerNorm", f"{new}.attention_norm")
        places.pairs(f"{old}.intermediate.dense", f"{new}.feed_forward.inner")
        places.pairs(f"{old}.output.dense", f"{new}.feed_forward.outer")
        places.pairs(f"{old}.output.LayerNorm", f"{new}.feed_forward_norm")
    if masked:
        places.same(["cls.predictions.bias", "cls.predictions.decoder.bias"], "head_bias")
        places.pairs("cls.predictions.transform.dense", "transform.dense")
        places.pairs("cls.predictions.transform.LayerNorm", "transform.norm")
    if pooled:
        places.pairs("pooler.dense", "pooler.dense")
    if config.embedding.classes:
        places.pairs("cls.seq_relationship", "classifier")
    return assemble(config, places.finish(), folder, dtype)
