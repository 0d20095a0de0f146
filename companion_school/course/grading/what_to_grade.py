"""Find the items to grade: exercises, questions and written answers, given by number, problem set or project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from companion_school.build.stages import Stage, find_stages
from companion_school.checking.exercise import Exercise
from companion_school.course.exam.exam_question import Question as Numbers
from companion_school.course.exam.paper import exam_questions
from companion_school.course.grading.answers import Submission, Unreadable
from companion_school.course.grading.lateness import read_settings
from companion_school.course.release import own_numbers
from companion_school.course.release.questions import as_exercise, find_gradable, function_name, is_question
from companion_school.course.written.rubrics import MARK, Written, add_items, find_written, is_written, written_items
from companion_school.exercises.catalogue import exercises, find_exercise
from companion_school.old_ids import MOVED, old_id
from companion_school.questions.question import Question, questions

Asked = TypeVar("Asked", Question, Numbers, Written)


@dataclass(frozen=True)
class Task:
    """The items to grade.

    Attributes:
        name: Name of the problem set; empty if exercises or stages are given by number.
        course: Folder into which the problem set was released; None if unknown.
        exercises: Exercises, including questions converted to exercises.
        written: Written answers.
        stages: Stages of a project.
        numbers: Questions with individual numbers for each student.
        roster: File that lists the students for whom these numbers were drawn.
    """

    name: str = ""
    course: Path | None = None
    exercises: tuple[Exercise, ...] = ()
    written: tuple[Written, ...] = ()
    stages: tuple[Stage, ...] = ()
    numbers: tuple[Numbers, ...] = ()
    roster: Path | None = None


def choose(ids: Sequence[str], pset: str | None, build: str | None, near: Sequence[Path], secret: bytes) -> Task:
    """Find the items to grade. Exactly one of `ids`, `pset` and `build` must be given.

    Args:
        ids: Numbers of exercises, questions and written answers.
        pset: Folder, notebook or name of a problem set or project.
        build: Stages of a project, such as "2-7".
        near: Folders whose subfolder `release` is searched if `pset` is a name.
        secret: The instructor's secret, which determines the order of a question's choices.

    Raises:
        ValueError: If none or more than one of the three is given, a number is unknown or repeated, the problem set is
            not found or contains nothing to grade, or two exercises ask for functions of the same name.
    """
    if sum(map(bool, (ids, pset, build))) != 1:
        raise ValueError(
            "--exercises: expected exercise numbers, or --pset with a problem set, or --build with the stages of "
            "a project; exactly one of the three"
        )
    if build:
        return Task(stages=tuple(find_stages(build)))
    task = _released(pset, near, secret) if pset else _named(ids, secret)
    names = Counter(exercise.name for exercise in task.exercises)
    for exercise in task.exercises:
        if names[exercise.name] > 1:
            raise ValueError(
                f"--exercises: {exercise.id} and another exercise both ask for a function {exercise.name}; grade them "
                "separately"
            )
    return task


def _named(ids: Sequence[str], secret: bytes) -> Task:
    texts = [_asked_as(find_written(id), id) for id in ids if is_written(id)]
    coded = [id for id in ids if not is_written(id)]
    chosen = [
        as_exercise(_asked_as(find_gradable(id), id), secret) if is_question(id) else find_exercise(id) for id in coded
    ]
    twice = [id for id, count in Counter(ids).items() if count > 1]
    if twice:
        raise ValueError(f"--exercises {twice[0]}: expected each exercise once")
    return Task(exercises=tuple(chosen), written=tuple(texts))


def _asked_as(item: Asked, id: str) -> Asked:
    """Return an item under the number with which it was handed out, because that number identifies answers."""
    return replace(item, id=id) if id in MOVED else item


def _forms(item: Asked, id: str) -> tuple[Asked, ...]:
    """Return an item, given its number or, if it has moved, the old number that earlier problem sets use."""
    before = old_id(id)
    return (item,) if before is None else (item, replace(item, id=before))


def _released(pset: str, near: Sequence[Path], secret: bytes) -> Task:
    places = [Path(pset), *(folder / "release" / pset for folder in near)]
    place = next((place for place in places if _notebooks(place) or (place / "transformer").is_dir()), None)
    if place is None:
        raise ValueError(
            f"--pset {pset}: expected the notebook, name or folder of a problem set, such as "
            "course/release/week2; found none"
        )
    home = place.resolve() if place.is_dir() else place.resolve().parent
    name = place.stem if place.is_file() else home.name
    course = home.parents[1] if home.parent.name in ("release", "source") else None
    settings = read_settings(course / f"{name}.toml") if course else {}
    if settings.get("build"):
        return Task(name, course, stages=tuple(find_stages(settings["build"])))
    if not (files := _notebooks(place)):
        raise ValueError(
            f"--pset {pset}: this is a project without {name}.toml next to release/; use --build to name its stages"
        )
    add_own_items(course, name)
    try:
        problem_set = Submission.read(files)
    except Unreadable as error:
        raise ValueError(f"--pset {pset}: {error}") from None
    chosen = [exercise for exercise in exercises().values() if problem_set.defines(exercise.name)]
    known = [form for question in questions().values() for form in _forms(question, question.place)]
    asked = [question for question in known if problem_set.defines(function_name(question))]
    chosen += [as_exercise(question, secret) for question in asked]
    told = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    items = [form for item in written_items().values() for form in _forms(item, item.id)]
    texts = [item for item in items if f"{MARK}{item.id}" in told]
    drawn = [form for question in exam_questions().values() for form in _forms(question, question.id)]
    numbers = [one for one in drawn if problem_set.defines(own_numbers.function_name(one))]
    if numbers and not settings.get("roster"):
        raise ValueError(
            f"--pset {pset}: this set has different numbers for each student; expected {name}.toml next to release/"
        )
    if not chosen and not texts and not numbers:
        raise ValueError(f"--pset {pset}: expected a notebook with exercises of the course, found none")
    roster = Path(settings["roster"]) if settings.get("roster") else None
    return Task(name, course, tuple(chosen), tuple(texts), numbers=tuple(numbers), roster=roster)


def add_own_items(course: Path | str | None, name: str) -> None:
    """Add the written questions that an instructor released with a problem set, if there are any.

    Args:
        course: Folder into which the problem set was released; None or empty if it is unknown.
        name: Name of the problem set.
    """
    if course and (file := read_settings(Path(course) / f"{name}.toml").get("items")):
        add_items(Path(course) / file)


def _notebooks(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.ipynb"))
    return [place] if place.is_file() else []
