"""What is measured: the parts of the comparison, and the models and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
)

PARTS = ("train", "decode", "moe", "attention")
"""In the order in which they are measured."""


@dataclass(frozen=True)
class Size:
    """One set of sizes for every part of the comparison.

    config:    of the decoder that is trained and that writes.
    batch:     rows of a training step, each of `config.context` tokens.
    prompt:    tokens that generation reads first; `new` are those it writes.
    experts:   of the mixture, whose experts are as wide as the decoder's feed-forward network.
    visitors:  tokens that a mixture of experts gets at once: as in training, and as in decoding.
    lengths:   at which the attention backends are compared.
    """

    name: str
    config: ModelConfig
    batch: int
    prompt: int
    new: int
    experts: MoEConfig
    visitors: tuple[int, int]
    lengths: tuple[int, ...]

    def quick(self) -> Size:
        """The same model, less text: half the new tokens, and three lengths at most."""
        return replace(self, new=max(2, self.new // 2), lengths=self.lengths[:3])


def _decoder(vocab: int, d_model: int, layers: int, heads: int, d_ff: int, context: int) -> ModelConfig:
    """LLaMA's layout with a tied table, the one layout that every library here offers.

    One of them has no epsilon in its norm; a tiny one makes all of them the same function.
    """
    return ModelConfig(
        vocab=vocab,
        d_model=d_model,
        layers=layers,
        context=context,
        attention=AttentionConfig(heads),
        feed_forward=FeedForwardConfig(d_ff, "swiglu"),
        norm=NormConfig("rms", eps=1e-12),
        embedding=EmbeddingConfig(tied=True),
    )


SIZES = {
    size.name: size
    for size in (
        Size(
            "tiny",
            _decoder(96, 32, 2, 2, 80, 48),
            batch=2,
            prompt=12,
            new=20,
            experts=MoEConfig(4, 2),
            visitors=(56, 2),
            lengths=(16, 48),
        ),
        Size(
            "small",
            _decoder(4096, 256, 4, 4, 688, 256),
            batch=8,
            prompt=32,
            new=128,
            experts=MoEConfig(8, 2),
            visitors=(4096, 4),
            lengths=(256, 512, 1024, 2048),
        ),
        Size(
            "medium",
            _decoder(8192, 512, 8, 8, 1376, 512),
            batch=8,
            prompt=64,
            new=256,
            experts=MoEConfig(8, 2),
            visitors=(4096, 4),
            lengths=(512, 1024, 2048, 4096),
        ),
        Size(
            "gpt2",
            _decoder(50257, 768, 12, 12, 2048, 1024),
            batch=8,
            prompt=64,
            new=128,
            experts=MoEConfig(8, 2),
            visitors=(4096, 4),
            lengths=(1024, 2048, 4096, 8192),
        ),
        Size(
            "large",
            _decoder(32000, 1024, 16, 16, 2816, 1024),
            batch=16,
            prompt=128,
            new=512,
            experts=MoEConfig(8, 2),
            visitors=(16384, 4),
            lengths=(1024, 2048, 4096, 8192),
        ),
    )
}
"""From a test's size to a GPU's. The parameters: 0.03, 4.2, 29, 124 and 238 million."""


def find_sizes(names: Sequence[str]) -> list[Size]:
    """The sizes of these names, each once. Raises `ValueError` for none or an unknown one."""
    if not names:
        raise ValueError(f"--sizes: expected one or more of {', '.join(SIZES)}, got none")
    for name in names:
        if name not in SIZES:
            raise ValueError(f"--sizes {name}: expected one or more of {', '.join(SIZES)}")
    return [SIZES[name] for name in dict.fromkeys(names)]


def find_parts(names: Sequence[str]) -> list[str]:
    """The parts of these names, in the order of `PARTS`. Raises `ValueError` for none or an unknown one."""
    if not names:
        raise ValueError(f"--only: expected one or more of {', '.join(PARTS)}, got none")
    for name in names:
        if name not in PARTS:
            raise ValueError(f"--only {name}: expected one or more of {', '.join(PARTS)}")
    return [part for part in PARTS if part in names]
