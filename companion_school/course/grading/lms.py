"""Fill marks into a gradebook exported from Canvas or Moodle, and pack feedback pages for upload.

Only the grades in the table are changed, so that the platform can import the table again. Students are matched by the
platform's number, which is part of the file names of downloaded submissions, or by an id or email address in the table.
Sites in other languages use different column names, which can be set with the option `--columns`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from companion_school.course.grading.marks_csv import page_name
from companion_school.course.grading.results import Results
from companion_school.course.grading.submissions import KINDS, platform_number
from companion_school.course.grading.tables import Row, as_it_was, read_number, read_table

_NUMBERED = re.compile(r" \(\d+\)$")  # column names in Canvas, such as "week2 (4711)"
_PARTICIPANT = re.compile(r"\D*(\d+)")  # Moodle's ids in the site's language, such as "Participant 4711"
ROLES = ("Identifier", "Grade")
_Places = tuple[Mapping[str, Row], Mapping[str, str], str | None]
"""Rows by student, the column of each problem set, and Moodle's column with the maximum."""
_MOST = ("maximum grade", "höchste bewertung", "note maximale", "calificación máxima")


def filled(
    file: Path, marks: Sequence[Row], named: Mapping[str, str] | None = None, ids: Mapping[str, str] | None = None
) -> tuple[str, list[str], int]:
    """Fill scores into a platform's table.

    Args:
        file: The table, as exported by the platform.
        marks: Rows with assignment, student_id, score (empty to leave the cell unchanged) and max_score.
        named: Column names that replace those in `ROLES`, for a site in another language.
        ids: Roster ids, keyed by the students' names in the marks.

    Returns:
        The table as CSV text, the students who are in the marks but not in the table, and the number of grades filled
        in.

    Raises:
        ValueError: If the table comes from neither platform, two of its rows have the same id, a row would get two
            marks, or an assignment has no column in the table or a column with a different maximum.
    """
    rows, ids = read_table(file), ids or {}
    heads = list(rows[0]) if rows else []
    id, grade = ((named or {}).get(role, role) for role in ROLES)
    if {"Student", "ID"} <= set(heads):
        known, columns, most = _in_canvas(file, rows, marks)
    elif {id, grade} <= set(heads):
        known, columns, most = _in_moodle(file, rows, marks, id, grade)
    else:
        raise ValueError(
            f"--into {file}: expected Canvas' columns Student and ID, or Moodle's {id} and {grade}, got "
            f"{', '.join(heads[:8])}. For a site in another language, name the columns with the participant's "
            "number and the grade, as in --columns Identifier=Nummer Grade=Bewertung"
        )
    unknown: list[str] = []
    has_commas = any(re.fullmatch(r"\d+,\d+", cell.strip()) for row in rows for cell in row.values())
    filled_in = 0
    for mark, row in _matched(file, known, marks, unknown, ids):
        column = columns[mark["assignment"]]
        if mark["score"] and row[column].strip().upper() != "EX":  # students excused in Canvas stay excused
            _must_agree(file, mark, row[most] if most else "")
            row[column] = mark["score"].replace(".", ",") if has_commas else mark["score"]
            filled_in += 1
    return as_it_was(file, heads, rows), unknown, filled_in


def _matched(
    file: Path, known: Mapping[str, Row], marks: Sequence[Row], unknown: list[str], ids: Mapping[str, str]
) -> Iterator[tuple[Row, Row]]:
    """Yield each mark with its student's row, and append students without a row to `unknown`."""
    taken: dict[tuple[int, str], str] = {}
    for mark in marks:
        student, name = mark["student_id"], mark["assignment"]
        row = known.get(student) or known.get(platform_number(student) or "") or known.get(ids.get(student, ""))
        if row is None:
            unknown.append(student)
            continue
        other = taken.setdefault((id(row), name), student)
        if other != student:
            raise ValueError(
                f"--into {file}: {other} and {student} are the same person in this file, where each person can have "
                f"only one mark for {name}"
            )
        yield mark, row


def _in_canvas(file: Path, rows: list[Row], marks: Sequence[Row]) -> _Places:
    points = [row for row in rows if row["Student"].strip() == "Points Possible"]
    people = [row for row in rows if row["ID"].strip()]
    known = _index(file, people, {"ID": str, "SIS User ID": str, "SIS Login ID": str})
    columns: dict[str, str] = {}
    for mark in marks:
        name = mark["assignment"]
        found = [column for column in rows[0] if _NUMBERED.sub("", column) == name]
        if len(found) != 1:
            what = f"expected one column for {name}, as in '{name} (4711)', got {len(found)}"
            raise ValueError(f"--into {file}: {what}. To export a single set, give its folder, as in marks/week2")
        columns[name] = found[0]
        _must_agree(file, mark, points[0][found[0]] if points else "")
    return known, columns, None


def _in_moodle(file: Path, rows: list[Row], marks: Sequence[Row], id: str, grade: str) -> _Places:
    names = sorted({mark["assignment"] for mark in marks})
    if len(names) > 1:
        raise ValueError(f"--into {file}: expected marks of one problem set, got {', '.join(names)}")

    def participant(cell: str) -> str:
        found = _PARTICIPANT.fullmatch(cell.strip())
        return found[1] if found else cell

    most = next((column for column in rows[0] if column.lower() in _MOST), None)
    return _index(file, rows, {id: participant, "Email address": str}), dict.fromkeys(names, grade), most


def _index(file: Path, people: Sequence[Row], keys: dict) -> dict[str, Row]:
    known: dict[str, Row] = {}
    for row in people:
        for id in {read(row[column]).strip() for column, read in keys.items() if row.get(column)}:
            if known.setdefault(id, row) is not row:
                raise ValueError(f"--into {file}: two students have the id {id!r}")
    return known


def _must_agree(file: Path, mark: Row, most: str) -> None:
    there = read_number(most, f"--into {file}: the points of {mark['assignment']}")
    if there is not None and there != float(mark["max_score"]):
        what = f"{mark['assignment']} is worth {most} points in that file, but {mark['max_score']} here"
        raise ValueError(f"--into {file}: {what}; expected the same value")


# Pages for students


def write_pages(results: Results, out: Path, file: Path) -> int:
    """Write the feedback pages of a whole class to a zip file that Moodle or Canvas accepts.

    The upload command is "Upload multiple feedback files in a zip" in Moodle and "Upload submissions" in Canvas. Both
    match students by the names of the downloaded files or folders, so each page gets the name of its student's
    submission.

    Args:
        results: The results of the class.
        out: Output folder of the grader, which holds the pages in `feedback`.
        file: The zip file to write.

    Returns:
        The number of pages.

    Raises:
        ValueError: If a student has no page.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for record in results.records:
            page = out / "feedback" / page_name(record.student)
            if not page.is_file():
                raise ValueError(f"--pages {file}: {record.student} has no page in {out / 'feedback'}")
            place, name = record.place or record.student, f"{results.assignment}.html"
            if place.lower().endswith((*KINDS, ".zip")):
                place = place.rpartition(".")[0]
            is_canvas = "_assignsubmission_" not in place and platform_number(record.student) is not None
            packed.write(page, f"{place}.html" if is_canvas else f"{place}/{name}")
    return len(results.records)
