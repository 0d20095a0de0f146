"""`companion`: run any command, from the command line to the exit code.

For bad input, the command prints one sentence, writes nothing, and exits with code 2. Commands import torch only when
they run, so `--help` and messages about mistyped flags appear immediately.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from jsonargparse import Namespace

from companion.commands import (
    account,
    chat,
    completion,
    doctor,
    evaluate,
    export,
    generate,
    get,
    inspect,
    sizing,
    train,
    translate,
    tune,
)
from companion.commands.parser import Parser, add_commands, refuse_nameless
from companion.commands.preflight import REFUSED, refusal
from companion.ground.atomic import NotWritten
from companion.ground.installed import how_to_get, install_line
from companion.ground.waiting import bars, loading
from companion.training.settings import TextSettings

COMMANDS = {
    "train": (train, "train a model and save it in a run folder"),
    "tune": (tune, "teach a trained or a published model to answer"),
    "chat": (chat, "talk to a tuned or a published model"),
    "generate": (generate, "continue one or several prompts"),
    "translate": (translate, "translate number names with a model of your own"),
    "evaluate": (evaluate, "measure a run or a published model on unseen text"),
    "export": (export, "write a model for transformers, vLLM, SGLang or llama.cpp"),
    "inspect": (inspect, "show what a published model's folder contains, field by field"),
    "get": (get, "download a published model, so that every command accepts it"),
    "account": (account, "count a model's parameters, FLOPs and bytes"),
    "sizing": (sizing, "compute which models fit on which machines, and what training costs"),
    "doctor": (doctor, "describe this machine and check its calculations"),
    "completion": (completion, "print a script for shell completion"),
}
"""The library's commands. Each has a module, which defines `parser` and `run`, and a line of help."""

ENTRY_POINTS = "companion.commands"
"""The group of entry points through which other packages add commands; each entry point names a table like
`COMMANDS`."""

SCHOOL_COMMANDS = ("explore", "build", "progress", "review", "grade", "course")
"""Commands that belong to the school. If the school is not installed, an error says how to install it."""


@cache
def commands() -> Mapping[str, tuple[ModuleType, str]]:
    """Return all commands: first the library's own, then those that installed packages register."""
    added = [entry.load() for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)]
    return {name: command for table in (COMMANDS, *added) for name, command in table.items()}


def command_parser(task: str = TextSettings.task, wanted: Sequence[str] | None = None) -> Parser:
    """Return the parser of all commands.

    Args:
        task: The task that determines the flags of `train`.
        wanted: The commands whose flags are added (default: all). A command line needs only the flags of its own
            command.
    """
    wanted = tuple(commands()) if wanted is None else wanted
    parser = Parser(
        prog="companion",
        version=doctor.course_version(),
        description=(
            "Train transformers on your own text, generate text with them or with published models, and account for "
            "every parameter.\n\n"
            "  companion train                     train a small model, in about five minutes\n"
            '  companion generate --prompt "The "  stream text from the model just trained\n'
            "  companion evaluate                  its bits per byte on unseen text\n"
            "  companion account                   its parameters, FLOPs and bytes\n\n"
            "Teach a model to answer, and talk to it:\n\n"
            "  companion tune --task sums\n"
            "  companion chat\n\n"
            "Train a translator in ten seconds:\n\n"
            "  companion train --task number-words --from de --to en\n"
            "  companion translate einundzwanzig\n\n"
            "To write your own programs, start from one of these examples (in companion/examples):\n\n"
            "  python -m companion.examples.own_text letter.txt\n"
            "  python -m companion.examples.published SmolLM2-135M/\n"
            "  python -m companion.examples.one_layer"
        ),
    )
    nameless = Parser()  # all commands share one parser, because building it takes time
    parsers = {
        name: nameless if name not in wanted else file.parser(task) if file is train else file.parser()
        for name, (file, _) in commands().items()
    }
    add_commands(parser, "command", "commands", [(name, parsers[name], help) for name, (_, help) in commands().items()])
    for name, (file, _) in commands().items():
        if name in wanted and hasattr(file, "add_actions"):
            file.add_actions(parsers[name])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 for success, 2 for bad input, 130 after Ctrl-C, and 1 for anything else.

    Raises:
        Exception: If the error is a bug in the package rather than a response to bad input.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    asked = commands().get(arguments[0]) if arguments else None
    if asked and hasattr(asked[0], "with_action"):
        arguments = asked[0].with_action(arguments)
    try:
        task = _task(arguments)
    except ValueError as error:
        print(f"companion {arguments[0]}: error: {error}", file=sys.stderr)
        return 2
    parser = command_parser(task, arguments[:1])
    if not arguments:
        return _said(parser.print_help) or 2
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # show "?" for characters that cannot be encoded
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as exit:  # --help, --version or a bad flag, whose message has been printed
        return int(exit.code or 0) or _said(lambda: None)
    except OSError as error:
        return _unsaid(error)
    command: str = chosen.command
    flags = chosen[command]
    try:
        refuse_nameless(parser.typed(chosen))
        with bars(), loading("torch"):
            return _run(command, flags, arguments)
    except BrokenPipeError as error:
        return _unsaid(error)
    except Exception as error:
        sentence, code = _answer(error, parser.typed(chosen))
        if sentence is None:
            raise
        print(f"companion {command}: error: {sentence}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print(f"\ncompanion {command}: stopped", file=sys.stderr)
        return train.INTERRUPTED


def _task(arguments: Sequence[str]) -> str:
    """Return the task that determines the flags of `train`."""
    command = arguments[0] if arguments else ""
    if command in SCHOOL_COMMANDS and command not in commands():
        raise ValueError(f"this command belongs to the school, which is not installed: {install_line('school')}")
    return train.task_asked_for(arguments) if command == "train" else TextSettings.task


def _run(command: str, flags: Namespace, arguments: list[str]) -> int:
    if command == "train":
        return train.run(flags, arguments)
    if command == "tune":
        return tune.run(flags, arguments)
    if command == "completion":
        return completion.run(flags, command_parser())
    return commands()[command][0].run(flags)


def _said(say: Callable[[], None]) -> int:
    """Print by calling `say`, and return the exit code, which is 0 if the output could be written."""
    try:
        say()
        sys.stdout.flush()
    except OSError as error:
        return _unsaid(error)
    return 0


def _unsaid(error: OSError) -> int:
    """Return the exit code after a failed write to standard output: 0 if the reader has closed the pipe, as `head`
    does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"companion: error: standard output: {error.strerror}", file=sys.stderr)
    return 1


def _answer(error: Exception, typed: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return a sentence about the error, or `None` for a bug in the package, and the exit code."""
    match error:
        case ValueError():
            return str(error), 2
        case ModuleNotFoundError():
            return how_to_get(error.name or "", doctor.EXTRAS), 2
        case NotWritten():
            return str(error), 1
        case OSError(errno=errno.ENOSPC, filename=None):  # an error about a file contains its name
            return f"standard output: {error.strerror}", 1
        case OSError():
            return (refusal(error, typed), 2) if error.errno in REFUSED else (str(error), 1)
        case OverflowError() | RecursionError() | MemoryError():
            why = str(error) or "out of memory"
            return f"a number in the flags or in a file is too large to compute with ({why})", 2
    return None, 1
