"""The parts of which every notebook of the course's exercises is made, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from companion.checking.exercise import BEGIN, DIFFICULTIES, END, Exercise

Cell = dict[str, Any]
Notebook = dict[str, Any]

IMPORTS = "import math\n\nimport torch"


def markdown(source: str, **metadata: Any) -> Cell:
    return {"cell_type": "markdown", "metadata": metadata, "source": source}


def code(source: str, *, prints: str | None = None, **metadata: Any) -> Cell:
    """A code cell. `prints`: what it must print, as if it had been run; "" for nothing; None: it was not run."""
    outputs = [{"output_type": "stream", "name": "stdout", "text": prints}] if prints else []
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": source,
        "outputs": outputs,
        "execution_count": None if prints is None else 0,  # counted by `notebook`
    }


def notebook(cells: Iterable[Cell]) -> Notebook:
    """A notebook of these cells, with ids that follow from what is in them, and the run ones counted.

    nbgrader's cells go by their grade_id: an id that followed from a hidden test would be a trace of it.
    """
    seen: dict[str, int] = {}
    counted, made = 0, []
    for cell in cells:
        key = hashlib.sha256(f"{cell['cell_type']}\n{cell['source']}".encode()).hexdigest()[:8]
        key = cell["metadata"].get("nbgrader", {}).get("grade_id", key)
        seen[key] = seen.get(key, 0) + 1
        cell = cell | {"id": key if seen[key] == 1 else f"{key}-{seen[key]}"}
        if cell.get("execution_count") is not None:
            counted += 1
            cell["execution_count"] = counted
        made.append(cell)
    return {
        "cells": made,
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def to_text(made: Notebook) -> str:
    """The file's text, as Jupyter writes it."""

    def lines(cell: Cell) -> Cell:
        split = cell | {"source": cell["source"].splitlines(keepends=True)}
        if "outputs" in cell:
            split["outputs"] = [out | {"text": out["text"].splitlines(keepends=True)} for out in cell["outputs"]]
        return split

    whole: Mapping[str, Any] = made | {"cells": [lines(cell) for cell in made["cells"]]}
    return json.dumps(whole, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


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
