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

PARTS = ("train", "decode", "kept", "moe", "attention", "linear")
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
    cached:    tokens before a step that is compared with computing all of them again.
    kept:      tokens before a step that is compared with those of other heads.
    """

    name: str
    config: ModelConfig
    batch: int
    prompt: int
    new: int
    experts: MoEConfig
    visitors: tuple[int, int]
    lengths: tuple[int, ...]
    cached: tuple[int, ...] = ()
    kept: int = 8192

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


_FOUR, _EIGHT = MoEConfig(4, 2), MoEConfig(8, 2)
SIZES = {
    size.name: size
    for size in (
        Size("tiny", _decoder(96, 32, 2, 2, 80, 48), 2, 12, 20, _FOUR, (56, 2), (16, 48), kept=64),
        Size("small", _decoder(4096, 256, 4, 4, 688, 256), 8, 32, 128, _EIGHT, (4096, 4), (256, 512, 1024, 2048)),
        Size("medium", _decoder(8192, 512, 8, 8, 1376, 512), 8, 64, 256, _EIGHT, (4096, 4), (512, 1024, 2048, 4096)),
        Size("gpt2", _decoder(50257, 768, 12, 12, 2048, 1024), 8, 64, 128, _EIGHT, (4096, 4), (1024, 2048, 4096, 8192)),
        Size(
            "large",
            _decoder(32000, 1024, 16, 16, 2816, 1024),
            16,
            128,
            512,
            _EIGHT,
            (16384, 4),
            (1024, 2048, 4096, 8192),
        ),
    )
}
"""From a test's size to a GPU's. The parameters: 0.03, 4.2, 29, 124 and 238 million."""

# A vocabulary of a multiple of 128: 50,257 columns are not aligned as the fast kernels want them.
ON_A_GPU = replace(
    SIZES["gpt2"],
    name="gpu",
    config=SIZES["gpt2"].config.with_(vocab=50304),
    batch=32,
    new=256,
    visitors=(16384, 4),
    lengths=(512, 2048, 8192),
    cached=(512, 2048, 8192, 32768),
)
"""What `make gpu` measures: 124 million parameters."""
REHEARSED = replace(SIZES["tiny"], name="rehearsal", cached=(32, 128))
"""The same where there is no GPU."""


def find_sizes(names: Sequence[str]) -> list[Size]:
    """The sizes of these names, each once. Raises `ValueError` for none or an unknown one."""
    return [SIZES[name] for name in _known("--sizes", names, SIZES)]


def find_parts(names: Sequence[str]) -> list[str]:
    """The parts of these names, in the order of `PARTS`. Raises `ValueError` for none or an unknown one."""
    return sorted(_known("--only", names, PARTS), key=PARTS.index)


def _known(flag: str, names: Sequence[str], there: Sequence[str] | dict[str, Size]) -> list[str]:
    if not names:
        raise ValueError(f"{flag}: expected one or more of {', '.join(there)}, got none")
    for name in names:
        if name not in there:
            raise ValueError(f"{flag} {name}: expected one or more of {', '.join(there)}")
    return [*dict.fromkeys(names)]
