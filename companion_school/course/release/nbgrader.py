"""Cells with nbgrader's metadata (schema 3), and a reimplementation of `nbgrader generate_assignment`.

The reimplementation produces the students' notebook without running nbgrader, so that the notebook can be searched for
leaks. A test compares the notebook with nbgrader's output.
"""

from __future__ import annotations

import hashlib
from typing import Any

from nbformat import from_dict

from companion_school.checking.exercise import BEGIN, END, STUB
from companion_school.course.grading.answers import TEXT_STUB
from companion_school.course.release.notebook_cells import Cell, Notebook

BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"


def locked(grade_id: str, cell: Cell) -> Cell:
    """Mark a cell as read-only, so that nbgrader restores it if a student changed it."""
    return _marked(cell, grade_id, locked=True)


def solution(grade_id: str, cell: Cell) -> Cell:
    """Mark a cell as one that contains a student's answer."""
    return _marked(cell, grade_id, solution=True)


def graded(grade_id: str, points: float, cell: Cell) -> Cell:
    """Mark a cell as a test. It earns full points if it runs without an error, and otherwise no points."""
    return _marked(cell, grade_id, grade=True, locked=True, points=points)


def marked_by_hand(grade_id: str, points: float, cell: Cell) -> Cell:
    """Mark a cell as an answer that a person grades."""
    return _marked(cell, grade_id, grade=True, solution=True, points=points)


def _marked(cell: Cell, grade_id: str, **marks: Any) -> Cell:
    marks = {"grade": False, "locked": False, "solution": False, "task": False} | marks
    return from_dict(
        cell | {"metadata": cell["metadata"] | {"nbgrader": {"grade_id": grade_id, "schema_version": 3} | marks}}
    )


def released(source: Notebook) -> Notebook:
    """Return the student's notebook, without solutions and hidden tests, and with checksums for read-only cells."""
    return from_dict(source | {"cells": [_released(cell) for cell in source["cells"]]})


def _released(cell: Cell) -> Cell:
    metadata = dict(cell["metadata"])
    marks = dict(metadata["nbgrader"])
    stub = STUB if cell["cell_type"] == "code" else TEXT_STUB
    text = _cut(cell["source"], BEGIN, END, stub) if marks["solution"] else cell["source"]
    cell = from_dict(cell | {"source": _cut(text, BEGIN_HIDDEN, END_HIDDEN, None)})
    metadata["deletable"] = False
    if not marks["solution"]:
        metadata["editable"] = False
    marks |= {"checksum": _checksum(cell, marks), "cell_type": cell["cell_type"]}
    return from_dict(cell | {"metadata": metadata | {"nbgrader": marks}})


def _cut(text: str, begin: str, end: str, instead: str | None) -> str:
    """Replace the markers and the lines between them with `instead`, keeping the indentation."""
    kept, inside = [], False
    for line in text.split("\n"):
        if begin in line:
            inside = True
            if instead is not None:
                kept.append(line[: len(line) - len(line.lstrip())] + instead)
        elif end in line:
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def _checksum(cell: Cell, marks: dict[str, Any]) -> str:
    """Compute nbgrader's checksum of a cell, which shows whether the cell has changed."""
    points = [str(float(marks["points"]))] if marks["grade"] else []
    flags = (str(marks[name]) for name in ("grade", "solution", "locked"))
    text = "".join([cell["source"], cell["cell_type"], *flags, marks["grade_id"], *points])
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
