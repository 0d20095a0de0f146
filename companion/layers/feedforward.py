"""The feed-forward network: what happens to each token on its own (lesson 06)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from companion.config.model import FeedForwardConfig
from companion.ground.door import checked


@checked()
def activation(
    kind: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh"],
) -> Callable[[Tensor], Tensor]:
    """The scalar nonlinearity of `kind`; of a gated one that of its gate: `"swiglu"` SiLU, x * sigmoid(x).

    Raises `ValueError` for another kind.
    """
    match kind:
        case "relu":
            return F.relu
        case "gelu" | "geglu":
            return F.gelu
        case "gelu_tanh" | "geglu_tanh":
            return partial(F.gelu, approximate="tanh")
        case "silu" | "swiglu":
            return F.silu


class FeedForward(nn.Module):
    """Plain: f(x W_in + b_in) W_out + b_out (Vaswani et al. 2017, eq. 2, with f = ReLU).
    Gated (`"swiglu"`): (silu(x W_gate) * (x W_in)) W_out (Shazeer 2020, eq. 6); `"geglu"` has a GELU there (eq. 5).
    Biases only if the config asks.

    W_in and W_gate are (d_model, d_ff), W_out (d_ff, d_model); `nn.Linear` stores the transpose.
    """

    def __init__(self, d_model: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.d_model = d_model
        self.activation = activation(config.activation)
        self.gate = nn.Linear(d_model, config.d_ff, bias=config.bias) if config.gated else None
        self.inner = nn.Linear(d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, d_model, bias=config.bias)

    @checked(sizes=lambda layer: {"d_model": layer.d_model})
    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """The network, applied to each token alone."""
        hidden = self.inner(x)
        hidden = self.activation(hidden) if self.gate is None else self.activation(self.gate(x)) * hidden
        return self.outer(hidden)
