"""What grading found, as it is stored: results.json, from which every table and every page of feedback is made.

`companion grade` finds out what each student's work came to. What a person adds later stands in files of its own beside
results.json, and is put in each time the tables and pages are made:

    overrides.csv   points that a person has changed, with reason and author
    written.csv     the marks of written answers, which `companion course mark` reads from a marking sheet
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from companion.ground.reading import read_json
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.course.grading.exercise_mark import TO_MARK, Graded, Mark, Text
from companion_school.course.grading.lateness import Late, Lateness
from companion_school.course.grading.submissions import plain
from companion_school.course.grading.tables import Row, number, read_number, read_table, unquoted
from companion_school.course.points import is_constant
from companion_school.course.release.own_numbers import is_own
from companion_school.course.release.questions import is_question
from companion_school.course.written.sheet import Given, Key, text_id

FILE, OVERRIDES = "results.json", "overrides.csv"
OVERRIDE_COLUMNS = ("student_id", "item", "points", "reason", "author")
EXTRA, TOTAL = "extra", "total"
MARKED = "marked"
READ, EMPTY, OTHER, NOTHING = "read", "empty", "other notebook", "nothing handed in"
TRIED = (READ, EMPTY)


@dataclass(frozen=True)
class Finding:
    """Something that an answer does not do. `lead` introduces it; the others are those of `Verdict`."""

    lead: str
    shows: str
    input: str
    fault: str
    mistake: str


@dataclass(frozen=True)
class Group:
    """A group of cases, what it came to, and whether its public cases are right."""

    name: str
    points: float
    most: float
    public: bool


@dataclass(frozen=True)
class Item:
    """What one exercise, question, written answer or part of a project came to.

    section:  the heading that it stands under; empty for none.
    robust:   "yes" or "no" for a right answer that may be robust, and empty for any other.
    extra:    the points that a robust answer adds.
    mistake:  the known mistake that it makes.
    written:  a person marks it.
    text_id:  of a written answer: which text it is; empty where there is none.
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
    """One student's results. `file`: what was graded; `graded`: when; the rest is that of `Handed` and `Graded`."""

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
    """A class's results.

    assignment:  the name of the problem set or project.
    course:      the folder that it was released into, where its rule for late work is; empty for none.
    table:       the digest of the marks.csv that was made of them.
    """

    assignment: str
    course: str
    records: tuple[Record, ...]
    table: str = ""


def record_of(graded: Graded) -> Record:
    """What is stored of a student's marks."""
    handed = graded.handed
    items = [*map(_item_of, graded.marks), *map(_written_item, graded.texts)]
    is_project = len(handed.files) > 1 or any(mark.section for mark in graded.marks)
    names = [plain(file.name) for file in handed.files]
    return Record(
        student=handed.student,
        submission=graded.submission,
        fault=graded.fault or "",
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
        worth = f"worth {number(mark.extra)} more" if mark.extra else "costs no point"
        return [_finding(f"What would make it robust ★ ({worth}):", mark.unstood)]
    leads = ["", "On the hidden cases of what is right on the public ones:"]
    if failed and mark.public and mark.public.is_right:
        leads = ["Right on the public cases. On the hidden ones:"]
    question = is_question(mark.exercise.id) or is_own(mark.exercise.id)
    return [_finding(lead, verdict, question) for lead, verdict in zip(leads, failed, strict=False)]


def _finding(lead: str, verdict: Verdict, question: bool = False) -> Finding:
    if question and verdict.result is Result.WRONG:  # all there is to say of a choice is what speaks against it
        return Finding("", "", "", "", verdict.mistake or "")
    return Finding(lead, verdict.shows, verdict.input, verdict.fault, verdict.mistake or "")


def _written_item(text: Text) -> Item:
    outcome = TO_MARK if text.text else Result.MISSING.value
    return Item(text.item.id, text.item.title, outcome, 0.0, text.item.points, written=True, text_id=text_id(text.text))


def store(results: Results) -> str:
    """The text of results.json."""
    return json.dumps(dataclasses.asdict(results), indent=1, ensure_ascii=False) + "\n"


def load(out: Path) -> Results:
    """The results in a folder of marks.

    Raises:
        ValueError: there are none, or they are damaged.
    """
    file = out / FILE
    if not file.is_file():
        raise ValueError(f"{out}: expected the folder that companion grade --out wrote, found no {FILE} in it")
    told = read_json(file)
    try:
        records = tuple(_record(entry) for entry in told.pop("records"))
        return Results(**told, records=records)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: expected what companion grade writes ({error})") from None


def _record(entry: dict[str, Any]) -> Record:
    items = []
    for item in entry.pop("items"):
        groups = tuple(Group(**group) for group in item.pop("groups"))
        findings = tuple(Finding(**finding) for finding in item.pop("findings"))
        items.append(Item(**item | {"notes": tuple(item["notes"])}, groups=groups, findings=findings))
    return Record(**entry | {"others": tuple(entry["others"])}, items=tuple(items))


# What a person adds


@dataclass(frozen=True)
class Override:
    """Points that a person has changed: of an item, of the total (`TOTAL`), or added to the sum (`EXTRA`)."""

    student: str
    item: str
    points: float
    reason: str
    author: str


@dataclass(frozen=True)
class Line:
    """An item with what a person has added.

    given:     the mark of a written answer.
    override:  the change by hand.
    """

    item: Item
    given: Given | None = None
    override: Override | None = None

    @property
    def outcome(self) -> str:
        """How it stands."""
        return MARKED if self.given and self.item.outcome == TO_MARK else self.item.outcome

    @property
    def points(self) -> float:
        """What it has earned so far."""
        if self.override:
            return self.override.points
        return float(self.given.points) if self.given else self.item.points

    @property
    def waits(self) -> bool:
        """Whether a person has still to mark it."""
        return self.outcome == TO_MARK and self.override is None


@dataclass(frozen=True)
class Settled:
    """A student's marks with all that a person has added, and what lateness costs: what tables and pages show."""

    record: Record
    lines: tuple[Line, ...]
    changes: tuple[Override, ...] = ()
    late: Late = field(default=Late())

    @property
    def earned(self) -> float:
        """The points before anything is taken off."""
        extra = sum(change.points for change in self.changes if change.item == EXTRA)
        return round(sum(line.points for line in self.lines) + extra, 4)

    @property
    def most(self) -> float:
        """What could be earned."""
        return round(sum((line.item.most for line in self.lines), 0.0), 4)

    @property
    def waits(self) -> list[str]:
        """The written answers that a person has still to mark."""
        return [line.item.id for line in self.lines if line.waits]

    @property
    def total(self) -> Override | None:
        """The total that a person has set."""
        return next((change for change in self.changes if change.item == TOTAL), None)

    @property
    def penalty(self) -> float:
        """The points that lateness costs."""
        return round(self.earned * self.late.share, 4)

    @property
    def score(self) -> float | None:
        """The score; None where nothing could be tried, or a person has still something to mark."""
        if self.total:
            return self.total.points
        tried = self.record.submission in TRIED or any(line.override for line in self.lines) or bool(self.changes)
        return round(self.earned - self.penalty, 4) if tried and not self.waits else None

    @property
    def headline(self) -> str:
        """The score in words."""
        most = number(self.most)
        if self.total:
            return f"{number(self.total.points)} of {most} points"
        if self.score is None and not self.waits:
            return "No score yet: nothing could be graded, and your instructor decides what that is worth"
        if self.score is None:
            return f"{number(self.earned)} of {most} points so far; a person still marks {', '.join(self.waits)}"
        off = f": {number(self.earned)} earned, {number(self.penalty)} taken off for lateness" if self.penalty else ""
        return f"{number(self.score)} of {most} points{off}"


def settle(
    results: Results,
    given: Mapping[Key, Given],
    overrides: Sequence[Override],
    rule: Lateness | None = None,
    spent: Mapping[str, int] | None = None,
) -> list[Settled]:
    """All students' marks with what a person has added.

    Args:
        results: what grading found.
        given: the marks of written answers; those that were given to another text do not count.
        overrides: the changes by hand.
        rule: what late work costs; nothing without one.
        spent: late days that other problem sets have used up, by student.
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
        late = Late()
        if rule is not None:
            late = rule.of(record.student, results.assignment, record.time, (spent or {}).get(record.student, 0))
        changes = tuple(one for one in mine if one.item in (EXTRA, TOTAL))
        settled.append(Settled(record, tuple(lines), changes, late))
    return settled


def read_overrides(file: Path, results: Results) -> list[Override]:
    """The changes by hand; none where there is no file.

    Raises:
        ValueError: a row names a student or an item that is not in the results, has no reason or author, is there
            twice, or gives more points than there are.
    """
    if not file.is_file():
        return []
    known = {record.student: {item.id: item.most for item in record.items} for record in results.records}
    found: dict[tuple[str, str], Override] = {}
    for line, row in enumerate(read_table(file), 2):
        one = _override(row, f"{file}, line {line}", known)
        if (one.student, one.item) in found:
            raise ValueError(f"{file}, line {line}: {one.student} has a row for {one.item} already; expected one")
        found[one.student, one.item] = one
    for settled in settle(results, {}, list(found.values())):
        if not 0 <= settled.earned <= settled.most:
            what = f"{settled.record.student} would have {number(settled.earned)} of {number(settled.most)} points"
            raise ValueError(f"{file}: with these rows {what}")
    return list(found.values())


def _override(row: Row, where: str, known: Mapping[str, Mapping[str, float]]) -> Override:
    if missing := [name for name in OVERRIDE_COLUMNS if name not in row]:
        raise ValueError(f"{where}: expected the columns {', '.join(OVERRIDE_COLUMNS)}, found no {missing[0]}")
    student, item = unquoted(row["student_id"]).strip(), unquoted(row["item"]).strip()
    if student not in known:
        raise ValueError(f"{where}, student_id must be a student of these marks, got {student!r}")
    if item not in (*known[student], EXTRA, TOTAL):
        offered = ", ".join([*known[student], EXTRA, TOTAL])
        raise ValueError(f"{where}, item must be one of {offered}, got {item!r}")
    points = read_number(row["points"], f"{where}, points")
    most = known[student].get(item, sum(known[student].values()))
    if points is None or not (-most if item == EXTRA else 0) <= points <= most:
        raise ValueError(f"{where}, points must be a number from 0 to {number(most)}, got {row['points']!r}")
    for name in ("reason", "author"):
        if not row[name].strip():
            raise ValueError(f"{where}, {name} must not be empty: the student's page shows it")
    return Override(student, item, points, unquoted(row["reason"]).strip(), unquoted(row["author"]).strip())
