"""BERT as published (Devlin et al. 2019), a post-norm encoder, with its fields, tensors and releases (lesson 13)."""

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
    hidden_size                      used                    d_model
    num_hidden_layers                used                    layers
    num_attention_heads              used                    attention.heads
    intermediate_size                used                    feed_forward.d_ff
    max_position_embeddings          used                    context
    type_vocab_size                  used = 2               embedding.segments
    hidden_act                       used = "gelu"          feed_forward.activation
    layer_norm_eps                   used = 1e-12           norm.eps
    hidden_dropout_prob              used = 0.1             dropout
    attention_probs_dropout_prob     must match hidden_dropout_prob = 0.1
    tie_word_embeddings              must be true
    is_decoder                       must be false
    position_embedding_type          must be "absolute"
    directionality                   ignored                 by hand
    pooler_fc_size                   ignored                 by hand
    pooler_num_attention_heads       ignored                 by hand
    pooler_num_fc_layers             ignored                 by hand
    pooler_size_per_head             ignored                 by hand
    pooler_type                      ignored                 by hand
    """
)


def rename(name: str) -> str:
    """Normalize the names of tensors across releases.

    Models without a head have names without the prefix, and in the first releases, the gain and the bias of a norm are
    called gamma and beta.
    """
    name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def spelled(name: str) -> str:
    return name if name.startswith("cls.") else f"bert.{name}"


def _says(config: ModelConfig) -> Mapping[str, Any]:
    without = "BertModel" if config.embedding.head != "masked" else "BertForMaskedLM"
    return {"architectures": ["BertForPreTraining" if config.embedding.classes else without]}


def bert_ends(config: ModelConfig) -> Mapping[str, Tensor]:
    import torch

    has, table = config.embedding, torch.empty(config.embedding.classes, config.d_model, device="meta")
    there = {"cls.predictions.bias": has.head == "masked", "pooler.dense.bias": has.pooled}
    there["cls.seq_relationship.weight"] = has.classes > 0
    return {name: table for name, needed in there.items() if needed}


def configuration(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    """Return the configuration of a BERT model.

    The names in `given` show whether the file contains a masked-token head, a pooler and a classifier of sentence
    pairs. Without a masked-token head, logits are computed as products with the token embeddings.

    Raises:
        ValueError: If a field cannot be honored, or the classifier is not a matrix.
    """
    pooled = any(name.startswith("pooler.") for name in given)
    classifier = given.get("cls.seq_relationship.weight")
    if classifier is not None and classifier.ndim != 2:
        raise ValueError(f"cls.seq_relationship.weight has shape {tuple(classifier.shape)}: expected (class, d_model)")
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(heads=fields.take("num_attention_heads"), bias=True),
        feed_forward=FeedForwardConfig(
            d_ff=fields.take("intermediate_size"), activation=fields.activation("hidden_act"), bias=True
        ),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "post", eps=fields.small("layer_norm_eps")),
        embedding=EmbeddingConfig(
            norm=True,
            segments=fields.take("type_vocab_size"),
            head="masked" if any(name.startswith("cls.predictions.") for name in given) else "linear",
            pooled=pooled,
            classes=0 if classifier is None or not pooled else classifier.shape[0],
        ),
        stack="encoder",
        dropout=fields.take("hidden_dropout_prob"),
    )


def place(mapper: StateDictMapper, config: ModelConfig, *, unused: int = 0) -> None:
    """Map all tensors. The first `unused` rows of the position table are not used by any token."""
    mapper.drop(lambda name: name == "embeddings.position_ids")
    mapper.same(["embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"], "embedding.weight")
    mapper.from_row(unused, "embeddings.position_embeddings.weight", "positions.weight")
    mapper.move("embeddings.token_type_embeddings.weight", "segments.weight")
    mapper.pairs("embeddings.LayerNorm", "embedding_norm")
    for layer in range(config.layers):
        old, new = f"encoder.layer.{layer}", f"encoder.blocks.{layer}"
        for name in ("query", "key", "value"):
            mapper.pairs(f"{old}.attention.self.{name}", f"{new}.attention.{name}")
        mapper.pairs(f"{old}.attention.output.dense", f"{new}.attention.output")
        mapper.pairs(f"{old}.attention.output.LayerNorm", f"{new}.attention_norm")
        mapper.pairs(f"{old}.intermediate.dense", f"{new}.feed_forward.inner")
        mapper.pairs(f"{old}.output.dense", f"{new}.feed_forward.outer")
        mapper.pairs(f"{old}.output.LayerNorm", f"{new}.feed_forward_norm")
    if config.embedding.head == "masked":
        mapper.same(["cls.predictions.bias", "cls.predictions.decoder.bias"], "head_bias")
        mapper.pairs("cls.predictions.transform.dense", "transform.dense")
        mapper.pairs("cls.predictions.transform.LayerNorm", "transform.norm")
    if config.embedding.pooled:
        mapper.pairs("pooler.dense", "pooler.dense")
    if config.embedding.classes:
        mapper.pairs("cls.seq_relationship", "classifier")


FAMILIES = (
    Family(
        "bert",
        FIELDS,
        configuration,
        place,
        rename,
        writes=False,
        architecture="BertForPreTraining",
        spelled=spelled,
        says=_says,
        ends=bert_ends,
    ),
)


def preset(d_model: int, layers: int, heads: int) -> ModelConfig:
    """Return a configuration of the uncased pretrained BERT (Devlin et al. 2019).

    The model has a masked-token head, a pooler and a classifier of sentence pairs. To get only the encoder and the
    pooler, set `head="linear", classes=0`.
    """
    return ModelConfig(
        vocab=30522,
        d_model=d_model,
        layers=layers,
        context=512,
        attention=AttentionConfig(heads=heads, bias=True),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "post", eps=1e-12),
        embedding=EmbeddingConfig(norm=True, segments=2, head="masked", pooled=True, classes=2),
        stack="encoder",
        dropout=0.1,
    )


PRESETS = {
    "bert-base": Preset(2018, 110_106_428, preset(768, 12, 12), taught=True),
    "bert-large": Preset(2018, 336_226_108, preset(1024, 24, 16), taught=True),
}
