"""What a model is trained to do, as a value: the one thing that differs between runs of `companion train`.

The loop, the run's folder, its log, its checkpoints and its progress know a task by this interface alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch

from companion.config.model import ModelConfig
from companion.training.distributed.parallel import Parallel
from companion.training.hyperparameters import TrainingConfig
from companion.training.losses import Batch, Loss
from companion.training.mup import begin_wide
from companion.training.seeds import derived_seed
from companion.training.settings import RunSettings, Settings
from companion.training.trainer import Trainer
from companion.transformer import Transformer


@runtime_checkable
class Measured(Protocol):
    """How good a model is. As text: one line for the progress of a run."""

    @property
    def scores(self) -> dict[str, float]:
        """What a run's log keeps."""

    @property
    def error(self) -> float:
        """Smaller is better: by this the best checkpoint is told."""

    def result(self) -> dict[str, Any]:
        """What a finished run keeps, as JSON has it."""


class Enough(NamedTuple):
    """Updates beyond which more time does no good, and why: "or ..., are enough: ..."."""

    updates: int
    why: str


class Task(ABC):
    """Settings together with what they say is learned.

    The same settings give the same batches and the same first weights.
    """

    settings: RunSettings
    preparing: ClassVar[str] = ""
    """What takes a moment before training, for a line of progress; `{title}` is the task's."""

    # What the loop needs

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """The model."""

    @property
    @abstractmethod
    def batches(self) -> Callable[[int], Batch]:
        """Number of a micro-batch -> tensors for `loss`, the targets last; a function of its number alone."""

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """What training makes small."""

    def begin(self, model: Transformer) -> None:
        """Change the random weights of a new model, where it begins from others."""
        return

    @abstractmethod
    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> Measured:
        """How good `model` is on what it was not trained on. `brief`: from less of it, where measuring takes long."""

    # How long a run is

    usual: int
    """Updates when neither steps nor minutes are asked for."""

    @property
    def enough(self) -> Enough | None:
        """Where more updates do harm; asked-for steps are not cut to it."""
        return None

    # What the run's folder keeps

    @property
    @abstractmethod
    def title(self) -> str:
        """What the model learns from."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for the same data: a run goes on with no other."""

    def files(self) -> dict[str, str]:
        """Files that the run's folder keeps beside `run.json`, by name."""
        return {}

    def with_files(self, files: Mapping[str, str]) -> Task:
        """The same task with what is in `files` of the same task in another process, instead of making its own."""
        return self

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What `run.json` says beside what it says of every run; `text` has `title` and `fingerprint`."""

    # What a reader sees

    @abstractmethod
    def facts(self) -> Sequence[tuple[str, str]]:
        """What is learned and what is measured on, as (heading, text); an empty heading continues the line before."""

    @abstractmethod
    def amount(self, updates: int) -> str:
        """How much so many updates are."""

    @abstractmethod
    def excerpt(self, model: Transformer) -> str:
        """One line that the model, as it is now, writes."""

    def before(self, record: Mapping[str, Any]) -> str:
        """What there is to beat; empty if there is nothing."""
        return ""

    @abstractmethod
    def verdict(self, record: Mapping[str, Any], result: Mapping[str, Any]) -> str:
        """How a finished run came out."""

    @abstractmethod
    def next_command(self, folder: Path) -> str:
        """The command that puts the model to use."""

    @abstractmethod
    def plot(self, entries: Sequence[Mapping[str, Any]], path: Path, record: Mapping[str, Any]) -> bool:
        """Draw the course of a run from the lines of its log. False without matplotlib."""

    def trainer(self, updates: int, device: torch.device, precision: str, parallel: Parallel | None = None) -> Trainer:
        """A new model with its trainer; with several processes a collective.

        Raises `ValueError` when a micro-batch has fewer examples than there are processes, and as `Parallel.prepare`.
        """
        parallel = Parallel() if parallel is None else parallel
        parallel.bounds(self.settings.batch)
        settings = self.settings
        assert isinstance(settings, Settings)
        torch.manual_seed(derived_seed(settings.seed, 2))
        model = Transformer(self.config)
        self.begin(model)
        if settings.width_base is not None:
            begin_wide(model, settings.width_base)
        if parallel.world == 1:  # several processes may each take a part, which fits where the whole does not
            model.to(device)
        moe, balance_loss = self.config.moe, settings.balance_loss
        if balance_loss is None:
            balance_loss = 0.0 if moe is None or moe.balanced else 0.01
        own = settings.learning() | {"seed": derived_seed(settings.seed, 3)}
        config = TrainingConfig(updates, balance_loss=balance_loss, **own)
        return Trainer(
            model,
            self.batches,
            config,
            loss=self.loss,
            precision=precision,
            compile=settings.compile,
            recompute=settings.recompute,
            parallel=parallel,
        )
