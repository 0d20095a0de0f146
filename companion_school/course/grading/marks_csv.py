"""Write the marks of a class: marks.csv, class.csv and a page for each student, all generated from stored results."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from pathlib import Path

from companion.ground import display
from companion.ground.atomic import write_atomic
from companion_school.checking.exercise import STAR
from companion_school.course.grading.exercise_mark import OUTCOMES
from companion_school.course.grading.feedback import page
from companion_school.course.grading.gradebook import COLUMNS, KEEP, names_known
from companion_school.course.grading.lateness import EXTENSIONS, Lateness, read_rule, read_settings
from companion_school.course.grading.received import CALLED_LATE, moment
from companion_school.course.grading.results import (
    FILE,
    OVERRIDES,
    Item,
    Line,
    Record,
    Results,
    Settled,
    idle_overrides,
    load,
    read_overrides,
    settle,
    store,
)
from companion_school.course.grading.submissions import platform_name, platform_number
from companion_school.course.grading.tables import Row, as_csv, number, quoted, read_table, unquoted
from companion_school.course.written.sheet import MARKS, read_sheet

LONGEST_NAME = 150
"""Maximum length of a page's name in bytes. With a hash, the suffix and the ending of a temporary file, the name stays
below the 255 bytes that file systems allow.
"""
_OWN = ("submission", "file", "also_handed_in", "time_from", "late_days", "changed_by_hand")


def table(settled: Sequence[Settled], assignment: str, rule: Lateness | None = None) -> str:
    """Return the marks as CSV text: nbgrader's columns, the graded files, and each item's outcome and points.

    A student whose work could not be read gets no score; the instructor has to decide on one. A student with an
    unmarked written answer gets no score yet, but `raw_score` contains the points earned so far.
    """
    items = {item.id: item for one in settled for item in one.record.items}
    columns = [*COLUMNS, *_OWN, *(name for item in items.values() for name in _columns(item))]
    return as_csv(columns, (_row(one, assignment, rule) for one in settled))


def _row(one: Settled, assignment: str, rule: Lateness | None) -> Row:
    record = one.record
    earned = (one.score is not None or one.waits) and one.is_earned
    changes = [*one.changes, *(line.override for line in one.lines if line.override)]
    row = {
        "assignment": assignment,
        "duedate": rule.due_of(one.known_as or record.student, assignment) if rule else "",
        "timestamp": record.time,
        "student_id": quoted(record.student),
        "raw_score": number(one.earned) if earned else "",
        "late_submission_penalty": "" if one.score is None else number(one.penalty),
        "score": "" if one.score is None else number(one.score),
        "max_score": number(one.most),
        "submission": record.submission,
        "file": quoted(record.file),
        "also_handed_in": quoted("; ".join(record.others)),
        "time_from": record.time_from,
        "late_days": str(one.late.days or ""),
        "changed_by_hand": quoted("; ".join(f"{each.item} {number(each.points)} by {each.author}" for each in changes)),
    }
    for line in one.lines:
        each_of = [f"{each.name}: {number(each.points)} of {number(each.most)}" for each in line.item.groups]
        groups = "; ".join(each_of if one.has_items else ())
        points = number(line.points) if one.has_items and not line.waits else ""
        cells = (line.outcome, points, line.item.robust, groups)
        row |= dict(zip(_columns(line.item), cells, strict=False))
    return row


def _columns(item: Item) -> list[str]:
    if item.written or item.section:
        return [item.id, f"{item.id} points"]
    return [item.id, f"{item.id} points", f"{item.id} robust", *[f"{item.id} groups"] * (len(item.groups) > 1)]


def summary(settled: Sequence[Settled]) -> str:
    """Return a table for the terminal that counts the outcomes and the robust answers for each item.

    Outcomes that do not occur are left out. Below the table, it lists the students whose work a platform marks as late
    without giving a time.
    """
    outcomes = [outcome for outcome in OUTCOMES if outcome != "right"]
    rows = []
    for id, lines in _by_item(settled).items():
        counts = Counter(line.outcome for line in lines)
        stars = sum(line.item.robust == "yes" for line in lines)
        numbers = (counts["right"], stars, *(counts[outcome] for outcome in outcomes))
        rows.append((id, *(f"{number or '.'}" for number in numbers)))
    shown = [True, True, *(any(row[at] != "." for row in rows) for at in range(2, len(outcomes) + 3))]
    heads = ("", "right", f"robust {STAR}", *outcomes)
    told = display.table([tuple(compress(row, shown)) for row in rows], tuple(compress(heads, shown)), indent=0)
    if not rows:
        told = "There is nothing here that the grader can mark; a person marks the written answers."
    if late := [one.record.student for one in settled if one.record.time_from == CALLED_LATE]:
        told += f"\n\n{', '.join(late)}: {CALLED_LATE}, so no points are deducted. --times can give the times."
    return told


def _by_item(settled: Sequence[Settled]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for one in settled:
        for line in one.lines:
            if not line.item.written and line.outcome in OUTCOMES:
                found.setdefault(line.item.id, []).append(line)
    return found


def statistics(settled: Sequence[Settled]) -> str:
    """Return CSV text with the number of students by item, outcome and known mistake, most frequent first.

    Robust answers are counted in separate rows ("right and robust"). In rows for "right" answers, the mistake costs
    only the robust mark.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("exercise", "outcome", "mistake", "students"))
    for id, lines in _by_item(settled).items():
        counts = Counter(
            (f"{one.outcome}{' and robust' * (one.item.robust == 'yes')}", one.item.mistake) for one in lines
        )
        for (outcome, mistake), many in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            rows.writerow((id, outcome, mistake, many))
    return text.getvalue()


def publish(results: Results, out: Path) -> tuple[list[Settled], list[str]]:
    """Write results.json, marks.csv, class.csv and feedback/STUDENT.html, each atomically.

    Before that, reread the changes and marks that people have added (overrides.csv, written.csv) and the rules for late
    work. If a student's page cannot be written, the other pages are still written.

    Args:
        results: The results of the class.
        out: Output folder.

    Returns:
        The students' marks, and error messages for extensions without effect and for pages that could not be written.

    Raises:
        ValueError: If an input file is malformed, the folder of the problem set is gone, or marks.csv was changed by
            hand.
    """
    must_be_untouched(out)
    settled, rule, ids = _settled(results, out)
    made = table(settled, results.assignment, rule)
    write_atomic(out / FILE, store(replace(results, table=_digest(made))))
    write_atomic(out / "marks.csv", made)
    write_atomic(out / "class.csv", statistics(settled))
    faults = [*_unequal(settled), *_without_effect(rule, results, ids)]
    for one in settled:
        try:
            write_atomic(out / "feedback" / page_name(one.record.student), page(one, results.assignment))
        except OSError as error:
            faults.append(str(error))
    return settled, faults


def is_outdated(results: Results, out: Path) -> bool:
    """Return True if marks.csv lacks changes, extensions or matched names that were added after it was written."""
    settled, rule, _ = _settled(results, out)
    return _digest(table(settled, results.assignment, rule)) != results.table


def _settled(results: Results, out: Path) -> tuple[list[Settled], Lateness | None, dict[str, str]]:
    """Return the students' marks, the rule for late work, and the students' roster ids."""
    if results.course and not Path(results.course).is_dir():
        raise ValueError(
            f"{out / FILE}: the deadline and the extensions are in {results.course}, which does not exist; if it "
            'has moved, change the line "course" in this file'
        )
    rule = read_rule(Path(results.course), results.assignment) if results.course else None
    given = read_sheet(out / MARKS, texts=False) if (out / MARKS).is_file() else {}
    ids = {student: id for student, id in names_known(out).items() if id not in ("", KEEP)}
    overrides = read_overrides(out / OVERRIDES, results, ids, given)
    return settle(results, given, overrides, rule, _spent(out, results, ids), ids), rule, ids


def must_be_untouched(out: Path) -> None:
    """Raise `ValueError` if marks.csv was changed by hand, because writing it again would lose the changes."""
    file = out / "marks.csv"
    if file.is_file() and (out / FILE).is_file() and _digest(file.read_text(encoding="utf-8")) != load(out).table:
        raise ValueError(
            f"{file} was changed after it was written, and that change would be lost; write it into {out / OVERRIDES} "
            "(student_id,item,points,reason,author), delete marks.csv, and try again"
        )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _unequal(settled: Sequence[Settled]) -> list[str]:
    """Say so if students were graded on different items, or with different extra points for robust answers."""
    usual = Counter(one.most for one in settled).most_common(1)[0][0] if settled else 0.0
    others = [f"{one.record.student} {number(one.most)}" for one in settled if one.most != usual]
    if not others:
        return []
    some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    what = f"max_score is {number(usual)} for most students, but not for all ({some})"
    return [f"{what}; grade the others again with the same exercises and the same --robust"]


def _without_effect(rule: Lateness | None, results: Results, ids: Mapping[str, str]) -> list[str]:
    """Describe extensions for roster ids that cannot be matched with a platform's names."""
    students = {record.student for record in results.records}
    if rule is None or not any(platform_name(one.place) and one.student not in ids for one in results.records):
        return []
    rows = {one.student for one in rule.extensions if one.assignment in ("", results.assignment)}
    missing = sorted(rows - {"", *students, *(ids[student] for student in students if student in ids)})
    if not missing:
        return []
    what = f"{EXTENSIONS}: no effect on {', '.join(missing)}, because the platform's names are not matched yet"
    return [f"{what}; run companion course export with --roster, and then companion course mark --into"]


def idle_rows(results: Results, out: Path) -> list[str]:
    """Describe rows of overrides.csv and extensions.csv without any effect, which may contain a typing error."""
    rule = read_rule(Path(results.course), results.assignment) if results.course else None
    ids, students = names_known(out), {record.student for record in results.records}
    roster = Path(results.course) / "roster.csv"
    # Without a roster, or before a platform's names are matched, a student may simply have handed in nothing.
    has_names = roster.is_file() and not any(
        platform_name(one.place) and not ids.get(one.student) for one in results.records
    )
    people = {*students, *ids.values(), *(row.get("id", "") for row in (read_table(roster) if has_names else ()))}
    found = idle_overrides(out / OVERRIDES, results)
    for row in rule.extensions if rule else ():
        if row.assignment and not (Path(results.course) / f"{row.assignment}.toml").is_file():
            found.append(f"{EXTENSIONS}: no effect for {row.assignment}, because there is no {row.assignment}.toml")
        elif has_names and row.student not in ("", *people) and row.assignment in ("", results.assignment):
            found.append(f"{EXTENSIONS}: no effect for {row.student}, who is neither in these marks nor in roster.csv")
    return [*dict.fromkeys(found)]


def _spent(out: Path, results: Results, ids: Mapping[str, str]) -> dict[str, int]:
    """Count the late days used for earlier sets, in sibling folders of `out`, by roster id or else by student.

    Sets are in the order of their due dates, so the order in which their marks are written does not matter. If there
    are several folders with marks of the same set, such as a backup, its late days are counted only once.
    """
    of_sets: dict[tuple[str, str], int] = {}
    order = cache(lambda assignment: _order(results, assignment))  # which reads a file
    for file in sorted(out.absolute().parent.glob("*/marks.csv")):
        for row in read_table(file) if file.parent != out.absolute() else ():
            if row.get("late_days", "").isdecimal() and order(row["assignment"]) < order(results.assignment):
                student = unquoted(row["student_id"])
                key = ids.get(student) or student, row["assignment"]
                of_sets[key] = max(of_sets.get(key, 0), int(row["late_days"]))
    spent: Counter[str] = Counter()
    for (student, _), days in of_sets.items():
        spent[student] += days
    return dict(spent)


def _order(results: Results, assignment: str) -> tuple[float, str]:
    """Return a sort key for the problem sets of a course: the due date, if there is one, and then the name."""
    due = read_settings(Path(results.course) / f"{assignment}.toml").get("due") if results.course else None
    return moment(due, "due").timestamp() if due else -math.inf, assignment


def page_name(student: str) -> str:
    """Return the file name of a student's page.

    If the student's name is too long or contains a slash or two dots, it is changed, and a hash of the original is
    appended to keep it unique.
    """
    name = student.replace("/", "_").replace("..", "_")
    if name == student and len(student.encode()) <= LONGEST_NAME:
        return f"{student}.html"
    return f"{name.encode()[:LONGEST_NAME].decode('utf-8', 'ignore')}-{_digest(student)}.html"


# Regrading


def first_results(out: Path, students: Sequence[str], assignment: str, *, again: bool) -> Results | None:
    """Load the earlier results that `--regrade` keeps.

    Args:
        out: Output folder.
        students: Students being graded now.
        assignment: Problem set being graded now; empty if it has no name.
        again: True for `--regrade`, which keeps the results of other students.

    Returns:
        The earlier results if `again` is True; otherwise None, because all results are replaced.

    Raises:
        ValueError: If `again` is True and there are no results, if it is False and the results of other students would
            be lost, or if marks.csv was changed by hand.
    """
    must_be_untouched(out)
    if not (out / FILE).is_file():
        if again:
            raise ValueError(f"--regrade: expected marks from an earlier run in {out / 'marks.csv'}, found none")
        return None
    first = load(out)
    if assignment and first.assignment != assignment:
        raise ValueError(
            f"--out {out}: it contains the marks of {first.assignment}; expected a new folder for {assignment}"
        )
    lost = sorted({record.student for record in first.records} - {*students})
    if lost and not again:
        some = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
        raise ValueError(
            f"--out {out}: it contains marks of {some}, who are not in these submissions; --regrade keeps those marks"
        )
    return first if again else None


def merged(first: Results, new: Results) -> tuple[Results, list[str]]:
    """Replace earlier results with new ones.

    Students whom the platform has renamed are recognized by the platform's number in the name of the downloaded file.

    Returns:
        The merged results, and a line for each student whose marks changed.
    """
    known = {record.student: record for record in first.records}
    for record in new.records:
        number = _number_of(record)
        former = [id for id, one in known.items() if number and _number_of(one) == number]
        if len(former) == 1 and record.student not in known:
            known[record.student] = known.pop(former[0])
    changes = [
        line for record in new.records if (line := _difference(known.get(record.student), record, new.assignment))
    ]
    everybody = known | {record.student: record for record in new.records}
    records = tuple(everybody[id] for id in sorted(everybody))
    return replace(new, assignment=first.assignment, course=new.course or first.course, records=records), changes


def _number_of(record: Record) -> str | None:
    """Return a student's number on a platform, or None for names that do not come from one, such as smith_2024."""
    return platform_number(record.student) if platform_name(record.place) else None


def _difference(before: Record | None, now: Record, assignment: str) -> str | None:
    [new] = settle(Results(assignment, "", (now,)), {}, [])
    if before is None:
        return f"{now.student}: new, {_scored(new)}"
    [old] = settle(Results(assignment, "", (before,)), {}, [])
    outcomes = {item.id: item.outcome for item in before.items}
    told = [
        f"{item.id} {outcomes.get(item.id) or 'none'} -> {item.outcome}"
        for item in now.items
        if item.outcome != outcomes.get(item.id)
    ]
    if before.time and not now.time:
        told.append(f"the submission time was {before.time}, and is unknown now; --times can give it")
    if _scored(old) == _scored(new) and not told:
        return None
    return f"{now.student}: {_scored(old)} -> {_scored(new)}" + (f" ({', '.join(told)})" if told else "")


def _scored(one: Settled) -> str:
    return "no score" if one.score is None and not one.waits else number(one.earned)
