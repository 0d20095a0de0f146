"""Balance the load of experts, using losses for the router or a bias that needs no loss (lesson 11).

Without balancing, a router sends more and more tokens to the experts that are already good, because only those improve.
These functions have no state. They take the `RoutingStats` that a forward pass returned.
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
    """Compute expert * sum over e of f_e P_e (Fedus et al. 2022, eq. 4, with top_k choices per token).

    f_e is the fraction of all choices that fell on expert e. P_e is the probability of expert e, from the softmax over
    *all* the router's logits, averaged over the tokens. Padding is left out of both. Counts have no gradient, so the
    gradient flows only through P. A step that reduces the loss moves probability away from the experts that were chosen
    more often than others.

    The loss is 1 when the load or the mean probabilities are uniform. The loss reaches its maximum, expert / top_k,
    when all tokens choose the same experts and one of these has all the probability. The loss can also be below 1, when
    the most chosen experts are not those with the most probability.

    Args:
        routing: The routing of one layer.
        counts: For a batch that is processed in parts, `RoutingStats.counts` summed over all parts. Each part then
            returns its share. The shares add up to the loss of the whole batch, and their gradients add up to its
            gradient. The mean of separate losses for the parts is different, because it requires balance within each
            part. If `None`, the routing is for the whole batch.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If `counts` is for a different number of experts.
    """
    counts = _checked(routing.counts if counts is None else counts, routing.logits.shape[-1])
    shares = _only_real(wide(routing.logits).softmax(-1), routing).flatten(0, -2).sum(0)
    load = counts.to(shares.dtype) / counts.sum().clamp(min=1)
    return len(counts) * (load * shares).sum() / _tokens(counts, routing)


@checked()
def z_loss(routing: RoutingStats, counts: Int[Tensor, "expert"] | None = None) -> Float[Tensor, ""]:
    """Compute the mean over the tokens of (ln sum over e of exp(z_e))^2 (Zoph et al. 2022, eq. 5).

    This loss keeps the logits z small, so that half precision represents them precisely and the softmax has a gradient.
    Padding is left out.

    Args:
        routing: The routing of one layer.
        counts: As in `switch_loss`.

    Returns:
        The loss, a scalar.
    """
    counts = _checked(routing.counts if counts is None else counts, routing.logits.shape[-1])
    squares = _only_real(wide(routing.logits).logsumexp(-1).square()[..., None], routing)
    return squares.sum() / _tokens(counts, routing)


@checked()
@torch.no_grad()
def update_bias(moe: MoE, counts: Int[Tensor, "expert"], rate: float) -> None:
    """Update b_e <- b_e + rate * sign(mean of the counts - counts_e) in place (Wang et al. 2024, algorithm 1).

    In a layer with `balanced`, an expert that was chosen less often than average in this step becomes easier to choose
    in the next one. Call this function once after each update of the weights.

    Args:
        moe: The mixture of experts.
        counts: How many tokens of the whole batch chose each expert, (expert).
        rate: Step size, in the units of the scores, which lie between 0 and 1; 0.001 is typical.

    Raises:
        ValueError: If the layer has no bias, `counts` is for a different number of experts, or the rate is negative.
    """
    if moe.bias is None:
        raise ValueError("moe has balanced=False: expected a layer with a balancing bias")
    if not rate >= 0:
        raise ValueError(f"rate={rate!r}: expected a number >= 0")
    load = _checked(counts, len(moe.bias)).to(moe.bias.dtype)
    moe.bias += rate * (load.mean() - load).sign()


def _tokens(counts: Tensor, routing: RoutingStats) -> Tensor:
    """Return the number of tokens that were counted, or 1 if there were none."""
    return (counts.sum() / routing.experts.shape[-1]).clamp(min=1)


def _only_real(values: Float[Tensor, "*batch n"], routing: RoutingStats) -> Float[Tensor, "*batch n"]:
    return values if routing.attention_mask is None else values.masked_fill(~routing.attention_mask[..., None], 0)


def _checked(counts: Tensor, experts: int) -> Tensor:
    if counts.shape != (experts,):
        raise ValueError(f"counts of shape {tuple(counts.shape)}: expected one count for each of {experts} experts")
    return counts
