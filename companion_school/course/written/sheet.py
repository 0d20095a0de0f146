"""Marking sheet: a CSV file with a class's texts, in which a marker enters points and comments.

    student_id, item, text_id, text, points, comment

`text_id` is a hash of the text, so a mark applies only to the text for which it was given. On a blind sheet, the column
student_id is empty, and the rows of an item are sorted by text_id. Once a sheet has been read, its marks are stored
without the texts in `written.csv`, next to marks.csv. An HTML page with the same name shows each text as it appears in
the student's notebook, including anything that code printed or drew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from companion_school.course.grading.tables import as_csv, number, quoted, read_number, read_table, unquoted
from companion_school.course.written.rubrics import find_written

if TYPE_CHECKING:
    from companion_school.course.grading.exercise_mark import Graded

COLUMNS = ("student_id", "item", "text_id", "text", "points", "comment")
KEPT = tuple(name for name in COLUMNS if name != "text")
MARKS = "written.csv"

Key = tuple[str, str]
"""Student and item number. On a blind sheet, the text's id replaces the student."""


@dataclass(frozen=True)
class Given:
    """Mark of one text."""

    text_id: str
    points: float
    comment: str = ""


def text_id(text: str) -> str:
    """Return a hash that identifies a text, or "" for an empty text."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest() if text else ""


@dataclass(frozen=True)
class Row:
    """A text that a person has to mark.

    Attributes:
        who: The student, or the text's id on a blind sheet.
        item: Number of the item.
        text: The text.
        beside: Outputs and pictures to show the marker beside the text (`answers.read_runs`).
    """

    who: str
    item: str
    text: str
    beside: tuple[tuple[str, str], ...] = ()


def rows_of(graded: Iterable[Graded], *, blind: bool = False) -> list[Row]:
    """Return a class's nonempty texts, grouped by item.

    Args:
        graded: The students' submissions.
        blind: Whether to replace students with text ids and merge equal texts into one row.
    """
    rows = {}
    for one in graded:
        for text in filter(lambda text: text.text, one.texts):
            who = text_id(text.text) if blind else one.handed.student
            rows[text.item.id, who] = Row(who, text.item.id, text.text, text.beside)
    return [rows[key] for key in sorted(rows)]


def sheet(rows: Iterable[Row], known: Mapping[Key, Given]) -> str:
    """Return the marking sheet as CSV text. Existing marks are filled in where the text has not changed."""
    made = []
    for row in rows:
        id, given = text_id(row.text), known.get((row.who, row.item))
        marks = {"points": number(given.points), "comment": given.comment} if given and given.text_id == id else {}
        name = "" if row.who == id else quoted(row.who)
        made.append({"student_id": name, "item": row.item, "text_id": id, "text": quoted(row.text), **marks})
    return as_csv(COLUMNS, made)


def sheet_page(rows: Sequence[Row]) -> str:
    """Return the sheet as an HTML page for reading, showing each text with anything that code printed or drew."""
    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = made.from_string(files(__package__).joinpath("sheet.html").read_text(encoding="utf-8"))
    items = [find_written(id) for id in dict.fromkeys(row.item for row in rows)]
    return template.render(items=items, rows=rows, text_id=text_id)


def read_sheet(file: Path, *, texts: bool = True) -> dict[Key, Given]:
    """Read the marks from a sheet. Rows without points are skipped.

    Args:
        file: The sheet.
        texts: Whether to require the column `text`, which is missing from files written by `keep`.

    Raises:
        ValueError: A column is missing, a row occurs twice, an item is unknown, or the points do not belong to a level.
    """
    rows = read_table(file)
    if rows and not set(COLUMNS if texts else KEPT) <= set(rows[0]):
        raise ValueError(f"{file}: expected the columns {', '.join(COLUMNS)}; companion course collect writes them")
    found: dict[Key, Given] = {}
    seen: set[Key] = set()
    for at, row in enumerate(rows, 1):
        key = unquoted(row["student_id"]) or row["text_id"], row["item"]
        where = f"{file}, row {at}, {key[0]}"
        if key in seen:
            raise ValueError(f"{where}: {key[1]} occurs twice")
        seen.add(key)
        try:
            item = find_written(key[1])
            points = read_number(row["points"], "points")
            if points is not None:
                found[key] = Given(row["text_id"], item.level(points).points, unquoted(row["comment"]))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return found


def keep(marks: Mapping[Key, Given]) -> str:
    """Return the marks as the CSV text of written.csv: student_id, item, text_id, points and comment, without the
    students' texts."""
    return as_csv(KEPT, [
        {"student_id": quoted(student), "item": item, "text_id": given.text_id, "points": number(given.points),
         "comment": quoted(given.comment)}
        for (student, item), given in sorted(marks.items())
    ])  # fmt: skip
