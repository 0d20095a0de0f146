"""T5 and FLAN-T5 as published (Raffel et al. 2020; Chung et al. 2022; lessons 02 and 13).

Both are encoder-decoders with relative positions and RMS norms. Scores are not divided by the square root of d_head.
"""

from __future__ import annotations

import math
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
from companion.ground.fields import require_whole

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    is_encoder_decoder               must be true
    vocab_size                       used                    vocab
    d_model                          used                    d_model
    num_layers                       used                    layers
    num_decoder_layers               must match num_layers
    num_heads                        used                    attention.heads
    d_kv                             used = 64              attention.d_head
    d_ff                             used                    feed_forward.d_ff
    feed_forward_proj                used = "relu"          feed_forward.activation, gated or not
    n_positions                      used = 512             context
    relative_attention_num_buckets   used = 32              positions.buckets
    relative_attention_max_distance  used = 128             positions.reach
    layer_norm_epsilon               used = 1e-06           norm.eps
    dropout_rate                     used = 0.1             dropout
    tie_word_embeddings              used = true            one table for input and output, unless a tensor differs
    scale_decoder_outputs            used = null            whether logits are divided by the root of d_model; 5.24 on
    is_decoder                       must be false
    decoder_start_token_id           writing
    dense_act_fn                     ignored                 4.18 on; feed_forward_proj says it
    is_gated_act                     ignored                 4.18 on; the same
    initializer_factor               ignored                 2.9 on
    """
)
NETWORKS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu": "geglu_tanh",
    "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu",
}
"""Our names for feed-forward networks, keyed by their published names."""


def _config(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    """Return the configuration of a T5 model.

    Unless `scale_decoder_outputs` says otherwise, logits are divided by the square root of d_model if and only if
    `tie_word_embeddings` is true, as in the released code.
    """
    network, d_model, tied = (
        fields.take("feed_forward_proj"),
        fields.take("d_model"),
        fields.flag("tie_word_embeddings"),
    )
    if not isinstance(network, str) or network not in NETWORKS:
        raise fields.refuse("feed_forward_proj", network, "one of " + ", ".join(map(repr, NETWORKS)))
    require_whole("d_model", d_model)
    divided = fields.take("scale_decoder_outputs")
    if not isinstance(divided, bool | None):
        raise fields.refuse("scale_decoder_outputs", divided, "true or false, or null")
    divided = tied if divided is None else divided
    activation: Any = NETWORKS[network]
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=d_model,
        layers=fields.take("num_layers"),
        context=fields.take("n_positions"),
        attention=AttentionConfig(heads=fields.take("num_heads"), d_head=fields.take("d_kv"), score_width=1.0),
        feed_forward=FeedForwardConfig(fields.take("d_ff"), activation),
        positions=PositionConfig(
            "relative",
            buckets=fields.take("relative_attention_num_buckets"),
            reach=fields.take("relative_attention_max_distance"),
        ),
        norm=NormConfig("rms", eps=fields.small("layer_norm_epsilon")),
        embedding=EmbeddingConfig(tied=_tied(given, said=tied), logit_divisor=math.sqrt(d_model) if divided else 1.0),
        stack="encoder_decoder",
        dropout=fields.take("dropout_rate"),
    )


def _tied(given: Mapping[str, Tensor], *, said: bool) -> bool:
    """Return whether the head is tied, judging by the tensors if they are known.

    Newer files always say that the head is tied, even if it is a different tensor.
    """
    import torch

    head, table = given.get("lm_head.weight"), given.get("shared.weight")
    if head is None or table is None:
        return said or bool(given)
    return said if head.is_meta else torch.equal(head, table)


def _says(config: ModelConfig) -> Mapping[str, Any]:
    divided = config.embedding.logit_divisor != 1
    proj = next((theirs for theirs, ours in NETWORKS.items() if ours == config.feed_forward.activation), None)
    return {"feed_forward_proj": proj, "tie_word_embeddings": divided, "scale_decoder_outputs": divided}


def _ends(config: ModelConfig) -> Mapping[str, Tensor]:
    import torch

    tables = ("shared.weight",) if config.embedding.tied else ("shared.weight", "lm_head.weight")
    return dict.fromkeys(tables, torch.empty(config.vocab, config.d_model, device="meta"))


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors.

    Early files also have relative positions for the first cross-attention. These positions are dropped, because no
    version of the released code reads them.
    """
    mapper.drop(lambda name: name.endswith("EncDecAttention.relative_attention_bias.weight"))
    tables = ["shared", "encoder.embed_tokens", "decoder.embed_tokens", *["lm_head"][: config.embedding.tied]]
    mapper.same([f"{name}.weight" for name in tables], "embedding.weight")
    if not config.embedding.tied:
        mapper.move("lm_head.weight", "unembedding.weight")
    gated = config.feed_forward.gated
    matrices = {"wi_0": "gate", "wi_1": "inner", "wo": "outer"} if gated else {"wi": "inner", "wo": "outer"}
    for stack in ("encoder", "decoder"):
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        mapper.move(bias, f"{stack}.relative.weight")
        sublayers = [("SelfAttention", "attention")] + [("EncDecAttention", "cross")] * (stack == "decoder")
        for layer in range(config.layers):
            old, new = f"{stack}.block.{layer}.layer", f"{stack}.blocks.{layer}"
            for number, (theirs, ours) in enumerate(sublayers):
                for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
                    mapper.move(f"{old}.{number}.{theirs}.{short}.weight", f"{new}.{ours}.{name}.weight")
                mapper.move(f"{old}.{number}.layer_norm.weight", f"{new}.{ours}_norm.weight")
            last = f"{old}.{len(sublayers)}"
            for theirs, ours in matrices.items():
                mapper.move(f"{last}.DenseReluDense.{theirs}.weight", f"{new}.feed_forward.{ours}.weight")
            mapper.move(f"{last}.layer_norm.weight", f"{new}.feed_forward_norm.weight")
        mapper.move(f"{stack}.final_layer_norm.weight", f"{stack}.norm.weight")


FAMILIES = (Family("t5", FIELDS, _config, _place, architecture="T5ForConditionalGeneration", says=_says, ends=_ends),)


def _t5(d_model: int, layers: int, heads: int, d_ff: int, *, flan: bool = False) -> ModelConfig:
    """Return a configuration of T5 (Raffel et al. 2020, sections 3.1.2 and 3.7).

    If `flan` is true, networks are gated (Shazeer 2020) and the head has its own matrix (Chung et al. 2022).
    """
    return ModelConfig(
        vocab=32128,
        d_model=d_model,
        layers=layers,
        context=512,
        attention=AttentionConfig(heads=heads, d_head=64, score_width=1.0),
        feed_forward=FeedForwardConfig(d_ff, "geglu_tanh" if flan else "relu"),
        positions=PositionConfig("relative"),
        norm=NormConfig("rms", eps=1e-6),
        embedding=EmbeddingConfig(tied=not flan, logit_divisor=1.0 if flan else math.sqrt(d_model)),
        stack="encoder_decoder",
        dropout=0.1,
    )


PRESETS = {
    "t5-small": Preset(2020, 60_506_624, _t5(512, 6, 8, 2048)),
    "t5-base": Preset(2020, 222_903_552, _t5(768, 12, 12, 3072)),
    "flan-t5-small": Preset(2022, 76_961_152, _t5(512, 8, 6, 1024, flan=True)),
    "flan-t5-base": Preset(2022, 247_577_856, _t5(768, 12, 12, 2048, flan=True)),
}
