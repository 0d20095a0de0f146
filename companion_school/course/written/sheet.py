"""The marking sheet: the texts of a class in one CSV file, in which a marker fills in points and comments.

    student_id, item, text_id, text, points, comment

`text_id` tells one text from another: marks stay with the text they were given for. Read back, the marks are kept as
`written.csv` beside marks.csv, without the texts; `companion grade` puts them into every table it makes of that class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from companion_school.course.grading.gradebook import as_csv, quoted, read_table, unquoted
from companion_school.course.written.rubrics import find_written

COLUMNS = ("student_id", "item", "text_id", "text", "points", "comment")
KEPT = tuple(name for name in COLUMNS if name != "text")
MARKS = "written.csv"

Key = tuple[str, str]
"""A student, and the number of an item."""


@dataclass(frozen=True)
class Given:
    """What a marker gave a text."""

    text_id: str
    points: int
    comment: str = ""


def text_id(text: str) -> str:
    """A name for a text that another one does not have; empty for an empty one."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest() if text else ""


def sheet(texts: Mapping[Key, str], known: Mapping[Key, Given]) -> str:
    """The sheet as CSV: texts by student and item. `known`: marks that are there already, for the same texts."""
    rows = []
    for (student, item), text in sorted(texts.items(), key=lambda pair: (pair[0][1], pair[0][0])):
        if not text:
            continue
        given = known.get((student, item))
        is_same = given is not None and given.text_id == text_id(text)
        marks = {"points": str(given.points), "comment": given.comment} if given and is_same else {}
        rows.append(
            {"student_id": quoted(student), "item": item, "text_id": text_id(text), "text": quoted(text), **marks}
        )
    return as_csv(COLUMNS, rows)


def read_sheet(file: Path, *, texts: bool = True) -> dict[Key, Given]:
    """The marks in a sheet that a marker filled in; rows without points are left out.

    texts:  the column `text` must be there, as in a sheet; what `keep` wrote has none.

    Raises `ValueError` for another table, a row twice, an unknown item, and points that are of no level.
    """
    rows = read_table(file)
    if rows and not set(COLUMNS if texts else KEPT) <= set(rows[0]):
        raise ValueError(f"{file}: expected the columns {', '.join(COLUMNS)}; companion course collect writes them")
    found: dict[Key, Given] = {}
    seen: set[Key] = set()
    for number, row in enumerate(rows, 1):
        key = unquoted(row["student_id"]), row["item"]
        where = f"{file}, row {number}, {key[0]}"
        if key in seen:
            raise ValueError(f"{where}: {key[1]} is there already; expected it once")
        seen.add(key)
        try:
            item = find_written(key[1])
            if not row["points"].strip():
                continue
            try:
                points = float(row["points"])
            except ValueError:
                raise ValueError(f"points: expected a number, got {row['points']!r}") from None
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


def kept(out: Path) -> dict[Key, Given]:
    """The marks that were read back into a folder of marks; none where there are none."""
    return read_sheet(out / MARKS, texts=False) if (out / MARKS).is_file() else {}
