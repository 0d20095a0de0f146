"""Low-rank adapters (LoRA): a frozen linear layer with an additional trainable low-rank update (lesson 20)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from companion.ground.fields import is_number, require, require_whole


class LowRank(nn.Linear):
    """A linear layer with a low-rank update of its matrix (Hu et al. 2021, LoRA, section 4.1).

    The layer computes (lesson 20, equation 20.2)

        h = W x + b + (alpha / rank) B A x

    W and b are the tensors of the replaced `layer`, and are frozen. `down` is A, (rank, in), initialized like the
    matrix of a linear layer. `up` is B, (out, rank), and starts at zero, so that h is unchanged, bit for bit, until
    training starts. The rank of the update is at most `rank`, and only rank * (in + out) parameters are trained instead
    of in * out.

    Args:
        layer: The layer to replace.
        rank: Rank of the update.
        alpha: Scale of the update.
        down: The A of another layer, to be shared with it; `None` means a new A.

    Raises:
        ValueError: If the rank is below 1, or alpha is not positive.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, *, down: nn.Parameter | None = None) -> None:
        require_whole("rank", rank)
        require(is_number(alpha) and alpha > 0, "alpha", alpha, "a number > 0")
        nn.Module.__init__(self)  # nn.Linear's constructor would draw random weights only to discard them
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.weight.requires_grad_(False)
        if self.bias is not None:
            self.bias.requires_grad_(False)
        if down is None:
            down = nn.Parameter(self.weight.new_empty(rank, self.in_features))
            nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        self.down, self.up = down, nn.Parameter(self.weight.new_zeros(self.out_features, rank))
        self.rank, self.alpha, self.on = rank, float(alpha), True

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes out"]:
        """Compute h as described for the class, but without the update if it is switched off."""
        out = super().forward(x)
        return out + self.alpha / self.rank * F.linear(F.linear(x, self.down), self.up) if self.on else out

    if TYPE_CHECKING:
        __call__ = forward

    @torch.no_grad()
    def matrix(self) -> Float[Tensor, "out d_in"]:
        """Return W + (alpha / rank) B A, the single matrix that gives the same result, up to rounding."""
        return self.weight + self.alpha / self.rank * (self.up @ self.down)


def low_rank_layers(model: nn.Module) -> dict[str, LowRank]:
    """Return a model's low-rank layers, keyed by module name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LowRank)}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Switch off every `LowRank` layer of the model inside a `with` block, so that the base model runs."""
    layers = low_rank_layers(model).values()
    before = [layer.on for layer in layers]
    try:
        for layer in layers:
            layer.on = False
        yield
    finally:
        for layer, on in zip(layers, before, strict=True):
            layer.on = on
