"""The interface of a task, which defines what a model is trained to do.

The task is the only thing that differs between kinds of runs of `companion train`.

The training loop, the run's folder, its log, its checkpoints and its progress only use this interface.
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
    """The result of an evaluation; its `str` is one line for the progress display of a run."""

    @property
    def scores(self) -> dict[str, float]:
        """Scores for the run's log."""

    @property
    def error(self) -> float:
        """Score that selects the best checkpoint; smaller is better."""

    def result(self) -> dict[str, Any]:
        """Return the scores to store with a finished run, as JSON-serializable values."""


class Enough(NamedTuple):
    """The number of updates that is enough, and a phrase such as "or 30 times through the text, are enough"."""

    updates: int
    why: str


class Task(ABC):
    """Settings together with the data that they describe.

    The same settings give the same batches and the same initial weights.
    """

    settings: RunSettings
    preparing: ClassVar[str] = ""
    """Progress message for preparations that take a moment before training; `{title}` is the task's title."""

    # For the training loop

    @property
    @abstractmethod
    def config(self) -> ModelConfig:
        """Configuration of the model."""

    @property
    @abstractmethod
    def batches(self) -> Callable[[int], Batch]:
        """Function that maps the number of a micro-batch to tensors for `loss`; the last tensor contains the targets.

        The result depends only on the number.
        """

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The training loss."""

    def begin(self, model: Transformer) -> None:
        """Replace the random weights of a new model if it starts from other weights."""
        return

    @abstractmethod
    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> Measured:
        """Evaluate `model` on held-out data. If `brief` is true, use less data if evaluation would take long."""

    # Length of a run

    usual: int
    """Number of updates if neither steps nor minutes are given."""

    @property
    def enough(self) -> Enough | None:
        """Number of updates beyond which training does harm. This number does not limit `steps`."""
        return None

    # Contents of the run's folder

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the data that the model learns from."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the data. A run can only be resumed with the same data."""

    def files(self) -> dict[str, str]:
        """Return files, keyed by name, to store in the same folder as `run.json`."""
        return {}

    def with_files(self, files: Mapping[str, str]) -> Task:
        """Return this task, using files that another process made for the same task instead of making them here."""
        return self

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return additional contents of `run.json`; `text` has `title` and `fingerprint`."""

    # Output for the user

    @abstractmethod
    def facts(self) -> Sequence[tuple[str, str]]:
        """Describe training and evaluation data as (heading, text); an empty heading continues the previous line."""

    @abstractmethod
    def amount(self, updates: int) -> str:
        """Describe the amount of data that this many updates process."""

    @abstractmethod
    def excerpt(self, model: Transformer) -> str:
        """Return one line that the current model generates."""

    def before(self, record: Mapping[str, Any]) -> str:
        """Describe the baselines; the text is empty if there are no baselines."""
        return ""

    @abstractmethod
    def verdict(self, record: Mapping[str, Any], result: Mapping[str, Any]) -> str:
        """Describe the result of a finished run."""

    @abstractmethod
    def next_command(self, folder: Path) -> str:
        """Return the command that uses the model."""

    @abstractmethod
    def plot(self, entries: Sequence[Mapping[str, Any]], path: Path, record: Mapping[str, Any]) -> bool:
        """Plot the progress of a run from the lines of its log. Return False if matplotlib is not installed."""

    def trainer(self, updates: int, device: torch.device, precision: str, parallel: Parallel | None = None) -> Trainer:
        """Make a new model and its trainer (a collective if there are several processes).

        Raises:
            ValueError: if a micro-batch has fewer examples than there are processes, or in the same cases as
                `Parallel.prepare`.
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
        if parallel.world == 1:  # with several processes, the whole model may not fit on one device
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
            activation_checkpointing=settings.activation_checkpointing,
            parallel=parallel,
        )
