"""A class's marks as a table: marks.csv, and its summary for the terminal."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from companion import readable
from companion.course.grading.feedback import page
from companion.course.grading.grade import TRIED
from companion.course.grading.gradebook import COLUMNS, quoted
from companion.course.grading.mark import OUTCOMES, Graded
from companion.files.atomic import write_atomic

LONGEST_NAME = 150
"""Bytes: with an ending, and what a half-written file is called, it fits into the 255 that a file system has."""


def table(graded: Sequence[Graded], assignment: str) -> str:
    """The marks as CSV: nbgrader's columns, how the submission was, and for each exercise its outcome and its points.

    What could not be read has no score: it is for the instructor to say what that is worth.
    """
    chosen = [mark.exercise.id for mark in graded[0].marks] if graded else []
    columns = [*COLUMNS, "submission", *(name for id in chosen for name in (id, f"{id} points"))]
    text = io.StringIO()
    rows = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    rows.writeheader()
    for student in graded:
        row: dict[str, str] = {
            "assignment": assignment,
            "timestamp": student.handed.timestamp,
            "student_id": quoted(student.handed.student),
            "max_score": f"{float(student.most)}",
            "submission": student.submission,
        }
        if student.submission in TRIED:
            row |= {"raw_score": f"{student.points}", "late_submission_penalty": "0.0", "score": f"{student.points}"}
        for mark in student.marks:
            row |= {mark.exercise.id: mark.outcome, f"{mark.exercise.id} points": f"{mark.points:g}"}
        rows.writerow(row)
    return text.getvalue()


def summary(graded: Sequence[Graded]) -> str:
    """How often each exercise ended how, for the terminal."""
    rows = []
    for place, first in enumerate(graded[0].marks if graded else ()):
        counts = Counter(student.marks[place].outcome for student in graded)
        rows.append((first.exercise.id, *(f"{counts[outcome] or '.'}" for outcome in OUTCOMES)))
    return readable.table(rows, ("", *OUTCOMES), indent=0)


def write(graded: Sequence[Graded], assignment: str, out: Path) -> list[str]:
    """marks.csv, then feedback/STUDENT.html, each whole or not at all; what was wrong with pages that could not be
    written. One student's page costs nobody else theirs, and none of them the marks."""
    write_atomic(out / "marks.csv", table(graded, assignment))
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
