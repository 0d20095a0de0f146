"""Routing, which chooses the experts that a token visits and computes their weights (lesson 11)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.config.model import require_groups
from companion.ground.annotations import checked
from companion.ground.arguments import check_numbers
from companion.ground.fields import require, require_whole
from companion.ground.precision import wide, wide_dtype

Gating = Literal["topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid", "sigmoid_topk"]


_OF_GROUPS = ("groups", "top_groups", "group_best")


def load_entropy(load: Float[Tensor, "*layer expert"]) -> Float[Tensor, "*layer"]:
    """Compute the entropy in nats: -sum over the experts of f ln f, where f is an expert's share of the load."""
    return -torch.xlogy(load, load).sum(-1)


class RoutingStats(NamedTuple):
    """Routing of a layer's tokens, which is returned with the output and never stored in the module.

    Attributes:
        logits: The router's score of each expert, (batch, token, expert), including the training noise if there is any.
        experts: The experts that each token visits, best first, (batch, token, top_k).
        weights: The weight of each of these experts, (batch, token, top_k); see `route` for their sum.
        attention_mask: Which tokens are not padding, (batch, token); `None` means all. The statistics below count only
            these tokens.
        kept: Which visits take place, (batch, token, top_k); the others are dropped because their expert is full.
            `None` means all.
    """

    logits: Float[Tensor, "*batch expert"]
    experts: Int[Tensor, "*batch top_k"]
    weights: Float[Tensor, "*batch top_k"]
    attention_mask: Bool[Tensor, "*batch"] | None = None
    kept: Bool[Tensor, "*batch top_k"] | None = None

    @property
    def counts(self) -> Int[Tensor, "expert"]:
        """Number of tokens that chose each expert, including those that were dropped because the expert was full."""
        chosen = (
            torch.ones_like(self.experts)
            if self.attention_mask is None
            else self.attention_mask[..., None].expand_as(self.experts)
        )
        # Do not use bincount, which waits for the device to learn the length of its result.
        zeros = torch.zeros(self.logits.shape[-1], dtype=torch.long, device=self.experts.device)
        return zeros.scatter_add(0, self.experts.flatten(), chosen.flatten().long())

    @property
    def load(self) -> Float[Tensor, "expert"]:
        """Fraction f_e of all choices that went to each expert. The fractions sum to one, or are zero if there are no
        tokens."""
        counts = self.counts.to(wide_dtype(self.logits.dtype))
        return counts / counts.sum().clamp(min=1)

    @property
    def entropy(self) -> Float[Tensor, ""]:
        """Entropy of the load in nats: ln(expert) if the load is even, 0 if one expert gets everything."""
        return load_entropy(self.load)

    @property
    def effective_experts(self) -> Float[Tensor, ""]:
        """exp(entropy): the number of evenly loaded experts with the same entropy, from 1 to `expert`."""
        return self.entropy.exp()

    @property
    def dropped(self) -> Float[Tensor, ""]:
        """Fraction of all choices that were dropped because the expert was full; 0 without a capacity."""
        if self.kept is None:
            return torch.zeros((), dtype=self.load.dtype, device=self.logits.device)
        return (~self.kept).sum().to(self.load.dtype) / self.counts.sum().clamp(min=1)


def _fits(given: dict[str, Any]) -> None:
    """Check the conditions that the annotations of `route` cannot express."""
    top_k, experts = given["top_k"], given["logits"].shape[-1]
    require(1 <= top_k <= experts, "top_k", top_k, f"a number from 1 to the {experts} experts")
    groups, top_groups, best = (given.get(name, usual) for name, usual in zip(_OF_GROUPS, (1, 1, 2), strict=True))
    for name, value in zip(_OF_GROUPS, (groups, top_groups, best), strict=True):
        require_whole(name, value)
    require_groups(experts, top_k, groups, top_groups, best)
    scale = given.get("scale", 1.0)
    require(0 < scale < math.inf, "scale", scale, "a number > 0")


@checked(fits=_fits)
def route(
    logits: Float[Tensor, "*batch expert"],
    top_k: int,
    gating: Gating = "topk_softmax",
    *,
    bias: Float[Tensor, "expert"] | None = None,
    groups: int = 1,
    top_groups: int = 1,
    group_best: int = 2,
    scale: float = 1.0,
) -> RoutingStats:
    """Choose each token's `top_k` best experts and their weights.

    If z are the logits, S the chosen experts and s the sigmoid function, the weights are:

        "topk_softmax"                exp(z_e) / sum over S of exp(z)     (Jiang et al. 2024, Mixtral)
        "softmax_topk"                exp(z_e) / sum over all of exp(z)   (Fedus et al. 2022, Switch; sums to < 1)
        "softmax_topk_renormalised"   "softmax_topk" divided by its sum over S, which equals "topk_softmax"
        "sigmoid"                     s(z_e) / sum over S of s(z)         (DeepSeek-AI 2024, DeepSeek-V3)
        "sigmoid_topk"                s(z_e)                              (Meta 2025, Llama 4)

    With top_k = 1, all kinds except the two whose names end in `_topk` give a weight of one for any logits, so the
    router gets no gradient from the loss. Weights are computed in fp32 or wider.

    Args:
        logits: The router's scores, (..., expert).
        top_k: Number of experts per token.
        gating: How logits become weights, as above.
        bias: One bias per expert, added to its score (the softmax over all logits, or the sigmoid) when S is chosen,
            but not in the weights (Wang et al. 2024, eq. 3).
        groups: Number of groups of consecutive experts. S is chosen only among the experts of the best groups.
        top_groups: Number of groups to choose from.
        group_best: A group's score is the sum of this many of its best scores, including the bias (DeepSeek-AI 2024: 1
            in V2, section 2.2.2; 2 in V3).
        scale: Factor for the weights.

    Returns:
        The logits, the chosen experts and their weights.

    Raises:
        ValueError: If top_k is not from 1 to expert, the logits are not a floating-point tensor or contain NaN, the
            bias has the wrong shape, the gating is unknown, `MoEConfig` would reject the groups, or the scale is not
            positive.
    """
    check_numbers("logits", logits)
    return best_experts(logits, top_k, gating, bias, groups, top_groups, group_best, scale)


def best_experts(
    logits: Float[Tensor, "*batch expert"],
    top_k: int,
    gating: Gating,
    bias: Float[Tensor, "expert"] | None,
    groups: int,
    top_groups: int,
    group_best: int,
    scale: float,
) -> RoutingStats:
    """Compute `route` without checking the arguments, for logits that a model has computed itself."""
    z = wide(logits)
    scores = z  # logits have the same order as probabilities, but do not saturate
    if bias is not None or groups > 1:
        scores = (z.sigmoid() if gating.startswith("sigmoid") else z.softmax(-1)) + (0 if bias is None else bias)
    if groups > 1:
        scores = scores.masked_fill(~_of_best_groups(scores, groups, top_groups, group_best), -math.inf)
    experts = scores.topk(top_k, dim=-1).indices
    best = z.gather(-1, experts)
    match gating:
        case "topk_softmax" | "softmax_topk_renormalised":
            weights = best.softmax(-1)
        case "softmax_topk":
            weights = (best - z.logsumexp(-1, keepdim=True)).exp()
        case "sigmoid":
            weights = F.logsigmoid(best).softmax(-1)  # s_e / sum(s), even if every s is too small for a float
        case "sigmoid_topk":
            weights = best.sigmoid()
    return RoutingStats(logits, experts, weights if scale == 1 else scale * weights)


def _of_best_groups(
    scores: Float[Tensor, "*batch expert"], groups: int, top_groups: int, best: int
) -> Bool[Tensor, "*batch expert"]:
    """Return which experts are in the best `top_groups` groups, judged by the sum of a group's `best` best scores."""
    by_group = scores.unflatten(-1, (groups, -1))
    chosen = by_group.topk(best, dim=-1).values.sum(-1).topk(top_groups, dim=-1).indices
    open_ = torch.zeros(by_group.shape[:-1], dtype=torch.bool, device=scores.device).scatter(-1, chosen, True)
    return open_[..., None].expand_as(by_group).flatten(-2)


@checked()
def within_capacity(routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
    """Return which visits take place if an expert accepts at most ceil(capacity * tokens * top_k / experts) tokens.

    Tokens are served in order, row after row of the batch (Fedus et al. 2022, section 2.2). Padding takes no capacity
    and is never dropped. Capacity is shared by the whole batch: the remaining capacity for a row depends on the rows
    before it, and the total depends on the number of padding tokens.
    """
    top_k, experts = routing.experts.shape[-1], routing.logits.shape[-1]
    chosen = routing.experts.flatten()
    visits: int | Tensor = chosen.numel()
    if routing.attention_mask is not None:
        attention_mask = routing.attention_mask[..., None].expand_as(routing.experts).flatten()
        chosen = chosen.masked_fill(~attention_mask, experts)  # an index after the last expert
        visits = routing.attention_mask.sum() * top_k
    # A fraction is exact: 1.1 * 10 tokens make a capacity of 11, not 12. A capacity of `experts` or more has room for
    # all tokens, and one below a billionth has room for one token, so these bounds keep the products within 64 bits.
    share = Fraction(str(min(max(capacity, 1e-9), experts))).limit_denominator(10**9)
    places = -(-(share.numerator * visits) // (share.denominator * experts))
    order = chosen.argsort(stable=True)
    queue = chosen[order]
    first = torch.searchsorted(queue, torch.arange(experts + 1, device=chosen.device))
    rank = torch.arange(len(chosen), device=chosen.device) - first[queue]
    kept = torch.empty_like(rank, dtype=torch.bool).scatter_(0, order, (rank < places) | (queue == experts))
    return kept.view_as(routing.experts)
