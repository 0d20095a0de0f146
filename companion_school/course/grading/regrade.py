"""Grade some submissions again: their rows take the place of the first ones, all others stay, and changes are told."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from companion_school.course.grading.gradebook import Row, as_csv, read_table, unquoted
from companion_school.course.grading.lms import platform_number


def first_marks(out: Path, students: Sequence[str], *, again: bool) -> list[Row]:
    """The rows of the marks that stand in a folder.

    students:  who is graded now.
    again:     `--regrade`.

    Raises `ValueError` where there are none and there should be, and where marks of others would be lost.
    """
    file = out / "marks.csv"
    if not file.is_file():
        if again:
            raise ValueError(f"--regrade: expected the first marks in {file}, found none")
        return []
    rows = read_table(file)
    lost = sorted({unquoted(row.get("student_id", "")) for row in rows} - {*students})
    if lost and not again:
        some = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
        raise ValueError(f"--out {out}: it has marks of {some}, who are not graded now; --regrade keeps them")
    return rows if again else []


def merged(first: Sequence[Row], text: str) -> tuple[str, list[str]]:
    """The first marks with the rows of a new table in them, as CSV; and a line for each student whose marks changed.

    What somebody hands in once more has another name where Canvas or Moodle names the files: the number in it tells.
    """
    if not first:
        return text, []
    table = csv.DictReader(io.StringIO(text))
    new = {row["student_id"]: row for row in table}
    columns = list(dict.fromkeys([*first[0], *(table.fieldnames or ())]))
    known = {row["student_id"]: row for row in first}
    for id in new:
        number = platform_number(unquoted(id))
        former = [other for other in known if number and platform_number(unquoted(other)) == number and other != id]
        for other in former:
            known.setdefault(id, known.pop(other))
    changes = [line for id, row in new.items() if (line := _change(known.get(id), row))]
    everybody = {**known, **new}
    return as_csv(columns, (everybody[id] for id in sorted(everybody))), changes


def _change(before: Row | None, now: Row) -> str | None:
    student = unquoted(now["student_id"])
    if before is None:
        return f"{student}: new, {now['score'] or 'no score'}"
    told = [
        f"{name} {before.get(name) or 'none'} -> {now[name] or 'none'}"
        for name in now
        if name.replace(".", "").isalnum() and name[:1].isdigit() and before.get(name, "") != now[name]
    ]
    if before.get("score") == now["score"] and not told:
        return None
    score = f"{before.get('score') or 'no score'} -> {now['score'] or 'no score'}"
    return f"{student}: {score}" + (f" ({', '.join(told)})" if told else "")
