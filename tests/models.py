"""Models for the tests, with random weights everywhere, so that predictions differ between tokens and positions."""

import torch

from companion import AttentionConfig, EmbeddingConfig, FeedForwardConfig, ModelConfig, Transformer

GROUPED = ModelConfig(
    80, 64, 2, 40, AttentionConfig(4, 2), FeedForwardConfig(96, "swiglu"), embedding=EmbeddingConfig(tied=True)
)
"""A decoder with grouped keys and tied embeddings, whose widths are multiples of a group of int4."""


def drawn(config: ModelConfig, seed: int = 0, std: float = 0.4) -> Transformer:
    """Return a model whose predictions are far from uniform, and whose norms have random gains and biases."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=std)
            if "norm" in name and name.endswith("weight"):
                parameter += 1
    return model
