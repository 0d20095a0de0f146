"""The marking sheet: the texts of a class in one CSV file, in which a marker fills in points and comments.

    student_id, item, text_id, text, points, comment

`text_id` tells one text from another: marks stay with the text they were given for. In a blind sheet the column
student_id is empty, and the rows are in the order of these ids. Read back, the marks are stored as `written.csv` beside
marks.csv, without the texts.
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
"""A student, and the number of an item. In a blind sheet the text's id is in place of the student."""


@dataclass(frozen=True)
class Given:
    """What a marker gave a text."""

    text_id: str
    points: int
    comment: str = ""


def text_id(text: str) -> str:
    """A name for a text that another one does not have; empty for an empty one."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest() if text else ""


def sheet(texts: Mapping[Key, str], known: Mapping[Key, Given], *, blind: bool = False) -> str:
    """The sheet as CSV.

    Args:
        texts: by student and item.
        known: marks that are there already, for the same texts.
        blind: leave out who wrote a text.
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
    """The marks in a sheet that a marker filled in; rows without points are left out.

    Args:
        file: the sheet.
        texts: the column `text` must be there, as in a sheet; what `keep` wrote has none.

    Raises:
        ValueError: it is another table, has a row twice or an unknown item, or points that are of no level.
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
            raise ValueError(f"{where}: {key[1]} is there already; expected it once")
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
    """The marks as CSV, without the texts."""
    return as_csv(KEPT, [
        {"student_id": quoted(student), "item": item, "text_id": given.text_id, "points": str(given.points),
         "comment": quoted(given.comment)}
        for (student, item), given in sorted(marks.items())
    ])  # fmt: skip
