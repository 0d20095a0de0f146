"""The published systems that the course names, as configurations (lesson 13).

A preset says what its paper or its released configuration says, and nothing in the package asks for one by name: it is
a `ModelConfig` like any other. `Transformer(preset(name))` is a fresh model; `load_pretrained` reads trained ones.
"""

from __future__ import annotations

import difflib

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)


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
) -> ModelConfig:
    """Touvron et al. 2023 (both papers); Jiang et al. 2024."""
    return ModelConfig(
        vocab=32000,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=AttentionConfig(heads=heads, kv_heads=kv_heads),
        feed_forward=FeedForwardConfig(d_ff=d_ff),
        positions=PositionConfig("rotary", base=base, layout="half"),
        norm=NormConfig("rms", eps=eps),
        embedding=EmbeddingConfig(tied=False),
        moe=moe,
    )


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
"""Configurations by the names that `companion account` takes."""


def preset(name: str) -> ModelConfig:
    """The configuration of a published system. Raises `ValueError` for a name that is not in `PRESETS`."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name.lower(), PRESETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"name={name!r}: expected one of {', '.join(PRESETS)}{hint}")
    return PRESETS[name]
