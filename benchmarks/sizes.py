"""Sizes of the models and texts that the benchmarks measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from companion.config.model import AttentionConfig, EmbeddingConfig, FeedForwardConfig, ModelConfig, NormConfig


@dataclass(frozen=True)
class Size:
    """A set of sizes that every comparison can use.

    Attributes:
        name: Name on the command line.
        config: Configuration of the decoder, for training as well as generation.
        batch: Number of rows in a training step, with `config.context` tokens each.
        prompt: Number of prompt tokens in decoding (prefill reads half the context instead).
        new: Number of tokens that decoding generates.
    """

    name: str
    config: ModelConfig
    batch: int
    prompt: int
    new: int


def _decoder(vocab: int, d_model: int, layers: int, heads: int, d_ff: int, context: int) -> ModelConfig:
    """Return a config in LLaMA's layout with a tied embedding table, the only layout that every library here supports.

    The norm of x-transformers has no epsilon, so our epsilon is tiny to make all libraries compute the same function.
    """
    return ModelConfig(
        vocab, d_model, layers, context, AttentionConfig(heads), FeedForwardConfig(d_ff, "swiglu"),
        norm=NormConfig("rms", eps=1e-12), embedding=EmbeddingConfig(tied=True),
    )  # fmt: skip


SIZES = {
    size.name: size
    for size in (
        Size("tiny", _decoder(96, 32, 2, 2, 80, 48), 2, 12, 20),
        Size("small", _decoder(4096, 256, 4, 4, 688, 256), 8, 32, 128),
        Size("medium", _decoder(8192, 512, 8, 8, 1376, 512), 8, 64, 256),
        Size("gpt2", _decoder(50257, 768, 12, 12, 2048, 1024), 8, 64, 128),
        Size("large", _decoder(32000, 1024, 16, 16, 2816, 1024), 16, 128, 512),
    )
}
"""Sizes from one for tests to one for a GPU, with 0.03, 4.2, 29, 124 and 238 million parameters."""

# The vocabulary is a multiple of 128, because fast kernels need an alignment that 50,257 columns lack.
ON_A_GPU = replace(SIZES["gpt2"], name="gpu", config=SIZES["gpt2"].config.with_(vocab=50304), batch=32, new=256)
"""The size that `make gpu` measures, with 124 million parameters."""
