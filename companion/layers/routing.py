"""Routing: which experts a token visits, and how much each of them counts (lesson 11)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.ground.boundary import check_numbers
from companion.ground.door import checked
from companion.ground.fields import require
from companion.ground.precision import wide, wide_dtype

Gating = Literal["topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid"]


def load_entropy(load: Float[Tensor, "*layer expert"]) -> Float[Tensor, "*layer"]:
    """-sum of f ln f over the experts' shares f, in nats."""
    return -torch.xlogy(load, load).sum(-1)


class RoutingStats(NamedTuple):
    """Where a layer sent its tokens: returned with the output, never kept on the module.

    logits:   the router's score of each expert, (batch, token, expert), with the noise of training if there is any.
    experts:  the experts each token visits, best first, (batch, token, top_k).
    weights:  how much each of them counts, (batch, token, top_k); after `"softmax_topk"` they sum to less than one.
    real:     which tokens are not padding, (batch, token); `None`: all. The statistics below count these alone.
    kept:     which visits take place, (batch, token, top_k); the others found their expert full. `None`: all.
    """

    logits: Float[Tensor, "*batch expert"]
    experts: Int[Tensor, "*batch top_k"]
    weights: Float[Tensor, "*batch top_k"]
    real: Bool[Tensor, "*batch"] | None = None
    kept: Bool[Tensor, "*batch top_k"] | None = None

    @property
    def counts(self) -> Int[Tensor, "expert"]:
        """How many tokens chose each expert, those included that then found it full."""
        chosen = torch.ones_like(self.experts) if self.real is None else self.real[..., None].expand_as(self.experts)
        # Not bincount, which asks the device how long its answer is, and waits for it.
        zeros = torch.zeros(self.logits.shape[-1], dtype=torch.long, device=self.experts.device)
        return zeros.scatter_add(0, self.experts.flatten(), chosen.flatten().long())

    @property
    def load(self) -> Float[Tensor, "expert"]:
        """The share of all choices that fell on each expert, f_e; they sum to one. Zeros when there is no token."""
        counts = self.counts.to(wide_dtype(self.logits.dtype))
        return counts / counts.sum().clamp(min=1)

    @property
    def entropy(self) -> Float[Tensor, ""]:
        """Of the load, in nats: ln(expert) when all experts get the same, 0 when one expert gets all."""
        return load_entropy(self.load)

    @property
    def effective_experts(self) -> Float[Tensor, ""]:
        """exp(entropy): as many experts, evenly loaded, would have the same entropy. From 1 to `expert`."""
        return self.entropy.exp()

    @property
    def dropped(self) -> Float[Tensor, ""]:
        """The share of all choices that found their expert full; 0 without a capacity."""
        if self.kept is None:
            return torch.zeros((), dtype=self.load.dtype, device=self.logits.device)
        return (~self.kept).sum().to(self.load.dtype) / self.counts.sum().clamp(min=1)


def _fits(given: dict[str, Any]) -> None:
    """What the annotations of `route` do not say."""
    top_k, experts = given["top_k"], given["logits"].shape[-1]
    require(1 <= top_k <= experts, "top_k", top_k, f"a number from 1 to the {experts} experts")


@checked(fits=_fits, settles=lambda given: check_numbers("logits", given["logits"]))
def route(
    logits: Float[Tensor, "*batch expert"],
    top_k: int,
    gating: Gating = "topk_softmax",
    *,
    bias: Float[Tensor, "expert"] | None = None,
) -> RoutingStats:
    """Each token's `top_k` best experts and their weights. With z the logits and S the chosen experts:

        "topk_softmax"                exp(z_e) / sum over S of exp(z)     (Jiang et al. 2024, Mixtral)
        "softmax_topk"                exp(z_e) / sum over all of exp(z)   (Fedus et al. 2022, Switch; sums to < 1)
        "softmax_topk_renormalised"   the second divided by its sum over S, which is the first
        "sigmoid"                     s(z_e) / sum over S of s(z)         (DeepSeek-AI 2024, DeepSeek-V3)

    bias:  for each expert, added to its score (the softmax over all logits, or the sigmoid) for the choice of S and not
           for the weights (Wang et al. 2024, eq. 3).

    With top_k = 1 all but `"softmax_topk"` give weight one whatever the logits are, so that the loss has no gradient at
    the router. Weights are computed in fp32 or better.

    Raises `ValueError` unless 1 <= top_k <= expert, for logits that are no floating tensor or not numbers, a bias of
    another shape, or an unknown gating.
    """
    z = wide(logits)
    if bias is None:
        experts = z.topk(top_k, dim=-1).indices  # scores rise with logits; and where scores saturate, logits do not
    else:
        scores = z.sigmoid() if gating == "sigmoid" else z.softmax(-1)
        experts = (scores + bias).topk(top_k, dim=-1).indices
    best = z.gather(-1, experts)
    match gating:
        case "topk_softmax" | "softmax_topk_renormalised":
            weights = best.softmax(-1)
        case "softmax_topk":
            weights = (best - z.logsumexp(-1, keepdim=True)).exp()
        case "sigmoid":
            weights = F.logsigmoid(best).softmax(-1)  # s_e / sum(s), also where every s is too small for a float
    return RoutingStats(logits, experts, weights)


@checked()
def within_capacity(routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
    """Which visits take place when an expert takes at most ceil(capacity * tokens * top_k / experts) tokens.

    First come, first served, in the order of the tokens, row after row of the batch (Fedus et al. 2022, section 2.2).
    Padding takes no place and is never dropped. Places count the whole batch: those of a row depend on the rows before
    it, and on how many of all tokens are padding.
    """
    top_k, experts = routing.experts.shape[-1], routing.logits.shape[-1]
    chosen = routing.experts.flatten()
    visits: int | Tensor = chosen.numel()
    if routing.real is not None:
        real = routing.real[..., None].expand_as(routing.experts).flatten()
        chosen = chosen.masked_fill(~real, experts)  # behind the last expert
        visits = routing.real.sum() * top_k
    # Exact as written: 1.1 * 10 tokens are 11 places, not 12. From `experts` on there is room for all, and below a
    # billionth for one: no count of tokens makes these products too large for 64 bits.
    share = Fraction(str(min(max(capacity, 1e-9), experts))).limit_denominator(10**9)
    places = -(-(share.numerator * visits) // (share.denominator * experts))
    order = chosen.argsort(stable=True)
    queue = chosen[order]
    first = torch.searchsorted(queue, torch.arange(experts + 1, device=chosen.device))
    rank = torch.arange(len(chosen), device=chosen.device) - first[queue]
    kept = torch.empty_like(rank, dtype=torch.bool).scatter_(0, order, (rank < places) | (queue == experts))
    return kept.view_as(routing.experts)
