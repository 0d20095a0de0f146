"""What is to be graded: exercises, questions and written answers by their numbers, or those of a problem set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from companion_school.checking.exercise import Exercise
from companion_school.course.grading.answers import Submission, Unreadable
from companion_school.course.release.questions import as_exercise, find_gradable, function_name, is_question
from companion_school.course.written.rubrics import MARK, Written, find_written, is_written, written_items
from companion_school.exercises.catalogue import exercises, find_exercise
from companion_school.questions.question import questions


def choose(
    ids: Sequence[str], pset: str | None, near: Sequence[Path], secret: bytes
) -> tuple[list[Exercise], list[Written]]:
    """What to grade, and what a person marks: of these numbers, or what the problem set asks for.

    ids:     the numbers; none where there is a problem set.
    pset:    a problem set's notebook or its folder, or its name.
    near:    the folders whose `release` may hold a problem set of that name.
    secret:  decides the order of a question's choices.

    Raises `ValueError` for unknown or repeated numbers, no problem set there, and no exercise in it.
    """
    if bool(ids) == (pset is not None):
        raise ValueError(
            "--exercises: expected the exercises' numbers, or --pset with a problem set's notebook, one of them"
        )
    if pset is None:
        texts = [find_written(id) for id in ids if is_written(id)]
        coded = [id for id in ids if not is_written(id)]
        chosen = [as_exercise(find_gradable(id), secret) if is_question(id) else find_exercise(id) for id in coded]
        twice = [id for id, count in Counter(ids).items() if count > 1]
        if twice:
            raise ValueError(f"--exercises {twice[0]}: expected each exercise once")
    else:
        places = [Path(pset), *(folder / "release" / pset for folder in near)]
        files = next((files for place in places if (files := _notebooks(place))), None)
        if files is None:
            raise ValueError(f"--pset {pset}: expected a problem set's notebook, its folder, or its name; found none")
        try:
            problem_set = Submission.read(files)
        except Unreadable as error:
            raise ValueError(f"--pset {pset}: {error}") from None
        chosen = [exercise for exercise in exercises().values() if problem_set.defines(exercise.name)]
        asked = [question for question in questions().values() if problem_set.defines(function_name(question))]
        chosen += [as_exercise(question, secret) for question in asked]
        told = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
        texts = [item for item in written_items().values() if f"{MARK}{item.id}" in told]
        if not chosen and not texts:
            raise ValueError(f"--pset {pset}: expected a notebook with exercises of the course, found none in it")
    names = Counter(exercise.name for exercise in chosen)
    for exercise in chosen:
        if names[exercise.name] > 1:
            raise ValueError(
                f"--exercises: {exercise.id} and another exercise ask for a function {exercise.name}; grade them apart"
            )
    return chosen, texts


def _notebooks(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.ipynb"))
    return [place] if place.is_file() else []
