"""Marks in the tables of learning platforms: a gradebook that Canvas or Moodle exported, with its grades filled in.

Nothing else in the table changes, so that it can be imported as it is. A student is known by the platform's own number
in the name of the file that the platform hands out (`lovelaceada_LATE_1234_5678_week2.ipynb`,
`Ada Lovelace_12345_assignsubmission_file`), or by an id or address that stands in the table.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from companion_school.course.grading.gradebook import Row, as_csv, read_table

_CANVAS = ("Student", "ID", "SIS Login ID", "Section")
_MOODLE = ("Identifier", "Full name", "Email address", "Grade")
_NUMBERED = re.compile(r" \(\d+\)$")  # Canvas: week2 (4711)
_CANVAS_FILE = re.compile(r"[^_]+(?:_LATE)?_(\d+)_\d+(?:_.*)?")
_MOODLE_FOLDER = re.compile(r"[^_]+_(\d+)_assignsubmission_\w+")


def filled(file: Path, marks: Sequence[Row]) -> tuple[str, list[str]]:
    """The platform's table as CSV with the scores in it; and the students whom it does not know.

    marks:  rows with assignment, student_id, score and max_score; an empty score leaves the cell as it is.

    Raises `ValueError` for a table of neither platform, two rows for one student, two marks for one row, or an
    assignment without a column or with other points.
    """
    rows = read_table(file)
    columns = list(rows[0]) if rows else []
    if set(_CANVAS) <= set(columns):
        unknown = _fill_canvas(file, rows, marks)
    elif set(_MOODLE) <= set(columns):
        unknown = _fill_moodle(file, rows, marks)
    else:
        canvas, moodle = ", ".join(_CANVAS), ", ".join(_MOODLE)
        raise ValueError(f"--into {file}: expected Canvas' columns ({canvas}) or Moodle's ({moodle})")
    return _as_it_was(file, as_csv(columns, rows)), unknown


def platform_number(student_id: str) -> str | None:
    """The number that Canvas or Moodle wrote into a student's file or folder; None where there is none."""
    match = _CANVAS_FILE.fullmatch(student_id) or _MOODLE_FOLDER.fullmatch(student_id)
    return match[1] if match else None


def _as_it_was(file: Path, text: str) -> str:
    """The table with the mark at its beginning and the ends of lines that it came with: spreadsheets go by them."""
    before = file.read_bytes()
    if b"\r\n" in before:
        text = text.replace("\n", "\r\n")
    return "\ufeff" * before.startswith(codecs.BOM_UTF8) + text


def _matched(
    file: Path, known: Mapping[str, Row], marks: Sequence[Row], unknown: list[str]
) -> Iterator[tuple[Row, Row]]:
    """Each mark with the row of its student; `unknown` takes the students who have none.

    Raises `ValueError` where a row has a mark already.
    """
    taken: dict[tuple[int, str], str] = {}
    for mark in marks:
        student, name = mark["student_id"], mark["assignment"]
        row = known.get(student) or known.get(platform_number(student) or "")
        if row is None:
            unknown.append(student)
            continue
        other = taken.setdefault((id(row), name), student)
        if other != student:
            raise ValueError(f"--into {file}: {other} and {student} are one person there; expected one mark for {name}")
        yield mark, row


def _fill_canvas(file: Path, rows: list[Row], marks: Sequence[Row]) -> list[str]:
    points = [row for row in rows if row["Student"].strip() == "Points Possible"]
    people = [row for row in rows if row["ID"].strip()]
    known = _index(file, people, {"ID": str, "SIS User ID": str, "SIS Login ID": str})
    there: dict[str, str] = {}
    for mark in marks:
        name = mark["assignment"]
        found = [column for column in rows[0] if _NUMBERED.sub("", column) == name]
        if len(found) != 1:
            raise ValueError(f"--into {file}: expected one column for {name}, as in '{name} (4711)', got {len(found)}")
        there[name] = found[0]
        _must_agree(file, mark, points[0][found[0]] if points else "")
    unknown: list[str] = []
    for mark, row in _matched(file, known, marks, unknown):
        row[there[mark["assignment"]]] = mark["score"] or row[there[mark["assignment"]]]
    return unknown


def _fill_moodle(file: Path, rows: list[Row], marks: Sequence[Row]) -> list[str]:
    names = sorted({mark["assignment"] for mark in marks})
    if len(names) > 1:
        raise ValueError(f"--into {file}: expected marks of one problem set, got {', '.join(names)}")
    most = next((column for column in rows[0] if column.lower() == "maximum grade"), None)
    known = _index(file, rows, {"Identifier": lambda cell: cell.removeprefix("Participant "), "Email address": str})
    unknown: list[str] = []
    for mark, row in _matched(file, known, marks, unknown):
        if mark["score"]:
            _must_agree(file, mark, row[most] if most else "")
            row["Grade"] = mark["score"]
    return unknown


def _index(file: Path, people: Sequence[Row], keys: dict) -> dict[str, Row]:
    known: dict[str, Row] = {}
    for row in people:
        for id in {read(row[column]).strip() for column, read in keys.items() if row.get(column)}:
            if known.setdefault(id, row) is not row:
                raise ValueError(f"--into {file}: two students have the id {id!r}")
    return known


def _must_agree(file: Path, mark: Row, most: str) -> None:
    try:
        agrees = not most.strip() or float(most) == float(mark["max_score"])
    except ValueError:
        agrees = False
    if not agrees:
        name, points = mark["assignment"], mark["max_score"]
        raise ValueError(f"--into {file}: {name} is worth {most} points there, and {points} here; expected the same")
