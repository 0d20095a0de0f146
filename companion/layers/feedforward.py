"""Feed-forward network, which is applied to each token separately (lesson 06)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from companion.config.model import FeedForwardConfig
from companion.ground.annotations import checked

LIMIT, SHARPNESS = 7.0, 1.702
"""Constants of `"swiglu_clamped"`: the clamping limit, and the factor that makes x sigmoid(1.702 x) nearly a GELU."""


@checked()
def activation(
    kind: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "swiglu_clamped"],
) -> Callable[[Tensor], Tensor]:
    """Return the scalar nonlinearity of `kind`.

    For gated kinds it is the nonlinearity of the gate: SiLU, x * sigmoid(x), for `"swiglu"`.

    Raises:
        ValueError: If `kind` is unknown.
    """
    match kind:
        case "swiglu_clamped":
            return _clamped
        case "relu":
            return F.relu
        case "gelu" | "geglu":
            return F.gelu
        case "gelu_tanh" | "geglu_tanh":
            return partial(F.gelu, approximate="tanh")
        case "silu" | "swiglu":
            return F.silu


def hidden(kind: Any) -> Callable[..., Tensor]:
    """Return the function between the matrix products of a network of `kind`.

    The function takes x W_in, or x W_gate and x W_in if the network is gated.
    """
    if kind == "swiglu_clamped":
        return _gated_clamped
    plain = activation(kind)
    return partial(_gated, plain) if "glu" in kind else plain


def _gated(plain: Callable[[Tensor], Tensor], gate: Tensor, inner: Tensor) -> Tensor:
    return plain(gate) * inner


def _gated_clamped(gate: Tensor, inner: Tensor) -> Tensor:
    return _clamped(gate) * (inner.clamp(-LIMIT, LIMIT) + 1)


def _clamped(gate: Tensor) -> Tensor:
    gate = gate.clamp(max=LIMIT)
    return gate * torch.sigmoid(SHARPNESS * gate)


class FeedForward(nn.Module):
    """Feed-forward network.

    Plain: f(x W_in + b_in) W_out + b_out (Vaswani et al. 2017, eq. 2, with f = ReLU).

    Gated: (silu(x W_gate) * (x W_in)) W_out for `"swiglu"` (Shazeer 2020, eq. 6); `"geglu"` has a GELU instead (eq. 5).

    `"swiglu_clamped"`: (g sigmoid(1.702 g) * (h + 1)) W_out, with g = x W_gate clamped to at most 7 and h = x W_in
    clamped to [-7, 7] (OpenAI 2025, gpt-oss).

    There are biases only if the configuration specifies them. W_in and W_gate are (d_model, d_ff), W_out is (d_ff,
    d_model); `nn.Linear` stores the transpose.
    """

    def __init__(self, d_model: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.d_model = d_model
        self.hidden = hidden(config.activation)
        self.gate = nn.Linear(d_model, config.d_ff, bias=config.bias) if config.gated else None
        self.inner = nn.Linear(d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, d_model, bias=config.bias)

    @checked(sizes=lambda layer: {"d_model": layer.d_model})
    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Apply the network to each token separately."""
        inner = self.inner(x)
        return self.outer(self.hidden(inner) if self.gate is None else self.hidden(self.gate(x), inner))

    if TYPE_CHECKING:
        __call__ = forward
