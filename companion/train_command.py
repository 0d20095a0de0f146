"""What `companion train` does: begin a run, or go on with the one that is there, to its end or to Ctrl-C.

torch and the rest are imported by the functions that need them, after a mistyped flag has been answered.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.training import report
from companion.training.settings import TASKS, Settings, differences, flag, recorded

if TYPE_CHECKING:
    import torch

    from companion.training.distributed import Parallel
    from companion.training.folder import RunFolder
    from companion.training.loop import Trainer
    from companion.training.task import Measured, Task
    from companion.transformer import Transformer

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def run_training(chosen: Namespace, arguments: list[str]) -> int:
    """Train what the flags in `chosen` ask for; the exit code.

    arguments:  the command's own, for messages that show how to go on.

    Raises `ValueError` for bad input, with nothing written.
    """
    from companion.training.distributed import Elsewhere, only_main_speaks

    try:
        with only_main_speaks():
            return _train_here(chosen, arguments)
    except Elsewhere as error:
        return error.code


def _train_here(chosen: Namespace, arguments: list[str]) -> int:
    kind = TASKS[chosen.task]
    settings = kind(**{f.name: chosen[flag(f).replace("-", "_")] for f in fields(kind)})
    from companion.training import distributed
    from companion.training.board import require_tensorboard
    from companion.training.folder import RunFolder
    from companion.training.run import find_device

    if settings.tensorboard:
        require_tensorboard()
    folder = RunFolder(settings.folder())
    again = distributed.command(arguments)
    device = find_device(settings.device)
    processes = distributed.start_processes(
        device, shard=settings.shard, expert_parallel=settings.expert_parallel, arguments=arguments
    )
    try:
        with processes as parallel, ExitStack() as held:
            return _train_into(folder, settings, again, held, parallel.device or device, parallel)
    except distributed.Lost as error:
        if error.speaks:
            print(
                f"companion train: error: {error}.\n{_standing(folder)} Go on with the same command:\n  {again}",
                file=sys.stderr,
            )
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk above all
        remedy = "Make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Put that right"
        print(
            f"companion train: error: {error}.\n{_standing(folder)} {remedy}, and the same command goes on:\n  {again}",
            file=sys.stderr,
        )
        return 1


def _train_into(
    folder: RunFolder, settings: Settings, again: str, held: ExitStack, device: torch.device, parallel: Parallel
) -> int:
    """Begin the run in `folder`, or go on with it; `held` until it ends: the folder's lock. A collective."""
    from companion.chips import training_peak
    from companion.training.loop import Diverged
    from companion.training.run import find_precision, new_record, open_task, plan, share_task

    going, finished = parallel.on_main(lambda: (folder.exists, folder.finished))
    if going:
        if not finished:
            parallel.on_main(lambda: held.enter_context(folder.lock()))
        parallel.on_main(lambda: _check_same_settings(folder, settings))
    task = parallel.together(
        lambda: _with_its_data(folder, lambda: open_task(settings, folder)) if going else open_task(settings)
    )
    precision = find_precision(settings.precision, device)
    if going:
        record = parallel.on_main(folder.record)
        if missing := {"updates", "evaluations", "precision", "text"} - record.keys():
            raise ValueError(f"{folder.path / 'run.json'}: expected {min(missing)!r} in it, found none; it is damaged")
        parallel.together(lambda: _with_its_data(folder, lambda: _check_same_data(folder, record, task)))
        if finished:
            print(f"{folder.path}: this run is finished. Another --out begins a new one.\n")
            _print_verdict(task, folder, record, folder.result())
            return 0
        trainer = task.trainer(record["updates"], device, record["precision"], parallel)
    else:
        if task.preparing and parallel.main:
            print(task.preparing.format(title=task.title), file=sys.stderr)
        task = share_task(task, parallel)
        if settings.minutes is not None and parallel.main:
            print("measuring how fast this machine trains the model", file=sys.stderr)
        length = plan(task, device, precision, parallel)
        if length.why:
            print(f"{length.why}\n")
        trainer = task.trainer(length.updates, device, precision, parallel)
        record = parallel.on_main(lambda: new_record(task, trainer, length))
        parallel.on_main(lambda: held.enter_context(folder.lock()))
        parallel.on_main(lambda: folder.create(record, task.files()))
    peak = training_peak(device, trainer.precision, parallel.world)
    report.print_head(task, trainer, folder, peak)
    if before := task.before(record):
        print(before, flush=True)
    try:
        reached = _fit(task, trainer, folder, record["evaluations"], None if peak is None else peak.flops)
    except Diverged as error:
        if not parallel.main:
            return 1
        _draw(task, folder, record)
        print(
            f"companion train: error: {error}.\n{_standing(folder)} The same command would come to the same point "
            "again: an update depends on nothing but the state before it. Lower --learning-rate, or raise --warmup, "
            "and name another --out, since that is another run.",
            file=sys.stderr,
        )
        return 1
    if not reached:
        print(f"\nStopped and saved at update {trainer.done:,} of {trainer.config.updates:,}. To go on:\n  {again}")
        if picture := parallel.on_main(lambda: _draw(task, folder, record)):
            print(f"The course of the loss so far: {picture}")
        return INTERRUPTED
    _finish(task, trainer, folder, record)
    return 0


def _standing(folder: RunFolder) -> str:
    """What there is of a run that has come to a stop."""
    last = folder.checkpoint()
    if last is None:
        return "No checkpoint had been written yet."
    return f"The last checkpoint, after update {int(last.name.removeprefix('step-')):,}, is whole: {last}."


def _with_its_data(folder: RunFolder, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        hint = f"{folder.path} is as it was: with that put right, the same command goes on"
        raise ValueError(f"{error}\n{hint}") from None


def _check_same_settings(folder: RunFolder, settings: Settings) -> None:
    record = folder.record()
    changed = differences(recorded(record), settings)
    if changed:
        lines = "\n  ".join(changed)
        if record["settings"].get("data") == []:
            lines += "\n  (when it began, the default text was the language reference: --data python goes on with it)"
        raise ValueError(
            f"{folder.path} holds a run with other settings:\n  {lines}\nexpected the same ones to go on with it, "
            "or another --out to begin a new run"
        )


def _check_same_data(folder: RunFolder, record: dict[str, Any], task: Task) -> None:
    from companion.training.text import TextTask

    if record["text"]["fingerprint"] != task.fingerprint:
        # A file that is no longer text is left out without an error: here is the place to hear of it.
        notes = task.text.corpus.notes if isinstance(task, TextTask) else ()
        then = record["text"]["title"]
        changed = "has changed since" if then == task.title else f"is not {then}, which it began with"
        raise ValueError(
            f"{folder.path} holds a run on other data: {task.title} {changed}; expected the same to go on, or "
            "another --out to begin a new run" + "".join(f"\n  as it is now: {note}" for note in notes)
        )


def _fit(task: Task, trainer: Trainer, folder: RunFolder, evaluations: int, peak: float | None) -> bool:
    from tqdm.auto import tqdm

    from companion.training.fit import fit

    def show(update: int, measured: Measured, model: Transformer) -> None:
        width = len(f"{trainer.config.updates:,}")
        tqdm.write(f"  update {update:>{width},}  {measured}   {task.excerpt(model)}")
        sys.stdout.flush()

    settings = task.settings
    return fit(
        trainer,
        lambda model: task.measure(model, trainer.precision, brief=True),
        folder=folder,
        evaluate_every=max(1, trainer.config.updates // evaluations),
        save_seconds=settings.save_seconds,
        keep=settings.keep,
        after_evaluation=show,
        say=lambda line: print(line, flush=True),
        peak=peak,
        tensorboard=settings.tensorboard,
    )


def _draw(task: Task, folder: RunFolder, record: dict[str, Any]) -> str | None:
    """Draw the course of a run as far as it has come; where to. Nothing without an update, or without matplotlib."""
    picture = folder.path / "loss.png"
    entries = list(folder.entries())
    return str(picture) if entries and task.plot(entries, picture, record) else None


def _finish(task: Task, trainer: Trainer, folder: RunFolder, record: dict[str, Any]) -> None:
    model = trainer.whole()

    def finish() -> tuple[dict[str, Any], str | None]:
        result = task.measure(model, trainer.precision).result()
        picture = _draw(task, folder, record)
        folder.finish(result)
        return result, picture

    result, picture = trainer.parallel.on_main(finish)
    print()
    _print_verdict(task, folder, record, result, picture)


def _print_verdict(
    task: Task, folder: RunFolder, record: dict[str, Any], result: dict[str, Any], picture: str | None = None
) -> None:
    print(task.verdict(record, result))
    if picture is not None:
        print(f"The course of the loss: {picture}")
    print(f"Next: {task.next_command(folder.path)}")
