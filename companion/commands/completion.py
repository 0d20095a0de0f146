"""`companion completion`: a script with which a shell completes the commands, their flags, and what these take."""

from __future__ import annotations

import argparse
from typing import Any, Literal

from jsonargparse import ActionConfigFile, Namespace

from companion.commands.parser import Parser
from companion.ground.number_limits import choices

FILES, FOLDERS = {"FILE", "MODEL", "WHEEL"}, {"FOLDER"}
"""What a flag's help calls a path, and of which kind."""


def parser() -> Parser:
    parser = Parser(
        description=(
            "Print a script that lets a shell complete commands, flags and the choices of a flag. Load it when the "
            "shell starts, as below, and print it again after an update, because it lists what this version knows."
        ),
        epilog=(
            "examples:\n"
            "  companion completion bash > ~/.companion-completion\n"
            "  echo '. ~/.companion-completion' >> ~/.bashrc\n"
            "  companion completion zsh > ~/.zfunc/_companion    ~/.zfunc being in fpath\n"
            "                                                    before compinit"
        ),
    )
    parser.add_argument("shell", type=Literal["bash", "zsh", "tcsh"], metavar="SHELL", help="bash, zsh or tcsh")
    return parser


def run(flags: Namespace, whole: Parser) -> int:
    """`whole`: the parser of all commands, with the flags of each."""
    import shtab

    _tell(whole, shtab)
    print(shtab.complete(whole, flags.shell))
    return 0


def _tell(parser: Any, shtab: Any) -> None:
    """Give each flag, here and in the commands within, what a shell may offer for it, as the library reads it."""
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
        action.help = (action.help or "").partition(". ")[0]  # zsh shows it on one line
