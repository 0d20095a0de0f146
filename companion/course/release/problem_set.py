"""What a problem set is: its exercises, their points, and what its grader needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from companion.checking.exercise import Exercise
from companion.course.release.uses import other_exercises
from companion.exercises.catalogue import exercises, find_exercise


@dataclass(frozen=True)
class ProblemSet:
    """Exercises under a name, in the order of the course.

    Raises `ValueError` for a name that cannot be a folder's, no exercise, one twice, an unknown one, or one that builds
    on another that is not in the set.
    """

    name: str
    exercises: tuple[Exercise, ...]

    @classmethod
    def of(cls, name: str, ids: Sequence[str]) -> ProblemSet:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise ValueError(f"PSET {name!r}: expected letters, digits, - and _, as in week2")
        if not ids:
            raise ValueError("--exercises: expected at least one, as in --exercises 2.3 2.4")
        twice = sorted({id for id in ids if ids.count(id) > 1})
        if twice:
            raise ValueError(f"--exercises: {', '.join(twice)} is named more than once")
        try:
            chosen = {find_exercise(id).id for id in ids}
        except ValueError as error:
            raise ValueError(f"--exercises: {error}") from None
        in_order = tuple(exercise for exercise in exercises().values() if exercise.id in chosen)
        for exercise in in_order:
            missing = [id for id in other_exercises(exercise) if id not in chosen]
            if missing:
                raise ValueError(f"--exercises: {exercise.id} builds on {', '.join(missing)}; expected both")
        return cls(name, in_order)
