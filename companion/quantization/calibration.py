"""Calibrated rounding to four bits (lesson 19): GPTQ, Frantar et al. 2022.

A layer computes y = W x. Of all matrices W' on the grid of `in_four_bits`, the best for inputs x_1 ... x_n is not the
nearest one, but the one that minimizes the sum of |W' x_i - W x_i|^2 = tr (W' - W) H (W' - W)^T, with H = sum of
x_i x_i^T. Each row is rounded one element after the other, and the elements that are not rounded yet are adjusted to
compensate for the error as well as possible. This is a linear least-squares problem, whose solution can be read off a
Cholesky factor of the inverse of H.

The columns of a group share their levels, so a column that is far larger or far more important than the others makes
all of them less accurate. Columns may therefore be multiplied by powers of two and their inputs divided by the same
powers, which changes nothing except the rounding (Xiao et al. 2023, SmoothQuant, equation 4; Lin et al. 2024, AWQ).
These powers are used where they reduce the error of plain rounding. They take 2 bytes per input, and layers that read
the same input share them.

Apart from this, the format is the same as with plain rounding: the same groups, each with a scale and a zero point.
Only the levels differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.ground.arguments import check_ids
from companion.ground.waiting import counting
from companion.quantization.rounding import GROUP, FourBits, in_four_bits, nearest_level
from companion.quantization.weights import check_weights, four_bit_layers, keep_rounded
from companion.transformer import Transformer

DAMP = 0.01
"""Damping: this fraction of the mean of H's diagonal is added to the diagonal, so that directions in which there is
hardly any input are not distorted to serve others (Frantar et al. 2022, section 3.3).
"""
BLOCK = 128
"""Number of columns whose corrections are applied together to the columns after them."""


TOKENS = 2**15
"""Maximum number of tokens that are read."""
WINDOW = 512
"""Maximum length of a window, if the context is longer."""


@dataclass(frozen=True)
class Calibrated:
    """Result of calibrating a model's layers with a text.

    Attributes:
        tokens: number of tokens read.
        layers: number of layers rounded.
        plain: relative output error of rounding to the nearest level: the sum of |W' x - W x|^2 divided by the sum of
            |W x|^2, averaged over the layers.
        chosen: the same error for the chosen levels.
    """

    tokens: int
    layers: int
    plain: float
    chosen: float

    def __str__(self) -> str:
        return (
            f"{self.layers} matrices, calibrated on {self.tokens:,} tokens: squared error of their outputs "
            f"{self.chosen:.2%}, with the nearest levels {self.plain:.2%}"
        )


class Moments:
    """Second moments H = sum of x x^T of a layer's inputs, and the Cholesky factor that rounding needs.

    The moments are computed once for all layers that read these inputs.

    Attributes:
        h: (d_in, d_in), in float64.
        order: order of the columns, by decreasing H_jj, so that the most elements are left to compensate for the errors
            that matter most.
        factor: upper triangular, factor^T factor = the inverse of the damped H in that order. Row j says how much each
            later column compensates for a unit of error in column j.

    Raises:
        ValueError: if H is not square or not finite.
    """

    def __init__(self, h: Float[Tensor, "d_in d_in"]) -> None:
        if h.ndim != 2 or h.shape[0] != h.shape[1] or not bool(h.isfinite().all()):
            raise ValueError(
                f"moments has shape {tuple(h.shape)}: expected a square matrix of finite numbers, (d_in, d_in)"
            )
        self.h = h.double()
        self.order = self.h.diagonal().argsort(descending=True, stable=True)
        damped = self.h[self.order][:, self.order]
        damped.diagonal().add_(DAMP * self.h.diagonal().mean().clamp_min(1e-30))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        self.factor = torch.linalg.cholesky(inverse, upper=True)


def corrected_levels(weight: Float[Tensor, "out d_in"], moments: Moments) -> FourBits:
    """Choose the levels for a matrix whose inputs have these second moments.

    The method is algorithm 1 of Frantar et al. 2022, in float64.

    Scales and zero points are the same as in `in_four_bits`. A row keeps the nearest levels unless the chosen ones
    reduce its output error, so no row ever gets worse.

    Raises:
        ValueError: if the number of columns differs from the number of inputs, or is not a multiple of the group size.
    """
    d_in = weight.shape[1]
    if d_in % GROUP or moments.h.shape[0] != d_in:
        rows = moments.h.shape[0]
        wanted = f"a number of columns that equals the number of rows of moments, {rows}, and is a multiple of {GROUP}"
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected {wanted}")
    plain = in_four_bits(weight.float())
    chosen = plain._replace(levels=_corrected(weight.double(), plain, moments))
    better = output_error(weight, chosen, moments.h) < output_error(weight, plain, moments.h)
    return chosen._replace(levels=torch.where(better[:, None], chosen.levels, plain.levels))


def balancing(weight: Float[Tensor, "out d_in"], h: Float[Tensor, "d_in d_in"]) -> Float[Tensor, "d_in"] | None:
    """Return a factor for each input that balances the sizes of the columns and their inputs, or `None`.

    The factor is the power of two nearest to sqrt(size of the column / size of its input), divided by the median of
    these values. With this factor, a channel whose inputs are c times as large and whose weights are c times as small
    is rounded like the others. The result is `None` if the factor does not reduce the error of plain rounding.
    """
    size, inputs = weight.double().square().mean(0).sqrt(), h.diagonal().clamp_min(0).sqrt()
    wanted = (size.clamp_min(1e-30) / inputs.clamp_min(1e-30)).log2() / 2
    factor = 2 ** (wanted - wanted.median()).round().clamp(-30, 30)
    apart = in_four_bits((weight / factor).float())._replace(factor=factor.to(torch.bfloat16))
    better = output_error(weight, apart, h).sum() < output_error(weight, in_four_bits(weight.float()), h).sum()
    return apart.factor if better else None


def rounded_by(weight: Float[Tensor, "out d_in"], h: Float[Tensor, "d_in d_in"]) -> FourBits:
    """Quantize a matrix given the second moments of its inputs.

    The matrix is balanced if this helps; then `corrected_levels` chooses the levels.
    """
    factor = balancing(weight, h)
    if factor is None:
        return corrected_levels(weight, Moments(h))
    each = factor.double()
    return corrected_levels(weight.double() / each, Moments(h * each * each[:, None]))._replace(factor=factor)


def output_error(
    weight: Float[Tensor, "out d_in"], rounded: FourBits, h: Float[Tensor, "d_in d_in"]
) -> Float[Tensor, "out"]:
    """Return the squared change that rounding causes in each output, summed over the inputs.

    The change is d H d^T for each row d of W' - W.
    """
    change = rounded.numbers(torch.float64) - weight.double()
    return ((change @ h) * change).sum(-1)


def _corrected(weight: Tensor, grid: FourBits, moments: Moments) -> Tensor:
    """Round one column after the other, correcting the remaining ones after each.

    Columns are stored as rows, (d_in, out), so that each is contiguous.
    """
    order, factor = moments.order, moments.factor
    left, levels = weight.T[order].contiguous(), torch.empty_like(grid.levels.T)
    scale, middle = (part.double().T[order // GROUP] for part in (grid.scale, grid.middle))
    for start in range(0, len(order), BLOCK):
        stop = min(start + BLOCK, len(order))
        errors = torch.empty_like(left[start:stop])
        for j in range(start, stop):
            levels[order[j]] = level = nearest_level(left[j], scale[j], middle[j])
            error = (left[j] - ((level.double() - 8) * scale[j] + middle[j])) / factor[j, j]
            left[j:stop].addr_(factor[j, j:stop], error, alpha=-1)
            errors[j - start] = error
        left[stop:] -= factor[start:stop, stop:].T @ errors
    return levels.T.contiguous()


def windows_of(ids: Int[Tensor, "token"], context: int) -> Int[Tensor, "batch window"]:
    """Choose windows to calibrate with, evenly spaced over the text and containing at most `TOKENS` tokens in all.

    Raises:
        ValueError: if the text has no tokens.
    """
    if len(ids) == 0:
        raise ValueError("ids has shape (0,): expected at least one token")
    width = min(context, WINDOW, len(ids))
    windows = ids[: len(ids) // width * width].view(-1, width)
    chosen = torch.linspace(0, len(windows) - 1, min(len(windows), max(1, TOKENS // width))).round().long()
    return windows[chosen]


@torch.no_grad()
def calibrate(model: Transformer, tokens: Int[Tensor, "batch token"], **inputs: Any) -> Calibrated:
    """Choose int4 levels with a calibration text.

    From now on, `weights="int4"` uses these levels in this process. A layer whose weight changes afterwards is rounded
    to the nearest levels again.

    All layers that `four_bit_layers` returns are rounded in one pass, and each of them sees the outputs of the already
    rounded layers before it. All windows are read at once, so memory is needed for the widest layer's inputs (4 bytes
    times batch, token and d_ff) and for their second moments H.

    Args:
        tokens: ids of windows of a text like those that the model will write, containing a few tens of thousands of
            tokens in total. With fewer tokens than a layer has inputs, H is singular, and the chosen levels overfit
            these windows.
        inputs: additional arguments of `Transformer.features`, such as the `source` of an encoder-decoder.

    Raises:
        ValueError: if there are no tokens, if `check_weights` rejects int4 for this model, if no layer has an input
            width that is a multiple of the group size, if a layer's inputs are not finite, or if the model rejects the
            arguments.
    """
    check_weights(model, "int4")
    check_ids("tokens", tokens)
    groups = four_bit_layers(model)
    group_of = {layer: group for group in groups for layer in group}
    found: dict[nn.Linear, FourBits] = {}
    shares: list[tuple[float, float]] = []

    def round_one(layer: nn.Linear, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        (x,) = given
        if layer not in found:  # round all layers that read this x together
            group, flat = group_of[layer], x.flatten(0, -2).float()
            weight, h = torch.cat([one.weight.detach() for one in group]), (flat.T @ flat).double()
            whole = rounded_by(weight, h)
            size = ((weight.double() @ h) * weight.double()).sum().clamp_min(1e-30)
            both = (in_four_bits(weight.float()), whole)
            plain, chosen = (float(output_error(weight, one, h).sum() / size) for one in both)
            shares.extend([(plain, chosen)] * len(group))
            rows = [len(one.weight) for one in group]
            parts = zip(group, *(part.split(rows) for part in whole[:3]), strict=True)
            found.update((one, FourBits(levels, scale, middle, whole.factor)) for one, levels, scale, middle in parts)
            done(len(group))
        return F.linear(x, found[layer].numbers().to(x.dtype), layer.bias)

    was_training = model.training
    handles = [layer.register_forward_hook(round_one) for layer in group_of]
    try:
        with counting(len(group_of), unit="matrix", what="rounding") as done:
            model.eval().features(tokens, **inputs)
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    if not found:
        raise ValueError(f"model: expected linear layers whose input width is a multiple of {GROUP}, found none")
    keep_rounded(model, found)
    plain, chosen = (sum(column) / len(shares) for column in zip(*shares, strict=True))
    return Calibrated(tokens.numel(), len(found), plain, chosen)
