"""Parse flags, with one-sentence errors in the user's words and short help in 80 columns.

jsonargparse reads and checks the values; this module turns its error messages into sentences.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, NoReturn, get_type_hints

from jsonargparse import ActionConfigFile, ArgumentParser
from jsonargparse.typing import register_type

from companion.commands.help_format import HelpFormatter, name_of
from companion.ground.display import columns
from companion.ground.fields import cut
from companion.ground.number_limits import LIMITED, Count, choices, expected, flag_type, kind_of

_VALUE = re.compile(r"(?:Got value|Given value|Not of type Limited): (.*?)(?:: expected.*)?$", re.MULTILINE)
"""Pattern that finds the rejected value in a message from jsonargparse."""
_ANY_TEXT = ("--prompt", "--prompt-ids", "--stop", "NAME")
for _kind in LIMITED:
    register_type(_kind, _kind.base)

DEVICE = "cpu, cuda, cuda:1, mps, or auto: cuda if available, otherwise cpu"
"""Help of `--device`, shared by all commands."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint such as `; did you mean train?` that names the known word closest to `word`, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, *_: Any) -> None:
        parser.short = False
        parser.print_help()
        parser.exit()


class Parser(ArgumentParser):
    """A parser of one command.

    Args:
        rare: Names (without dashes) of the flags that only `--help-all` explains.
        more: Text that `--help-all` adds after the epilog.
        settings: Arguments of `ArgumentParser`, such as `description` and `epilog`. In both of these, paragraphs are
            wrapped, but lines that begin with a space are left unchanged.
    """

    def __init__(self, *, rare: Iterable[str] = (), more: str = "", **settings: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **settings)
        self.rare, self.more, self.short = frozenset(rare), more, True
        if self.rare:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message, and raise an error if this fails; the base class would ignore the error."""
        if message:
            (file or sys.stderr).write(message)
            (file or sys.stderr).flush()

    def add_argument(self, *names: Any, **settings: Any) -> Any:
        """Add an argument as usual. The argument's value is a string unless `type` is another type, such as a number
        with limits."""
        if "type" in settings or "action" not in settings:
            settings["type"] = flag_type(settings.get("type", str))
        return super().add_argument(*names, **settings)

    def add_fields(self, kind: Any) -> None:
        """Add a flag for each field of a dataclass, with its type and the help in its metadata (default: `None`)."""
        hints = get_type_hints(kind, include_extras=True)
        for f in fields(kind):
            flag, help = f"--{f.name.replace('_', '-')}", f.metadata["help"]
            self.add_argument(flag, type=hints[f.name] | None, help=help)

    def add_device(self) -> None:
        self.add_argument("--device", default="auto", help=DEVICE)

    def add_dtype(self, default: str = "as stored") -> None:
        """Add `--dtype`. `default` describes the default in the help."""
        kind = Literal["fp32", "bf16", "fp16"] | None
        self.add_argument("--dtype", type=kind, help=f"dtype to convert the weights to (default: {default})")

    def add_weights(self, *, writes: bool = False) -> None:
        """Add `--weights`, `--calibrate` and `--levels`.

        If `writes` is true, as for commands that generate text, `--weights` also accepts fast and none.
        """
        help = "format to which the weights are converted once, before decoding; auto: the fastest format that costs "
        help += "less than 0.2 % in bits per byte"
        if writes:
            kind: Any = Literal["fast", "none", "fp32", "fp16", "bf16", "int8", "int4", "auto"] | None
            help += "; fast: the optimized form of the stored dtype; none: as stored. Prompts are always read with the "
            help += "stored weights (default: fast, if it saves time)"
        else:
            kind = Literal["fp32", "fp16", "bf16", "int8", "int4", "auto"] | None
            help += " (default: as stored)"
        self.add_argument("--weights", type=kind, help=help)
        self.add_argument(
            "--calibrate",
            nargs="+",
            default=[],
            metavar="PATH",
            help="int4: calibration text, given as files, folders or globs, or as course or python (see companion "
            "train --help); weights are rounded to preserve the outputs on this text, instead of to the nearest values",
        )
        self.add_argument(
            "--levels",
            metavar="FILE",
            help="int4: file for the values that --calibrate chooses; without --calibrate, the values are read from "
            "this file",
        )

    def format_help(self, formatter: Any = None) -> str:
        self.usage = " ".join([self.prog, *map(_positional, self._positionals._group_actions), "[flags]"])
        if self._subcommands_action:
            self.usage = f"{self.prog} {self._subcommands_action.metavar} [flags]"
        self.usage = textwrap.fill(self.usage, columns() - len("usage: "), subsequent_indent="  ")
        hidden = [action for action in self._actions if self.short and self.rare & set(_plain(action))]
        helps, epilog = [action.help for action in hidden], self.epilog
        for action in hidden:
            action.help = argparse.SUPPRESS
        if self.more and not self.short:
            self.epilog = f"{epilog}\n\n{self.more}"
        try:
            text = super().format_help(formatter)
        finally:
            for action, help in zip(hidden, helps, strict=True):
                action.help = help
            self.usage, self.epilog = None, epilog
        if hidden:
            more = f"{len(hidden)} more flags, with sensible defaults: {self.prog} --help-all"
            text += "\n" + textwrap.fill(more, columns(), break_long_words=False, break_on_hyphens=False) + "\n"
        return text

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one sentence that names the flag, its value and what was expected, and exit with code 2."""
        parser: Parser = self
        if key := re.search(r'Parser key "([\w.-]+)"', message):
            *commands, name = key[1].split(".")
            parser = self.inner(commands)
            sentence = parser.wrong_value(name, message)
        else:
            sentence, parser = self.wrong_usage(message)
        if _speaks():
            print(f"{parser.prog}: error: {sentence}", file=sys.stderr)
            print(f"Flags and examples: {parser.prog} --help", file=sys.stderr)
        self.exit(2)

    def inner(self, commands: Iterable[str]) -> Parser:
        """Return the parser of a command, given by its name, or of a nested command, given by several names.

        The search stops at the first name that is not a command, and the result is the parser found so far: this parser
        itself if the first name is unknown, or if there are no names.
        """
        parser = self
        for command in commands:
            known = parser._subcommands_action
            if known is None or command not in known._name_parser_map:
                break
            parser = known._name_parser_map[command]
        return parser

    def typed(self, flags: Any) -> dict[str, Any]:
        """Return the flags of a command line, named as the user types them.

        If a command was chosen, the result contains the flags of that command instead of this parser's flags.
        """
        known = self._subcommands_action
        command = None if known is None else flags.get(known.dest)
        if known is not None and command is not None:
            return known._name_parser_map[command].typed(flags[command])
        return {name_of(action): flags[action.dest] for action in self._actions if action.dest in flags}

    def wrong_value(self, name: str, message: str) -> str:
        """Return the error sentence about a flag's bad value."""
        action = next((action for action in self._actions if action.dest == name), None)
        if action is None:
            return _first_line(message)
        value = self.given(action)
        if value is None and (got := _VALUE.search(message)):  # a positional argument, or a value from --config
            value = got[1].strip()
        if isinstance(action, ActionConfigFile) and "does not exist" in message:
            return f"{name_of(action)} {value}: expected a file, found none"
        if (hint := getattr(action, "_typehint", None)) is None:
            return f"{name_of(action)} {value}: {_reason(message)}"
        near = did_you_mean(value or "", choices(hint))
        return f"{name_of(action)} {cut(value or '')}: expected {expected(hint)}{near}"

    def given(self, action: argparse.Action) -> str | None:
        """Return the last value of a flag on the command line, or `None` if the flag has no value there."""
        arguments, found = list(getattr(self, "args", None) or []), None
        for at, argument in enumerate(arguments):
            flag, equals, value = argument.partition("=")
            if flag in action.option_strings:
                found = value if equals else arguments[at + 1] if at + 1 < len(arguments) else None
        return found

    def _unknown(self, words: list[str]) -> str:
        word = next((word for word in words if word.startswith("-")), words[0])
        flag = word.partition("=")[0]
        if flag.startswith("-"):
            return f"{flag}: no such flag{did_you_mean(flag, self._option_string_actions)}"
        return f"{word}: not expected here; this command takes no further words"

    def wrong_usage(self, message: str) -> tuple[str, Parser]:
        """Return the error sentence about an unknown flag or a missing value, and the parser whose help explains it."""
        if unknown := re.search(r"Subcommand '([\w.]+)' does not accept option '(.*)'", message):
            parser, name = self.inner(unknown[1].split(".")), unknown[2]
            flags = [plain for action in parser._actions for plain in _plain(action)]
            return f"{name}: no such flag (in the file given by --config){did_you_mean(name, flags)}", parser
        if spaced := re.search(r"Spaces not allowed in keys: (.*)", message):
            return f"--config: {spaced[1].rstrip('.')}: no such flag", self
        if empty := re.search(r"Unexpected config: ([\w.-]+):", message):
            return f"--config: {empty[1]}: expected a value, got none", self
        if "Problems parsing config" in message:
            where = " ".join(message.partition("config: ")[2].split())
            return f"--config: expected a file in YAML or JSON: {where}", self
        if unknown := re.search(r"unrecognized arguments: (.*)", message):
            return self._unknown(unknown[1].split(" ")), self
        if choice := re.search(r"invalid choice: '(.*?)'", message):
            commands = list(self._subcommands_action._name_parser_map) if self._subcommands_action else []
            near = did_you_mean(choice[1], commands)
            if choice[1] in ("check", "hint", "solution"):
                near = f"; {choice[1]} is for notebooks: from companion_school.exercises import {choice[1]}"
            return f"{choice[1]}: no such command{near or '; expected ' + _either(commands)}", self
        if missing := re.search(r'expected "([\w.]+)" to be one of', message):
            parser = self.inner(missing[1].split(".")[:-1])
            known = parser._subcommands_action
            what = known.dest.rpartition(".")[2] if known else "command"
            return (
                f"expected {'an' if what[0] in 'aeiou' else 'a'} {what}: {_either(known.choices if known else ())}",
                parser,
            )
        if missing := re.search(r"arguments are required: ([\w.-]+)", message):
            *commands, name = missing[1].split(".")
            parser = self.inner(commands)
            action = next(action for action in parser._actions if action.dest == name)
            return f"{name_of(action)} is required: {action.help}", parser
        if flag_error := re.match(r"argument (\S+?)(?:/\S+)?: (.*)", message, re.DOTALL):
            name, what = flag_error.groups()
            found = self._option_string_actions.get(name)
            hint = getattr(found, "_typehint", None)
            if what.startswith("expected"):
                return f"{name}: expected {'a value' if kind_of(hint) is str else expected(hint)}, got nothing", self
            if ignored := re.search(r"ignored explicit argument '(.*)'", what):
                return f"{name}: expected no value, got {ignored[1]}", self
            return f"{name}: {what}", self
        return _first_line(message), self


def add_run(
    parser: Parser, help: str = "folder of a run (default: the newest in runs/)", *, best: bool = False
) -> None:
    """Add `--run` to a parser and, if `best` is true, also `--best`."""
    parser.add_argument("--run", metavar="FOLDER", help=help)
    if best:
        parser.add_argument(
            "--best",
            action="store_true",
            help="use the checkpoint with the best held-out score instead of the last one; this score is "
            "optimistic, because it was used to select the checkpoint",
        )


def add_checkpoint(parser: Parser, *, download: bool = False) -> None:
    """Add `--checkpoint` to a parser and, if `download` is true, also `--download`."""
    parser.add_argument(
        "--checkpoint",
        metavar="MODEL",
        help="published model instead of a run: a folder, a GGUF file, or a model name that companion get accepts",
    )
    if download:
        parser.add_argument(
            "--download",
            action="store_true",
            help="fetch the --checkpoint first if it is missing, as companion get does",
        )


def add_tokens(parser: Parser, help: str) -> None:
    """Add `--tokens`, with the alias `--max-new-tokens`, to a parser."""
    parser.add_argument("--tokens", "--max-new-tokens", dest="tokens", type=Count | None, help=help)


def add_commands(parser: Parser, dest: str, title: str, commands: Iterable[tuple[str, Parser, str]]) -> None:
    """Add commands to a parser, each given by its name, its parser and a line of help."""
    about = f"For the flags of a command: {parser.prog} {dest.upper()} --help"
    actions = parser.add_subcommands(dest=dest, title=title, description=about, metavar=dest.upper())
    for name, inner, help in commands:
        actions.add_subcommand(name, inner, help=help)
        inner.prog = f"{parser.prog} {name}"


def exclude(flags: Any, name: str, *others: str, why: str = "") -> None:
    """Raise `ValueError` if the flag `name` and one of the `others` are both given."""
    for other in others:
        if _is_given(flags[name]) and _is_given(flags[other]):
            raise ValueError(f"{_typed(name)} cannot be used together with {_typed(other)}{why and '; ' + why}")


def need(flags: Any, name: str, other: str, why: str = "") -> None:
    """Raise `ValueError` if the flag `name` is given without the `other` one."""
    if _is_given(flags[name]) and not _is_given(flags[other]):
        raise ValueError(f"{_typed(name)} needs {_typed(other)}{why and '; ' + why}")


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != []


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse_nameless(given: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a flag with an empty value, which would mean the current folder.

    Args:
        given: The values of the flags, named as the user types them.
    """
    for name, value in given.items():
        if name not in _ANY_TEXT and "" in (value if isinstance(value, list) else [value]):
            raise ValueError(f"{name} '': expected a value, got an empty string")


def _positional(action: argparse.Action) -> str:
    name = name_of(action)
    return f"[{name} ...]" if action.nargs == "*" else f"[{name}]" if action.nargs == "?" else name


def _speaks() -> bool:
    """Return whether this process should print errors; of several launched processes, only the first does."""
    if not os.environ.get("RANK", "0").strip().lstrip("0").isdigit():  # rank 0, or not a number
        return True
    from companion.training.distributed.launch import launched  # loads torch; needed only under a launcher

    return not launched()


def _plain(action: argparse.Action) -> list[str]:
    return [name.removeprefix("--") for name in action.option_strings]


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "not understood"


def _reason(message: str) -> str:
    return " ".join(message.partition('":')[2].split()) or _first_line(message)
