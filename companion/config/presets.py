"""Published systems as configurations: those that the course names, and releases to load (lesson 13).

A preset says what its paper or its released configuration says, and nothing in the package asks for one by name: it is
a `ModelConfig` like any other. `Transformer(preset(name))` is a fresh model; `load_pretrained` reads trained ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from companion.config.groups import RotaryScaling, WindowConfig
from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.ground.fields import shown


def _transformer(d_model: int, heads: int, d_ff: int, dropout: float) -> ModelConfig:
    """Vaswani et al. 2017, table 3: one shared table of about 37,000 tokens, six layers in each stack, no biases in
    attention. The paper sets no longest sequence; 512 is what its relatives allow."""
    return ModelConfig(
        vocab=37000,
        d_model=d_model,
        layers=6,
        context=512,
        attention=AttentionConfig(heads=heads),
        feed_forward=FeedForwardConfig(d_ff=d_ff, activation="relu", bias=True),
        positions=PositionConfig("sinusoidal"),
        norm=NormConfig("layer", "post", eps=1e-6),
        embedding=EmbeddingConfig(tied=True, scaled=True),
        stack="encoder_decoder",
        dropout=dropout,
    )


def _bert(d_model: int, layers: int, heads: int) -> ModelConfig:
    """Devlin et al. 2019, uncased, as it was pretrained: with its head for masked tokens, its pooler and the classifier
    of sentence pairs. The encoder and the pooler alone are `head="linear", classes=0`."""
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


def _gpt(d_model: int, layers: int, heads: int, *, context: int, dropout: float) -> ModelConfig:
    """Radford et al. 2019; Brown et al. 2020. (GPT-3's every second layer attends sparsely, which changes no count;
    here all attend densely.)"""
    return ModelConfig(
        vocab=50257,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=AttentionConfig(heads=heads, bias=True),
        feed_forward=FeedForwardConfig(d_ff=4 * d_model, activation="gelu_tanh", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", eps=1e-5),
        embedding=EmbeddingConfig(tied=True),
        dropout=dropout,
    )


def _llama(
    d_model: int,
    layers: int,
    heads: int,
    d_ff: int,
    *,
    context: int,
    eps: float,
    kv_heads: int | None = None,
    base: float = 10000.0,
    moe: MoEConfig | None = None,
    vocab: int = 32000,
    tied: bool = False,
) -> ModelConfig:
    """Touvron et al. 2023 (both papers); Jiang et al. 2023 and 2024; and what was built like them."""
    return ModelConfig(
        vocab=vocab,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=AttentionConfig(heads=heads, kv_heads=kv_heads),
        feed_forward=FeedForwardConfig(d_ff=d_ff),
        positions=PositionConfig("rotary", base=base, layout="half"),
        norm=NormConfig("rms", eps=eps),
        embedding=EmbeddingConfig(tied=tied),
        moe=moe,
    )


def _with(
    config: ModelConfig,
    *,
    attention: Mapping[str, Any] = MappingProxyType({}),
    positions: Mapping[str, Any] = MappingProxyType({}),
    norm: Mapping[str, Any] = MappingProxyType({}),
) -> ModelConfig:
    """`config` with some fields of these groups changed."""
    return config.with_(
        attention=replace(config.attention, **attention),
        positions=replace(config.positions, **positions),
        norm=replace(config.norm, **norm),
    )


def _llama3(d_model: int, layers: int, d_ff: int, *, factor: float, **changes: Any) -> ModelConfig:
    """Grattafiori et al. 2024: trained on 8,192 tokens and then on more, with scaled frequencies."""
    plain = _llama(d_model, layers, 32, d_ff, context=131072, eps=1e-5, kv_heads=8, base=5e5, vocab=128256, **changes)
    return _with(plain, positions={"scaling": RotaryScaling("llama3", factor, 8192, slow=1.0, fast=4.0)})


def _qwen3(
    d_model: int, layers: int, heads: int, kv_heads: int, d_ff: int, *, tied: bool, moe: MoEConfig | None = None
) -> ModelConfig:
    """Yang et al. 2025: a norm over each head's queries and keys."""
    plain = _llama(
        d_model, layers, heads, d_ff, context=40960, eps=1e-6, kv_heads=kv_heads, base=1e6, moe=moe, vocab=151936,
        tied=tied,
    )  # fmt: skip
    return _with(plain, attention={"d_head": 128, "qk_norm": "head"})


def _gemma(
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
    logit_cap: float | None = None,
) -> ModelConfig:
    """Gemma Team 2024 (Gemma 2) and 2025 (Gemma 3)."""
    return ModelConfig(
        vocab=vocab,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=replace(attention, heads=heads, kv_heads=kv_heads, d_head=256, score_width=256.0),
        feed_forward=FeedForwardConfig(d_ff=d_ff, activation="geglu_tanh"),
        positions=positions,
        norm=NormConfig("rms", "both", eps=1e-6, unit_offset=True),
        embedding=EmbeddingConfig(tied=True, scaled=True, rounded=True, logit_cap=logit_cap),
    )


_GEMMA_3 = AttentionConfig(1, qk_norm="head", window=WindowConfig(512, (True,) * 5 + (False,), base=10000.0))
_GEMMA_3_ENDS: dict[str, Any] = {
    "vocab": 262144,
    "context": 32768,
    "attention": _GEMMA_3,
    "positions": PositionConfig("rotary", base=1e6, layout="half"),
}


PRESETS: dict[str, ModelConfig] = {
    "transformer-base": _transformer(512, 8, 2048, dropout=0.1),
    "transformer-big": _transformer(1024, 16, 4096, dropout=0.3),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "gpt2": _gpt(768, 12, 12, context=1024, dropout=0.1),
    "gpt2-medium": _gpt(1024, 24, 16, context=1024, dropout=0.1),
    "gpt2-large": _gpt(1280, 36, 20, context=1024, dropout=0.1),
    "gpt2-xl": _gpt(1600, 48, 25, context=1024, dropout=0.1),
    "gpt3-175b": _gpt(12288, 96, 96, context=2048, dropout=0.0),
    "llama-7b": _llama(4096, 32, 32, 11008, context=2048, eps=1e-6),
    "llama-2-70b": _llama(8192, 80, 64, 28672, context=4096, eps=1e-5, kv_heads=8),
    "mixtral-8x7b": _llama(
        4096, 32, 32, 14336, context=32768, eps=1e-5, kv_heads=8, base=1e6, moe=MoEConfig(experts=8, top_k=2)
    ),
}
"""The systems of the course, by the names that `companion account` and `companion sizing` take."""

RELEASES: dict[str, ModelConfig] = {
    "distilgpt2": _gpt(768, 6, 12, context=1024, dropout=0.1),
    "llama-2-7b": _llama(4096, 32, 32, 11008, context=4096, eps=1e-5, kv_heads=32),
    "llama-3.1-8b": _llama3(4096, 32, 14336, factor=8.0),
    "llama-3.2-1b": _with(_llama3(2048, 16, 8192, factor=32.0, tied=True), attention={"d_head": 64}),
    "tinyllama-1.1b": _llama(2048, 22, 32, 5632, context=2048, eps=1e-5, kv_heads=4),
    "smollm2-135m": _llama(
        576, 30, 9, 1536, context=8192, eps=1e-5, kv_heads=3, base=1e5, vocab=49152, tied=True
    ),
    "smollm3-3b": _with(
        _llama(2048, 36, 16, 11008, context=65536, eps=1e-6, kv_heads=4, base=5e6, vocab=128256, tied=True),
        positions={"pattern": (True, True, True, False)},
    ),
    "mistral-7b-v0.1": _with(
        _llama(4096, 32, 32, 14336, context=32768, eps=1e-5, kv_heads=8), attention={"window": WindowConfig(4096)}
    ),
    "mistral-7b-v0.3": _llama(4096, 32, 32, 14336, context=32768, eps=1e-5, kv_heads=8, base=1e6, vocab=32768),
    "qwen2.5-0.5b": _with(
        _llama(896, 24, 14, 4864, context=32768, eps=1e-6, kv_heads=2, base=1e6, vocab=151936, tied=True),
        attention={"bias": True, "output_bias": False},
    ),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 8, 3072, tied=True),
    "qwen3-30b-a3b": _qwen3(
        2048, 48, 32, 4, 768, tied=False, moe=MoEConfig(experts=128, top_k=8, gating="softmax_topk_renormalised")
    ),
    "gemma-2-2b": _gemma(
        2304, 26, 8, 4, 9216, vocab=256000, context=8192, logit_cap=30.0,
        attention=AttentionConfig(1, score_cap=50.0, window=WindowConfig(4096, (True, False))),
        positions=PositionConfig("rotary", layout="half"),
    ),
    "gemma-3-270m": _gemma(640, 18, 4, 1, 2048, **_GEMMA_3_ENDS),
    "gemma-3-1b": _gemma(1152, 26, 4, 1, 6912, **_GEMMA_3_ENDS),
    "olmo-2-1b": _with(
        _llama(2048, 16, 16, 8192, context=4096, eps=1e-6, kv_heads=16, base=5e5, vocab=100352),
        attention={"qk_norm": "width"},
        norm={"placement": "after"},
    ),
}  # fmt: skip
"""Releases that `load_pretrained` reads, by the names that `companion account` takes as well."""


def preset(name: str) -> ModelConfig:
    """The configuration of a published system. Raises `ValueError` for a name that is neither in `PRESETS` nor in
    `RELEASES`."""
    known = PRESETS | RELEASES
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"name={shown(name)}: expected one of {', '.join(known)}{hint}")
    return known[name]
