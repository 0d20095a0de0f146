"""A lesson's source: MyST Markdown as the cells of its notebook, and the line on which each cell begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext
from nbformat import NotebookNode

from authoring import exercises
from companion.course.cells import with_ids

KEPT_CELL_METADATA = ("tags", "name")


@dataclass(frozen=True)
class Source:
    """A source as cells without outputs, and the line of the file on which each cell begins.

    tables: where the source asks for the table of exercises: cell (from 1), and line of the cell (from 0).
    """

    cells: list[NotebookNode]
    lines: list[int]
    tables: list[tuple[int, int]]


def read_source(path: Path) -> Source:
    """The cells of a source, with the table of the lesson's exercises and with ids that follow from their text.

    A lesson that has no exercises keeps the line that asks for them.
    """
    text = path.read_text(encoding="utf-8")
    cells = jupytext.reads(text, fmt="md:myst").cells
    lines = list(_first_lines(text, cells))
    tables = _fill_in_exercises(cells, path.stem)
    for cell in cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA})
    return Source(with_ids(cells), lines, tables)


def _fill_in_exercises(cells: list[NotebookNode], name: str) -> list[tuple[int, int]]:
    """Put the table of exercises where the cells ask for it; cell and line of each place."""
    found = [
        (number, row)
        for number, cell in enumerate(cells, 1)
        if cell.cell_type == "markdown"
        for row, line in enumerate(cell.source.split("\n"))
        if line == exercises.PLACEHOLDER
    ]
    table = exercises.table(name) if found else None
    for number, row in reversed(found if table else []):  # from the bottom: the rows above stay where they are
        rows = cells[number - 1].source.split("\n")
        cells[number - 1].source = "\n".join([*rows[:row], table, *rows[row + 1 :]])
    return found


def _first_lines(text: str, cells: list[NotebookNode]) -> Iterator[int]:
    position = 0
    for cell in cells:
        found = text.find(cell.source, position)
        if found >= 0:
            yield text.count("\n", 0, found) + 1
            position = found + len(cell.source)
        else:  # jupytext changed the text of the cell; point at the end of the one before
            yield text.count("\n", 0, position) + 1
