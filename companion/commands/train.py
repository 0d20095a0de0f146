"""`companion train`: start or resume a run, until it is finished or stopped with Ctrl-C."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from itertools import count, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from jsonargparse import ActionConfigFile, Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import REFUSED, must_be_writable, must_have_room
from companion.commands.resuming import check_same_data, check_same_model, check_same_settings, with_its_data
from companion.commands.settings_file import read_settings
from companion.ground.display import printable
from companion.ground.number_limits import flag_type
from companion.training import report
from companion.training.hyperparameters import Learning
from companion.training.schedule import cut_warmup
from companion.training.settings import (
    GROUPS,
    TASKS,
    NumberWordsSettings,
    RunSettings,
    Settings,
    TextSettings,
    TuneSettings,
    differences,
    flag,
    lengthens,
    recorded,
)

if TYPE_CHECKING:
    import torch

    from companion.training.distributed.parallel import Parallel
    from companion.training.run_folder import RunFolder
    from companion.training.tasks.task import Measured, Task
    from companion.training.trainer import Trainer
    from companion.transformer import Transformer

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
USUAL = {
    *("data", "from", "to", "init-from"),
    *("model", "d-model", "layers", "heads", "context", "experts", "dropout"),
    *("steps", "minutes", "batch", "learning-rate", "seed"),
    *("out", "device", "compile"),
}
"""The flags that `--help` explains; `--help-all` explains the others as well."""
_STOPPING = (
    "You can stop with Ctrl-C at any time: the run is saved, and the same command resumes it. A resumed run ends with "
    "the same weights as one that was never interrupted, bit for bit, even if it was killed."
)
_SEVERAL = (
    "Several processes, one per GPU or per few cores of a CPU, can train one model together. Batches and losses do not "
    "depend on the number of processes, and a run can be resumed by another number of them, or by one. torchrun starts "
    "them, in one of three ways; in the third, everything but the experts is replicated (DDP) or, with --shard, "
    "sharded (FSDP):\n\n"
    "  torchrun --nproc-per-node 4 -m companion train\n"
    "      each process holds the whole model; gradients are summed (DDP)\n"
    "  torchrun --nproc-per-node 4 -m companion train --shard\n"
    "      each process holds a quarter of the weights, gradients and optimizer\n"
    "      states, for a model that would not fit otherwise (FSDP)\n"
    "  torchrun --nproc-per-node 4 -m companion train --experts 8 --expert-parallel 4\n"
    "      each process holds two experts of every layer, and tokens are sent to\n"
    "      their experts"
)
_TEXT = {
    TextSettings.task: (
        "Train a decoder on text and print its bits per byte on held-out text, next to what xz and n-gram models need "
        "for the same text. Without --data, it learns from the prose of the first edition of this course.\n\n"
        f"{_STOPPING}\n\n"
        "With --task number-words, an encoder-decoder learns to translate number names instead; companion train "
        "--task number-words --help shows its flags and defaults.",
        "examples:\n"
        "  companion train                                the prose of this course\n"
        "  companion train --minutes 5                    for about five minutes\n"
        "  companion train --data notes/ 'books/*.txt'    your own text\n"
        "  companion train --data python                  this Python's reference\n"
        "  companion train --d-model 256 --layers 6 --out runs/larger\n"
        "  companion train --experts 8                    a mixture of experts\n"
        "  companion train --steps 3000 --out runs/course a finished run, made longer\n"
        "  companion train --init-from runs/x --data me/  its weights, on another text\n"
        "  companion train --config settings.yaml         the same flags from a file;\n"
        "                                                 --print_config writes one\n"
        "  companion train --task number-words            translate number names",
    ),
    NumberWordsSettings.task: (
        "Train an encoder-decoder to translate the names of the numbers from 0 to 999,999, and print how many unseen "
        "names it translates without a mistake. One number in ten is held out.\n\n"
        'German says one-and-twenty ("einundzwanzigtausenddreihundertvier"), so the model has to learn the order of '
        "the words.\n\n"
        f"{_STOPPING}",
        "examples:\n"
        "  companion train --task number-words --from de --to en\n"
        "      ten seconds of training, over 99 % right\n"
        "  companion train --task number-words --from fr --to de\n"
        "  companion train --task number-words --source-pieces characters\n"
        "      letters in place of parts of words\n"
        "  companion train --task number-words --label-smoothing 0.1\n"
        "then:\n"
        "  companion translate einundzwanzigtausenddreihundertvier",
    ),
}

Kind = TypeVar("Kind", bound=RunSettings)
ALIKE = {f.name for f in fields(Learning)}
"""Settings of every trainer, whose flags come after the others of their group."""


def task_asked_for(arguments: Sequence[str]) -> str:
    """Return the task that the flags or the --config file of `companion train` name, which decides its other flags.

    The default is "text". It is also returned for an unknown task, which the parser then rejects.

    Raises:
        ValueError: If the --config file is not a settings file.
    """
    asked: object = TextSettings.task
    for argument, after in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        value = value if equals else after
        if name == "--config":
            asked = read_settings(value).get("task", asked)
        elif name == "--task":
            asked = value
    return asked if isinstance(asked, str) and asked in TASKS else TextSettings.task


def parser(task: str = TextSettings.task) -> Parser:
    """Return the parser of a run of `task`, with a flag for each field of its settings."""
    description, epilog = _TEXT[task]
    kind = TASKS[task]
    flags = [flag(f) for f in fields(kind)]
    rare = [name for name in flags if name not in USUAL]
    parser = Parser(description=description, epilog=epilog, rare=rare, more=_SEVERAL)
    groups = add_settings(parser, kind, kind())
    groups[GROUPS[0]].add_argument(
        "--task",
        type=Literal[*TASKS],
        default=task,
        help="task to learn: continue text, or translate number names",
    )
    return parser


def add_settings(parser: Parser, kind: type[RunSettings], defaults: Any = None) -> dict[str, Any]:
    """Add a flag for each field of a run's settings, and `--config`.

    Args:
        parser: The parser that gets the flags.
        kind: The class of the settings.
        defaults: Settings whose values are the defaults of the flags (default: those of the fields).

    Returns:
        The groups of flags, by their titles.
    """
    hints = get_type_hints(kind, include_extras=True)
    used = [title for title in GROUPS if any(f.metadata["group"] == title for f in fields(kind))]
    groups = {title: parser.add_argument_group(title) for title in used}
    for f in sorted(fields(kind), key=lambda f: (GROUPS.index(f.metadata["group"]), f.name in ALIKE)):
        default = kind._default(f.name) if defaults is None else getattr(defaults, f.name)
        options: dict[str, Any] = {"type": flag_type(hints[f.name]), "default": default}
        if f.name == "data":
            options |= {"type": str, "nargs": "+", "metavar": "PATH"}
        elif f.name in ("compile", "recompute", "tensorboard", "shard"):
            options = {"action": "store_true"}
        groups[f.metadata["group"]].add_argument("--" + flag(f), help=f.metadata["help"], **options)
    groups[GROUPS[3]].add_argument(
        "--config", action=ActionConfigFile, metavar="FILE", help="YAML or JSON file with any of these flags"
    )
    return groups


def run(flags: Namespace, arguments: list[str]) -> int:
    """Train with the settings of the flags, and return the exit code.

    Args:
        flags: The flags of the command.
        arguments: The command line, for messages that show how to resume.

    Raises:
        ValueError: If the input is invalid. Nothing is written then.
    """
    from companion.training.distributed.launch import only_main_speaks
    from companion.training.distributed.parallel import Elsewhere

    try:
        with only_main_speaks():
            return _train_here(flags, arguments)
    except Elsewhere as error:
        return error.code


def _train_here(flags: Namespace, arguments: list[str]) -> int:
    settings = asked(TASKS[flags.task], flags)
    settings.model_config(vocab=257)  # an invalid model is rejected before anything is read
    return train_run(settings, arguments)


def asked(kind: type[Kind], flags: Namespace) -> Kind:
    """Return the settings of this class that the flags specify. Raises `ValueError` as the class does."""
    return kind(**{f.name: flags[flag(f).replace("-", "_")] for f in fields(kind)})


def train_run(settings: RunSettings, arguments: list[str]) -> int:
    """Start or resume the run with these settings, and return the exit code.

    Args:
        settings: The settings.
        arguments: The command line, for messages that show how to resume.

    Raises:
        ValueError: If the input is invalid. Nothing is written then.
    """
    from companion.ground.device import find_device
    from companion.training.distributed.launch import check_launch, command, processes_launched, start_processes
    from companion.training.distributed.parallel import Lost
    from companion.training.run_folder import RunFolder
    from companion.training.tensorboard import require_tensorboard

    if settings.tensorboard:
        require_tensorboard()
    check_launch()
    place = _place(settings)
    must_be_writable(place, "--out")
    folder = RunFolder(place)
    folder.check_ours()
    again = command(arguments)
    device = find_device(settings.device)
    if isinstance(settings, Settings):
        must_have_room(settings, device, processes_launched())
    processes = start_processes(
        device, shard=settings.shard, expert_parallel=settings.expert_parallel, arguments=arguments
    )
    try:
        with processes as parallel, ExitStack() as held:
            return _train_into(folder, settings, again, held, parallel.device or device, parallel)
    except Lost as error:
        if error.speaks:
            standing = f"{_standing(folder)} Resume with the same command:\n  {again}"
            print(f"companion {arguments[0]}: error: {error}.\n{standing}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # most often a full disk
        if error.errno in REFUSED and not folder.exists:
            raise
        remedy = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Fix that"
        standing = f"{_standing(folder)} {remedy}, and the same command resumes:\n  {again}"
        print(f"companion {arguments[0]}: error: {error}.\n{standing}", file=sys.stderr)
        return 1


def _place(settings: RunSettings) -> Path:
    """Return the folder of the run.

    Without `--out`, it is the first of runs/NAME, runs/NAME-2, ... that is unused or contains a run with these
    settings, so that runs with different settings do not collide.
    """
    from companion.training.run_folder import RunFolder

    usual = settings.folder()
    if settings.out is not None:
        return usual
    for number in count(1):
        folder = RunFolder(usual if number == 1 else usual.with_name(f"{usual.name}-{number}"))
        if not folder.exists:
            return folder.path
        if not (changed := differences(recorded(folder.record()), settings)):
            return folder.path
        hint = f"; --out {folder.path} makes it longer" if lengthens(folder.record(), settings) else ""
        print(f"{folder.path} holds a run with other settings ({changed[0]}){hint}", file=sys.stderr)
    raise AssertionError("infinitely many numbers")


def _train_into(
    folder: RunFolder, settings: RunSettings, again: str, held: ExitStack, device: torch.device, parallel: Parallel
) -> int:
    """Start or resume the run in `folder`, and return the exit code.

    All processes must call this function together. `held` keeps the lock of the folder until the run ends.
    """
    from companion.costs.chips import training_peak
    from companion.ground.device import find_precision
    from companion.training.run import new_record, open_task, plan, share_task
    from companion.training.trainer import Diverged

    going, longer = parallel.on_main(lambda: (folder.exists, folder.exists and lengthens(folder.record(), settings)))
    finished = parallel.on_main(lambda: folder.finished and not longer)
    if going:
        if not finished:
            parallel.on_main(lambda: held.enter_context(folder.lock()))
        if not longer:
            parallel.on_main(lambda: check_same_settings(folder, settings))
    task = parallel.together(
        lambda: with_its_data(folder, lambda: open_task(settings, folder)) if going else open_task(settings)
    )
    precision = find_precision(settings.precision, device)
    if going:
        record: dict[str, Any] = parallel.on_main(folder.record)
        if missing := {"updates", "evaluations", "precision", "text"} - record.keys():
            raise ValueError(f"{folder.path / 'run.json'}: the entry {min(missing)!r} is missing; the file is damaged")
        parallel.together(lambda: with_its_data(folder, lambda: check_same_data(folder, record, task)))
        if finished:
            print(f"{folder.path}: this run is finished. More --steps go on with it, another --out begins a new one.\n")
            _print_verdict(task, folder, record, folder.result())
            return 0
        parallel.together(lambda: check_same_model(folder, record, task))
        if longer:
            record = parallel.on_main(lambda: _lengthened(folder, settings))
        trainer = task.trainer(record["updates"], device, record["precision"], parallel)
    else:
        if task.preparing and parallel.main:
            print(task.preparing.format(title=task.title), file=sys.stderr)
        task = share_task(task, parallel)
        if settings.minutes is not None and parallel.main:
            print("measuring how fast this machine trains the model", file=sys.stderr)
        length = plan(task, device, precision, parallel)
        for line in filter(None, (length.why, _cut(settings, length.updates))):
            print(f"{line}\n")
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
        _say_diverged(folder, settings, error)
        return 1
    if not reached:
        print(f"\nStopped and saved at update {trainer.done:,} of {trainer.config.updates:,}. To go on:\n  {again}")
        if picture := parallel.on_main(lambda: _draw(task, folder, record)):
            print(f"The course of the loss so far: {picture}")
        return INTERRUPTED
    _finish(task, trainer, folder, record)
    return 0


def _say_diverged(folder: RunFolder, settings: RunSettings, error: Exception) -> None:
    command = "tune" if isinstance(settings, TuneSettings) else "train"
    print(
        f"companion {command}: error: {error}.\n{_standing(folder)} The same command would come to the same point "
        "again: an update depends on nothing but the state before it. Lower --learning-rate, or raise --warmup, "
        "and name another --out, since that is another run.",
        file=sys.stderr,
    )


def _lengthened(folder: RunFolder, settings: RunSettings) -> dict[str, Any]:
    """Extend the run in `folder` to the number of updates in `settings`, and return its new record."""
    now = f"{settings.steps:,}, and its learning rates are those of a run of that length"
    print(f"{folder.path}: from {folder.record()['updates']:,} updates to {now}\n")
    folder.lengthen(settings)
    return folder.record()


def _cut(settings: RunSettings, updates: int) -> str:
    """Return a message if the warm-up is shortened because the run is short, and otherwise an empty text."""
    warmup = cut_warmup(settings.warmup, updates)
    asked = settings.warmup != type(settings).warmup and settings.schedule != "inverse_sqrt"
    if not asked or warmup == settings.warmup:
        return ""
    return f"Of {updates:,} updates {warmup:,} warm up, a fifth, not the {settings.warmup:,} asked for."


def _standing(folder: RunFolder) -> str:
    """Return a sentence about the last checkpoint of a stopped run."""
    last = folder.checkpoint()
    if last is None:
        return "No checkpoint had been written yet."
    return f"The last checkpoint, after update {int(last.name.removeprefix('step-')):,}, is whole: {last}."


def _fit(task: Task, trainer: Trainer, folder: RunFolder, evaluations: int, peak: float | None) -> bool:
    from tqdm.auto import tqdm

    from companion.training.run_loop import fit

    def show(update: int, measured: Measured, model: Transformer) -> None:
        width = len(f"{trainer.config.updates:,}")
        tqdm.write(f"  update {update:>{width},}  {measured}   {printable(task.excerpt(model))}")
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
    """Plot the loss of a run so far and return the path; `None` if there are no updates or matplotlib is missing."""
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
