"""Mixture of experts: many feed-forward networks, of which only a few process each token (lesson 11).

`routing` chooses the experts, and `experts` computes their outputs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import FeedForwardConfig, MoEConfig
from companion.ground.annotations import checked
from companion.layers.experts import Implementation, Networks, answers_of, network_of, outputs
from companion.layers.feedforward import FeedForward, hidden
from companion.layers.routing import RoutingStats, best_experts, within_capacity

NAMES = ("gate", "inner", "outer")
"""Parameters of an `MoE` that hold the experts' matrices; the names of the bias parameters end in `_bias`."""


class Dispatch:
    """Token dispatcher, which sends the tokens of a layer to its experts and returns their outputs.

    A layer uses its `MoE.dispatch`. In this class all tokens and all experts are in one process, so nothing has to be
    sent. `companion.training.distributed` has dispatchers for training on several processes.
    """

    def within_capacity(self, routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
        """Return which visits take place, like the function `routing.within_capacity`."""
        return within_capacity(routing, capacity)

    def answers(
        self,
        moe: MoE,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        way: Implementation,
    ) -> Float[Tensor, "row top_k d_model"]:
        """Compute the output of each chosen expert for each row, without multiplying it by the routing weight.

        Args:
            moe: The layer.
            tokens: Expert inputs, (row, d_model). There is one row per token, in all texts of the batch. With
                `weighted="input"`, there is instead one row per visit, already multiplied by its routing weight, and
                top_k is 1.
            chosen: Indices among all experts of the layer, (row, top_k).
            kept: Which visits take place; `None` means all.
            way: The implementation (see `experts.answers_of`).

        Returns:
            Expert outputs, (row, top_k, d_model), undefined for visits that were dropped.

        Raises:
            ValueError: If the implementation does not support the call.
        """
        return moe.answers(tokens, chosen, kept, way)


class MoE(nn.Module):
    """Mixture of experts: a router and `experts` feed-forward networks. Each token visits `top_k` of them.

        out(x) = sum over the chosen e of weight_e FFN_e(x) + sum over the shared s of FFN_s(x)
                                                 (Shazeer et al. 2017, eq. 1; shared experts: Dai et al. 2024, eq. 9)

    With `weighted="input"`, weight_e FFN_e(x) is replaced by FFN_e(weight_e x) (Meta 2025, Llama 4).

    The parameters inner and gate, (expert, d_model, d_ff), and outer, (expert, d_ff, d_model), contain the matrices of
    all experts. The biases of the experts, if there are any, are stored in the same way: inner_bias, gate_bias and
    outer_bias. The shared experts are stored as a single `FeedForward`, `shared`, which is as wide as all of them
    together and computes the same function. `shared_gate` (1, d_model), if there is one, computes the logit whose
    sigmoid multiplies their output. `bias` (expert) is a buffer, which is saved with the model and changed only by
    `balance.update_bias`.

    In training, noise is added to the logits, and tokens routed to a full expert are dropped: that expert contributes
    zero, and the other weights are not renormalized. Neither happens in evaluation, so that a token's output does not
    depend on its neighbors.

    An argument of the call, or else the attribute `way`, selects the implementation of the experts' products (see
    `experts.answers_of`). `dispatch` determines where the experts are: in this process, unless training has distributed
    them.
    """

    bias: Tensor | None
    way: Implementation = "auto"
    dispatch = Dispatch()

    def __init__(self, d_model: int, expert: FeedForwardConfig, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden = hidden(expert.activation)
        self.router = nn.Linear(d_model, config.experts, bias=config.router_bias)
        inner = (config.experts, d_model, expert.d_ff)
        self.gate = nn.Parameter(torch.empty(inner)) if expert.gated else None
        self.inner = nn.Parameter(torch.empty(inner))
        self.outer = nn.Parameter(torch.empty(config.experts, expert.d_ff, d_model))
        for name in NAMES:
            matrix = getattr(self, name)
            if matrix is not None:  # nn.Linear's own default, for each expert: uniform with variance 1 / (3 fan_in)
                bound = 1 / math.sqrt(matrix.shape[1])
                nn.init.uniform_(matrix, -bound, bound)
            bias = expert.bias and matrix is not None
            zeros = nn.Parameter(torch.zeros(matrix.shape[0], matrix.shape[2])) if bias else None
            self.register_parameter(f"{name}_bias", zeros)
        width = config.shared * (config.shared_d_ff or expert.d_ff)
        self.shared = FeedForward(d_model, replace(expert, d_ff=width)) if config.shared else None
        self.shared_gate = nn.Linear(d_model, 1, bias=False) if config.shared_gate else None
        self.register_buffer("bias", torch.zeros(config.experts) if config.balanced else None)

    @checked(sizes=lambda layer: {"d_model": layer.inner.shape[1]})
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        attention_mask: Bool[Tensor, "batch token"] | None = None,
        experts: Implementation | None = None,
    ) -> tuple[Float[Tensor, "batch token d_model"], RoutingStats]:
        """Apply the layer.

        Args:
            x: The stream, (batch, token, d_model).
            attention_mask: Which tokens are not padding. Padding visits its experts like any other token, but is not
                counted and takes no capacity.
            experts: The implementation; default: `way`.

        Returns:
            The output, (batch, token, d_model), and the routing.

        Raises:
            ValueError: If the implementation does not support this input.
        """
        config = self.config
        logits = self.router(x)
        if self.training and config.noise:
            logits = logits + config.noise * torch.randn_like(logits)
        groups = config.groups, config.top_groups, config.group_best
        chosen = best_experts(logits, config.top_k, config.gating, self.bias, *groups, config.scale)
        routing = RoutingStats(*chosen[:3], attention_mask)  # PyTorch before 2.13 cannot compile `_replace`
        if self.training and config.capacity is not None:
            routing = RoutingStats(*routing[:4], self.dispatch.within_capacity(routing, config.capacity))
        answers = self._answers(x, routing, self.way if experts is None else experts)
        if routing.kept is not None:
            answers = answers.masked_fill(~routing.kept[..., None], 0)  # undefined values may be NaN
        if config.weighted == "output":
            answers = answers * routing.weights[..., None].to(answers.dtype)
        out = answers.sum(2)
        if self.shared is not None:
            shared = self.shared(x)
            out = out + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return out.to(x.dtype), routing

    if TYPE_CHECKING:
        __call__ = forward

    def _answers(
        self, x: Float[Tensor, "batch token d_model"], routing: RoutingStats, way: Implementation
    ) -> Float[Tensor, "batch token top_k d_model"]:
        """Compute the outputs of the chosen experts, with the weights included if these apply to the inputs."""
        # Under autocast, the logits have the dtype of matrix products, which the experts use too.
        tokens, chosen = x.flatten(0, 1).to(routing.logits.dtype), routing.experts.flatten(0, 1)
        kept = routing.kept
        if self.config.weighted == "input":  # every visit then has its own input
            weights = routing.weights.flatten(0, 1)[..., None].to(tokens.dtype)
            tokens, chosen = (tokens[:, None] * weights).flatten(0, 1), chosen.flatten()[:, None]
            kept = None if kept is None else kept.flatten()[:, None]
        answers = self.dispatch.answers(self, tokens, chosen, kept, way)
        return answers.view(*routing.experts.shape, x.shape[-1])

    def expert(self, e: int, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """Apply the single expert `e` to each row."""
        return outputs(network_of(self.networks(x.dtype), e), x)

    def answers(
        self,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        way: Implementation = "auto",
    ) -> Float[Tensor, "row top_k d_model"]:
        """Call `experts.answers_of` for the experts in this process, which `chosen` indexes."""
        return answers_of(self.networks(tokens.dtype), tokens, chosen, kept, way)

    def networks(self, dtype: torch.dtype) -> Networks:
        """Return the experts with their matrices in this dtype."""
        biases = self._in(dtype, "gate_bias"), self._in(dtype, "inner_bias"), self._in(dtype, "outer_bias")
        return Networks(self.hidden, self._in(dtype, "gate"), self.inner.to(dtype), self.outer.to(dtype), biases)

    def _in(self, dtype: torch.dtype, name: str) -> Tensor | None:
        tensor: Tensor | None = getattr(self, name)
        return None if tensor is None else tensor.to(dtype)
