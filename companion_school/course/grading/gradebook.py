"""Collect the marks for several problem sets and projects in a table with the columns of `nbgrader export`."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from companion_school.course.grading.lateness import Lateness, read_rule
from companion_school.course.grading.results import FILE, load
from companion_school.course.grading.tables import Row, as_csv, number, quoted, read_number, read_table, unquoted

COLUMNS = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
    "late_submission_penalty", "score", "max_score",
)  # fmt: skip
NAMES = "names.csv"
NAMES_COLUMNS = ("student_id", "roster_id")
KEEP = "-"
"""Entry in names.csv for students who are not on the roster and keep their names."""
_NEEDED = frozenset({"assignment", "student_id", "score", "max_score"})
_ROSTER = ("last_name", "first_name", "email")


def collect(folder: Path, roster: Path | None = None) -> list[Row]:
    """Collect the marks from every marks.csv in a folder and its subfolders.

    Args:
        folder: Output folder of `companion grade`, or a folder that contains several of them.
        roster: CSV file with the column id and any of last_name, first_name and email. People on the roster who handed
            in nothing get rows with their due date but no score, because the instructor decides their score.

    Returns:
        The rows, sorted by problem set and student.

    Raises:
        ValueError: If there are no marks, a mark is invalid, a student has two marks for one problem set, or a student
            with marks is neither on the roster nor in names.csv. In the last case, names.csv is written with a row for
            the instructor to fill in.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with marks, as written by companion grade --out")
    marks = [(row, path) for path in sorted(folder.rglob("marks.csv")) for row in _marks(path)]
    if not marks:
        raise ValueError(f"{folder}: expected marks.csv files with the columns {', '.join(sorted(_NEEDED))}")
    people = read_roster(roster) if roster is not None else {}
    known = ids_of(folder, {row["student_id"] for row, _ in marks}, people) if people else {}
    found: dict[tuple[str, str], Row] = {}
    origin: dict[tuple[str, str], Path] = {}
    for row, path in marks:
        row["student_id"] = known.get(row["student_id"], row["student_id"])
        key = row["assignment"], row["student_id"]
        if key in found:
            raise ValueError(f"{path}: {key[1]} already has a mark for {key[0]} in {origin[key]}; expected only one")
        found[key], origin[key] = row, path
    _enrol(found, people, {row["assignment"]: path.parent for row, path in marks})
    return [found[key] for key in sorted(found)]


def to_csv(rows: Iterable[Row]) -> str:
    """Return the rows as CSV text with a header line."""
    cells = ("student_id", *_ROSTER)
    return as_csv(COLUMNS, (row | {name: quoted(row[name]) for name in cells} for row in rows))


def _marks(path: Path) -> list[Row]:
    rows = read_table(path)
    if rows and not set(rows[0]) >= _NEEDED:
        raise ValueError(f"{path}: expected the columns {', '.join(sorted(_NEEDED))}")
    marks = []
    for line, row in enumerate(rows, 2):
        where = f"{path}, line {line}"
        if not row["assignment"] or not row["student_id"]:
            raise ValueError(f"{where}: expected an assignment and a student_id, got an empty cell")
        score, most = read_number(row["score"], f"{where}, score"), read_number(row["max_score"], f"{where}, max_score")
        # A bonus may raise a score above the maximum, but the bonus itself is limited to the maximum (see
        # overrides.csv).
        if most is None or not 0 <= (score or 0) <= 2 * most < math.inf:
            what = "expected a score from 0 to max_score, or with a bonus up to twice that"
            raise ValueError(f"{where}: {what}, got {row['score']} of {row['max_score']}")
        mark = {name: row.get(name) or "" for name in COLUMNS}
        for name in ("student_id", *_ROSTER):
            mark[name] = unquoted(mark[name])
        if score is not None:
            mark |= {"score": number(score), "max_score": number(most)}
            mark["raw_score"] = mark["raw_score"] or mark["score"]
            mark["late_submission_penalty"] = mark["late_submission_penalty"] or "0"
        marks.append(mark)
    return marks


def read_roster(roster: Path) -> dict[str, Row]:
    """Read a roster.

    Returns:
        For each id, the person's last name, first name and email. Fields that the file lacks are empty.

    Raises:
        ValueError: If the column id is missing, or an id is empty or repeated.
    """
    rows = read_table(roster)
    if not rows or "id" not in rows[0]:
        raise ValueError(f"--roster {roster}: expected a CSV file with a column id")
    people: dict[str, Row] = {}
    for line, person in enumerate(rows, 2):
        id = unquoted(person["id"]).strip()
        if not id:
            raise ValueError(f"--roster {roster}, line {line}: expected an id, got an empty cell")
        if id in people:
            raise ValueError(f"--roster {roster}, line {line}: {id!r} occurs twice")
        people[id] = {name: unquoted(person.get(name, "")) for name in _ROSTER}
    return people


def _enrol(found: dict[tuple[str, str], Row], people: Mapping[str, Row], folders: Mapping[str, Path]) -> None:
    """Fill in the names of all people on the roster, and add a row for each problem set that a person missed."""
    for assignment, points in {row["assignment"]: row["max_score"] for row in found.values()}.items():
        rule = _rule_of(folders[assignment], assignment) if people else None
        for id, person in people.items():
            due = rule.due_of(id, assignment) if rule else ""
            missed = {"assignment": assignment, "duedate": due, "student_id": id, "max_score": points}
            row = found.setdefault((assignment, id), dict.fromkeys(COLUMNS, "") | missed)
            row.update({name: value for name, value in person.items() if value})


def _rule_of(marks: Path, assignment: str) -> Lateness | None:
    """Return the late-work rule of the course to which these marks belong, or None if there is no rule or no course."""
    course = Path(load(marks).course) if (marks / FILE).is_file() else Path()
    return read_rule(course, assignment) if course.name and course.is_dir() else None


# Matching a learning platform's names with roster ids


def ids_of(folder: Path, students: Iterable[str], people: Mapping[str, Row]) -> dict[str, str]:
    """Find the roster ids of the students whose names in the marks are not roster ids.

    Look up each student in names.csv first, then by name or email if these belong to only one person on the roster.
    Students who were found by name and students who were not found are written to names.csv, where the instructor can
    correct the entries.

    Args:
        folder: Folder that contains names.csv.
        students: Students in the marks.
        people: The roster, by id.

    Returns:
        The roster id of each of these students, or the student's own name if the entry in names.csv is `KEEP`.

    Raises:
        ValueError: If a student was not found, or names.csv gives an id that is not on the roster.
    """
    file = folder / NAMES
    told = _read_names(file, people) if file.is_file() else {}
    by_name: dict[str, list[str]] = {}
    for id, person in people.items():
        for name in _spellings(person):
            by_name.setdefault(name, []).append(id)
    known: dict[str, str] = {}
    for student in sorted(set(students) - {*people}):
        same = sorted(set(by_name.get(_letters(re.sub(r"_\d+$", "", student)), [])))
        known[student] = told.get(student) or (same[0] if len(same) == 1 else "")
    if known and known != told:
        rows = ({"student_id": quoted(student), "roster_id": quoted(id)} for student, id in (told | known).items())
        file.write_text(as_csv(NAMES_COLUMNS, rows), encoding="utf-8")
    if missing := [student for student, id in known.items() if not id]:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"{file}: {some}: expected exactly one person with this name on the roster; write each one's roster id "
            f"into the column roster_id, or {KEEP} for students who are not on the roster, and try again"
        )
    return {student: student if id == KEEP else id for student, id in known.items()}


def names_known(folder: Path) -> dict[str, str]:
    """Read students' roster ids from names.csv in the folder of the marks or, failing that, in its parent folder."""
    file = next((place / NAMES for place in (folder, folder.absolute().parent) if (place / NAMES).is_file()), None)
    rows = read_table(file) if file else []
    return {unquoted(row.get("student_id", "")): unquoted(row.get("roster_id", "")).strip() for row in rows}


def _read_names(file: Path, people: Mapping[str, Row]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line, row in enumerate(read_table(file), 2):
        student, id = (unquoted(row.get(name, "")).strip() for name in NAMES_COLUMNS)
        if id and id != KEEP and id not in people:
            raise ValueError(f"{file}, line {line}, roster_id must be an id on the roster or {KEEP}, got {id!r}")
        found[student] = id
    return found


def _spellings(person: Row) -> set[str]:
    """Return the names by which platforms may identify a person: the email, and the full name in either order."""
    first, last, email = (_letters(person[name]) for name in ("first_name", "last_name", "email"))
    return {name for name in (email, first + last, last + first) if name and ((first and last) or name == email)}


_WHOLE = str.maketrans({"ı": "i", "ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe"})  # not decomposed by NFKD


def _letters(name: str) -> str:
    """Return a name in lower case without accents, spaces or punctuation other than @."""
    apart = unicodedata.normalize("NFKD", name).casefold().translate(_WHOLE)
    return "".join(letter for letter in apart if letter.isalnum() or letter == "@")
