"""Mixture of experts: many feed-forward networks, of which each token visits a few (lesson 11)."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import FeedForwardConfig, MoEConfig
from companion.ground.boundary import check_routing
from companion.layers.feedforward import FeedForward, activation
from companion.layers.grouped import grouped
from companion.layers.visits import Reordered, by_expert
from companion.layers.wide import wide, wide_dtype

Gating = Literal["topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid"]
Experts = Literal["auto", "loop", "grouped", "gather"]
"""How the experts' products are computed; see `MoE`. All give the same numbers."""


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

    Raises `ValueError` unless 1 <= top_k <= expert, for logits that are no floating tensor, a bias of another shape, or
    an unknown gating.
    """
    check_routing(logits, top_k, bias)
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
        case _:
            raise ValueError(f"gating={gating!r}: expected topk_softmax, softmax_topk, ..._renormalised or sigmoid")
    return RoutingStats(logits, experts, weights)


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


class Dispatch(Protocol):
    """How the tokens of a layer get to its experts, and the answers back. A layer asks its `MoE.dispatch` for both."""

    def within_capacity(self, routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
        """Which of the visits take place; the function `within_capacity` says what that is."""
        ...

    def answers(
        self,
        moe: MoE,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        experts: Experts,
    ) -> Float[Tensor, "row top_k d_model"]:
        """Each chosen expert's answer to each token, not weighted; anything at all for a visit that was dropped."""
        ...


class Local:
    """A `Dispatch` where all tokens and all experts are in this process: there is nothing to send.

    Training on several processes has others, in `companion.training.distributed`.
    """

    def within_capacity(self, routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
        """The function `within_capacity`, of these tokens."""
        return within_capacity(routing, capacity)

    def answers(
        self,
        moe: MoE,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        experts: Experts,
    ) -> Float[Tensor, "row top_k d_model"]:
        """Those of the layer's own experts."""
        return moe.answers(tokens, chosen, kept, experts)


class MoE(nn.Module):
    """A router and `experts` feed-forward networks; each token's output is the weighted sum over its `top_k`.

    out(x) = sum over the chosen e of weight_e FFN_e(x) + sum over the shared s of FFN_s(x)
                                             (Shazeer et al. 2017, eq. 1; shared experts: Dai et al. 2024, eq. 9)

    Each expert's matrices are slices of one parameter: inner and gate (expert, d_model, d_ff), outer
    (expert, d_ff, d_model). The shared experts are one `FeedForward`, `shared`, as wide as all of them together, which
    is the same function. `bias` (expert) is a buffer, saved with the model and moved by `balance.update_bias` alone.

    In training, noise is added to the logits and a visit that finds its expert full is dropped: it adds exactly zero,
    and the other weights stay as they are. In evaluation neither happens, so that what a token gets does not depend on
    its neighbours.

    The same numbers are computed in one of three ways, chosen by the call, or else by the layer's attribute `way`:

    `"loop"`     the tokens sorted by expert, one expert after the other. Any dtype and size; asks the device for the
                 experts' numbers of tokens, and waits.
    `"grouped"`  the same in one call, `F.grouped_mm`: fp32, bf16 or fp16, with rows of d_model and of d_ff numbers that
                 are multiples of 16 bytes. Nothing waits.
    `"gather"`   every token gets copies of its experts' matrices: for a few tokens on a GPU, which then need not wait.
                 At most as many visits as there are experts, so that the copies are never larger than these.
    `"auto"`     what is fastest among those that can.

    `dispatch` is where experts are: in this process, unless training has put them elsewhere.

    Raises `ValueError` for experts with biases, and for a way that cannot serve the call.
    """

    bias: Tensor | None
    way: Experts = "auto"
    dispatch: Dispatch = Local()

    def __init__(self, d_model: int, expert: FeedForwardConfig, config: MoEConfig) -> None:
        super().__init__()
        if expert.bias:
            raise ValueError("feed_forward.bias=True: expected False in a mixture of experts, whose experts have none")
        self.config = config
        self.activation = activation(expert.activation)
        self.router = nn.Linear(d_model, config.experts, bias=False)
        inner = (config.experts, d_model, expert.d_ff)
        self.gate = nn.Parameter(torch.empty(inner)) if expert.gated else None
        self.inner = nn.Parameter(torch.empty(inner))
        self.outer = nn.Parameter(torch.empty(config.experts, expert.d_ff, d_model))
        for weight in (self.gate, self.inner, self.outer):
            if weight is not None:  # nn.Linear's own default, for each expert: uniform with variance 1 / (3 fan_in)
                bound = 1 / math.sqrt(weight.shape[1])
                nn.init.uniform_(weight, -bound, bound)
        self.shared = FeedForward(d_model, replace(expert, d_ff=config.shared * expert.d_ff)) if config.shared else None
        self.register_buffer("bias", torch.zeros(config.experts) if config.balanced else None)

    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        real: Bool[Tensor, "batch token"] | None = None,
        experts: Experts | None = None,
    ) -> tuple[Float[Tensor, "batch token d_model"], RoutingStats]:
        """The output, and where the tokens went.

        real:     which tokens are not padding. Padding visits its experts like any token, but is not counted and takes
                  no place.
        experts:  how it is computed, see above; default: `way`. Raises `ValueError` where that cannot serve this input.
        """
        config = self.config
        logits = self.router(x)
        if self.training and config.noise:
            logits = logits + config.noise * torch.randn_like(logits)
        routing = route(logits, config.top_k, config.gating, bias=self.bias)._replace(real=real)
        if self.training and config.capacity is not None:
            routing = routing._replace(kept=self.dispatch.within_capacity(routing, config.capacity))
        # Under autocast the logits have the dtype that products are computed in: the experts use it too.
        tokens = x.flatten(0, 1).to(logits.dtype)
        chosen, weights = routing.experts.flatten(0, 1), routing.weights.flatten(0, 1)[..., None]
        answers = self.dispatch.answers(self, tokens, chosen, routing.kept, self.way if experts is None else experts)
        if routing.kept is not None:
            answers = answers.masked_fill(~routing.kept.flatten(0, 1)[..., None], 0)  # whatever is there: it may be NaN
        out = (answers * weights.to(answers.dtype)).sum(1).view_as(x)
        return (out if self.shared is None else out + self.shared(x)).to(x.dtype), routing

    def expert(self, e: int, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """What expert `e` alone makes of each row."""
        gate, inner, outer = self._matrices(x.dtype)
        return self._network(x, None if gate is None else gate[e], inner[e], outer[e])

    def answers(
        self,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        experts: Experts = "auto",
    ) -> Float[Tensor, "row top_k d_model"]:
        """Each chosen expert's answer to each token, not weighted; anything at all for a visit that was dropped.

        chosen:   numbers of experts, counted among those that are in this process.
        kept:     which visits take place; `None`: all.
        experts:  how it is computed, see above. Raises `ValueError` where that cannot serve this input.
        """
        how = self._way(tokens, chosen.numel(), experts)
        gate, inner, outer = self._matrices(tokens.dtype)
        if how == "gather":
            index = chosen.flatten()
            rows = tokens[:, None].expand(*chosen.shape, -1).reshape(len(index), 1, -1)
            mine = None if gate is None else gate.index_select(0, index)
            answers = self._network(rows, mine, inner.index_select(0, index), outer.index_select(0, index))
            return answers.view(*chosen.shape, inner.shape[1])
        if how == "loop" and len(tokens) == 1:  # nothing to sort
            gates = [None] * len(inner) if gate is None else gate.unbind()
            alone = [(tokens, gates[e], inner[e], outer[e]) for e in chosen.flatten().tolist()]
            return torch.stack([self._network(*visit) for visit in alone], dim=1)
        key, order, inverse = by_expert(chosen, kept, len(inner))
        bounds = torch.searchsorted(key, torch.arange(len(inner), device=key.device), right=True)
        rows = Reordered.apply(tokens, order, inverse, chosen.shape[1])
        if how == "grouped":
            if kept is not None:  # the kernel writes nothing there, neither now nor in the gradient
                rows = rows.masked_fill((key == len(inner))[:, None], 0)
            ends = bounds.to(torch.int32)
            answers = self._network(rows, gate, inner, outer, lambda a, b: grouped(a, b, ends))
        else:
            sizes = bounds.diff(prepend=bounds.new_zeros(1)).tolist()
            pieces = rows.split([*sizes, len(rows) - sum(sizes)])
            gates = [None] * len(inner) if gate is None else gate.unbind()
            # unbind, because the gradient of inner[e] would be as large as inner, for every e
            each = zip(pieces[:-1], gates, inner.unbind(), outer.unbind(), strict=True)
            # Experts without tokens are skipped, unless all are.
            visited = [self._network(*expert) for expert in each if len(expert[0]) or not sum(sizes)]
            answers = torch.cat([*visited, torch.zeros_like(pieces[-1])])
        return Reordered.apply(answers, inverse, order, 1).view(*chosen.shape, inner.shape[1])

    def _matrices(self, dtype: torch.dtype) -> tuple[Tensor | None, Tensor, Tensor]:
        return None if self.gate is None else self.gate.to(dtype), self.inner.to(dtype), self.outer.to(dtype)

    def _network(
        self, x: Tensor, gate: Tensor | None, inner: Tensor, outer: Tensor, product: Any = torch.matmul
    ) -> Tensor:
        """One feed-forward network, or many at once where `product` takes many matrices."""
        hidden = product(x, inner)
        hidden = self.activation(hidden) if gate is None else self.activation(product(x, gate)) * hidden
        return product(hidden, outer)

    def _way(self, tokens: Tensor, visits: int, wanted: Experts) -> Experts:
        """The way to compute `visits` answers; the tokens' dtype is that of the products."""
        if wanted not in ("auto", "loop", "grouped", "gather"):
            raise ValueError(f"experts={wanted!r}: expected 'auto', 'loop', 'grouped' or 'gather'")
        number, d_model, d_ff = self.inner.shape
        size = tokens.element_size()
        if wanted == "gather" and visits > number:
            raise ValueError(
                f"experts='gather': expected at most {number} visits, one for each expert, got {visits}: "
                "copies of their matrices would be larger than the experts themselves; take 'grouped'"
            )
        fits = tokens.dtype in (torch.float32, torch.bfloat16, torch.float16)
        aligned = d_model * size % 16 == 0 and d_ff * size % 16 == 0
        if wanted == "grouped" and not fits:
            raise ValueError(
                f"experts='grouped': expected float32, bfloat16 or float16, got {tokens.dtype}; take 'loop'"
            )
        if wanted == "grouped" and not aligned:
            raise ValueError(
                f"experts='grouped': expected d_model and d_ff to be multiples of {16 // size} numbers (16 bytes), got "
                f"{d_model} and {d_ff}; take 'loop'"
            )
        if wanted != "auto":
            return wanted if visits else "loop"  # nothing to do is done the plain way
        if tokens.is_cuda and visits <= self.config.top_k:
            return "gather"
        if not (fits and aligned and visits):
            return "loop"
        if torch.compiler.is_compiling():
            return "grouped"  # a loop is another program for every routing
        # On a CPU nothing waits for a device, and one expert's matrices or hidden numbers fit its cache; all do not.
        return "loop" if tokens.device.type == "cpu" and not self.config.top_k < visits < 8192 else "grouped"
