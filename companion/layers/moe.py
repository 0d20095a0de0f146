"""Mixture of experts: many feed-forward networks, of which each token visits a few (lesson 11)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.config import FeedForwardConfig, MoEConfig
from companion.layers.feedforward import activation


class Routing(NamedTuple):
    """Where a layer sent its tokens: returned with the output, never kept on the module.

    logits:   the router's score of each expert, (batch, token, expert).
    experts:  the experts each token visits, best first, (batch, token, top_k).
    weights:  how much each of them counts, (batch, token, top_k); they sum to one.
    """

    logits: Float[Tensor, "*batch expert"]
    experts: Int[Tensor, "*batch top_k"]
    weights: Float[Tensor, "*batch top_k"]

    @property
    def counts(self) -> Int[Tensor, "expert"]:
        """How many tokens each expert received."""
        return torch.bincount(self.experts.flatten(), minlength=self.logits.shape[-1])


def route(logits: Float[Tensor, "*batch expert"], top_k: int) -> Routing:
    """Each token's `top_k` best experts, weighted by the softmax over those logits alone (Jiang et al. 2024, Mixtral).

    This equals the softmax over all experts, cut to the best and renormalised.
    Raises `ValueError` unless 1 <= top_k <= expert.
    """
    if not 1 <= top_k <= logits.shape[-1]:
        raise ValueError(f"top_k={top_k}: expected a number from 1 to the {logits.shape[-1]} experts")
    best, experts = logits.topk(top_k, dim=-1)
    return Routing(logits, experts, best.softmax(-1))


class MoE(nn.Module):
    """A router and `experts` feed-forward networks; each token's output is the weighted sum over its `top_k`.

    out(x) = sum over the chosen e of weight_e FFN_e(x)      (Shazeer et al. 2017, eq. 1)

    Each expert's matrices are slices of one parameter: inner and gate (expert, d_model, d_ff), outer
    (expert, d_ff, d_model). Tokens are taken expert by expert in a plain loop.
    """

    def __init__(self, d_model: int, expert: FeedForwardConfig, config: MoEConfig) -> None:
        super().__init__()
        if expert.bias:
            raise ValueError("feed_forward.bias=True: expected False in a mixture of experts, whose experts have none")
        self.top_k = config.top_k
        self.activation = activation(expert.activation)
        self.router = nn.Linear(d_model, config.experts, bias=False)
        inner = (config.experts, d_model, expert.d_ff)
        self.gate = nn.Parameter(torch.empty(inner)) if expert.activation == "swiglu" else None
        self.inner = nn.Parameter(torch.empty(inner))
        self.outer = nn.Parameter(torch.empty(config.experts, expert.d_ff, d_model))
        for weight in (self.gate, self.inner, self.outer):
            if weight is not None:  # nn.Linear's own default, for each expert: uniform with variance 1 / (3 fan_in)
                bound = 1 / math.sqrt(weight.shape[1])
                nn.init.uniform_(weight, -bound, bound)

    def forward(
        self, x: Float[Tensor, "batch token d_model"]
    ) -> tuple[Float[Tensor, "batch token d_model"], Routing]:
        routing = route(self.router(x), self.top_k)
        tokens = x.flatten(0, 1)
        experts, weights = routing.experts.flatten(0, 1), routing.weights.flatten(0, 1)
        out = torch.zeros_like(tokens)
        for e in range(self.inner.shape[0]):
            rows, slots = (experts == e).nonzero(as_tuple=True)
            visited = self.expert(e, tokens[rows]) * weights[rows, slots, None]
            out = out.index_add(0, rows, visited.to(out.dtype))
        return out.view_as(x), routing

    def expert(self, e: int, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """What expert `e` alone makes of each row."""
        hidden = x @ self.inner[e]
        hidden = self.activation(hidden) if self.gate is None else self.activation(x @ self.gate[e]) * hidden
        return hidden @ self.outer[e]
