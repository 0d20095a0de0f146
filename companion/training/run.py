"""A run from its settings to its result; it may be new, resumed, extended, or already finished.

`Run.open` locks the folder of a run while the run is trained. The length of a new run (`plan`) and the contents of its
`run.json` (`new_record`) are fixed when the run is created.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from companion.config.model import ModelConfig
from companion.costs.chips import Peak, training_peak
from companion.ground.atomic import must_be_writable
from companion.ground.device import find_device, find_precision, versions
from companion.ground.display import printable
from companion.training.distributed.launch import check_launch, command, processes_launched, start_processes
from companion.training.distributed.parallel import Parallel, PeerDied, PeerFailed
from companion.training.run_folder import RunFolder
from companion.training.run_loop import fit, seconds_per_update
from companion.training.schedule import cut_warmup
from companion.training.settings import (
    NumberWordsSettings,
    RunSettings,
    Settings,
    TextSettings,
    TuneSettings,
    differences,
    lengthens,
    recorded,
)
from companion.training.tasks.large_text import open_text
from companion.training.tasks.number_words import NumberWordsTask
from companion.training.tasks.task import Measured, Task
from companion.training.tasks.text import TextTask
from companion.training.tasks.tune import TuneTask, open_tune
from companion.training.tensorboard import require_tensorboard
from companion.training.trainer import Diverged, Trainer
from companion.transformer import Transformer

EVALUATIONS = 10
"""Number of evaluations in a run."""


class Halted(Exception):
    """Raised when a run cannot continue. The message says why, which checkpoint remains, and what to do."""


@dataclass
class Run:
    """A run that is trained by this process, or by several processes including this one.

    Attributes:
        settings: its settings.
        folder: the run on disk.
        device: the device of this process.
        parallel: the processes of the run.
        resume: the command line that resumes it.
        task: the task that the model learns.
        record: the contents of `run.json`.
        trainer: the trainer, unless the run was already finished.
        finished: whether the run is finished and measured, so that nothing is left to train.
        result: the result of a finished run.
        picture: the path of the figure that shows the loss, if it was drawn.
    """

    settings: RunSettings
    folder: RunFolder
    device: torch.device
    parallel: Parallel
    resume: str
    task: Task = field(init=False)
    record: dict[str, Any] = field(init=False)
    trainer: Trainer = field(init=False)
    finished: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    picture: str | None = None

    @classmethod
    @contextmanager
    def open(cls, settings: RunSettings, arguments: list[str]) -> Iterator[Run]:
        """Create or open the run with these settings, and lock its folder during the `with` block.

        All processes that a launcher started must call this together.

        Args:
            settings: the settings of the run.
            arguments: the command line, for messages that show how to resume.

        Raises:
            ValueError: if the input is invalid, or if the folder contains a run with different settings, data or model.
                Nothing is written then.
            Halted: if another process of the run is lost, or if a file could not be written.
            PeerFailed: if another process reports the error.
        """
        if settings.tensorboard:
            require_tensorboard()
        check_launch()
        folder, device, again = _folder(settings), find_device(settings.device), command(arguments)
        if isinstance(settings, Settings):
            settings.check_memory(device, processes_launched())
        processes = start_processes(
            device, shard=settings.shard, expert_parallel=settings.expert_parallel, arguments=arguments
        )
        try:
            with processes as parallel, ExitStack() as held:
                run = cls(settings, folder, parallel.device or device, parallel, again)
                if parallel.on_main(lambda: folder.exists):
                    run._go_on(held)
                else:
                    run._begin(held)
                yield run
        except PeerDied as error:
            if not error.speaks:
                raise PeerFailed(1) from error
            raise Halted(f"{error}.\n{_standing(folder)} Resume with the same command:\n  {again}") from error
        except BrokenPipeError:
            raise
        except OSError as error:  # most often a full disk
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full and not folder.exists:
                raise
            remedy = "Free some space" if full else "Fix that"
            standing = f"{_standing(folder)} {remedy}, and the same command resumes:\n  {again}"
            raise Halted(f"{error}.\n{standing}") from error

    def _begin(self, held: ExitStack) -> None:
        """Create the run (a collective)."""
        settings, parallel = self.settings, self.parallel
        task = parallel.together(lambda: open_task(settings))
        precision = find_precision(settings.precision, self.device)
        if task.preparing and parallel.main:
            print(task.preparing.format(title=task.title), file=sys.stderr)
        self.task = share_task(task, parallel)
        if settings.minutes is not None and parallel.main:
            print("measuring how fast this machine trains the model", file=sys.stderr)
        length = plan(self.task, self.device, precision, parallel)
        for line in filter(None, (length.why, _cut(settings, length.updates))):
            print(f"{line}\n")
        self.trainer = self.task.trainer(length.updates, self.device, precision, parallel)
        self.record = parallel.on_main(lambda: new_record(self.task, self.trainer, length))
        parallel.on_main(lambda: held.enter_context(self.folder.lock()))
        parallel.on_main(lambda: self.folder.create(self.record, self.task.files()))

    def _go_on(self, held: ExitStack) -> None:
        """Open the run in the folder, and extend it if the settings ask for more updates (a collective)."""
        settings, folder, parallel = self.settings, self.folder, self.parallel
        longer = parallel.on_main(lambda: lengthens(folder.record(), settings))
        self.finished = parallel.on_main(lambda: folder.finished and not longer)
        if not self.finished:
            parallel.on_main(lambda: held.enter_context(folder.lock()))
        self.record = parallel.on_main(folder.record)
        if not longer:
            parallel.on_main(self._check_settings)
        self.task = parallel.together(self._open_task)
        find_precision(settings.precision, self.device)  # raises an error if this device does not support it
        if self.finished:
            self.result = parallel.on_main(folder.result)
            return
        parallel.together(self.check_model)
        if longer:
            now = f"{settings.steps:,}, and its learning rates are those of a run of that length"
            print(f"{folder.path}: from {self.record['updates']:,} updates to {now}\n")
            parallel.on_main(lambda: folder.lengthen(settings))
            self.record = parallel.on_main(folder.record)
        self.trainer = self.task.trainer(self.record["updates"], self.device, self.record["precision"], parallel)

    def _open_task(self) -> Task:
        try:
            task = open_task(self.settings, self.folder)
            self._check_data(task)
        except ValueError as error:
            hint = f"{self.folder.path} has not changed; once that is fixed, the same command resumes it"
            raise ValueError(f"{error}\n{hint}") from None
        return task

    def _check_settings(self) -> None:
        changed = differences(recorded(self.record), self.settings)
        if changed:
            lines = "\n  ".join(changed)
            raise ValueError(
                f"{self.folder.path} holds a run with other settings:\n  {lines}\nuse the same settings to resume it, "
                f"or another --out to start a new run, as in --out {self._unused}"
            )

    def _check_data(self, task: Task) -> None:
        place, known = self.folder.path, self.record["text"]
        if isinstance(task, TuneTask) and known.get("start") != task.start.fingerprint:
            raise ValueError(
                f"--start {task.start.folder}: the run in {place} started from {self.record['start']}, not from this "
                f"model; choose another --out to start a new run, as in --out {self._unused}"
            )
        if known["fingerprint"] != task.fingerprint:
            # A file that is no longer text causes no error but is left out, so the message has to mention it.
            notes = task.text.corpus.notes if isinstance(task, TextTask) else ()
            same = known["title"] == task.title
            changed = "has changed since" if same else f"is not {known['title']}, which it began with"
            raise ValueError(
                f"{place} holds a run on different data: {task.title} {changed}; use the same data to resume it, or "
                f"another --out to start a new run, such as --out {self._unused}"
                + "".join(f"\n  as it is now: {note}" for note in notes)
            )

    def check_model(self) -> None:
        """Raise `ValueError` if the run began with a different model.

        The settings contain only the name of the --model file, whose content may have changed since the run began. A
        field of the configuration that did not exist when the run began is taken to have its default value.
        """
        if ModelConfig.from_json(json.dumps(self.record["model"])) != self.task.config:
            name = f"--model {self.settings.model}" if isinstance(self.settings, Settings) else "--start"
            raise ValueError(
                f"{name}: the run in {self.folder.path} started with a different file; restore the original "
                "file or choose another --out"
            )

    @property
    def _unused(self) -> Path:
        """An unused path next to the run's folder: the same name with a number appended."""
        path = self.folder.path
        return next(new for number in count(2) if not (new := path.with_name(f"{path.name}-{number}")).exists())

    @cached_property
    def peak(self) -> Peak | None:
        """The combined peak performance of the devices of all processes, if it is known."""
        return training_peak(self.device, self.trainer.precision, self.parallel.world)

    def train(self) -> bool:
        """Train to the last update and store the result, unless Ctrl-C or SIGTERM stops the run earlier (a collective).

        Returns:
            Whether the last update was reached.

        Raises:
            Halted: if the loss is not finite.
        """
        settings, trainer = self.settings, self.trainer
        try:
            self.finished = fit(
                trainer,
                lambda model: self.task.measure(model, trainer.precision, brief=True),
                folder=self.folder,
                evaluate_every=max(1, trainer.config.updates // self.record["evaluations"]),
                save_seconds=settings.save_seconds,
                keep=settings.keep,
                after_evaluation=self._show,
                say=lambda line: print(line, flush=True),
                peak=None if self.peak is None else self.peak.flops,
                tensorboard=settings.tensorboard,
            )
        except Diverged as error:
            if not self.parallel.main:
                raise PeerFailed(1) from error
            self.draw()
            raise Halted(
                f"{error}.\n{_standing(self.folder)} The same command would fail in the same way, because an "
                "update depends only on the state before it. Lower --learning-rate or raise --warmup, and choose "
                "another --out, because that is a different run."
            ) from error
        if self.finished:
            model = trainer.whole()
            self.result = self.parallel.on_main(lambda: self.task.measure(model, trainer.precision).result())
            self.picture = self.parallel.on_main(self.draw)
            self.parallel.on_main(lambda: self.folder.finish(self.result))
        return self.finished

    def draw(self) -> str | None:
        """Plot the loss so far and return the path, or `None` if there are no updates or matplotlib is missing."""
        picture, entries = self.folder.path / "loss.png", list(self.folder.entries())
        return str(picture) if entries and self.task.plot(entries, picture, self.record) else None

    def verdict(self) -> str:
        """Describe the result of a finished run, and what to do next."""
        drawn = [] if self.picture is None else [f"Loss curve: {self.picture}"]
        next_one = f"Next: {self.task.next_command(self.folder.path)}"
        return "\n".join([self.task.verdict(self.record, self.result), *drawn, next_one])

    def _show(self, update: int, measured: Measured, model: Transformer) -> None:
        width = len(f"{self.trainer.config.updates:,}")
        tqdm.write(f"  update {update:>{width},}  {measured}   {printable(self.task.excerpt(model))}")
        sys.stdout.flush()


def _folder(settings: RunSettings) -> RunFolder:
    """Return the folder of the run.

    Without `--out`, it is the first of runs/NAME, runs/NAME-2, ... that is unused or contains a run with these
    settings, so that runs with different settings do not collide.

    Raises:
        ValueError: if the folder contains something other than a run, or cannot be written to.
    """
    usual = settings.folder()
    for number in count(1):
        folder = RunFolder(usual if number == 1 else usual.with_name(f"{usual.name}-{number}"))
        taken = settings.out is None and folder.exists
        if not taken or not (changed := differences(recorded(folder.record()), settings)):
            must_be_writable(folder.path, "--out")
            folder.check_ours()
            return folder
        hint = f"; --out {folder.path} makes it longer" if lengthens(folder.record(), settings) else ""
        print(f"{folder.path} holds a run with other settings ({changed[0]}){hint}", file=sys.stderr)
    raise AssertionError("infinitely many numbers")


def _standing(folder: RunFolder) -> str:
    """Return a sentence about the last checkpoint of a stopped run."""
    last = folder.checkpoint()
    if last is None:
        return "No checkpoint had been written yet."
    return f"The last checkpoint, after update {int(last.name.removeprefix('step-')):,}, is complete: {last}."


def _cut(settings: RunSettings, updates: int) -> str:
    """Return a message if the warm-up is shortened because the run is short, or an empty string otherwise."""
    warmup = cut_warmup(settings.warmup, updates)
    asked = settings.warmup != type(settings).warmup and settings.schedule != "inverse_sqrt"
    if not asked or warmup == settings.warmup:
        return ""
    return f"The warm-up takes {warmup:,} of the {updates:,} updates, a fifth, instead of {settings.warmup:,}."


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
    """Return the task of a new run; files that take long to make are made only by the main process (a collective).

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
    """The length of a new run, fixed at its start because the schedule and resumed runs depend on it.

    `why` explains what limited the length, if anything did.
    """

    updates: int
    evaluations: int = EVALUATIONS
    why: str = ""


def plan(task: Task, device: torch.device, precision: str, parallel: Parallel | None = None) -> Plan:
    """Choose the length of a new run (a collective).

    With `minutes`, the speed of this machine is measured, and evaluations take at most a tenth of the time. Without
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
