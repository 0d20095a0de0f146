"""The reader's progress and the next thing to do, for the start page and `companion progress`.

The course's path, which comes from `path.json` in the package or from a start page, lists the work for each lesson.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from companion_school.build.stages import STAGES
from companion_school.build.workspace import find_folder, is_done
from companion_school.exercises.progress import read_progress
from companion_school.questions.question import questions
from companion_school.questions.spaced_repetition import read_answers

COURSE = Path(__file__).with_name("path.json")


@dataclass(frozen=True)
class Done:
    """The reader's progress.

    Attributes:
        exercises: Ids of the exercises passed, such as "2.3".
        questions: Ids of the questions answered, such as "2.a".
        stages: Numbers of the stages of the reader's own transformer that are right or taken from the reference.
    """

    exercises: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    stages: frozenset[int] = frozenset()


def done() -> Done:
    """Read the reader's progress.

    Raises:
        ValueError: A file cannot be read; the message names it.
    """
    answered, folder = read_answers(), find_folder()
    return Done(
        frozenset(id for id, record in read_progress().items() if record.passed),
        frozenset(question.id for question in questions().values() if question.key in answered),
        frozenset(stage.number for stage in STAGES.values() if is_done(folder, stage)),
    )


def course() -> list[dict[str, Any]]:
    """Read the path through the whole course."""
    return list(json.loads(COURSE.read_text(encoding="utf-8")))


def is_read(sitting: Mapping[str, Any], reader: Done) -> bool:
    """Return True if a section (one of a lesson's `sittings`) has questions and all of them have been answered."""
    return bool(sitting["questions"]) and set(sitting["questions"]) <= reader.questions


def where_next(
    path: Sequence[Mapping[str, Any]],
    reader: Done,
    link: Callable[[str, str], str] = lambda place, text: text,
    text: Callable[[str], str] = str,
) -> str:
    """Return a sentence about what to do next: read the first unread section or solve the next exercises.

    Args:
        path: The lessons, as in `progress_table.table`.
        reader: The reader's progress.
        link: Function that makes a link from a target (a file or a cell in it) and a text.
        text: Function that escapes a title for use on the page.
    """
    begun = bool(reader.exercises or reader.questions)
    for lesson in path:
        name = f"{lesson['number']} {text(lesson['title'])}"
        for sitting in lesson["sittings"]:
            if not is_read(sitting, reader):
                if not begun:
                    return f"Begin with {link(lesson['file'], name)}."
                place = f"{lesson['file']}#cell-id={sitting['cell']}"
                answered = len(reader.questions.intersection(sitting["questions"]))
                so_far = f" ({answered} of its {len(sitting['questions'])} questions answered)" if answered else ""
                return f"Go on with {name}, {link(place, text(sitting['title']))}{so_far}"
        if not lesson["sittings"] and not set(lesson["exercises"]) <= reader.exercises:
            return f"{'Go on with' if begun else 'Begin with'} {link(lesson['file'], name)}."
    for lesson in path:
        if not set(lesson["exercises"]) <= reader.exercises:
            name = f"the exercises of {lesson['number']} {text(lesson['title'])}"
            return f"You have read every lesson. Continue with {link(lesson['exercise_file'], name)}."
    return "You have read every lesson and done every exercise."
