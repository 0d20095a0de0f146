"""All exercises of the course, by number."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

from companion.ground.fields import shown
from companion_school.checking.exercise import Exercise
from companion_school.old_ids import current, numbers

_LESSON = re.compile(r"lesson_(\d\d)\.py")


@cache
def exercises() -> dict[str, Exercise]:
    """Return a dictionary of all exercises by number, in the order of the course."""
    found: dict[str, Exercise] = {}
    for file in sorted(Path(__file__).parent.iterdir()):
        if not _LESSON.fullmatch(file.name):
            continue
        module = importlib.import_module(f"{__package__}.{file.stem}")
        of_lesson = [exercise for exercise in vars(module).values() if isinstance(exercise, Exercise)]
        for exercise, expected in zip(of_lesson, numbers(int(file.stem[-2:])), strict=False):
            if exercise.id != expected:
                raise ValueError(
                    f"{file.name}: exercise {exercise.id} ({exercise.name}) is at a position where {expected} is "
                    "expected"
                )
            found[exercise.id] = exercise
    return found


def find_exercise(id: str | float) -> Exercise:
    """Return the exercise with this number, written as "2.3", 2.3, "02.3" or "2-3".

    An exercise that has moved to another lesson is also found by its old number.

    Raises:
        ValueError: There is no such exercise. The message lists the lesson's exercises or says how numbers are written.
    """
    book = exercises()
    written = re.fullmatch(r"(\d{1,9})(?:[.,:-](\d{1,9}))?", str(id).strip())
    lesson, number = (int(written[1]), int(written[2] or 0)) if written else (-1, 0)
    if (found := book.get(current(f"{lesson}.{number}"))) is not None:
        return found
    near = [key for key in book if key.split(".")[0] == str(lesson)]
    lessons = sorted({int(key.split(".")[0]) for key in book})
    form = f'a lesson ({lessons[0]} to {lessons[-1]}), a dot and a number, as in "2.3"'
    known = f"one of {', '.join(near)}" if near else form
    raise ValueError(f"exercise {shown(id)}: expected {known}")
