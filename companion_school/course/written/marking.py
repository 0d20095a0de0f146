"""Put the marks of a sheet into a folder of marks: marks.csv, the pages of feedback, and what a regrade keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.course.grading.exercise_mark import MARKED, TO_MARK, Text
from companion_school.course.grading.feedback import with_texts
from companion_school.course.grading.gradebook import Row, as_csv, quoted, read_table
from companion_school.course.grading.lateness import Lateness, as_toml, read_rule
from companion_school.course.grading.marks_csv import page_name, scored, text_columns
from companion_school.course.written.rubrics import find_written
from companion_school.course.written.sheet import MARKS, Given, Key, keep, kept, read_sheet

LATE = "late.toml"
"""The rule for late work, beside the marks: a mark that comes later loses its share, too."""


def put_marks(sheet: Path, out: Path) -> tuple[int, int]:
    """Read a sheet back into a folder of marks; how many marks it has, and how many texts still wait for one.

    Raises `ValueError`, and writes nothing, for a sheet or a folder that is none, and for marks of a student, an item
    or a text that is not the one in marks.csv.
    """
    if not sheet.is_file():
        raise ValueError(f"{sheet}: expected a marking sheet, found none; companion course collect writes one")
    if not (out / "marks.csv").is_file():
        raise ValueError(
            f"--into {out}: expected the folder that companion grade --out wrote, found no marks.csv in it"
        )
    marks, rows = read_sheet(sheet), read_table(out / "marks.csv")
    if not marks:
        raise ValueError(f"{sheet}: expected points in at least one row, found none")
    by_student = {row["student_id"]: row for row in rows}
    for (student, id), given in marks.items():
        _must_fit(sheet, by_student.get(quoted(student)), student, id, given)
    everything = kept(out) | marks
    rule = read_rule(out / LATE)
    for (student, id), given in marks.items():
        row = by_student[quoted(student)]
        row |= dict(zip(text_columns(id), (MARKED, str(given.points), given.text_id), strict=True))
        points = sum((float(value) for name, value in row.items() if name.endswith(" points") and value), 0.0)
        row |= scored(points, TO_MARK not in row.values(), row["timestamp"], rule)
    pages = _pages(out, by_student, marks)
    write_atomic(out / MARKS, keep(everything))
    write_atomic(out / "marks.csv", as_csv(rows[0], rows))
    for page, text in pages.items():
        write_atomic(page, text)
    return len(marks), sum(value == TO_MARK for row in rows for value in row.values())


def keep_rule(out: Path, rule: Lateness | None) -> None:
    """Keep the rule for late work beside the marks, for `put_marks`; without one, none is kept."""
    if rule is not None:
        write_atomic(out / LATE, as_toml(rule))
    else:
        (out / LATE).unlink(missing_ok=True)


def _must_fit(sheet: Path, row: Row | None, student: str, id: str, given: Given) -> None:
    if row is None:
        raise ValueError(f"{sheet}: {student} is not in marks.csv")
    name = text_columns(id)[2]
    if name not in row:
        raise ValueError(f"{sheet}: {student}: marks.csv has no column {name}; was it graded with {id}?")
    if row[name] != given.text_id:
        raise ValueError(f"{sheet}: {student}: {id} is another text than the one that was graded; collect again")


def _pages(out: Path, rows: Mapping[str, Row], marks: Mapping[Key, Given]) -> dict[Path, str]:
    """The pages of feedback with the marks in them, as far as there are pages."""
    pages: dict[Path, str] = {}
    for (student, id), given in marks.items():
        page, row = out / "feedback" / page_name(student), rows[quoted(student)]
        if page.is_file():
            before = pages.get(page) or page.read_text(encoding="utf-8")
            so_far = "" if row["score"] else " so far"
            total = f"{student}: {float(row['raw_score']):g} of {float(row['max_score']):g} points{so_far}"
            pages[page] = with_texts(before, [Text(find_written(id), given.text_id, given)], total)
    return pages
