"""Experts in a run with several processes: all tokens share the capacity, and tokens are sent to remote experts.

Expert parallelism and its all-to-all: Lepikhin et al. 2021, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.layers.experts import Implementation, Reordered, by_expert
from companion.layers.moe import Dispatch, MoE
from companion.layers.routing import RoutingStats


class GatheredDispatch(Dispatch):
    """Token dispatcher for data parallelism: every process has all experts, and their capacity is shared by all tokens.

    Args:
        rows_of_all: collective that gathers the rows of the current micro-batch from all processes, given the rows of
            this process.
        own_rows: selects the rows of this process from those of all processes.
    """

    def __init__(self, rows_of_all: Callable[[Tensor], Tensor], own_rows: Callable[[Tensor], Tensor]) -> None:
        self.rows_of_all, self.own_rows = rows_of_all, own_rows

    def within_capacity(self, routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
        all_of, attention_mask = self.rows_of_all, routing.attention_mask
        everywhere = routing._replace(
            experts=all_of(routing.experts),
            attention_mask=None if attention_mask is None else all_of(attention_mask.long()).bool(),
        )
        return self.own_rows(super().within_capacity(everywhere, capacity))


class AllToAllDispatch(GatheredDispatch):
    """Token dispatcher for expert parallelism.

    Each process of a group has some of the experts, and tokens are sent to their experts.

    Args:
        rows_of_all, own_rows: as in `GatheredDispatch`.
        group: the processes that divide the experts of a layer equally among them, in the order of their ranks.
    """

    def __init__(
        self, rows_of_all: Callable[[Tensor], Tensor], own_rows: Callable[[Tensor], Tensor], group: dist.ProcessGroup
    ) -> None:
        super().__init__(rows_of_all, own_rows)
        self.group = group

    def answers(
        self,
        moe: MoE,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        way: Implementation,
    ) -> Float[Tensor, "row top_k d_model"]:
        group, number = self.group, moe.config.experts
        expert, order, inverse = by_expert(chosen, kept, number)
        rows = Reordered.apply(tokens, order, inverse, chosen.shape[1])
        visits = expert.new_zeros(number + 1).scatter_add(0, expert, torch.ones_like(expert))
        outgoing = visits[:-1].view(group.size(), -1)  # number of visits to each expert of each process
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing.contiguous(), group=group)
        sent, received = outgoing.sum(1).tolist(), incoming.sum(1).tolist()
        arrived = _Exchange.apply(rows[: sum(sent)], sent, received, group)
        experts_here = torch.arange(incoming.shape[1], device=expert.device).repeat(group.size())
        expert_of_row = experts_here.repeat_interleave(incoming.flatten(), output_size=sum(received))
        answers = super().answers(moe, arrived, expert_of_row[:, None], None, way)[:, 0]
        back = _Exchange.apply(answers, received, sent, group)
        back = torch.cat([back, back.new_zeros(len(rows) - len(back), back.shape[1])])
        return Reordered.apply(back, inverse, order, 1).view(*chosen.shape, -1)


@cache
def keep_the_compiler_out() -> None:
    """Exclude communication between processes from compilation.

    Used as a decorator, `torch.compiler.disable` would load the compiler, which takes two seconds, in everything that
    imports this file, including training in one process and text generation.
    """
    for kind, name in ((GatheredDispatch, "within_capacity"), (AllToAllDispatch, "answers")):
        setattr(kind, name, torch.compiler.disable(getattr(kind, name)))


class _Exchange(torch.autograd.Function):
    """Send `sent[p]` rows to each process p of a group, in order, and receive `received[p]`.

    Gradients flow in the opposite direction.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.back = received, sent, group
        arrived = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        back: Tensor = _Exchange.apply(grad, *ctx.back)  # this function can be differentiated again
        return back, None, None, None
