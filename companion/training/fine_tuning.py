"""Fine-tuning: a trainer for an existing model, which updates all of its weights or only adapters (lesson 20)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from companion.families.adapters import adapter_tensors, put_adapters
from companion.layers.low_rank import low_rank_layers
from companion.training.hyperparameters import TrainingConfig
from companion.training.losses import Batch
from companion.training.optimizer import load_optimizer_state
from companion.training.trainer import Trainer, Update
from companion.transformer import Transformer


class Tuner(Trainer):
    """A single-process `Trainer` whose batches may depend on the current model, for example on texts that it generates.

    An update still depends only on the weights, the optimizer's state and the number of the update, so a killed run can
    be resumed from its last checkpoint. If the model has adapters, `weights` returns only these, under peft's names.

    Args:
        model, batches, config: as in `Trainer`.
        steps: number of optimizer steps per update, on the same batches.
        options: additional arguments of `Trainer`.

    Raises:
        ValueError: in the same cases as `Trainer`.
    """

    def __init__(
        self,
        model: Transformer,
        batches: Callable[[int], Batch],
        config: TrainingConfig,
        *,
        steps: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(model, batches, config, **options)
        self.steps = steps
        self._batches = lambda number: self.batches(number)  # not prefetched, because the model may generate them

    def update(self) -> Update:
        """Make `steps` optimizer steps, all with this update's learning rate, and return the results of the first step.

        Raises the same errors as `Trainer.update`. If there are several steps, earlier ones may already have changed
        the weights.
        """
        if self.steps == 1:
            return super().update()
        done, batches = self.done, self._batches
        self._batches = cache(batches)
        try:
            first = super().update()
            for _ in range(self.steps - 1):
                self.done = done
                super().update()
            return first
        finally:
            self._batches = batches

    def weights(self) -> dict[str, Tensor]:
        return adapter_tensors(self.model) if low_rank_layers(self.model) else super().weights()

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], done: int) -> None:
        if not low_rank_layers(self.model):
            super().load(weights, state, done)
            return
        load_optimizer_state(self.model, self.optimizer, state, self.parallel.part)
        put_adapters(self.model, weights)
        self.done = done
