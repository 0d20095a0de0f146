"""Updates of a run: accumulate, clip and apply gradients. Each update depends only on the state before it.

An update is a function of the weights, the optimizer state and the update number; its batches and its dropout are
derived from the seed and this number. Therefore a run that is stopped at any point and resumed from its last checkpoint
ends with the same weights, bit for bit, as a run that was never stopped (on the same machine, with the same number of
threads).
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
from companion.training.activation_checkpointing import checkpoint_blocks
from companion.training.distributed.parallel import Parallel
from companion.training.evaluation import Evaluation, evaluate
from companion.training.hyperparameters import TrainingConfig
from companion.training.losses import IGNORE, Batch, Loss, Scored, next_token_loss, routing_loss
from companion.training.mup import lr_scales
from companion.training.optimizer import MuonWithAdamW, adamw, load_optimizer_state, optimizer_state
from companion.training.precision import PRECISIONS, autocast, tf32
from companion.training.prefetch import Ahead
from companion.training.schedule import learning_rate
from companion.training.seeds import derived_seed
from companion.transformer import Transformer

LARGE = 2**20
"""Minimum number of parameters for the faster, fused optimizer on a CPU. Smaller models, such as those of the lessons,
use the plain optimizer on every machine, so that printed results have the same digits.
"""


class Diverged(RuntimeError):
    """Raised when the loss or the gradient is not finite. The update has not changed the weights."""


@dataclass(frozen=True)
class Update:
    """Results of one update.

    Attributes:
        number: number of the update, counted from 1.
        loss: nats per token, not including the losses that balance experts.
        tokens: number of scored tokens.
        gradient_norm: norm before clipping.
        learning_rate: learning rate of this update.
        effective_experts: effective number of experts in the layer with the least even load (see `RoutingStats`), or
            `None` without experts.
        dropped: fraction of all visits to experts, over all layers, that exceeded the experts' capacity, or `None`
            without experts.
        told: additional metrics that the loss reports (see `Scored`), as means over the scored tokens or examples.
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
    """A model, its optimizer, and the number of updates made so far.

    All processes have to call the methods that are *collectives*, in the same order.

    Args:
        model: the model, which is trained in place on the device of its parameters.
        batches: micro-batch number -> tensors for `loss`, targets last. The result must depend only on the number.
        config: hyperparameters.
        loss: (model, *micro-batch) -> `Scored`.
        precision: `"fp32"`, `"tf32"` (on a GPU, matrix products with 10-bit mantissas), or `"bf16"` (matrix products in
            bfloat16 under autocast). Weights and optimizer stay in fp32.
        compile: whether to compile the forward pass, which takes a minute and pays off on a GPU.
        activation_checkpointing: whether to use activation checkpointing, which stores little of each block and runs
            the block again in the backward pass (see `training.activation_checkpointing`).
        parallel: the processes that train together; each makes a trainer with the same arguments. `model` is
            distributed over them, in place. From then on, `whole` returns the model that can be evaluated or used to
            generate text.

    Raises:
        ValueError: if `precision` is unknown, if an argument has the wrong type, or if `parallel` should distribute
            experts but `model` has no experts or a number of experts that cannot be divided evenly.
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
        activation_checkpointing: bool = False,
        parallel: Parallel | None = None,
    ) -> None:
        check_kind("model", model, Transformer, "a Transformer")
        check_kind("config", config, TrainingConfig, "a TrainingConfig")
        for name, function in (("batches", batches), ("loss", loss)):
            if not callable(function):
                raise ValueError(f"{name}={described(function)}: expected a function")
        for name, flag in (("compile", compile), ("activation_checkpointing", activation_checkpointing)):
            check_kind(name, flag, bool, "True or False")
        if precision not in PRECISIONS:
            raise ValueError(f"precision={shown(precision)}: expected one of {', '.join(map(repr, PRECISIONS))}")
        self.model, self.batches, self.config, self.loss = model, batches, config, loss
        self.parallel = Parallel() if parallel is None else parallel
        self.parameters = sum(p.numel() for p in model.parameters())  # count these before the model is distributed
        self.precision = precision
        self.done = 0
        if activation_checkpointing:
            checkpoint_blocks(model)
        self._objective = self.parallel.prepare(model, lambda *batch: self.loss(*batch), compile)
        self.device = next(model.parameters()).device
        alone = self.parallel.world == 1
        on_gpu = self.device.type == "cuda"
        self._batches: Callable[[int], Batch] = lambda number: self.batches(number)
        if on_gpu:
            self._batches = Ahead(self._batches, config.accumulate, pin=True)
        self._experts = [module for module in model.modules() if isinstance(module, MoE)]  # in routing order
        # A frozen router keeps its bias. With adapters, the bias belongs to the base model.
        self._biased = [moe.bias is not None and moe.router.weight.requires_grad for moe in self._experts]
        self._steered = bool(self._experts) and (config.balance_loss > 0 or config.z_loss > 0 or any(self._biased))
        fused = on_gpu or (alone and self.device.type == "cpu" and self.parameters >= LARGE)
        make = MuonWithAdamW if config.optimizer == "muon" else adamw
        scales = lr_scales(model, config)
        self.optimizer = make(
            model, weight_decay=config.weight_decay, betas=config.betas, fused=fused, lr_scales=scales
        )

    def update(self) -> Update:
        """Make one optimizer step from the gradients of `accumulate` micro-batches.

        The gradient is that of the mean over *all* their tokens: sums are accumulated and divided once, so that k
        micro-batches with unequal numbers of tokens give the same result as a single batch that combines them.
        Load-balancing losses also use the load of the whole batch. This load is known only after all micro-batches. If
        there are several micro-batches, they are therefore first run without gradients to count the load, which takes a
        third more time.

        Raises:
            Diverged: if the loss or the gradient is not finite. The weights and the optimizer are unchanged.
            ValueError: if no micro-batch has a target, or if experts are to be balanced but `loss` does not return
                their routing.
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
            group["lr"] = rate * group["lr_scale"]
        self.optimizer.step()
        if self._steered:
            for moe, counts, moves in zip(self._experts, load.counts, self._biased, strict=True):
                if moves:
                    update_bias(moe, counts, self.config.bias_rate)
        self.done = number
        made = Update(number, loss, tokens, gradient_norm, rate, *experts)
        return replace(made, told=told.means(self.parallel, tokens))

    def learning_rate(self, number: int) -> float:
        """Return the learning rate of update `number`, counted from 1."""
        config = self.config
        return learning_rate(
            config.schedule,
            number,
            updates=config.updates,
            warmup=config.warmup,
            peak=config.learning_rate,
            last=config.learning_rate * config.min_lr_ratio,
            decay_share=config.decay_share,
            decay_shape=config.decay_shape,
        )

    def evaluate(self, batches: Iterable[Batch], bytes: int) -> Evaluation:
        """Return the model's loss over all of `batches`, without dropout.

        This is a collective; the main process does the measurement.

        Args:
            batches: tensors for `loss`, targets last.
            bytes: number of bytes of the text that the targets encode.
        """
        model = self.whole()
        measured = self.parallel.on_main(
            lambda: astuple(evaluate(model, batches, bytes, loss=self.loss, precision=self.precision))
        )
        return Evaluation(*measured)

    def whole(self) -> Transformer:
        """Return, in the main process, the plain model with the current weights, for evaluation or text generation.

        If each process holds all the weights, as a single process always does, the result is the trained model itself;
        otherwise it is a copy on the same device. Other processes get their own model, which may be only a part of the
        whole. This is a collective.
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
        """Return the whole model's `state_dict` in the main process, for saving, and `{}` in the others (a collective).

        With several processes its tensors are on the CPU. The tensors may be the model's own, so save them before the
        next update.
        """
        kept = self.model.state_dict(keep_vars=True)
        return self._gathered((name, tensor, tensor) for name, tensor in kept.items())

    def state(self) -> dict[str, Tensor]:
        """Return the whole optimizer state by parameter name, in the same process as `weights` (a collective).

        Together with the weights and `done`, this state determines the next update, for any number of processes.
        """
        parameters = dict(self.model.named_parameters())
        kept = optimizer_state(self.model, self.optimizer)
        return self._gathered((name, parameters[name.partition(".")[2]], tensor) for name, tensor in kept.items())

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], done: int) -> None:
        """Resume after update `done` from the complete results of `weights` and `state`, in every process.

        Raises:
            ValueError: if either of them does not match this model. In this case nothing is changed.
        """
        kept = self.model.state_dict(keep_vars=True)
        if kept.keys() != weights.keys():
            wrong = min(kept.keys() ^ weights.keys())
            missing = "weights" if wrong in kept else "model"
            raise ValueError(f"weights: expected this model's weights, but {wrong} is missing from the {missing}")
        parts = {name: self.parallel.part(tensor, weights[name], name) for name, tensor in kept.items()}
        load_optimizer_state(self.model, self.optimizer, state, self.parallel.part)
        with torch.no_grad():
            for name, tensor in kept.items():
                tensor.copy_(parts[name])
        self.done = done

    def _gathered(self, kept: Iterable[tuple[str, Tensor, Tensor]]) -> dict[str, Tensor]:
        """Gather (name, parameter, tensor with the layout of the parameter) in the main process, keyed by name."""
        gathered = {}
        for name, parameter, tensor in kept:
            whole = self.parallel.whole(parameter, tensor.detach())
            if self.parallel.main:
                gathered[name] = whole if self.parallel.world == 1 else whole.cpu()
        return gathered

    @torch.no_grad()
    def _load_of(self, micro: Sequence[Batch]) -> list[Tensor]:
        """Return how many tokens in these micro-batches go to each expert of each layer, summed over all processes."""
        load = _Load()
        for i, batch in enumerate(micro):
            load.add(self._scored(i, batch).routing)
        return self.parallel.total(load.counts)

    def _scored(self, i: int, batch: Batch) -> Scored:
        """Compute the loss of this process's rows in micro-batch i of the update, with dropout and noise."""
        seed = derived_seed(self.config.seed, self.done * self.config.accumulate + i)
        own = [tensor.to(self.device, non_blocking=True) for tensor in self.parallel.share(batch)]
        with self.parallel.drawing(seed, len(batch[-1])), autocast(self.device, self.precision):
            scored = self._objective(*own)
        if self._steered and len(scored.routing) != len(self._experts):
            raise ValueError(
                f"loss: expected the routing of {len(self._experts)} layers for load balancing, got that of "
                f"{len(scored.routing)}; return it in Scored"
            )
        return scored


class _Told:
    """Sums, over micro-batches, of the additional metrics of a loss."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, told: Mapping[str, Tensor]) -> None:
        self.sums |= {name: self.sums.get(name, 0.0) + value.detach().float() for name, value in told.items()}

    def means(self, parallel: Parallel, tokens: int) -> dict[str, float]:
        totals = parallel.total(list(self.sums.values()))
        return {name: float(total) / tokens for name, total in zip(self.sums, totals, strict=True)}


class _Load:
    """Sums, over micro-batches, of each layer's expert load. No method of this class waits for a device."""

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
        """Return the effective number of experts in the least evenly loaded layer, and the overall fraction of dropped
        visits.

        The result is empty if no layer has experts.
        """
        if not self.counts:
            return []
        counts = torch.stack(self.counts)
        load = counts.float() / counts.sum(-1, keepdim=True).clamp(min=1)
        dropped = self.dropped.to(counts.device, non_blocking=True)
        return [load_entropy(load).exp().min(), dropped.float() / counts.sum().clamp(min=1)]
