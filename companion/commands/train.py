"""`companion train`: start or resume a run, and continue until it is finished or stopped with Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any, Literal, get_type_hints

from jsonargparse import ActionConfigFile, Namespace

from companion.commands.parser import Parser
from companion.commands.settings_file import read_settings
from companion.commands.train_help import SEVERAL, TEXT, USUAL
from companion.ground.number_limits import flag_type
from companion.training import report
from companion.training.hyperparameters import Learning
from companion.training.settings import GROUPS, TASKS, RunSettings, TextSettings, flag

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
ALIKE = {f.name for f in fields(Learning)}
"""Settings that all trainers have; their flags come last in their group."""


def task_asked_for(arguments: Sequence[str]) -> str:
    """Return the task named by the flags or the --config file of `companion train`; it determines the other flags.

    The default is "text". An unknown task gives the default too, and the parser then reports the error.

    Raises:
        ValueError: If the --config file is not a valid settings file.
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
    """Return the parser for runs of `task`, with a flag for each field of the task's settings."""
    description, epilog = TEXT[task]
    parser = Parser(description=description, epilog=epilog, rare=rare(TASKS[task], USUAL), more=SEVERAL)
    groups = add_settings(parser, TASKS[task])
    help = "task to learn: continue text, or translate number names"
    groups[GROUPS[0]].add_argument("--task", type=Literal[*TASKS], default=task, help=help)
    return parser


def rare(kind: type[RunSettings], usual: set[str]) -> list[str]:
    """Return the flags of the less common settings."""
    return [name for f in fields(kind) if (name := flag(f)) not in usual]


def add_settings(parser: Parser, kind: type[RunSettings]) -> dict[str, Any]:
    """Add a flag for each field of a run's settings, and `--config`. Return the groups of flags, keyed by title."""
    hints = get_type_hints(kind, include_extras=True)
    used = [title for title in GROUPS if any(f.metadata["group"] == title for f in fields(kind))]
    groups = {title: parser.add_argument_group(title) for title in used}
    for f in sorted(fields(kind), key=lambda f: (GROUPS.index(f.metadata["group"]), f.name in ALIKE)):
        options: dict[str, Any] = {"type": flag_type(hints[f.name]), "default": kind._default(f.name)}
        if f.name == "data":
            options |= {"type": str, "nargs": "+", "metavar": "PATH"}
        elif f.name in ("compile", "activation_checkpointing", "tensorboard", "shard"):
            options = {"action": "store_true"}
        groups[f.metadata["group"]].add_argument("--" + flag(f), help=f.metadata["help"], **options)
    groups[GROUPS[3]].add_argument(
        "--config", action=ActionConfigFile, metavar="FILE", help="YAML or JSON file with any of these flags"
    )
    return groups


def run(flags: Namespace, arguments: list[str]) -> int:
    """Train with the settings given by the flags, and return the exit code.

    Args:
        flags: The flags of the command.
        arguments: The command line, for messages that show how to resume.

    Raises:
        ValueError: If the input is invalid. Nothing is written then.
    """
    from companion.training.distributed.launch import only_main_speaks
    from companion.training.distributed.parallel import PeerFailed

    try:
        with only_main_speaks():
            settings = TASKS[flags.task].of_flags(vars(flags))
            settings.model_config(vocab=257)  # an invalid model is rejected before anything is read
            return train(settings, arguments)
    except PeerFailed as error:
        return error.code


def train(settings: RunSettings, arguments: list[str]) -> int:
    """Start or resume the run with these settings; if the run is already finished, only print its result.

    Returns:
        0 if the run is finished, 130 if it was stopped and saved, and 1 if it cannot continue, with the reason on
        stderr.

    Raises:
        ValueError: If the input is invalid. Nothing is written then.
        PeerFailed: If another process of the run reports why it failed.
    """
    from companion.training.run import Halted, Run

    try:
        with Run.open(settings, arguments) as run:
            if run.finished:
                more = "To continue it, raise --steps; to start a new run, choose another --out."
                print(f"{run.folder.path}: this run is finished. {more}\n")
            else:
                print(report.head(run.task, run.trainer, run.folder, run.peak), flush=True)
                if before := run.task.before(run.record):
                    print(before, flush=True)
                if not run.train():
                    at = f"update {run.trainer.done:,} of {run.trainer.config.updates:,}"
                    print(f"\nStopped and saved at {at}. To resume:\n  {run.resume}")
                    if picture := run.parallel.on_main(run.draw):
                        print(f"Loss curve so far: {picture}")
                    return INTERRUPTED
                print()
            print(run.verdict())
            return 0
    except Halted as error:
        print(f"companion {arguments[0]}: error: {error}", file=sys.stderr)
        return 1
