"""GPT-Neo (Black et al. 2021) and the models of TinyStories (Eldan and Li 2023) as published (lesson 13).

These models are like GPT-2, except that every second layer has local attention and scores are not divided by the square
root of d_head.
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
from companion.families import gpt2
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import shortest
from companion.ground.fields import require_whole

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = rows(
    """
    vocab_size                       used                    vocab
    hidden_size                      used                    d_model
    num_layers                       used                    layers
    num_heads                        used                    attention.heads
    attention_types                  used = null            which layers are local; null: every second of 24
    attention_layers                 used = null            the same, layer by layer; null: as attention_types
    window_size                      used = 256             attention.window.width
    intermediate_size                used = null            feed_forward.d_ff; null: 4 d_model
    activation_function              used = "gelu_new"      feed_forward.activation
    max_position_embeddings          used                    context
    layer_norm_epsilon               used = 1e-05           norm.eps
    tie_word_embeddings              used = true            embedding.tied
    resid_dropout                    used = 0.0             dropout
    summary_type                     ignored                 4.6 to 4.22; of a head that is not read
    summary_use_proj                 ignored                 4.6 to 4.22
    summary_activation               ignored                 4.6 to 4.22
    summary_proj_to_labels           ignored                 4.6 to 4.22
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    d_model, d_ff = fields.take("hidden_size"), fields.take("intermediate_size")
    require_whole("d_model", d_model)
    local = _local(fields)
    return ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=d_model,
        layers=fields.take("num_layers"),
        context=fields.take("max_position_embeddings"),
        attention=AttentionConfig(
            heads=fields.take("num_heads"),
            output_bias=True,
            score_width=1.0,
            window=WindowConfig(fields.take("window_size"), shortest(local)) if any(local) else None,
        ),
        feed_forward=FeedForwardConfig(
            d_ff=4 * d_model if d_ff is None else d_ff, activation=fields.activation("activation_function"), bias=True
        ),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=fields.small("layer_norm_epsilon")),
        embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings")),
        dropout=fields.take("resid_dropout"),
    )


def _local(fields: Fields) -> list[bool]:
    """Return, for each layer, whether it is local.

    `attention_types` lists pairs, each with a sequence of layer types and the number of times that it repeats.
    """
    layers, types, listed = fields.take("num_layers"), fields.take("attention_types"), fields.take("attention_layers")
    try:
        kinds = [kind for some, times in types or [[["global", "local"], 12]] for kind in some * times]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        expected = f"pairs of layer types and repetitions, {layers} layers in total, each global or local"
        raise fields.refuse("attention_types", types, expected)
    if listed is not None and listed != kinds:
        raise fields.refuse("attention_layers", listed, "the same types of layers as in attention_types")
    return [kind == "local" for kind in kinds]


def _says(config: ModelConfig) -> Mapping[str, Any]:
    kinds = ["local" if config.local(layer) else "global" for layer in range(config.layers)]
    return {"attention_types": [[kinds, 1]], "attention_layers": kinds}


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors, but drop the masks that the first releases contain."""
    mapper.drop(lambda name: name.endswith((".attention.bias", ".attention.masked_bias")))
    mapper.vocabulary("wte.weight", tied=config.embedding.tied)
    mapper.move("wpe.weight", "positions.weight")
    for layer in range(config.layers):
        old, new = f"h.{layer}", f"decoder.blocks.{layer}"
        mapper.pairs(f"{old}.ln_1", f"{new}.attention_norm")
        mapper.pairs(f"{old}.ln_2", f"{new}.feed_forward_norm")
        for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
            mapper.move(f"{old}.attn.attention.{short}_proj.weight", f"{new}.attention.{name}.weight")
        mapper.pairs(f"{old}.attn.attention.out_proj", f"{new}.attention.output")
        mapper.pairs(f"{old}.mlp.c_fc", f"{new}.feed_forward.inner")
        mapper.pairs(f"{old}.mlp.c_proj", f"{new}.feed_forward.outer")
    mapper.pairs("ln_f", "decoder.norm")


FAMILIES = (
    Family(
        "gpt_neo",
        FIELDS,
        _config,
        _place,
        gpt2.rename,
        architecture="GPTNeoForCausalLM",
        spelled=gpt2.spelled,
        says=_says,
    ),
)


def _neo(d_model: int, layers: int, heads: int) -> ModelConfig:
    return ModelConfig(
        vocab=50257,
        d_model=d_model,
        layers=layers,
        context=2048,
        attention=AttentionConfig(
            heads=heads, output_bias=True, score_width=1.0, window=WindowConfig(256, (False, True))
        ),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu_tanh", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=1e-5),
        embedding=EmbeddingConfig(tied=True),
    )


PRESETS = {
    "gpt-neo-125m": Preset(2021, 125_198_592, _neo(768, 12, 12)),
    "gpt-neo-1.3b": Preset(2021, 1_315_575_808, _neo(2048, 24, 16)),
    "tinystories-33m": Preset(2023, 68_514_048, _neo(768, 4, 16)),
}
