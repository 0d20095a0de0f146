"""Marking sheet: a CSV file with the texts of a class, in which a marker fills in points and comments.

    student_id, item, text_id, text, points, comment

`text_id` is a hash of the text, so a mark belongs to the text that it was given for. In a blind sheet the column
student_id is empty, and the rows of an item are sorted by text_id. After reading, the marks are stored in `written.csv`
beside marks.csv, without the texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from companion_school.course.grading.tables import as_csv, quoted, read_number, read_table, unquoted
from companion_school.course.written.rubrics import find_written

COLUMNS = ("student_id", "item", "text_id", "text", "points", "comment")
KEPT = tuple(name for name in COLUMNS if name != "text")
MARKS = "written.csv"

Key = tuple[str, str]
"""Student and item number. In a blind sheet the text's id replaces the student."""


@dataclass(frozen=True)
class Given:
    """Mark of one text."""

    text_id: str
    points: int
    comment: str = ""


def text_id(text: str) -> str:
    """Return a hash that identifies a text, or "" for an empty text."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest() if text else ""


def sheet(texts: Mapping[Key, str], known: Mapping[Key, Given], *, blind: bool = False) -> str:
    """Return the marking sheet as CSV text.

    Args:
        texts: Texts by student and item. Empty texts are left out.
        known: Existing marks, which are filled in if the text is still the same.
        blind: If True, leave out the students' ids.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for (student, item), text in texts.items():
        if not text:
            continue
        id = text_id(text)
        who = id if blind else student
        given = known.get((who, item))
        marks = {"points": str(given.points), "comment": given.comment} if given and given.text_id == id else {}
        name = "" if blind else quoted(student)
        rows[item, who] = {"student_id": name, "item": item, "text_id": id, "text": quoted(text), **marks}
    return as_csv(COLUMNS, (rows[key] for key in sorted(rows)))


def read_sheet(file: Path, *, texts: bool = True) -> dict[Key, Given]:
    """Read the marks from a sheet. Rows without points are left out.

    Args:
        file: The sheet.
        texts: If True, require the column `text`, which files that `keep` wrote do not have.

    Raises:
        ValueError: A column is missing, a row occurs twice, an item is unknown, or the points are not those of a level.
    """
    rows = read_table(file)
    if rows and not set(COLUMNS if texts else KEPT) <= set(rows[0]):
        raise ValueError(f"{file}: expected the columns {', '.join(COLUMNS)}; companion course collect writes them")
    found: dict[Key, Given] = {}
    seen: set[Key] = set()
    for number, row in enumerate(rows, 1):
        key = unquoted(row["student_id"]) or row["text_id"], row["item"]
        where = f"{file}, row {number}, {key[0]}"
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
    """Return the marks as CSV text, without the students' texts."""
    return as_csv(KEPT, [
        {"student_id": quoted(student), "item": item, "text_id": given.text_id, "points": str(given.points),
         "comment": quoted(given.comment)}
        for (student, item), given in sorted(marks.items())
    ])  # fmt: skip
