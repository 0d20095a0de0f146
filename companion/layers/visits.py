"""The visits of tokens to experts, put in the order of the experts, and back (lesson 11)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def by_expert(
    chosen: Int[Tensor, "row top_k"], kept: Bool[Tensor, "*batch top_k"] | None, experts: int
) -> tuple[Int[Tensor, "visit"], Int[Tensor, "visit"], Int[Tensor, "visit"]]:
    """The experts of all visits in order, which visits these are (visit v is of row v // top_k), and the way back.

    A visit that was dropped counts as one to expert number `experts`, which is behind the last and computes nothing.
    """
    key = chosen.flatten()
    if kept is not None:
        key = key.masked_fill(~kept.flatten(), experts)
    order = key.argsort(stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return key[order], order, inverse


class Reordered(torch.autograd.Function):
    """Row order[i] // copies of x as row i: x with every row `copies` times over, in another order.

    The gradient collects by the inverse order instead of scattering: the same sum in the same order every time, on a
    GPU too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "row wide"],
        order: Int[Tensor, " visit"],
        inverse: Int[Tensor, " visit"],
        copies: int,
    ) -> Float[Tensor, "visit wide"]:
        """The rows in their new order; `inverse` undoes it: inverse[order[i]] = i. There are `copies` visits a row."""
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return x.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "visit wide"]) -> tuple[Float[Tensor, "row wide"], None, None, None]:
        """Each row's gradient: the sum of its copies'."""
        (inverse,) = ctx.saved_tensors
        back = grad.index_select(0, inverse)
        return back if ctx.copies == 1 else back.unflatten(0, (-1, ctx.copies)).sum(1), None, None, None
