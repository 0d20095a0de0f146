"""Keeping experts evenly loaded: two losses for the router, and a bias that needs no loss (lesson 11).

A router left alone sends ever more tokens to the experts that are already good, because only those improve. None of
these functions keeps anything: they take the `RoutingStats` that a forward pass returned.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from companion.ground.annotations import checked
from companion.ground.precision import wide
from companion.layers.moe import MoE
from companion.layers.routing import RoutingStats


@checked()
def switch_loss(routing: RoutingStats, counts: Int[Tensor, "expert"] | None = None) -> Float[Tensor, ""]:
    """expert * sum over e of f_e P_e      (Fedus et al. 2022, eq. 4, with top_k choices a token)

    f_e is the share of all choices that fell on expert e, P_e the mean over the tokens of the softmax over *all* the
    router's logits; padding is left out of both. The gradient goes through P alone, for counting has none, and pushes
    probability away from the experts that were chosen more often than others.

    It is 1 when the load or the mean probabilities are uniform, and at most expert / top_k: where one of the experts
    that every token visits has all the probability. It can be below 1 too: where the experts chosen most are not those
    with the most probability.

    counts:  for a batch that comes in parts, `RoutingStats.counts` summed over all of them. Each part then gives its
             share, and the shares add up to the loss, and the gradient, of the whole batch. The mean of the parts' own
             losses is another number: it asks for balance in each part. `None`: the routing is the whole batch.

    Raises `ValueError` for counts of another number of experts.
    """
    counts = _checked(routing.counts if counts is None else counts, routing.logits.shape[-1])
    shares = _only_real(wide(routing.logits).softmax(-1), routing).flatten(0, -2).sum(0)
    load = counts.to(shares.dtype) / counts.sum().clamp(min=1)
    return len(counts) * (load * shares).sum() / _tokens(counts, routing)


@checked()
def z_loss(routing: RoutingStats, counts: Int[Tensor, "expert"] | None = None) -> Float[Tensor, ""]:
    """The mean over the tokens of (ln sum over e of exp(z_e))^2     (Zoph et al. 2022, eq. 5)

    It keeps the logits z small, where they are exact in half precision and a softmax has a gradient. Padding is left
    out; `counts` as in `switch_loss`.
    """
    counts = _checked(routing.counts if counts is None else counts, routing.logits.shape[-1])
    squares = _only_real(wide(routing.logits).logsumexp(-1).square()[..., None], routing)
    return squares.sum() / _tokens(counts, routing)


@checked()
@torch.no_grad()
def update_bias(moe: MoE, counts: Int[Tensor, "expert"], rate: float) -> None:
    """b_e <- b_e + rate * sign(mean of the counts - counts_e), in place     (Wang et al. 2024, algorithm 1)

    For a layer with `balanced`: an expert that got less than the even share in this update is chosen more easily in the
    next. Call it once after each update of the weights, with the counts of the whole batch. The bias is in units of the
    scores it is added to, which lie between 0 and 1; 0.001 is usual.

    Raises `ValueError` for a layer without a bias, counts of another number of experts, or a negative rate.
    """
    if moe.bias is None:
        raise ValueError("moe has balanced=False: expected a layer with a bias to move")
    if not rate >= 0:
        raise ValueError(f"rate={rate!r}: expected a number >= 0")
    load = _checked(counts, len(moe.bias)).to(moe.bias.dtype)
    moe.bias += rate * (load.mean() - load).sign()


def _tokens(counts: Tensor, routing: RoutingStats) -> Tensor:
    """How many tokens made those choices, at least one."""
    return (counts.sum() / routing.experts.shape[-1]).clamp(min=1)


def _only_real(values: Float[Tensor, "*batch n"], routing: RoutingStats) -> Float[Tensor, "*batch n"]:
    return values if routing.real is None else values.masked_fill(~routing.real[..., None], 0)


def _checked(counts: Tensor, experts: int) -> Tensor:
    if counts.shape != (experts,):
        raise ValueError(f"counts of shape {tuple(counts.shape)}: expected one number for each of {experts} experts")
    return counts
