"""Normalization: LayerNorm and RMSNorm (lesson 06). Both normalize one token's vector at a time, over d_model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from companion.config.model import NormConfig
from companion.ground.annotations import checked
from companion.ground.fields import is_number, require
from companion.ground.precision import wide


def _require_eps(eps: float) -> None:
    require(is_number(eps) and eps >= 0, "eps", eps, "a number >= 0")


@checked(fits=lambda given: _require_eps(given["eps"]))
def rms_norm(
    x: Float[Tensor, "... d_model"], gain: Float[Tensor, "d_model"], eps: float
) -> Float[Tensor, "... d_model"]:
    """Compute x / sqrt(mean(x^2) + eps) * gain over the last axis (Zhang and Sennrich 2019, eq. 4).

    Half-precision inputs are squared in fp32, so that the squares cannot overflow. The formula is written out for
    readers; `RMSNorm` calls PyTorch's operator when it gives the same result.
    """
    w = wide(x)
    return (w * torch.rsqrt(w.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


class RMSNorm(nn.Module):
    """`rms_norm` with a learned gain, (d_model).

    Args:
        d_model: Width of the vectors.
        eps: Epsilon, added inside the square root.
        unit_offset: Use 1 + weight as the gain (Gemma): weights begin at zero, and weight decay pulls the gain to one.
            Half-precision activations are multiplied by the gain in fp32 and only then rounded, because a gain near one
            would lose its last digits in half precision.
    """

    def __init__(self, d_model: int, eps: float = 1e-6, *, unit_offset: bool = False) -> None:
        super().__init__()
        _require_eps(eps)
        self.eps = eps
        self.unit_offset = unit_offset
        self.weight = nn.Parameter(torch.zeros(d_model) if unit_offset else torch.ones(d_model))

    @checked(sizes=lambda layer: {"d_model": len(layer.weight)})
    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Normalize each token separately, over its last axis."""
        if self.unit_offset:
            return rms_norm(wide(x), 1 + wide(self.weight), self.eps).to(x.dtype)
        if x.dtype == torch.float32 == self.weight.dtype:
            return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        if x.dtype == self.weight.dtype in (torch.bfloat16, torch.float16):
            # If PyTorch's operator applied the gain too, it would round only once, after the gain, unlike `rms_norm`.
            return nn.functional.rms_norm(x, self.weight.shape, None, self.eps) * self.weight
        return rms_norm(x, self.weight, self.eps)

    if TYPE_CHECKING:
        __call__ = forward


class UnitNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) over the last axis: `rms_norm` without a gain."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        _require_eps(eps)
        self.eps = eps

    @checked()
    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Normalize each vector separately."""
        return nn.functional.rms_norm(x, x.shape[-1:], None, self.eps)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * gain + bias, with the biased variance (Ba et al. 2016, eq. 4).

    Mean and variance are computed for each token over d_model; epsilon is inside the square root. With `bias=False` no
    bias is added.
    """

    def __init__(self, d_model: int, eps: float = 1e-5, *, bias: bool = True) -> None:
        super().__init__()
        _require_eps(eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    @checked(sizes=lambda layer: {"d_model": len(layer.weight)})
    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Normalize each token separately, over its last axis."""
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    if TYPE_CHECKING:
        __call__ = forward


def norm(config: NormConfig, d_model: int) -> LayerNorm | RMSNorm:
    """Make the norm that `config` specifies, for vectors of width `d_model`."""
    match config.kind:
        case "layer":
            return LayerNorm(d_model, config.eps, bias=config.bias)
        case "rms":
            return RMSNorm(d_model, config.eps, unit_offset=config.unit_offset)
