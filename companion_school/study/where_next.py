"""What a reader has done, and where to go on: what the start page and `companion progress` say alike.

The path is what there is to do, lesson by lesson: `path.json`, which the package brings, or what a start page holds.
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
    """What a reader has done: the ids of exercises passed ("2.3") and of questions answered ("2.a"), and the numbers of
    the stages of the reader's own transformer that are right or taken."""

    exercises: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    stages: frozenset[int] = frozenset()


def done() -> Done:
    """What the reader has done, from the progress. Raises `ValueError` naming the file that cannot be understood."""
    answered, folder = read_answers(), find_folder()
    return Done(
        frozenset(id for id, record in read_progress().items() if record.passed),
        frozenset(question.id for question in questions().values() if question.key in answered),
        frozenset(stage.number for stage in STAGES.values() if is_done(folder, stage)),
    )


def course() -> list[dict[str, Any]]:
    """The path of the whole course."""
    return list(json.loads(COURSE.read_text(encoding="utf-8")))


def is_read(sitting: Mapping[str, Any], reader: Done) -> bool:
    """A sitting is read when its questions are answered."""
    return bool(sitting["questions"]) and set(sitting["questions"]) <= reader.questions


def where_next(
    path: Sequence[Mapping[str, Any]],
    reader: Done,
    link: Callable[[str, str], str] = lambda place, text: text,
    text: Callable[[str], str] = str,
) -> str:
    """Where to go on, in a sentence: the first sitting that is not read, else the first lesson with an exercise to do.

    path:    as `progress_table.table` takes it.
    reader:  what is done.
    link:    makes a text one that leads to a file, or to a cell of one.
    text:    makes a title one that the page can show.
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
            return f"You have read every lesson. Go on with {link(lesson['exercise_file'], name)}."
    return "You have read every lesson and done every exercise."
