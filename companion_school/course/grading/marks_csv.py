"""A class's marks as a table: marks.csv, and its summary for the terminal."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from companion.ground import display
from companion.ground.atomic import write_atomic
from companion_school.checking.call import Result
from companion_school.checking.exercise import STAR, Exercise
from companion_school.course.grading.exercise_mark import OUTCOMES, TO_MARK, Graded, Mark
from companion_school.course.grading.feedback import page
from companion_school.course.grading.grade import TRIED
from companion_school.course.grading.gradebook import COLUMNS, as_csv, quoted
from companion_school.course.grading.lateness import Lateness
from companion_school.course.written.sheet import text_id

LONGEST_NAME = 150
"""Bytes: with an ending, and what a half-written file is called, it fits into the 255 that a file system has."""


def table(graded: Sequence[Graded], assignment: str, rule: Lateness | None = None) -> str:
    """The marks as CSV: nbgrader's columns, how the submission was, and for each exercise its outcome, its points, and
    whether a right answer is robust, as yes or no; where groups of its cases earn points by themselves, those of each,
    too.

    What could not be read has no score: it is for the instructor to say what that is worth. Nor has who waits for the
    mark of a written answer; `raw_score` is then what was earned so far.

    rule:  what late work costs; without one, nothing.
    """
    chosen = [mark.exercise for mark in graded[0].marks] if graded else []
    columns = [*COLUMNS, "submission", *(name for exercise in chosen for name in _columns(exercise))]
    columns += [name for text in (graded[0].texts if graded else ()) for name in text_columns(text.item.id)]
    rows = []
    for student in graded:
        row: dict[str, str] = {
            "assignment": assignment,
            "timestamp": student.handed.timestamp,
            "student_id": quoted(student.handed.student),
            "max_score": f"{float(student.most)}",
            "submission": student.submission,
        }
        if student.submission in TRIED:
            row |= scored(student.points, student.is_marked, student.handed.timestamp, rule)
        for mark in student.marks:
            cells = (mark.outcome, f"{mark.points:g}", _robust(mark), _groups(mark))
            row |= dict(zip(_columns(mark.exercise), cells, strict=False))
        for wrote in student.texts:
            points = "" if wrote.outcome == TO_MARK else f"{wrote.points:g}"
            row |= dict(zip(text_columns(wrote.item.id), (wrote.outcome, points, text_id(wrote.text)), strict=True))
        rows.append(row)
    return as_csv(columns, rows)


def scored(points: float, is_marked: bool, timestamp: str, rule: Lateness | None) -> dict[str, str]:
    """The cells of a student's score. `is_marked`: nothing waits for a person."""
    if not is_marked:
        return {"raw_score": f"{points}", "late_submission_penalty": "", "score": ""}
    penalty = rule.penalty(points, timestamp) if rule else 0.0
    score = f"{round(points - penalty, 6)}"
    return {"raw_score": f"{points}", "late_submission_penalty": f"{penalty:.6g}", "score": score}


def text_columns(id: str) -> list[str]:
    """The columns of a written answer: how it stands, its points, and which text they are for."""
    return [id, f"{id} points", f"{id} text"]


def _columns(exercise: Exercise) -> list[str]:
    """The columns of an exercise: its outcome, its points, whether robust and, if it has groups, those of each."""
    id = exercise.id
    return [id, f"{id} points", f"{id} robust", *[f"{id} groups"] * bool(exercise.groups)]


def _robust(mark: Mark) -> str:
    return ("yes" if mark.robust else "no") if mark.outcome == Result.RIGHT.value else ""


def _groups(mark: Mark) -> str:
    return "; ".join(f"{each.part.name}: {each.points:g} of {each.most:g}" for each in mark.earned)


def summary(graded: Sequence[Graded]) -> str:
    """How often each exercise ended how, for the terminal; of the right answers, how many are robust."""
    rows = []
    for place, first in enumerate(graded[0].marks if graded else ()):
        counts = Counter(student.marks[place].outcome for student in graded)
        stars = sum(student.marks[place].robust for student in graded)
        numbers = (counts["right"], stars, *(counts[outcome] for outcome in OUTCOMES if outcome != "right"))
        rows.append((first.exercise.id, *(f"{number or '.'}" for number in numbers)))
    others = [outcome for outcome in OUTCOMES if outcome != "right"]
    return display.table(rows, ("", "right", f"robust {STAR}", *others), indent=0)


def statistics(graded: Sequence[Graded]) -> str:
    """As CSV: for each exercise how many ended how, and how often each known mistake was made, most often first. What
    is right and robust stands in a row of its own; beside "right" stands the mistake that a right answer makes.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("exercise", "outcome", "mistake", "students"))
    for place, first in enumerate(graded[0].marks if graded else ()):
        marks = [student.marks[place] for student in graded]
        counts = Counter((f"{mark.outcome}{' and robust' * mark.robust}", _mistake(mark)) for mark in marks)
        for (outcome, mistake), number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            rows.writerow((first.exercise.id, outcome, mistake, number))
    return text.getvalue()


def _mistake(mark: Mark) -> str:
    found = (mark.public, mark.hidden, mark.unstood)
    return next((verdict.mistake for verdict in found if verdict and verdict.mistake), "")


def write(graded: Sequence[Graded], assignment: str, out: Path, marks: str | None = None) -> list[str]:
    """marks.csv, class.csv and feedback/STUDENT.html, each whole or not at all; what was wrong with pages that could
    not be written. One student's page costs nobody else theirs, and none of them the marks.

    marks:  the table; by default the one of these students. Where it holds others, class.csv stays as it is.
    """
    write_atomic(out / "marks.csv", table(graded, assignment) if marks is None else marks)
    if marks is None or len(graded) == marks.count("\n") - 1:
        write_atomic(out / "class.csv", statistics(graded))
    faults = []
    for student in graded:
        try:
            write_atomic(out / "feedback" / page_name(student.handed.student), page(student, assignment))
        except OSError as error:
            faults.append(str(error))
    return faults


def page_name(student: str) -> str:
    """The file of a student's page. A name that is too long for a file is cut, and told apart by letters at its end."""
    if len(student.encode()) <= LONGEST_NAME:
        return f"{student}.html"
    mark = hashlib.blake2b(student.encode(), digest_size=8).hexdigest()
    return f"{student.encode()[:LONGEST_NAME].decode('utf-8', 'ignore')}-{mark}.html"
