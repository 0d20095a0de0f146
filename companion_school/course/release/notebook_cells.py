"""Building blocks of all exercise notebooks. The same input always produces the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import nbformat
from nbformat import NotebookNode

from companion.ground.display import count
from companion_school.checking.exercise import BEGIN, DIFFICULTIES, END, STAR, Exercise

Cell = NotebookNode
Notebook = NotebookNode

IMPORTS = "import math\n\nimport torch"
IN_ANOTHER_KERNEL = "import companion  # not there? Kernel > Change Kernel... > The Executable Transformer"
"""First line of a notebook's code. If the kernel lacks the course, the traceback shows the comment in this line."""
PRECISION = (
    "An answer is *right* if it computes the correct result to six digits for every input that the lesson discusses.\n"
    "A right answer earns all the points. It also earns a star if it is *robust*: the result has the dtype of the\n"
    "input and does not share memory with it, a NaN in the input is not hidden, and invalid input raises an error.\n"
    f"You can leave the star ({STAR}) for later, because the check reports one problem at a time, and wrong results\n"
    "come before problems that cost only the star."
)
"""Explanation of the two marks, shown in every exercise notebook."""
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Metadata of every notebook in the course."""


def markdown(source: str, **metadata: Any) -> Cell:
    """Return a Markdown cell."""
    return nbformat.v4.new_markdown_cell(source, metadata=metadata)


def code(source: str, *, prints: str | None = None, **metadata: Any) -> Cell:
    """Return a code cell.

    Args:
        source: The code.
        prints: Output to store, as if the cell had been executed ("" for no output), or None if it was not executed.
        metadata: Metadata of the cell.
    """
    outputs = [nbformat.v4.new_output("stream", text=prints)] if prints else []
    count = None if prints is None else 0  # `notebook` sets the final execution count
    return nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=count, metadata=metadata)


def with_ids(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Set each cell's id to a hash of its contents, and return the cells.

    The id of a cell with nbgrader metadata is its grade_id, because a hash could reveal something about a hidden test.
    """
    seen: dict[str, int] = {}
    for cell in cells:
        key = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        key = cell.metadata.get("nbgrader", {}).get("grade_id", key)
        seen[key] = seen.get(key, 0) + 1
        cell.id = key if seen[key] == 1 else f"{key}-{seen[key]}"
    return cells


def notebook(cells: Iterable[Cell]) -> Notebook:
    """Return a notebook with these cells, adding ids and consecutive execution counts."""
    cells = with_ids(list(cells))
    run = (cell for cell in cells if cell.get("execution_count") is not None)
    for number, cell in enumerate(run, 1):
        cell.execution_count = number
    return nbformat.v4.new_notebook(cells=cells, metadata=KERNEL, nbformat_minor=5)


def to_text(made: Notebook) -> str:
    """Return a notebook as JSON text, formatted as Jupyter writes it."""
    return nbformat.writes(made) + "\n"


# Exercises


def heading(exercise: Exercise, worth: str | None = None) -> str:
    """Return an exercise's heading, points, difficulty, expected time and statement in Markdown.

    Args:
        exercise: The exercise.
        worth: Description of the points (default: their number).
    """
    points = worth or count(exercise.points, "point")
    difficulty = f"{exercise.difficulty} of {len(DIFFICULTIES)} ({DIFFICULTIES[exercise.difficulty]})"
    facts = f"*{points}. Difficulty {difficulty}, about {count(exercise.minutes, 'minute')}.*"
    return f"## {exercise.id} {exercise.title}\n\n{facts}\n\n{exercise.idea}{_counts(exercise)}{_robust(exercise)}"


def _counts(exercise: Exercise) -> str:
    """Return a sentence that says that gradients are checked, or "" if they are not or the statement already says
    so."""
    if "gradients" not in exercise.right or "gradient" in exercise.idea:
        return ""
    return "\n\nGradients with respect to all arguments are compared as well, and count towards *right*."


def _robust(exercise: Exercise) -> str:
    """Return the requirements for a robust answer, formatted as small print."""
    if not exercise.asks:
        return ""
    lines = "\n".join(f"- <small>{ask}</small>" for ask in exercise.asks)
    return f"\n\n<small>{STAR} *Robust*:</small>\n\n{lines}"


def group_points(exercise: Exercise) -> str:
    """List the groups of an exercise's cases with their points, as in `(1) one head, 2; (2) several heads, 1`."""
    return "; ".join(f"({at}) {group.name}, {group.points}" for at, group in enumerate(exercise.groups, 1))


def marked_solution(exercise: Exercise) -> str:
    """Return the reference with nbgrader's solution markers around its body."""
    head = exercise.stub.rsplit("\n", 1)[0]
    body = exercise.solution.removeprefix(head).strip("\n")
    return f"{head}\n    {BEGIN}\n{body}\n    {END}"
