"""Create a run from its settings: its task, its length, and the contents of `run.json`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from companion.ground.device import versions
from companion.training.distributed.parallel import Parallel
from companion.training.run_folder import RunFolder
from companion.training.run_loop import seconds_per_update
from companion.training.settings import NumberWordsSettings, RunSettings, TextSettings, TuneSettings
from companion.training.tasks.large_text import open_text
from companion.training.tasks.number_words import NumberWordsTask
from companion.training.tasks.task import Task
from companion.training.tasks.tune import open_tune
from companion.training.trainer import Trainer

EVALUATIONS = 10
"""Number of evaluations in a run."""


def open_task(settings: RunSettings, folder: RunFolder | None = None) -> Task:
    """Return the task of `settings` or, with a `folder`, the task of the run in that folder.

    Raises:
        ValueError: if the data or the model is invalid.
    """
    match settings:
        case TextSettings():
            return open_text(settings, folder)
        case NumberWordsSettings():
            return NumberWordsTask.open(settings)
        case TuneSettings():
            return open_tune(settings, None if folder is None else folder.texts())
    raise ValueError(f"settings={settings!r}: expected the settings of a task")


def share_task(task: Task, parallel: Parallel) -> Task:
    """Return the task of a new run; only the main process makes the files that take long to make. A collective.

    Raises:
        ValueError: if the processes do not see the same data.
    """
    fingerprint, files = parallel.on_main(lambda: (task.fingerprint, task.files()))

    def check() -> Task:
        if task.fingerprint != fingerprint:
            raise ValueError(f"{task.title}: expected the same data in all processes, but this one has different data")
        return task if parallel.main else task.with_files(files)

    return parallel.together(check)


@dataclass(frozen=True)
class Plan:
    """Length of a new run, fixed at its start because the schedule and resumed runs depend on it.

    `why` explains a limit.
    """

    updates: int
    evaluations: int = EVALUATIONS
    why: str = ""


def plan(task: Task, device: torch.device, precision: str, parallel: Parallel | None = None) -> Plan:
    """Choose the length of a new run. A collective.

    With `minutes`, the speed of this machine is measured, and evaluations get at most a tenth of the time. Without
    `steps`, a task may also limit the number of updates.
    """
    settings = task.settings
    if settings.steps is not None:
        return Plan(settings.steps)
    if settings.minutes is None:
        return Plan(task.usual)
    seconds = 60 * settings.minutes
    trial = task.trainer(100, device, precision, parallel)
    each = seconds_per_update(trial, seconds=min(5.0, seconds / 20))
    model = trial.whole()

    def evaluation() -> float:
        began = time.monotonic()
        task.measure(model, precision, brief=True)
        return time.monotonic() - began

    pause = trial.parallel.on_main(evaluation)
    evaluations = max(1, min(EVALUATIONS, int(seconds / 10 / pause)))
    possible = max(1, int((seconds - (evaluations + 1) * pause) / each))
    enough = task.enough
    if enough is None or possible <= enough.updates:
        return Plan(possible, evaluations)
    why = f"{settings.minutes:g} minutes are {possible:,} updates here; {enough.updates:,}, {enough.why}"
    return Plan(enough.updates, evaluations, f"{why} (--steps overrides this)")


def new_record(task: Task, trainer: Trainer, plan: Plan) -> dict[str, Any]:
    """Return the contents of `run.json` for a new run."""
    return {
        "settings": task.settings.what_matters(),
        **task.record(),
        "updates": plan.updates,
        "evaluations": plan.evaluations,
        "precision": trainer.precision,
        "parameters": trainer.parameters,
        "model": asdict(task.config),
        "versions": versions(),
    }
