"""The command `companion progress`, which shows the exercises that you have done, and what to do next."""

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
            "Show how many exercises of each lesson you have passed. If you name a lesson, the command lists its "
            "exercises and shows which of them you have tried and passed, and which hints and solutions you have "
            "read. The last line says where to continue, as the start page does. Your progress is saved in "
            ".companion/progress.json in your home folder, or in the folder COMPANION_HOME."
        )
    )
    parser.add_argument(
        "lesson",
        nargs="?",
        metavar="LESSON",
        help="a lesson number, such as 2, or all (default: a line for each lesson)",
    )
    parser.add_argument("--json", action="store_true", help=JSON)
    return parser


def run(flags: Namespace) -> int:
    from companion_school.exercises.progress import as_data, overview, table

    if flags.json:
        print(json.dumps(as_data(), indent=2))
        return 0
    from companion_school.questions.terminal import readable
    from companion_school.study.where_next import course, done, where_next

    if flags.lesson is None:
        listed = overview("companion progress 2 lists the exercises of lesson 02, companion progress all lists all")
    else:
        listed = table() if flags.lesson == "all" else table(flags.lesson)
    print(f"{listed}\n{where_next(course(), done(), text=readable)}")
    return 0
