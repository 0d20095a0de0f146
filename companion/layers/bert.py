"""Layers that BERT has after its last block (Devlin et al. 2019, section 3.1 and appendix A; lesson 13).

Other models compute logits directly from the stream and need nothing from here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from companion.config.model import FeedForwardConfig, NormConfig
from companion.layers.feedforward import activation
from companion.layers.norms import norm


class MaskedTransform(nn.Module):
    """norm(f(x W + b)): one more layer between a token's last state and the output table.

    f is the activation of the feed-forward networks or, if these are gated, of their gates. W is (d_model, d_model);
    without `bias` there is no b.
    """

    def __init__(self, d_model: int, feed_forward: FeedForwardConfig, config: NormConfig, *, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=bias)
        self.activation = activation(feed_forward.activation)
        self.norm = norm(config, d_model)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the transformed states."""
        return self.norm(self.activation(self.dense(x)))


class Pooler(nn.Module):
    """tanh(x_0 W + b): a vector for the whole sequence, computed from the first token's last state."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch d_model"]:
        """Return one vector for each sequence."""
        return torch.tanh(self.dense(x[:, 0]))
