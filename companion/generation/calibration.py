"""Rounding to four bits that loses least where a text goes (lesson 19): GPTQ, Frantar et al. 2022.

A layer makes y = W x. Of all matrices W' on the grid of `kernels.in_four_bits` the best for inputs x_1 ... x_n is not
the nearest one, but that with the least sum of |W' x_i - W x_i|^2 = tr (W' - W) H (W' - W)^T, H = sum of x_i x_i^T. Row
by row, and one number after the other: what rounding it makes wrong, the numbers that are still to come make good as
far as they can, which is a linear least-squares problem whose answer is read off a Cholesky factor of the inverse of H.

The bytes are the same as those of plain rounding: the same groups, scales and middles, but other levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.generation.kernels import GROUP, FourBits, in_four_bits, nearest_level
from companion.generation.weights import check_weights, four_bit_layers, keep_rounded
from companion.ground.arguments import check_ids
from companion.transformer import Transformer

DAMP = 0.01
"""Of the mean of H's diagonal, added to the diagonal: inputs that hardly occur are not bent to serve others (Frantar et
al. 2022, section 3.3)."""
BLOCK = 128
"""Columns whose corrections reach the columns behind them together."""


@dataclass(frozen=True)
class Calibrated:
    """What a text made of a model's layers.

    tokens:   how many were read.
    layers:   how many were rounded.
    plain:    of rounding to the nearest level, what it makes wrong in what the layers give, as a share of that: the sum
              of |W' x - W x|^2 over that of |W x|^2, its mean over the layers.
    chosen:   the same of the levels that were chosen.
    """

    tokens: int
    layers: int
    plain: float
    chosen: float

    def __str__(self) -> str:
        return (
            f"{self.layers} matrices, by {self.tokens:,} tokens: what they give is wrong by {self.chosen:.2%} of its "
            f"square, rounded to the nearest levels by {self.plain:.2%}"
        )


def second_order(weight: Float[Tensor, "out d_in"], moments: Float[Tensor, "d_in d_in"]) -> FourBits:
    """The levels for a matrix whose inputs have these second moments, H = sum of x x^T (Frantar et al. 2022, algorithm
    1; in float64).

    Columns are rounded in the order of falling H_jj, so that errors of what counts most find the most numbers that can
    make them good; scales and middles are those of `in_four_bits`. A row for which that is no better than rounding to
    the nearest levels, in the sum that is to be small, keeps these: no row is ever worse.

    Raises `ValueError` unless H is (d_in, d_in), and finite, and d_in a multiple of 32.
    """
    d_in = weight.shape[1]
    if d_in % GROUP:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected a multiple of {GROUP} columns")
    if moments.shape != (d_in, d_in) or not bool(moments.isfinite().all()):
        raise ValueError(f"moments has shape {tuple(moments.shape)}: expected finite numbers, {(d_in, d_in)}")
    plain, h = in_four_bits(weight.float()), moments.double()
    order = h.diagonal().argsort(descending=True, stable=True)
    levels = _corrected(weight.double(), plain, h, order)
    chosen = plain._replace(levels=levels)
    better = output_error(weight, chosen, h) < output_error(weight, plain, h)
    return chosen._replace(levels=torch.where(better[:, None], levels, plain.levels))


def output_error(weight: Tensor, rounded: FourBits, moments: Tensor) -> Float[Tensor, "out"]:
    """The sum over the inputs of what rounding changes in each output, squared: d H d^T for each row d of W' - W."""
    change = rounded.numbers(torch.float64) - weight.double()
    return ((change @ moments.double()) * change).sum(-1)


def _corrected(weight: Tensor, grid: FourBits, h: Tensor, order: Tensor) -> Tensor:
    """The levels, one column after the other in that order, what is left corrected after each."""
    damped = h[order][:, order]
    damped.diagonal().add_(DAMP * h.diagonal().mean().clamp_min(1e-30))
    # The factor of the inverse: row j is what a unit of error in column j asks of the columns behind it.
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    left, levels = weight[:, order].clone(), torch.empty_like(grid.levels)
    scale, middle = (part.double()[:, order // GROUP] for part in (grid.scale, grid.middle))
    for start in range(0, len(order), BLOCK):
        stop = min(start + BLOCK, len(order))
        errors = torch.empty_like(left[:, start:stop])
        for j in range(start, stop):
            level = nearest_level(left[:, j], scale[:, j], middle[:, j])
            levels[:, order[j]] = level
            error = (left[:, j] - ((level.double() - 8) * scale[:, j] + middle[:, j])) / factor[j, j]
            left[:, j:stop] -= error[:, None] * factor[j, j:stop]
            errors[:, j - start] = error
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return levels


@torch.no_grad()
def calibrate(model: Transformer, tokens: Int[Tensor, "batch token"], **inputs: Any) -> Calibrated:
    """Choose, by what these tokens send through the model, the levels that `weights="int4"` has for it from now on, in
    this process, until a weight changes.

    Layer after layer in one pass: each sees what the layers before it, already rounded, give. All windows are read at
    once, so that memory is that of the widest layer's inputs, 4 bytes times batch, token and d_ff, and of H.

    tokens:  windows of a text of the kind that the model is to write, some tens of thousands of tokens. Fewer than the
             inputs of a layer are too few to tell its directions apart; what is chosen then fits these windows.
    inputs:  as of `Transformer.features`: the `source` of an encoder-decoder.

    Raises `ValueError` for no tokens, as `check_weights` does of int4, and as the model does.
    """
    check_weights(model, "int4")
    check_ids("tokens", tokens)
    if tokens.numel() == 0:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)}: expected at least one token")
    found: dict[nn.Linear, FourBits] = {}
    shares: list[tuple[float, float]] = []
    seen: tuple[Tensor, Tensor] | None = None

    def round_one(layer: nn.Linear, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        nonlocal seen
        (x,) = given
        if layer not in found:
            if seen is None or seen[0] is not x:  # queries, keys and values read the same
                flat = x.flatten(0, -2).float()
                seen = x, (flat.T @ flat).double()
            weight, h = layer.weight.detach(), seen[1]
            found[layer] = second_order(weight, h)
            whole = ((weight.double() @ h) * weight.double()).sum().clamp_min(1e-30)
            both = (in_four_bits(weight.float()), found[layer])
            plain, chosen = (float(output_error(weight, one, h).sum() / whole) for one in both)
            shares.append((plain, chosen))
        return F.linear(x, found[layer].numbers().to(x.dtype), layer.bias)

    was_training = model.training
    layers = four_bit_layers(model)
    handles = [layer.register_forward_hook(round_one) for layer in layers]
    try:
        model.eval().features(tokens, **inputs)
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    if not found:
        raise ValueError(f"model: expected linear layers that read a multiple of {GROUP} numbers, got none")
    keep_rounded(model, found)
    plain, chosen = (sum(column) / len(shares) for column in zip(*shares, strict=True))
    return Calibrated(tokens.numel(), len(found), plain, chosen)
