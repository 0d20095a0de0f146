"""A lesson's source: MyST Markdown, read as cells without outputs, with the line of the file where each cell begins.

A question becomes a folded code cell that asks it. A target starts a new cell, so that links can lead to it. Links,
minutes and navigation require more than one source, so `finish.py` adds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from authoring import exercises
from authoring.question import Draft, SourceError, read_question
from companion_school.course.release.notebook_cells import with_ids

FOLDED = "folded"
_FENCE = re.compile(r"^(```+|~~~+)(?:\{([\w-]+)\}[ \t]*(.*))?")
_TARGET = re.compile(r"^\(([\w-]+)\)=[ \t]*$")


@dataclass(frozen=True)
class Source:
    """A source as cells. Their ids are computed from their text.

    Attributes:
        path: The source's file.
        front: Its front matter.
        cells: The cells.
        lines: Line of the file at which each cell begins, counted from 1.
        tables: Where to put the table of exercises, as (cell, counted from 1; line in the cell, counted from 0).
        targets: Index (from 0) of the cell that follows each target `(name)=`.
        questions: The questions, by the index (from 0) of the cell that asks the question.
    """

    path: Path
    front: Mapping[str, Any]
    cells: list[NotebookNode]
    lines: list[int]
    tables: list[tuple[int, int]] = field(default_factory=list)
    targets: Mapping[str, int] = field(default_factory=dict)
    questions: Mapping[int, Draft] = field(default_factory=dict)

    @cached_property
    def ids(self) -> Mapping[str, str]:
        """The id of the cell that each target names."""
        return {name: self.cells[index].id for name, index in self.targets.items()}


def read_source(path: Path) -> Source:
    """Read the cells of a source, and insert the table of the lesson's exercises.

    If the lesson has no exercises, the placeholder for the table remains.

    Raises:
        SourceError: If a question or a target is not valid. The message gives the line.
    """
    text = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="md:myst")
    front = {key: value for key, value in notebook.metadata.items() if key not in ("jupytext", "kernelspec")}
    placed = list(zip(notebook.cells, _first_lines(text, notebook.cells), strict=True))
    targets: dict[str, int] = {}
    questions: dict[int, Draft] = {}
    placed = list(_split(placed, path, targets, questions))
    cells, lines = [cell for cell, _ in placed], [line for _, line in placed]
    tables = _fill_in_exercises(cells, path.stem)
    for cell in cells:
        cell.metadata = _kept(cell.metadata)
    return Source(path, front, list(with_ids(cells)), lines, tables, targets, questions)


def _kept(metadata: Mapping[str, Any]) -> NotebookNode:
    """Return the metadata that a cell has in the notebook. JupyterLab hides the source of a folded cell."""
    kept = NotebookNode({key: value for key, value in metadata.items() if key in ("tags", "name")})
    if FOLDED in kept.get("tags", []):
        kept["jupyter"] = NotebookNode(source_hidden=True)
    if "seconds" in metadata:
        kept["seconds"] = int(metadata["seconds"])
    if "claims" in metadata:
        kept["claims"] = re.findall(r"[^\s,]+", str(metadata["claims"]))
    return kept


def _first_lines(text: str, cells: list[NotebookNode]) -> Iterator[int]:
    position = 0
    for cell in cells:
        found = text.find(cell.source, position)
        if found >= 0:
            yield text.count("\n", 0, found) + 1
            position = found + len(cell.source)
        else:  # if jupytext has changed the cell's text, use the end of the previous cell
            yield text.count("\n", 0, position) + 1


def _asked_by_the_lesson(path: Path) -> int:
    """Return the number of questions in the lesson if this is its deeper notebook, whose questions continue the
    letters."""
    lesson = path.parent.parent / "lessons" / path.name
    if path.parent.name != "deeper" or not lesson.exists():
        return 0
    return len(re.findall(r"^```\{question\}", lesson.read_text(encoding="utf-8"), re.MULTILINE))


def _fill_in_exercises(cells: list[NotebookNode], name: str) -> list[tuple[int, int]]:
    """Replace the placeholders in the cells with the table of exercises, and return their positions as (cell, line)."""
    found = [
        (number, row)
        for number, cell in enumerate(cells, 1)
        if cell.cell_type == "markdown"
        for row, line in enumerate(cell.source.split("\n"))
        if line == exercises.PLACEHOLDER
    ]
    table = exercises.table(name) if found else None
    for number, row in reversed(found if table else []):  # from the bottom, so that earlier rows keep their numbers
        rows = cells[number - 1].source.split("\n")
        cells[number - 1].source = "\n".join([*rows[:row], table, *rows[row + 1 :]])
    return found


# --- questions and targets


def _split(
    placed: list[tuple[NotebookNode, int]], path: Path, targets: dict[str, int], questions: dict[int, Draft]
) -> Iterator[tuple[NotebookNode, int]]:
    """Split Markdown cells at questions and targets, and record both by the index of their cell."""
    count = 0
    lesson, above = int(path.name[:2]), _asked_by_the_lesson(path)
    for cell, first in placed:
        if cell.cell_type == "code":
            yield cell, first
            count += 1
            continue
        for kind, start, body in _pieces(cell.source.split("\n"), path, first):
            line = first + start
            if kind == "text":
                text = "\n".join(body)
                if not text.strip():
                    continue
                skipped = len(text) - len(text.lstrip("\n"))
                yield nbformat.v4.new_markdown_cell(text.strip("\n")), line + skipped
                count += 1
            elif kind == "target":
                [name] = body
                if name in targets:
                    raise SourceError(path, line, f"a second target ({name})=; give it a name of its own")
                targets[name] = count
            else:
                draft = read_question(body, path, line, lesson, above + len(questions))
                twin = next((known for known in questions.values() if known.name == draft.name), None)
                if twin:
                    raise SourceError(
                        path, line, f"a second question named {draft.name!r}; the first: line {twin.line}"
                    )
                questions[count] = draft
                yield nbformat.v4.new_code_cell(draft.code, metadata={"tags": [FOLDED]}), line
                count += 1
    for name, index in targets.items():
        if index >= count:
            raise SourceError(path, len(placed), f"nothing stands under the target ({name})=")


def _pieces(rows: list[str], path: Path, first: int) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the texts, targets (their names) and questions in a Markdown cell, in order, as (kind, first row, rows)."""
    begin, at = 0, 0
    while at < len(rows):
        fence, target = _FENCE.match(rows[at]), _TARGET.match(rows[at])
        if fence:
            ends = (row for row in range(at + 1, len(rows)) if rows[row].rstrip() == fence[1])
            end = next(ends, None)
            if end is None:
                raise SourceError(path, first + at, f"{rows[at]} is not closed by a line {fence[1]}")
            if fence[2] and fence[2] != "question":
                raise SourceError(path, first + at, f"{{{fence[2]}}}: expected a {{code-cell}} or a {{question}}")
            if fence[2]:
                yield "text", begin, rows[begin:at]
                yield "question", at, [fence[3], *rows[at + 1 : end]]
                begin = end + 1
            at = end + 1
            continue
        if target:
            yield "text", begin, rows[begin:at]
            yield "target", at, [target[1]]
            begin = at + 1
        at += 1
    yield "text", begin, rows[begin:]
