"""`companion progress`: which exercises you have done."""

from __future__ import annotations

from jsonargparse import Namespace

from companion.commands.parser import Parser


def parser() -> Parser:
    return Parser(
        description=(
            "Show the exercises of the course, and what you have done of each: passed, tried, hints and solutions "
            "read. It is kept in .companion/progress.json in your home folder, or in the folder COMPANION_HOME."
        ),
    )


def run(flags: Namespace) -> int:
    from companion.school.exercises.progress import table

    print(table())
    return 0
