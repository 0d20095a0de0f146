"""Stored results of grading: results.json, from which all tables and feedback pages are generated.

`companion grade` writes results.json. Changes that people make later are stored in separate files beside it. They are
applied whenever the tables and pages are generated:

    overrides.csv   points changed by a person, with reason and author
    written.csv     marks of written answers, which `companion course mark` reads from a marking sheet
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from companion.ground.reading import read_json
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.course.grading.exercise_mark import NOT_IT, TO_MARK, UNREADABLE, Graded, Mark, Text
from companion_school.course.grading.lateness import Late, Lateness
from companion_school.course.grading.submissions import plain
from companion_school.course.grading.tables import Row, number, points, read_number, read_table, unquoted
from companion_school.course.points import is_constant
from companion_school.course.release.own_numbers import is_own
from companion_school.course.release.questions import is_question
from companion_school.course.written.sheet import Given, Key, text_id

FILE, OVERRIDES = "results.json", "overrides.csv"
OVERRIDE_COLUMNS = ("student_id", "item", "points", "reason", "author")
EXTRA, TOTAL = "extra", "total"
MARKED = "marked"
READ, EMPTY, OTHER, NOTHING, FAILED = "read", "empty", "other notebook", "nothing to grade", "not graded"
TRIED = (READ, EMPTY)


@dataclass(frozen=True)
class Finding:
    """A fault in an answer, as shown on the feedback page.

    Attributes:
        lead: Introduction to the finding.
        shows: The property that was violated.
        input: The smallest input that shows the fault; empty for a hidden case.
        fault: The expected and the actual result.
        mistake: Message of the known mistake that the answer makes; empty if none.
    """

    lead: str
    shows: str
    input: str
    fault: str
    mistake: str


@dataclass(frozen=True)
class Group:
    """A group of cases: the points earned, the maximum points, and whether the public points were earned."""

    name: str
    points: float
    most: float
    public: bool


@dataclass(frozen=True)
class Item:
    """Result of one exercise, question, written answer or part of a project.

    Attributes:
        id: Number of the exercise, question, written answer or part.
        title: Its title.
        outcome: One of `exercise_mark.OUTCOMES`, or `TO_MARK` for a written answer.
        points: Points earned, including the extra points for a robust answer.
        most: Maximum points.
        section: Heading above it; empty for none.
        robust: "yes" or "no" for a correct answer to an exercise that tests robustness; otherwise empty.
        extra: Extra points for a robust answer.
        notes: Remarks on how the answer was found.
        groups: Points by group of cases.
        findings: Faults to show on the feedback page.
        mistake: Message of the known mistake that the answer makes; empty if none.
        written: True if a person marks the item.
        text_id: Hash of a written answer's text, or empty if there is no text.
    """

    id: str
    title: str
    outcome: str
    points: float
    most: float
    section: str = ""
    robust: str = ""
    extra: float = 0.0
    notes: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    findings: tuple[Finding, ...] = ()
    mistake: str = ""
    written: bool = False
    text_id: str = ""


@dataclass(frozen=True)
class Record:
    """One student's results. Attributes not listed here are those of `Handed` and `Graded`.

    Attributes:
        file: Name of the graded file, or of the folder of a project.
        graded: Time of grading in UTC.
        items: Results of the exercises and written answers, or of the parts of a project.
    """

    student: str
    submission: str
    fault: str
    file: str
    others: tuple[str, ...]
    time: str
    time_from: str
    place: str
    graded: str
    items: tuple[Item, ...]
    warning: str = ""


@dataclass(frozen=True)
class Results:
    """Results of a class.

    Attributes:
        assignment: Name of the problem set or project.
        course: Folder into which it was released, which holds its late-work rule; empty if unknown.
        records: Results of the students.
        table: Hash of the marks.csv generated from these results, used to detect manual changes.
    """

    assignment: str
    course: str
    records: tuple[Record, ...]
    table: str = ""


def record_of(graded: Graded) -> Record:
    """Convert a student's marks to the record that is stored."""
    handed = graded.handed
    items = [*map(_item_of, graded.marks), *(_written_item(text, graded.submission) for text in graded.texts)]
    is_project = len(handed.files) > 1 or any(mark.section for mark in graded.marks)
    names = [plain(file.name) for file in handed.files]
    return Record(
        student=handed.student,
        submission=graded.submission,
        fault=plain(graded.fault or ""),
        file=f"{plain(handed.files[0].parent.name)}/" if is_project and names else "".join(names),
        others=handed.others,
        time=handed.time,
        time_from=handed.time_from,
        place=handed.place,
        graded=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        items=tuple(items),
        warning=graded.warning,
    )


def _item_of(mark: Mark) -> Item:
    found = (mark.public, mark.hidden, mark.unstood)
    starred = mark.outcome == Result.RIGHT.value and not mark.section and not is_constant(mark.exercise)
    return Item(
        id=mark.exercise.id,
        title=mark.title or mark.exercise.title,
        outcome=mark.outcome,
        points=mark.points,
        most=mark.most,
        section=mark.section,
        robust=("yes" if mark.robust else "no") * starred,
        extra=mark.extra,
        notes=mark.notes,
        groups=tuple(Group(one.part.name, one.points, one.most, one.public) for one in mark.earned),
        findings=tuple(_findings(mark)),
        mistake=next((verdict.mistake for verdict in found if verdict and verdict.mistake), ""),
    )


def _findings(mark: Mark) -> list[Finding]:
    failed = [verdict for verdict in (mark.public, mark.hidden) if verdict and not verdict.is_right]
    if not failed and mark.unstood:
        worth = f"which would earn {number(mark.extra)} more" if mark.extra else "which costs no points"
        return [_finding(f"It is not robust ★ yet, {worth}:", mark.unstood)]
    already = failed and failed[0].already
    leads = [
        f"What is right already: {already}." if already else "",
        "On the hidden cases of the parts that are right on the public ones:",
    ]
    if failed and mark.public and mark.public.is_right:
        leads = ["Right on the public cases, but not on the hidden ones:"]
    question = is_question(mark.exercise.id) or is_own(mark.exercise.id)
    return [_finding(lead, verdict, question) for lead, verdict in zip(leads, failed, strict=False)]


def _finding(lead: str, verdict: Verdict, question: bool = False) -> Finding:
    if question and verdict.result is Result.WRONG:  # if a choice is wrong, the only feedback is the reason
        return Finding("", "", "", verdict.fault if verdict.fault != NOT_IT else "", verdict.mistake or "")
    if verdict.result is Result.MISSING and (question or verdict.shows):
        return Finding("", "", "", "", "")  # the outcome of an untouched stub needs no explanation
    return Finding(lead, verdict.shows, verdict.input, verdict.fault, verdict.mistake or "")


def _written_item(text: Text, submission: str) -> Item:
    without = Result.MISSING.value if submission in (*TRIED, OTHER) else UNREADABLE
    outcome = TO_MARK if text.text else without
    return Item(text.item.id, text.item.title, outcome, 0.0, text.item.points, written=True, text_id=text_id(text.text))


def store(results: Results) -> str:
    """Return the results as text for results.json."""
    return json.dumps(dataclasses.asdict(results), indent=1, ensure_ascii=False) + "\n"


def load(out: Path) -> Results:
    """Load the results from the grader's output folder.

    Raises:
        ValueError: If results.json is missing or damaged.
    """
    file = out / FILE
    if not file.is_file():
        raise ValueError(f"{out}: expected a folder written by companion grade --out, but this one has no {FILE}")
    told = read_json(file)
    try:
        records = tuple(_record(entry) for entry in told.pop("records"))
        return Results(**told, records=records)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: expected a file written by companion grade ({error})") from None


def _record(entry: dict[str, Any]) -> Record:
    items = []
    for item in entry.pop("items"):
        groups = tuple(Group(**group) for group in item.pop("groups"))
        findings = tuple(Finding(**finding) for finding in item.pop("findings"))
        items.append(Item(**item | {"notes": tuple(item["notes"])}, groups=groups, findings=findings))
    return Record(**entry | {"others": tuple(entry["others"])}, items=tuple(items))


# Changes and marks added by people


@dataclass(frozen=True)
class Override:
    """A manual change: new points for an item, a new total (`TOTAL`), or points to add (`EXTRA`)."""

    student: str
    item: str
    points: float
    reason: str
    author: str


@dataclass(frozen=True)
class Line:
    """An item with any manual change and any mark given by a person.

    Attributes:
        item: The item.
        given: Mark of a written answer; None if there is none.
        override: Manual change to its points; None if there is none.
    """

    item: Item
    given: Given | None = None
    override: Override | None = None

    @property
    def outcome(self) -> str:
        """Outcome of the item, or `MARKED` for a written answer that a person has marked."""
        return MARKED if self.given and self.item.outcome == TO_MARK else self.item.outcome

    @property
    def points(self) -> float:
        """Points earned so far."""
        if self.override:
            return self.override.points
        return float(self.given.points) if self.given else self.item.points

    @property
    def waits(self) -> bool:
        """True if a person still has to mark the item."""
        return self.outcome == TO_MARK and self.override is None


@dataclass(frozen=True)
class Settled:
    """A student's final marks, as shown in tables and pages.

    Attributes:
        record: Results of grading.
        lines: The items, including manual changes and marks given by people.
        changes: Manual changes to the total, and points added by hand.
        late: Consequences of submitting late.
        known_as: The student's roster id or, if there is none, the name in the record.
    """

    record: Record
    lines: tuple[Line, ...]
    changes: tuple[Override, ...] = ()
    late: Late = field(default=Late())
    known_as: str = ""

    @property
    def earned(self) -> float:
        """Points before the penalty for lateness."""
        extra = sum(change.points for change in self.changes if change.item == EXTRA)
        return round(sum(line.points for line in self.lines) + extra, 4)

    @property
    def most(self) -> float:
        """Maximum points."""
        return round(sum((line.item.most for line in self.lines), 0.0), 4)

    @property
    def waits(self) -> list[str]:
        """Ids of the written answers that a person still has to mark."""
        return [line.item.id for line in self.lines if line.waits]

    @property
    def total(self) -> Override | None:
        """Total set by a person, or None."""
        return next((change for change in self.changes if change.item == TOTAL), None)

    @property
    def penalty(self) -> float:
        """Points deducted for lateness. None are deducted from a total that a person has set."""
        return 0.0 if self.total else round(self.earned * self.late.share, 4)

    @property
    def score(self) -> float | None:
        """Final score, or None if nothing could be graded or a person still has to mark an item."""
        if self.total:
            return self.total.points
        return round(self.earned - self.penalty, 4) if self.is_earned and not self.waits else None

    @property
    def is_earned(self) -> bool:
        """True if there are points to count, from items or from a person."""
        return self.has_items or any(change.item == EXTRA for change in self.changes)

    @property
    def has_items(self) -> bool:
        """True if the items have marks because the submission could be read or a person has changed a mark."""
        return self.record.submission in TRIED or any(line.override for line in self.lines)

    @property
    def headline(self) -> str:
        """The score in words, for the feedback page."""
        most = points(self.most)
        if self.total:
            return f"{number(self.total.points)} of {most}"
        if self.score is None and not self.waits:
            return "no score yet, because nothing could be graded; your instructor decides what happens next"
        if self.score is None:
            return f"{number(self.earned)} of {most} so far; a person still has to mark {', '.join(self.waits)}"
        off = f": {number(self.earned)} earned, {number(self.penalty)} deducted for lateness" if self.penalty else ""
        return f"{number(self.score)} of {most}{off}"


def settle(
    results: Results,
    given: Mapping[Key, Given],
    overrides: Sequence[Override],
    rule: Lateness | None = None,
    spent: Mapping[str, int] | None = None,
    ids: Mapping[str, str] | None = None,
) -> list[Settled]:
    """Combine all students' results with late penalties, manual changes, and marks given by people.

    Args:
        results: Results of grading.
        given: Marks of written answers, which count only if the text is still the one that was marked.
        overrides: Manual changes.
        rule: Rule for late work; without a rule there is no penalty.
        spent: Late days used for other problem sets, by student.
        ids: Roster ids of the students whose names in the results differ from their ids. Extensions and late days are
            looked up by roster id.
    """
    settled = []
    for record in results.records:
        mine = [one for one in overrides if one.student == record.student]
        by_item = {one.item: one for one in mine}
        lines = []
        for item in record.items:
            mark = given.get((record.student, item.id))
            same = mark if mark and item.text_id and mark.text_id == item.text_id else None
            lines.append(Line(item, same, by_item.get(item.id)))
        late, known_as = Late(), (ids or {}).get(record.student, record.student)
        if rule is not None:
            late = rule.of(known_as, results.assignment, record.time, (spent or {}).get(known_as, 0))
        changes = tuple(one for one in mine if one.item in (EXTRA, TOTAL))
        one = Settled(record, tuple(lines), changes, late, known_as)
        settled.append(one if one.is_earned and not one.total else replace(one, late=late.uncounted))
    return settled


def read_overrides(
    file: Path, results: Results, ids: Mapping[str, str] | None = None, given: Mapping[Key, Given] | None = None
) -> list[Override]:
    """Read the manual changes from overrides.csv, or return none if the file does not exist.

    A row that names a mistake (as worded in class.csv) instead of a student applies to all students whose wrong answer
    to the item makes that mistake. A row for a single student takes precedence. It names the student as in the results
    or by the roster id in `ids`. A bonus (`EXTRA`) may raise a score above the maximum. A score may not become negative
    even with all points for the written answers that are still to mark; `given` contains the marks of the others.

    Raises:
        ValueError: If a row names a student or an item that is not in the results, has no reason or author, is
            repeated, or gives points outside the possible range, or if a student's score would be negative.
    """
    if not file.is_file():
        return []
    known = {record.student: {item.id: item.most for item in record.items} for record in results.records}
    by_id = {id: student for student, id in (ids or {}).items() if student in known}
    of_mistakes: dict[tuple[str, str], Override] = {}
    own: dict[tuple[str, str], Override] = {}
    for line, row in enumerate(read_table(file), 2):
        where, item = f"{file}, line {line}", unquoted(row.get("item", "")).strip()
        name = unquoted(row.get("student_id", "")).strip()
        name = name if name in known else by_id.get(name, name)
        mistake = "" if name else unquoted(row.get("mistake", "")).strip()
        for student in _who_made(results, item, mistake) if mistake else [name]:
            found, one = of_mistakes if mistake else own, _override(row | {"student_id": student}, where, known)
            if (student, item) in found:
                raise ValueError(f"{where}: {student} already has a row for {item}")
            found[student, item] = one
    changes = list((of_mistakes | own).values())
    for settled in settle(results, given or {}, changes):
        if settled.earned + sum(line.item.most for line in settled.lines if line.waits) < 0:
            what = f"{settled.record.student} would have {number(settled.earned)} of {number(settled.most)} points"
            raise ValueError(f"{file}: with these rows {what}")
    return changes


def idle_overrides(file: Path, results: Results) -> list[str]:
    """Describe the rows of overrides.csv that name a mistake which no wrong answer makes."""
    found = []
    for line, row in enumerate(read_table(file) if file.is_file() else [], 2):
        item, mistake = (unquoted(row.get(name, "")).strip() for name in ("item", "mistake"))
        if mistake and not row.get("student_id", "").strip() and not _who_made(results, item, mistake):
            found.append(
                f"{file}, line {line}: no effect, because no wrong answer to {item} makes the mistake {mistake!r}; "
                "class.csv lists the mistakes"
            )
    return found


def _who_made(results: Results, id: str, mistake: str) -> list[str]:
    items = [(record.student, item) for record in results.records for item in record.items if item.id == id]
    return [student for student, item in items if item.outcome != Result.RIGHT.value and item.mistake == mistake]


def _override(row: Row, where: str, known: Mapping[str, Mapping[str, float]]) -> Override:
    if missing := [name for name in OVERRIDE_COLUMNS if name not in row]:
        raise ValueError(f"{where}: expected the columns {', '.join(OVERRIDE_COLUMNS)}, found no {missing[0]}")
    student, item = unquoted(row["student_id"]).strip(), unquoted(row["item"]).strip()
    if student not in known:
        raise ValueError(f"{where}: student_id must be a student in these marks, got {student!r}")
    if item not in (*known[student], EXTRA, TOTAL):
        offered = ", ".join([*known[student], EXTRA, TOTAL])
        raise ValueError(f"{where}: item must be one of {offered}, got {item!r}")
    points = read_number(row["points"], f"{where}, points")
    most = known[student].get(item, sum(known[student].values()))
    least = -most if item == EXTRA else 0
    if points is None or not least <= points <= most:
        offered = f"from {number(least)} to {number(most)}"
        raise ValueError(f"{where}, points must be a number {offered}, got {row['points']!r}")
    for name in ("reason", "author"):
        if not row[name].strip():
            raise ValueError(f"{where}, {name} must not be empty, because the student's page shows it")
    return Override(student, item, points, unquoted(row["reason"]).strip(), unquoted(row["author"]).strip())
