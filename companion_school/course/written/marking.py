"""Copy points and comments from a marking sheet into a folder of marks."""

from __future__ import annotations

from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.course.grading.results import Results, load
from companion_school.course.written.sheet import MARKS, Given, Key, keep, read_sheet


def put_marks(sheet: Path, out: Path) -> int:
    """Add a sheet's marks to `written.csv`.

    Args:
        sheet: A marking sheet with points filled in.
        out: A folder that `companion grade` wrote.

    Returns:
        The number of marks on the sheet.

    Raises:
        ValueError: The sheet is missing, invalid or has no points, the folder has no results, or a mark refers to a
            student, an item or a text that is not in the results. In these cases, nothing is written.
    """
    if not sheet.is_file():
        raise ValueError(f"{sheet}: expected a marking sheet, found none; companion course collect writes one")
    marks, results = read_sheet(sheet), load(out)
    if not marks:
        raise ValueError(f"{sheet}: expected points in at least one row, found none")
    found: dict[Key, Given] = {}
    for (who, item), given in marks.items():
        found |= _places(sheet, results, who, item, given)
    before = read_sheet(out / MARKS, texts=False) if (out / MARKS).is_file() else {}
    write_atomic(out / MARKS, keep(before | found))
    return len(marks)


def _places(sheet: Path, results: Results, who: str, item: str, given: Given) -> dict[Key, Given]:
    """Assign a mark to the student named on the sheet or, on a blind sheet, to all students who wrote this text."""
    texts = {record.student: {one.id: one.text_id for one in record.items} for record in results.records}
    if who == given.text_id and who not in texts:
        mine = {(student, item): given for student, ids in texts.items() if ids.get(item) == given.text_id}
        if not mine:
            raise ValueError(f"{sheet}: {who}: no student wrote this text for {item}; run collect again")
        return mine
    if who not in texts:
        raise ValueError(f"{sheet}: {who} is not in the marks")
    if item not in texts[who]:
        raise ValueError(f"{sheet}: {who}: {item} is not in the marks; was it part of the graded set?")
    if texts[who][item] != given.text_id:
        raise ValueError(f"{sheet}: {who}: {item} is not the text that was graded; run collect again")
    return {(who, item): given}
