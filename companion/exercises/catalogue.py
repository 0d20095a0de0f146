"""All exercises of the course, by number."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

from companion.checking.exercise import Exercise

_LESSON = re.compile(r"lesson_(\d\d)\.py")


@cache
def exercises() -> dict[str, Exercise]:
    """Every exercise by its number, in the order of the course."""
    found: dict[str, Exercise] = {}
    for file in sorted(Path(__file__).parent.iterdir()):
        if not _LESSON.fullmatch(file.name):
            continue
        module = importlib.import_module(f"{__package__}.{file.stem}")
        of_lesson = [exercise for exercise in vars(module).values() if isinstance(exercise, Exercise)]
        for number, exercise in enumerate(of_lesson, 1):
            expected = f"{int(file.stem[-2:])}.{number}"
            if exercise.id != expected:
                raise ValueError(
                    f"{file.name}: exercise {exercise.id} ({exercise.name}) stands where {expected} is expected"
                )
            found[exercise.id] = exercise
    return found


def find_exercise(id: str) -> Exercise:
    """The exercise of this number. Raises `ValueError` that lists the lesson's, or the lessons, if there is none."""
    book = exercises()
    if id in book:
        return book[id]
    lesson = str(id).split(".")[0]
    near = [key for key in book if key.split(".")[0] == lesson]
    known = ", ".join(near) if near else f"lessons {', '.join(sorted({k.split('.')[0] for k in book}, key=int))}"
    raise ValueError(f"exercise {id!r}: expected one of {known}")
