"""The updates of a run: gradients gathered, clipped and applied; each depends on nothing but the state before it.

An update is a function of (weights, optimizer state, number of the update): its batches and its dropout are derived
from the seed and that number. A run that is stopped anywhere and continued from its last checkpoint therefore ends
with the same weights, bit for bit, as one that was never stopped (same machine, same number of threads).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

import torch
from torch import Tensor

from companion.ground.arguments import check_kind, described
from companion.ground.fields import shown
from companion.layers.balance import update_bias
from companion.layers.moe import MoE
from companion.layers.routing import RoutingStats, load_entropy
from companion.training.activation_checkpointing import recompute as run_blocks_again
from companion.training.distributed.parallel import Parallel
from companion.training.evaluation import Evaluation, evaluate
from companion.training.hyperparameters import TrainingConfig
from companion.training.losses import IGNORE, Batch, Loss, Scored, next_token_loss, routing_loss
from companion.training.mup import rate_shares
from companion.training.optimizer import MuonWithAdamW, adamw, load_optimizer_state, optimizer_state
from companion.training.precision import PRECISIONS, autocast, tf32
from companion.training.prefetch import Ahead
from companion.training.schedule import learning_rate
from companion.training.seeds import derived_seed
from companion.transformer import Transformer

LARGE = 2**20
"""Parameters of a model from which on the optimizer is the quicker, fused one on a CPU too. Smaller ones, as the
lessons train, take the plain one everywhere: what is printed of them has the same digits."""


class Diverged(RuntimeError):
    """The loss or the gradient is not a number any more. Nothing of that update has reached the weights."""


@dataclass(frozen=True)
class Update:
    """What one update reports.

    loss:               nats per token, without the losses that balance experts.
    tokens:             how many were scored.
    gradient_norm:      before clipping.
    effective_experts:  of the layer whose load is the most uneven, see `RoutingStats`; `None` without experts.
    dropped:            share of the visits to experts, in all layers, that found them full; `None` without experts.
    told:               what the loss says besides, see `Scored`: means over what is scored.
    """

    number: int
    loss: float
    tokens: int
    gradient_norm: float
    learning_rate: float
    effective_experts: float | None = None
    dropped: float | None = None
    told: Mapping[str, float] = field(default_factory=dict)


class Trainer:
    """A model, its optimizer, and the number of updates made.

    model:      trained in place, on the device its parameters are on.
    batches:    micro-batch number -> tensors for `loss`, targets last. Must depend on the number alone.
    loss:       (model, *micro-batch) -> `Scored`.
    precision:  `"fp32"`; `"tf32"`: on a GPU, factors of matrix products with 10 bits behind the point; or `"bf16"`:
                products in bfloat16 under autocast. Weights and optimizer stay fp32.
    compile:    compile the forward pass: pays off on a GPU, after a minute.
    recompute:  keep little of each block for the backward pass, which runs it again
                (`training.activation_checkpointing`).
    parallel:   the processes that train together; each makes a trainer with the same arguments. `model` is distributed
                over them, in place, and from then on `whole` has the model to measure or to write text with.

    Methods that are *collectives* have to be called by all processes, in the same order.

    Raises `ValueError` for another `precision`, for an argument of another kind, and where `parallel` is to spread
    experts and `model` has none, or a number that cannot be shared out evenly.
    """

    def __init__(
        self,
        model: Transformer,
        batches: Callable[[int], Batch],
        config: TrainingConfig,
        *,
        loss: Loss = next_token_loss,
        precision: str = "fp32",
        compile: bool = False,
        recompute: bool = False,
        parallel: Parallel | None = None,
    ) -> None:
        check_kind("model", model, Transformer, "a Transformer")
        check_kind("config", config, TrainingConfig, "a TrainingConfig")
        for name, function in (("batches", batches), ("loss", loss)):
            if not callable(function):
                raise ValueError(f"{name}={described(function)}: expected a function")
        for name, flag in (("compile", compile), ("recompute", recompute)):
            check_kind(name, flag, bool, "True or False")
        if precision not in PRECISIONS:
            raise ValueError(f"precision={shown(precision)}: expected one of {', '.join(map(repr, PRECISIONS))}")
        self.model, self.batches, self.config, self.loss = model, batches, config, loss
        self.parallel = Parallel() if parallel is None else parallel
        self.parameters = sum(p.numel() for p in model.parameters())  # of the whole model
        self.precision = precision
        self.done = 0
        if recompute:
            run_blocks_again(model)
        self._objective = self.parallel.prepare(model, lambda *batch: self.loss(*batch), compile)
        self.device = next(model.parameters()).device
        alone = self.parallel.world == 1
        on_gpu = self.device.type == "cuda"
        self._batches: Callable[[int], Batch] = lambda number: self.batches(number)
        if on_gpu:
            self._batches = Ahead(self._batches, config.accumulate, pin=True)
        self._experts = [module for module in model.modules() if isinstance(module, MoE)]  # in the order of the routing
        # A router that does not learn keeps its bias: below adapters it belongs to the model from which they began.
        self._biased = [moe.bias is not None and moe.router.weight.requires_grad for moe in self._experts]
        self._steered = bool(self._experts) and (config.balance_loss > 0 or config.z_loss > 0 or any(self._biased))
        fused = on_gpu or (alone and self.device.type == "cpu" and self.parameters >= LARGE)
        make = MuonWithAdamW if config.optimizer == "muon" else adamw
        shares = rate_shares(model, config)
        self.optimizer = make(model, weight_decay=config.weight_decay, betas=config.betas, fused=fused, shares=shares)

    def update(self) -> Update:
        """One step of the optimizer on `accumulate` micro-batches.

        The gradient is that of the mean over *all* their tokens: sums are added up and divided once, so that k
        micro-batches with unequal numbers of tokens give what one batch of them all would. So do the losses that
        balance experts: their load is that of the whole batch. It is known only after all micro-batches, and with more
        than one, these are run once more before, without a gradient, to count: a third of the time on top.

        Raises `Diverged`, with weights and optimizer untouched, when loss or gradient is not finite, and `ValueError`
        when no micro-batch has a target, or `loss` keeps back the routing of experts that are to be balanced.
        """
        number = self.done + 1
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        micro = [tuple(self._batches(self.done * self.config.accumulate + i)) for i in range(self.config.accumulate)]
        tokens = sum(int((batch[-1] != IGNORE).sum()) for batch in micro)
        if tokens == 0:
            raise ValueError(f"batches: expected at least one target in update {number}, got none")
        nats = torch.zeros((), device=self.device)
        weights = {"balance": self.config.balance_loss, "z": self.config.z_loss}
        with_losses = bool(self._experts) and any(weights.values())
        whole = self._load_of(micro) if with_losses and len(micro) > 1 else []
        load, told = _Load(), _Told()
        for i, batch in enumerate(micro):
            with self.parallel.collecting(last=i == len(micro) - 1), tf32(self.precision):
                total, _, routing, beside, more = self._scored(i, batch)
                load.add(routing)
                told.add(more)
                objective = (total if beside is None else total + beside) / tokens
                if with_losses:
                    objective = objective + routing_loss(routing, whole or self.parallel.total(load.counts), **weights)
                objective.backward()
            nats += total.detach().float()
        norm = self.parallel.clip(self.model, self.config.clip)
        nats, load.dropped, *load.counts = self.parallel.total((nats, load.dropped, *load.counts))
        loss, gradient_norm, *experts = torch.stack((nats, norm.float(), *load.summary())).tolist()
        loss /= tokens
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            self.optimizer.zero_grad(set_to_none=True)
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {gradient_norm}"
            raise Diverged(f"{what} at update {number}; a lower learning rate, or more warm-up, usually helps")
        rate = self.learning_rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()
        if self._steered:
            for moe, counts, moves in zip(self._experts, load.counts, self._biased, strict=True):
                if moves:
                    update_bias(moe, counts, self.config.bias_rate)
        self.done = number
        made = Update(number, loss, tokens, gradient_norm, rate, *experts)
        return replace(made, told=told.means(self.parallel, tokens))

    def learning_rate(self, number: int) -> float:
        """The learning rate of update `number`, counted from 1."""
        config = self.config
        return learning_rate(
            config.schedule,
            number,
            updates=config.updates,
            warmup=config.warmup,
            peak=config.learning_rate,
            last=config.learning_rate * config.last_share,
            decay_share=config.decay_share,
            decay_shape=config.decay_shape,
        )

    def evaluate(self, batches: Iterable[Batch], bytes: int) -> Evaluation:
        """The model's loss over all of `batches`, without dropout. `bytes`: of the text that their targets spell.

        A collective; the main process measures.
        """
        model = self.whole()
        measured = self.parallel.on_main(
            lambda: astuple(evaluate(model, batches, bytes, loss=self.loss, precision=self.precision))
        )
        return Evaluation(*measured)

    def whole(self) -> Transformer:
        """The plain model with the weights as they are now, in the main process: to measure, or to write text with.

        In a single process, and wherever each holds all the weights, it is the model that is trained; otherwise a copy
        on the same device. The others get the model they have, which may be a part of one. A collective.
        """
        if self.parallel.keeps_whole:
            return self.model
        weights = self.weights()
        if not self.parallel.main:
            return self.model
        with torch.device("meta"):
            model = Transformer(self.model.config)
        model.load_state_dict({name: tensor.to(self.device) for name, tensor in weights.items()}, assign=True)
        return model

    def weights(self) -> dict[str, Tensor]:
        """The whole model's `state_dict`, to be written by the main process; `{}` in the others. A collective.

        With several processes its tensors are on the CPU. They may be the model's own: write them before the next
        update.
        """
        kept = self.model.state_dict(keep_vars=True)
        return self._gathered((name, tensor, tensor) for name, tensor in kept.items())

    def state(self) -> dict[str, Tensor]:
        """The optimizer's whole state by parameter name, where `weights` has tensors. A collective.

        With the weights and `done`, all that the next update depends on, for any number of processes.
        """
        parameters = dict(self.model.named_parameters())
        kept = optimizer_state(self.model, self.optimizer)
        return self._gathered((name, parameters[name.partition(".")[2]], tensor) for name, tensor in kept.items())

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], done: int) -> None:
        """Go on after update `done` from what `weights` and `state` gave: the whole of it, in every process.

        Raises `ValueError`, with nothing changed, unless both fit this model.
        """
        kept = self.model.state_dict(keep_vars=True)
        if kept.keys() != weights.keys():
            wrong = sorted(kept.keys() ^ weights.keys())
            raise ValueError(f"weights: expected those of this model, got others; {wrong[0]} is in one of them alone")
        parts = {name: self.parallel.part(tensor, weights[name], name) for name, tensor in kept.items()}
        load_optimizer_state(self.model, self.optimizer, state, self.parallel.part)
        with torch.no_grad():
            for name, tensor in kept.items():
                tensor.copy_(parts[name])
        self.done = done

    def _gathered(self, kept: Iterable[tuple[str, Tensor, Tensor]]) -> dict[str, Tensor]:
        """(name, parameter, tensor laid out like it) -> the whole tensors by name, in the main process."""
        gathered = {}
        for name, parameter, tensor in kept:
            whole = self.parallel.whole(parameter, tensor.detach())
            if self.parallel.main:
                gathered[name] = whole if self.parallel.world == 1 else whole.cpu()
        return gathered

    @torch.no_grad()
    def _load_of(self, micro: Sequence[Batch]) -> list[Tensor]:
        """How many tokens of all these micro-batches each expert of each layer gets, in all processes."""
        load = _Load()
        for i, batch in enumerate(micro):
            load.add(self._scored(i, batch).routing)
        return self.parallel.total(load.counts)

    def _scored(self, i: int, batch: Batch) -> Scored:
        """The loss of this process's share of the update's micro-batch number i, with the dropout and the noise that
        belong to it."""
        seed = derived_seed(self.config.seed, self.done * self.config.accumulate + i)
        own = [tensor.to(self.device, non_blocking=True) for tensor in self.parallel.share(batch)]
        with self.parallel.drawing(seed, len(batch[-1])), autocast(self.device, self.precision):
            scored = self._objective(*own)
        if self._steered and len(scored.routing) != len(self._experts):
            raise ValueError(
                f"loss: expected the routing of {len(self._experts)} layers, whose load is to be balanced, got that of "
                f"{len(scored.routing)}; return it in Scored"
            )
        return scored


class _Told:
    """What a loss says besides, summed over micro-batches."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, told: Mapping[str, Tensor]) -> None:
        self.sums |= {name: self.sums.get(name, 0.0) + value.detach().float() for name, value in told.items()}

    def means(self, parallel: Parallel, tokens: int) -> dict[str, float]:
        totals = parallel.total(list(self.sums.values()))
        return {name: float(total) / tokens for name, total in zip(self.sums, totals, strict=True)}


class _Load:
    """What the experts of each layer were asked for, summed over micro-batches. Nothing here waits for a device."""

    def __init__(self) -> None:
        self.counts: list[Tensor] = []
        self.dropped = torch.zeros((), dtype=torch.long)

    def add(self, routing: tuple[RoutingStats, ...]) -> None:
        here = [layer.counts for layer in routing]
        self.counts = [a + b for a, b in zip(self.counts, here, strict=True)] if self.counts else here
        for layer in routing:
            if layer.kept is not None:
                self.dropped = self.dropped.to(layer.kept.device) + (~layer.kept).sum()

    def summary(self) -> list[Tensor]:
        """The effective experts of the least even layer, and the share of visits dropped in all; empty for no layer."""
        if not self.counts:
            return []
        counts = torch.stack(self.counts)
        load = counts.float() / counts.sum(-1, keepdim=True).clamp(min=1)
        dropped = self.dropped.to(counts.device, non_blocking=True)
        return [load_entropy(load).exp().min(), dropped.float() / counts.sum().clamp(min=1)]
