"""Problem sets, which combine exercises, questions (some with individual numbers) and written answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from companion.ground.fields import shown
from companion_school.checking.exercise import Exercise
from companion_school.course.exam.exam_question import Question as Numbers
from companion_school.course.release import own_numbers
from companion_school.course.release.dependencies import other_exercises
from companion_school.course.release.questions import as_exercise, find_gradable, needs_lesson
from companion_school.course.written.rubrics import Written, find_written, written_items
from companion_school.exercises.catalogue import exercises, find_exercise
from companion_school.questions.question import Question, questions

LONGEST_NAME = 100
"""Maximum number of characters in a problem set's name, which becomes part of file names."""


@dataclass(frozen=True)
class ProblemSet:
    """Exercises, questions and written answers under one name, in course order. `ProblemSet.of` builds one.

    Attributes:
        name: Name of the set, its folders and its files.
        exercises: The exercises, including the questions in a set that `dealt` returns.
        questions: The lessons' questions.
        written: Written answers, which a person marks.
        numbers: Questions with different numbers for each student.
    """

    name: str
    exercises: tuple[Exercise, ...]
    questions: tuple[Question, ...] = ()
    written: tuple[Written, ...] = ()
    numbers: tuple[Numbers, ...] = ()

    def dealt(self, secret: bytes) -> ProblemSet:
        """Return the set with its questions as exercises, whose choices are in an order determined by the secret."""
        made = [as_exercise(question, secret) for question in self.questions]
        # placeholder numbers; each student's sheet has different ones
        made += [own_numbers.as_exercise(question, secret, "") for question in self.numbers]
        return replace(self, exercises=(*self.exercises, *made), questions=())

    @property
    def points(self) -> float:
        """The maximum points. Questions not yet converted by `dealt` are ignored."""
        return sum(one.points for one in self.exercises) + sum(item.points for item in self.written)

    @property
    def ids(self) -> list[str]:
        """The ids of all exercises, questions and written answers."""
        everything: tuple[Any, ...] = (*self.exercises, *self.questions, *self.written, *self.numbers)
        return [one.id for one in everything]

    def warnings(self) -> list[str]:
        """Return a warning for each question that makes no sense without its lesson."""
        return [
            (
                f"question {one.id} refers to something that is only in lesson {one.lesson:02} ({', '.join(words)}); "
                "hand out the lesson with it, or choose another question"
            )
            for one in self.questions
            if (words := needs_lesson(one))
        ]

    @classmethod
    def of(
        cls,
        name: str,
        ids: Sequence[str],
        asked: Sequence[str] = (),
        written: Sequence[str] = (),
        numbers: Sequence[str] = (),
    ) -> ProblemSet:
        """Build a problem set from the ids of its items.

        Args:
            name: Name of the set.
            ids: Ids of exercises, as in "2.3".
            asked: Ids of questions, as in "2.a".
            written: Ids of written answers, as in "14.curves".
            numbers: Ids of questions with individual numbers, as in "2.variance".

        Raises:
            ValueError: The name is not valid for a folder, the set is empty, an id is unknown or given twice, an
                exercise builds on another that is not in the set, or a question cannot be graded.
        """
        checked_name(name)
        given = {"--exercises": ids, "--questions": asked, "--written": written, "--numbers": numbers}
        if not any(given.values()):
            raise ValueError("--exercises: expected at least one, as in --exercises 2.3 2.4, or --questions 2.a 2.b")
        for flag, named in given.items():
            if twice := sorted({id for id in named if named.count(id) > 1}):
                raise ValueError(f"{flag}: {', '.join(twice)} is named more than once")
        try:
            wanted = {find_gradable(id).id for id in asked}
        except ValueError as error:
            raise ValueError(f"--questions: {error}") from None
        try:
            texts = {find_written(id).id for id in written}
        except ValueError as error:
            raise ValueError(f"--written: {error}") from None
        try:
            chosen = {find_exercise(id).id for id in ids}
        except ValueError as error:
            raise ValueError(f"--exercises: {error}") from None
        in_order = tuple(exercise for exercise in exercises().values() if exercise.id in chosen)
        for exercise in in_order:
            missing = [id for id in other_exercises(exercise) if id not in chosen]
            if missing:
                raise ValueError(f"--exercises: {exercise.id} builds on {', '.join(missing)}; expected both")
        questions_in_order = tuple(question for question in questions().values() if question.id in wanted)
        return cls(
            name,
            in_order,
            questions_in_order,
            tuple(one for one in written_items().values() if one.id in texts),
            tuple(map(own_numbers.find_numbers, numbers)),
        )


def checked_name(name: str) -> str:
    """Return a name unchanged if it is valid for files and folders.

    Raises:
        ValueError: The name is too long, does not begin with a letter or digit, or contains anything besides letters,
            digits, - and _.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"PSET {shown(name)}: expected letters, digits, - and _, as in week2")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"PSET {shown(name)}: expected at most {LONGEST_NAME} characters, got {len(name)}")
    return name
