"""The parts of which every notebook of the course's exercises is made, the same bytes each time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from companion.checking.exercise import BEGIN, DIFFICULTIES, END, Exercise

Cell = dict[str, Any]
Notebook = dict[str, Any]

IMPORTS = "import math\n\nimport torch"


def markdown(source: str, **metadata: Any) -> Cell:
    return new_markdown_cell(source, metadata=metadata)


def code(source: str, *, prints: str | None = None, **metadata: Any) -> Cell:
    """A code cell. `prints`: what it must print, as if it had been run; "" for nothing; None: it was not run."""
    outputs = [new_output("stream", text=prints)] if prints else []
    count = None if prints is None else 0  # counted by `notebook`
    return new_code_cell(source, metadata=metadata, outputs=outputs, execution_count=count)


def notebook(cells: Iterable[Cell]) -> Notebook:
    """A notebook of these cells, with ids that follow from what is in them, and the run ones counted.

    nbgrader's cells go by their grade_id: an id that followed from a hidden test would be a trace of it.
    """
    seen: Counter[str] = Counter()
    counted, made = 0, []
    for cell in cells:
        key = hashlib.sha256(f"{cell['cell_type']}\n{cell['source']}".encode()).hexdigest()[:8]
        key = cell["metadata"].get("nbgrader", {}).get("grade_id", key)
        seen[key] += 1
        cell = cell | {"id": key if seen[key] == 1 else f"{key}-{seen[key]}"}
        if cell.get("execution_count") is not None:
            counted += 1
            cell["execution_count"] = counted
        made.append(cell)
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return {**new_notebook(cells=made, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})}


def to_text(made: Notebook) -> str:
    """The file's text, as Jupyter writes it. Raises `ValueError` for what is not a notebook of format 4."""
    return nbformat.writes(nbformat.from_dict(made), version=nbformat.NO_CONVERT) + "\n"


# Exercises


def heading(exercise: Exercise, worth: str | None = None) -> str:
    """Number, title, what it is worth and takes, and the statement."""
    points = worth or count(exercise.points, "point")
    difficulty = f"{exercise.difficulty} of {len(DIFFICULTIES)} ({DIFFICULTIES[exercise.difficulty]})"
    facts = f"*{points}. Difficulty {difficulty}, about {count(exercise.minutes, 'minute')}.*"
    return f"## {exercise.id} {exercise.title}\n\n{facts}\n\n{exercise.statement}"


def marked_solution(exercise: Exercise) -> str:
    """The reference with the two markers around its body."""
    head = exercise.stub.rsplit("\n", 1)[0]
    body = exercise.solution.removeprefix(head).strip("\n")
    return f"{head}\n    {BEGIN}\n{body}\n    {END}"


def count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
