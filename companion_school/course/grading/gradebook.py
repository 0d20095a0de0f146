"""Marks of several problem sets in one table, with the columns that `nbgrader export` writes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from companion.ground.fields import shown, why
from companion.ground.reading import read_text

COLUMNS = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)
_NEEDED = frozenset({"assignment", "student_id", "score", "max_score"})
_ROSTER = ("last_name", "first_name", "email")

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")

Row = dict[str, str]


def collect(folder: Path, roster: Path | None = None, *, leave_out: Sequence[Path] = ()) -> list[Row]:
    """All marks in the CSV files of a folder and of the folders in it, by problem set and student.

    folder:     what `companion grade` wrote into; any CSV file in it with the columns assignment, student_id, score and
                max_score counts, another one does not.
    roster:     a CSV file with id and any of last_name, first_name, email. Who is in it and handed nothing in gets a
                row without a score: it is for the instructor to say what that is worth.
    leave_out:  files that are not read, such as the table that was written before.

    Raises `ValueError` for no marks, an invalid mark, or two marks of one student for one problem set.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with marks, as companion grade --out writes it")
    found: dict[tuple[str, str], Row] = {}
    origin: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.rglob("*.csv")):
        if path.resolve() in {other.resolve() for other in leave_out}:
            continue
        for row in _marks(path):
            key = row["assignment"], row["student_id"]
            if key in found:
                raise ValueError(f"{path}: {key[1]} has a mark for {key[0]} in {origin[key]} already; expected one")
            found[key], origin[key] = row, path
    if not found:
        raise ValueError(f"{folder}: expected CSV files with the columns {', '.join(sorted(_NEEDED))}; found none")
    if roster is not None:
        _enrol(found, roster)
    return [found[key] for key in sorted(found)]


def to_csv(rows: Iterable[Row]) -> str:
    """The rows as CSV, with a line of headings."""
    return as_csv(COLUMNS, (row | {"student_id": quoted(row["student_id"])} for row in rows))


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, str]]) -> str:
    """A table as CSV: a line of headings, then a line a row, whose cells are as they are; what a row lacks is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def quoted(student: str) -> str:
    """A student's name as a cell that no spreadsheet takes for a formula; `unquoted` gives it back."""
    return f"'{student}" if student.startswith(_FORMULAS) else student


def unquoted(cell: str) -> str:
    """The student's name that `quoted` made this cell of."""
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(_FORMULAS) else cell


def _marks(path: Path) -> list[Row]:
    rows = read_table(path)
    if not rows or not set(rows[0]) >= _NEEDED:
        return []
    marks = []
    for number, row in enumerate(rows, 2):
        where = f"{path}, line {number}"
        if not row["assignment"] or not row["student_id"]:
            raise ValueError(f"{where}: expected an assignment and a student_id, got an empty one")
        score, most = _number(row["score"], f"{where}, score"), _number(row["max_score"], f"{where}, max_score")
        if most is None or not 0 <= (score or 0) <= most < math.inf:
            raise ValueError(f"{where}: expected a score from 0 to max_score, got {row['score']} of {row['max_score']}")
        mark = {name: row.get(name) or "" for name in COLUMNS}
        mark["student_id"] = unquoted(row["student_id"])
        if score is not None:
            mark["raw_score"] = mark["raw_score"] or row["score"]
            mark["late_submission_penalty"] = mark["late_submission_penalty"] or "0.0"
        marks.append(mark)
    return marks


def _enrol(found: dict[tuple[str, str], Row], roster: Path) -> None:
    people = read_table(roster)
    if not people or "id" not in people[0]:
        raise ValueError(f"--roster {roster}: expected a CSV file with a column id")
    most = {row["assignment"]: row["max_score"] for row in found.values()}
    seen: set[str] = set()
    for number, person in enumerate(people, 2):
        if not person["id"].strip():
            raise ValueError(f"--roster {roster}, line {number}: expected an id, got an empty one")
        if person["id"] in seen:
            raise ValueError(f"--roster {roster}, line {number}: {person['id']!r} is there already; expected it once")
        seen.add(person["id"])
        for assignment, points in most.items():
            empty = dict.fromkeys(COLUMNS, "") | {"assignment": assignment, "max_score": points}
            row = found.setdefault((assignment, person["id"]), empty | {"student_id": person["id"]})
            row.update({name: person[name] for name in _ROSTER if person.get(name)})


def read_table(path: Path) -> list[Row]:
    """The rows of a CSV file, by the names of their columns. Raises `ValueError` for what is no such file."""
    try:
        text = read_text(path)
        table = csv.DictReader(io.StringIO(text), strict=True)
        if len(names := list(table.fieldnames or ())) != len(set(names)):
            raise csv.Error("two columns have one name")
        rows = []
        for number, row in enumerate(table, 2):
            if None in row:
                raise csv.Error(f"line {number} has more cells than there are columns")
            rows.append({key: value or "" for key, value in row.items() if key})
        return rows
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a CSV file in UTF-8 ({why(error)})") from None


def _number(text: str, where: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where}: expected a number, got {shown(text)}") from None
