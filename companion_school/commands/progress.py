"""Command `companion progress`: which exercises you have done, and where to go on."""

from __future__ import annotations

import json

from jsonargparse import Namespace

from companion.commands.parser import Parser

JSON = (
    "print JSON instead, with an entry for each exercise: title, lesson, points, minutes, checks, hints, "
    "solution, and the days on which it was first passed and first robust"
)


def parser() -> Parser:
    parser = Parser(
        description=(
            "Show the exercises of the course and your progress in each: whether you tried and passed it, and "
            "which hints and solutions you have read. The last lines say where to continue, as the start page "
            "does. Your progress is saved in .companion/progress.json in your home folder, or in the folder "
            "COMPANION_HOME."
        ),
    )
    parser.add_argument("--json", action="store_true", help=JSON)
    return parser


def run(flags: Namespace) -> int:
    from companion_school.exercises.progress import as_data, table

    if flags.json:
        print(json.dumps(as_data(), indent=2))
        return 0
    from companion_school.questions.terminal import readable
    from companion_school.study.where_next import course, done, where_next

    print(f"{table()}\n{where_next(course(), done(), text=readable)}")
    return 0
