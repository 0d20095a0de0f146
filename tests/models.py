"""Models for the tests: every weight drawn, so that predictions differ from token to token and place to place."""

import torch

from companion import ModelConfig, Transformer


def drawn(config: ModelConfig, seed: int = 0, std: float = 0.4) -> Transformer:
    """A model whose predictions are far from uniform; its norms have gains and biases of their own."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=std)
            if "norm" in name and name.endswith("weight"):
                parameter += 1
    return model
