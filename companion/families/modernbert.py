"""ModernBERT as published (Warner et al. 2024), an encoder built from LLaMA's parts (lesson 13).

ModernBERT has pre-norm sub-layers, rotary positions and gated networks, and two of every three layers use windows.
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
    WindowConfig,
)
from companion.families.llama import GATED, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL, layer_types, positions, window
from companion.ground.fields import require_whole

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
    attention_bias                   used = false           attention.bias
    intermediate_size                used                    feed_forward.d_ff
    hidden_activation                used = "gelu"          feed_forward.activation, of the gate
    classifier_activation            must match hidden_activation = "gelu"
    mlp_bias                         used = false           feed_forward.bias
    classifier_bias                  used = false           embedding.dense_bias
    decoder_bias                     must be true
    max_position_embeddings          used                    context
    global_rope_theta                used = 160000.0        positions.base
    local_rope_theta                 used = 10000.0         attention.window.base
    rope_scaling                     used = null            positions.scaling; up to 4.57
    rope_parameters                  used = null            positions; 5.0 on
    local_attention                  used = 128             attention.window.width
    layer_types                      used = null            attention.window.pattern; 5.0 on
    global_attn_every_n_layers       used = 3               attention.window.pattern: the first of every n is global
    norm_eps                         used = 1e-05           norm.eps
    layer_norm_eps                   must match norm_eps
    norm_bias                        used = false           norm.bias
    tie_word_embeddings              must be true
    embedding_dropout                used = 0.0             dropout
    position_embedding_type          ignored                 by hand; positions are rotary in any case
    cls_token_id                     ignored                 4.48 on
    classifier_pooling               ignored                 4.48 on; of a head that is not read
    deterministic_flash_attn         ignored                 4.48 on
    initializer_cutoff_factor        ignored                 4.48 on
    reference_compile                ignored                 4.48 on
    repad_logits_with_grad           ignored                 4.48 on
    sparse_prediction                ignored                 4.48 on; of a loss in training
    sparse_pred_ignore_index         ignored                 4.48 on; the same
    """
)


def _config(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    """Return the configuration of a ModernBERT model.

    The names in `given` show whether the file has a masked-token head. Without a head, logits are computed as products
    with the token embeddings.
    """
    order, local = positions(fields, local_base="local_rope_theta")
    every, gate = fields.take("global_attn_every_n_layers"), fields.take("hidden_activation")
    require_whole("global_attn_every_n_layers", every)
    types = layer_types(fields, [LOCAL if layer % every else GLOBAL for layer in range(layers_of(fields))])
    activation: Any = GATED.get(fields.activation("hidden_activation"))
    if activation is None:
        raise fields.refuse("hidden_activation", gate, "the silu or gelu of a gate")
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=fields.take("num_hidden_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(
            heads=fields.take("num_attention_heads"),
            bias=fields.take("attention_bias"),
            window=window(fields, types, fields.take("local_attention"), local),
        ),
        feed_forward=FeedForwardConfig(fields.take("intermediate_size"), activation, bias=fields.take("mlp_bias")),
        positions=order,
        norm=NormConfig("layer", eps=fields.small("norm_eps"), bias=fields.take("norm_bias"), first=False),
        embedding=EmbeddingConfig(norm=True, head="masked", dense_bias=fields.take("classifier_bias"))
        if "decoder.bias" in given
        else EmbeddingConfig(norm=True),
        stack="encoder",
        dropout=fields.take("embedding_dropout"),
    )


def _says(config: ModelConfig) -> Mapping[str, Any]:
    return {"architectures": ["ModernBertForMaskedLM" if config.embedding.head == "masked" else "ModernBertModel"]}


def _ends(config: ModelConfig) -> Mapping[str, Tensor]:
    import torch

    masked = config.embedding.head == "masked"
    return {"decoder.bias": torch.empty(config.vocab, device="meta")} if masked else {}


def _rename(name: str) -> str:
    """Add the prefix that is missing in models without a head."""
    return f"model.{name}" if name.startswith(("embeddings.", "layers.", "final_norm.")) else name


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    mapper.drop(lambda name: name.endswith(".inv_freq"))
    mapper.same(["model.embeddings.tok_embeddings.weight", "decoder.weight"], "embedding.weight")
    norm = ("weight", "bias")[: 1 + config.norm.bias]
    attention, network = (("weight", "bias")[: 1 + part.bias] for part in (config.attention, config.feed_forward))
    mapper.pairs("model.embeddings.norm", "embedding_norm", norm)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}", f"encoder.blocks.{layer}"
        if layer > 0:
            mapper.pairs(f"{old}.attn_norm", f"{new}.attention_norm", norm)
        mapper.pairs(f"{old}.mlp_norm", f"{new}.feed_forward_norm", norm)
        for part in attention:
            names = [f"{new}.attention.{name}.{part}" for name in ("query", "key", "value")]
            mapper.move(f"{old}.attn.Wqkv.{part}", *names)
        mapper.pairs(f"{old}.attn.Wo", f"{new}.attention.output", attention)
        for part in network:
            mapper.move(f"{old}.mlp.Wi.{part}", *(f"{new}.feed_forward.{name}.{part}" for name in ("gate", "inner")))
        mapper.pairs(f"{old}.mlp.Wo", f"{new}.feed_forward.outer", network)
    mapper.pairs("model.final_norm", "encoder.norm", norm)
    if config.embedding.head == "masked":
        mapper.move("decoder.bias", "head_bias")
        mapper.pairs("head.dense", "transform.dense", ("weight", "bias")[: 1 + config.embedding.dense_bias])
        mapper.pairs("head.norm", "transform.norm", norm)


FAMILIES = (
    Family(
        "modernbert",
        FIELDS,
        _config,
        _place,
        _rename,
        writes=False,
        architecture="ModernBertForMaskedLM",
        says=_says,
        ends=_ends,
    ),
)


def _modern(d_model: int, layers: int, heads: int, d_ff: int) -> ModelConfig:
    """Return a configuration of ModernBERT (Warner et al. 2024, table 3)."""
    return ModelConfig(
        vocab=50368,
        d_model=d_model,
        layers=layers,
        context=8192,
        attention=AttentionConfig(heads, window=WindowConfig(128, (False, True, True), base=10000.0)),
        feed_forward=FeedForwardConfig(d_ff, "geglu"),
        positions=PositionConfig("rotary", base=160000.0, layout="half"),
        norm=NormConfig("layer", eps=1e-5, bias=False, first=False),
        embedding=EmbeddingConfig(norm=True, head="masked", dense_bias=False),
        stack="encoder",
    )


PRESETS = {
    "modernbert-base": Preset(2024, 149_655_232, _modern(768, 22, 12, 1152)),
    "modernbert-large": Preset(2024, 395_881_664, _modern(1024, 28, 16, 2624)),
}
