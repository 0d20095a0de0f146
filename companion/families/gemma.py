"""Gemma, Gemma 2 and Gemma 3 as published (Gemma Team 2024 and 2025), relatives of LLaMA (lesson 13).

All three have a GELU gate and scaled embeddings. Gemma 2 and 3 also have norms on both sides of each sub-layer, and
layers with windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from companion.families import llama
from companion.families.llama import changed, configuration, layers_of, said
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL, layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields

OF_GEMMA = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 16              attention.kv_heads
    head_dim                         used = 256             attention.d_head
    mlp_bias                         must be false
    hidden_act                       used = "gelu_pytorch_tanh"  feed_forward.activation, of the gate; "gelu" means it
    hidden_activation                must be null or "gelu_pytorch_tanh"
    tie_word_embeddings              used = true            embedding.tied
    use_bidirectional_attention      must be false or null
    """
)

OF_GEMMA2 = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 4               attention.kv_heads
    head_dim                         used = 256             attention.d_head
    hidden_activation                used = "gelu_pytorch_tanh"  feed_forward.activation, of the gate
    hidden_act                       must match hidden_activation
    query_pre_attn_scalar            used = 256             attention.score_width
    attn_logit_softcapping           used = 50.0            attention.softcap; null: none
    final_logit_softcapping          used = 30.0            embedding.logit_softcap; null: none
    sliding_window                   used = 4096            attention.window.width
    sliding_window_size              ignored                 by hand; sliding_window says it
    layer_types                      used = null            attention.window.pattern; null: every second is global
    tie_word_embeddings              used = true            embedding.tied
    mlp_bias                         must be false
    use_bidirectional_attention      must be false or null
    cache_implementation             ignored                 4.44 to 4.51
    """
)

OF_GEMMA3 = OF_GEMMA2 | rows(
    """
    rope_theta                       used = 1000000.0       positions.base
    rope_local_base_freq             used = 10000.0         attention.window.base
    attn_logit_softcapping           must be null
    final_logit_softcapping          used = null            embedding.logit_softcap; null: none
    layer_types                      used = null            attention.window.pattern; 4.53 on
    sliding_window_pattern           used = 6               attention.window.pattern: every n-th is global; 4.51
    _sliding_window_pattern          must match sliding_window_pattern
    """
)


def _gemma1(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    """Read a configuration of the first Gemma.

    Early files say `gelu` but mean the tanh approximation, which the models were trained with.
    """
    config = configuration(fields)
    if config.feed_forward.activation != "geglu_tanh" and fields.take("hidden_act") != "gelu":
        raise fields.refuse("hidden_act", fields.take("hidden_act"), "'gelu_pytorch_tanh', or 'gelu' for the same")
    return changed(
        config,
        feed_forward={"activation": "geglu_tanh"},
        norm={"unit_offset": True},
        embedding={"scaled": True, "rounded": True},
    )


def _gemma2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return _gemma(fields, [LOCAL if layer % 2 == 0 else GLOBAL for layer in range(layers_of(fields))])


def _gemma3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    every = fields.take("sliding_window_pattern")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise fields.refuse("sliding_window_pattern", every, "a whole number >= 1")
    usual = [LOCAL if (layer + 1) % every else GLOBAL for layer in range(layers_of(fields))]
    config = _gemma(fields, usual, "rope_local_base_freq")
    return config.with_(attention=replace(config.attention, qk_norm="head"))


def _gemma(fields: Fields, usual: Sequence[str], local_base: str | None = None) -> ModelConfig:
    config = configuration(fields, layer_types(fields, usual), local_base=local_base)
    width = fields.take("query_pre_attn_scalar")
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= 10**6:
        raise fields.refuse("query_pre_attn_scalar", width, "a whole number from 1 to 1,000,000")
    return config.with_(
        attention=replace(config.attention, score_width=width, softcap=said(fields, "attn_logit_softcapping")),
        norm=replace(config.norm, placement="both", unit_offset=True),
        embedding=replace(
            config.embedding, scaled=True, rounded=True, logit_softcap=fields.take("final_logit_softcapping")
        ),
    )


FAMILIES = (
    Family("gemma", OF_GEMMA, _gemma1, llama.place, architecture="GemmaForCausalLM"),
    Family("gemma2", OF_GEMMA2, _gemma2, llama.place, architecture="Gemma2ForCausalLM"),
    Family("gemma3_text", OF_GEMMA3, _gemma3, llama.place, architecture="Gemma3ForCausalLM"),
)


def _like_gemma(
    d_model: int,
    layers: int,
    heads: int,
    kv_heads: int,
    d_ff: int,
    *,
    vocab: int,
    context: int,
    attention: AttentionConfig,
    positions: PositionConfig,
    logit_softcap: float | None = None,
) -> ModelConfig:
    """Return a configuration of Gemma or Gemma 2 (Gemma Team 2024) or of Gemma 3 (Gemma Team 2025)."""
    return ModelConfig(
        vocab=vocab,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=replace(attention, heads=heads, kv_heads=kv_heads, d_head=256, score_width=256.0),
        feed_forward=FeedForwardConfig(d_ff=d_ff, activation="geglu_tanh"),
        positions=positions,
        norm=NormConfig("rms", "both", eps=1e-6, unit_offset=True),
        embedding=EmbeddingConfig(tied=True, scaled=True, rounded=True, logit_softcap=logit_softcap),
    )


_THIRD: dict[str, Any] = {
    "vocab": 262144,
    "context": 32768,
    "attention": AttentionConfig(1, qk_norm="head", window=WindowConfig(512, (True,) * 5 + (False,), base=10000.0)),
    "positions": PositionConfig("rotary", base=1e6, layout="half"),
}


def _first(d_model: int, layers: int, heads: int, kv_heads: int, d_ff: int) -> ModelConfig:
    """Return a configuration of the first Gemma (Gemma Team 2024, table 1)."""
    plain = _like_gemma(
        d_model, layers, heads, kv_heads, d_ff,
        vocab=256000, context=8192, attention=AttentionConfig(1), positions=PositionConfig("rotary", layout="half"),
    )  # fmt: skip
    return changed(plain, attention={"score_width": None}, norm={"placement": "pre"})


PRESETS = {
    "gemma-2b": Preset(2024, 2_506_172_416, _first(2048, 18, 8, 1, 16384)),
    "gemma-7b": Preset(2024, 8_537_680_896, _first(3072, 28, 16, 16, 24576)),
    "gemma-2-2b": Preset(
        2024,
        2_614_341_888,
        _like_gemma(
            2304, 26, 8, 4, 9216, vocab=256000, context=8192, logit_softcap=30.0,
            attention=AttentionConfig(1, softcap=50.0, window=WindowConfig(4096, (True, False))),
            positions=PositionConfig("rotary", layout="half"),
        ),
    ),
    "gemma-3-270m": Preset(2025, 268_098_176, _like_gemma(640, 18, 4, 1, 2048, **_THIRD)),
    "gemma-3-1b": Preset(2025, 999_885_952, _like_gemma(1152, 26, 4, 1, 6912, **_THIRD)),
}  # fmt: skip
