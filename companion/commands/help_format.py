"""Lay out the help of every command in at most 80 columns; each flag shows its values and its default."""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import Any

from jsonargparse import DefaultHelpFormatter

from companion.ground.display import WIDTH, columns
from companion.ground.number_limits import choices, kind_of


def name_of(action: argparse.Action) -> str:
    """Return a flag as it is typed, or the name of a positional argument in the usage line."""
    if action.option_strings:
        return next((name for name in action.option_strings if name.startswith("--")), action.option_strings[0])
    return str(action.metavar or action.dest.upper())


class HelpFormatter(DefaultHelpFormatter):
    """A formatter that wraps paragraphs.

    Lines that begin with a space, such as examples, are left unchanged if they fit.
    """

    def __init__(self, prog: str, *arguments: Any, **settings: Any) -> None:
        super().__init__(prog, max_help_position=24, width=columns())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_wrapped(line, width) for line in text.split("\n"))

    def _get_help_string(self, action: argparse.Action) -> str:
        help = action.help or ""
        if isinstance(action, argparse._HelpAction):
            return "show this help and exit"
        default = action.default
        if not action.option_strings or default in (None, argparse.SUPPRESS, "") or isinstance(default, bool | list):
            return help
        return help if "efault" in help else f"{help} (default: %(default)s)"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind = kind_of(getattr(action, "_typehint", None) or action.type)
        if isinstance(kind, type) and issubclass(kind, int | float) and kind is not bool:
            return "N" if issubclass(kind, int) else "X"
        return action.dest.rsplit(".")[-1].upper()

    def _format_args(self, action: argparse.Action, default_metavar: Any) -> str:
        if len(values := choices(getattr(action, "_typehint", None))) > 3:
            return str(default_metavar)
        if values:
            return f"{{{','.join(values)}}}"
        return super()._format_args(action, default_metavar)

    def _expand_help(self, action: argparse.Action) -> str:
        help = super()._expand_help(action)
        values = choices(getattr(action, "_typehint", None))
        return f"{help}; one of {', '.join(values)}" if len(values) > 3 else help

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        self._indent()
        lines = "".join(map(super()._format_action, self._iter_indented_subactions(action)))
        self._dedent()
        return lines


def _wrapped(line: str, width: int) -> str:
    if line.startswith(" ") and (width >= WIDTH or (len(line) <= width and line[2:3] != " ")):
        return line
    if not line.startswith(" "):
        return _filled(line, width, "")
    what, *about = re.split(r" {2,}", line.strip())  # an example and its comment, or a continuation line
    first = _filled(what, width, "  " if line[2:3] != " " else "      ")
    return "\n".join([first, *(_filled(words, width, "      ") for words in about)])


def _filled(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if indent == "  " else indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
