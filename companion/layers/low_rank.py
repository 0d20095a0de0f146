"""Low-rank adapters: a linear layer that stays as it is, and a narrow change beside it that learns (lesson 20)."""

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
    """A linear layer with a change of low rank beside its matrix (Hu et al. 2021, LoRA, section 4.1; lesson 20,
    equation 20.2):

        h = W x + b + (alpha / rank) B A x

    W and b are those of the `layer` it stands for, the same tensors, and do not learn. `down` is A, (rank, in), drawn
    as a linear layer draws its matrix; `up` is B, (out, rank), zero at first: until it has learned, h is what it was,
    bit for bit. Its rank bounds what can change, and (rank (in + out)) numbers learn in place of (in out).

    down:  another layer's A, to be shared with it; `None`: one of its own.

    Raises `ValueError` for a rank below 1, and an alpha that is not above 0.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, *, down: nn.Parameter | None = None) -> None:
        require_whole("rank", rank)
        require(is_number(alpha) and alpha > 0, "alpha", alpha, "a number > 0")
        nn.Module.__init__(self)  # a linear layer of its own would draw numbers that nobody reads
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
        """h, as above; without the change where it is off."""
        out = super().forward(x)
        return out + self.alpha / self.rank * F.linear(F.linear(x, self.down), self.up) if self.on else out

    if TYPE_CHECKING:
        __call__ = forward

    @torch.no_grad()
    def matrix(self) -> Float[Tensor, "out d_in"]:
        """W + (alpha / rank) B A: the one matrix that computes the same, up to rounding."""
        return self.weight + self.alpha / self.rank * (self.up @ self.down)


def low_rank_layers(model: nn.Module) -> dict[str, LowRank]:
    """Those of a model, by the names of their places."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LowRank)}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """In this block every `LowRank` of the model is the layer that it stands for: the model from which it began."""
    layers = low_rank_layers(model).values()
    before = [layer.on for layer in layers]
    try:
        for layer in layers:
            layer.on = False
        yield
    finally:
        for layer, on in zip(layers, before, strict=True):
            layer.on = on
