"""The 2017 Transformer (Vaswani et al.) in its two sizes; its weights were never published (lesson 13)."""

from __future__ import annotations

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.files.published.family import Preset


def _transformer(d_model: int, heads: int, d_ff: int, dropout: float) -> ModelConfig:
    """Return a configuration of the 2017 Transformer (Vaswani et al. 2017, table 3).

    The encoder and the decoder share a vocabulary of about 37,000 tokens and have six layers each. Attention has no
    biases. The paper sets no maximum length; 512 is the maximum length of related models.
    """
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


PRESETS = {
    "transformer-base": Preset(2017, 63_045_632, _transformer(512, 8, 2048, dropout=0.1), taught=True),
    "transformer-big": Preset(2017, 214_171_648, _transformer(1024, 16, 4096, dropout=0.3), taught=True),
}
