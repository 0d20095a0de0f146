"""The command `companion course list`, which lists everything that a problem set can contain."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from jsonargparse import Namespace

from companion.commands.parser import Parser

_FLAGS = ("--exercises", "--questions", "--numbers", "--written")
Row = tuple[str, str, str, str, str]


def parser() -> Parser:
    made = Parser(
        description=(
            "List what a problem set can contain: the number of each exercise and question, its kind, points and "
            "minutes, and its title or text. Each table is for one flag of `companion course "
            "release`. Predictions without a list of reasons cannot be graded and are left out."
        ),
        epilog="examples:\n  companion course list\n  companion course list 2 3",
    )
    made.add_argument("lessons", nargs="*", default=[], metavar="LESSON", help="lessons (default: all)")
    return made


def run(flags: Namespace) -> int:
    from companion.ground.display import table
    from companion_school.course.exam.paper import lessons_in

    lessons = {one for given in flags.lessons or ["all"] for one in lessons_in(given, "LESSON")}
    for flag, rows in zip(_FLAGS, (_exercises(), _questions(), _numbers(), _written()), strict=True):
        chosen = [row for row in rows if int(row[0].partition(".")[0]) in lessons]
        if chosen:
            print(table(chosen, (flag, "kind", "points", "min", ""), left=(0, 1, 4), indent=0, width=None), end="\n\n")
    return 0


def _exercises() -> Iterator[Row]:
    from companion_school.checking.exercise import DIFFICULTIES
    from companion_school.exercises.catalogue import exercises

    for one in exercises().values():
        yield one.id, DIFFICULTIES[one.difficulty], str(one.points), str(one.minutes), f"{one.title}: {one.task}"


def _questions() -> Iterator[Row]:
    from companion_school.course.release.questions import as_exercise
    from companion_school.questions.question import questions

    for one in questions().values():
        if one.is_gradable:
            made = as_exercise(one, b"")
            yield one.id, one.kind, str(made.points), str(made.minutes), _plain(one.text)


def _numbers() -> Iterator[Row]:
    from companion_school.course.exam.paper import exam_questions

    for one in exam_questions().values():
        if one.kind == "number":
            text = one.make(random.Random(0)).text
            yield one.id, one.kind, str(one.points), str(one.minutes), _plain(text)


def _written() -> Iterator[Row]:
    from companion_school.course.written.rubrics import written_items

    for one in written_items().values():
        yield one.id, "text", f"{one.points:g}", str(one.minutes), one.title


def _plain(text: str) -> str:
    from companion_school.questions.terminal import readable

    return " ".join(re.sub(r"\\([A-Za-z]+)", r"\1", readable(text)).replace("`", "").split())
