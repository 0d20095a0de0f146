"""`companion completion`: print a script that lets a shell complete commands, flags and their values."""

from __future__ import annotations

import argparse
from typing import Any, Literal

from jsonargparse import ActionConfigFile, Namespace

from companion.commands.parser import Parser
from companion.ground.number_limits import choices

FILES, FOLDERS = {"FILE", "MODEL", "WHEEL"}, {"FOLDER"}
"""Metavars of flags that take a file, and of those that take a folder."""


def parser() -> Parser:
    parser = Parser(
        description=(
            "Print a script that lets a shell complete commands, flags and the choices of a flag. Load the script "
            "when the shell starts, as shown below, and print it again after an update, because it lists the commands "
            "and flags of one version."
        ),
        epilog=(
            "examples:\n"
            "  companion completion bash > ~/.companion-completion\n"
            "  echo '. ~/.companion-completion' >> ~/.bashrc\n"
            "  companion completion zsh > ~/.zfunc/_companion    ~/.zfunc must be in\n"
            "                                                    fpath before compinit"
        ),
    )
    parser.add_argument("shell", type=Literal["bash", "zsh", "tcsh"], metavar="SHELL", help="bash, zsh or tcsh")
    return parser


def run(flags: Namespace, whole: Parser) -> int:
    """Print the script and return the exit code. `whole` is the parser of all commands, including all their flags."""
    import shtab

    _tell(whole, shtab)
    print(shtab.complete(whole, flags.shell))
    return 0


def _tell(parser: Any, shtab: Any) -> None:
    """Tell shtab which values a shell may offer for each flag of a parser and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action._name_parser_map.values():
                _tell(inner, shtab)
        elif values := choices(getattr(action, "_typehint", None)):
            action.choices = list(values)
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY
        elif action.metavar in FILES or isinstance(action, ActionConfigFile):
            action.complete = shtab.FILE
        action.help = (action.help or "").partition(". ")[0]  # zsh shows the help on one line
