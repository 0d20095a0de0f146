"""Penalties for late work: rules of problem sets, and extensions for individual students.

A problem set with a due date has a file PSET.toml, written by `companion course release`:

    due = "2026-11-30T23:59+01:00"
    late = "10% a day, at most 50%"
    grace = "15 minutes"

The instructor may add extensions.csv beside it, one file for the whole course. An empty student_id means all students,
and an empty assignment means all assignments. If several rows apply, the most specific row decides for each column; a
row that names only a student takes precedence over a row that names only an assignment:

    student_id,assignment,due,grace,late_days,reason
    ada,week2,2026-12-07T23:59+01:00,,,ill
    ,,,1 hour,4,everybody has four late days in this course
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from companion.ground.display import count
from companion.ground.fields import shown, why
from companion.ground.reading import read_text
from companion_school.course.grading.received import moment
from companion_school.course.grading.tables import number, read_table, unquoted

EXTENSIONS = "extensions.csv"
COLUMNS = ("student_id", "assignment", "due", "grace", "late_days", "reason")
_RULE = re.compile(r"(\d+(?:\.\d+)?)% an? (day|hour)(?:, at most (\d+(?:\.\d+)?)%)?")
_GRACE = re.compile(r"(\d+(?:\.\d+)?) (minute|hour|day)s?")
_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}
_KNOWN = ("due", "late", "grace")


@dataclass(frozen=True)
class Late:
    """Consequences of a late submission.

    Attributes:
        share: Fraction of the points that is deducted, from 0 to 1.
        days: Number of late days used for the submission.
        came: When the work was submitted, in words without a full stop; empty if it is on time.
        counts: False if there are no points from which anything could be deducted.
    """

    share: float = 0.0
    days: int = 0
    came: str = ""
    counts: bool = True

    @property
    def told(self) -> str:
        """A sentence for the student; empty if the submission is on time."""
        used = f"{count(self.days, 'late day')} {'was' if self.days == 1 else 'were'} used, and " if self.days else ""
        cost = f"{number(100 * self.share)}% of its points are deducted" if self.share else "no points are deducted"
        return (f"{self.came}; {used}{cost}." if self.counts else f"{self.came}.") if self.came else ""

    @property
    def uncounted(self) -> Late:
        """The same submission without a penalty, and without using any late days."""
        return Late(came=self.came, counts=False)


@dataclass(frozen=True)
class Extension:
    """Extension for a student and a problem set; an empty name means all students or all problem sets.

    The other fields are the row's cells in extensions.csv. An empty field leaves the problem set's rule unchanged.
    """

    student: str = ""
    assignment: str = ""
    due: str = ""
    grace: str = ""
    late_days: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Lateness:
    """Due date of a problem set and its penalty for late work.

    Attributes:
        due: Due date in ISO 8601.
        late: Share of the points that is deducted for each day or hour begun, such as "10% a day, at most 50%".
        grace: Period after the due date during which nothing is deducted, such as "15 minutes"; empty for none.
        extensions: Different terms for individual students or problem sets.

    Raises:
        ValueError: If the due date, the rule or the grace period is malformed.
    """

    due: str
    late: str
    grace: str = ""
    extensions: Sequence[Extension] = field(default=())

    def __post_init__(self) -> None:
        _must_have_time(self.due, "due")
        _terms(self.late)
        _seconds(self.grace, "grace")

    @property
    def told(self) -> str:
        """The due date and the penalty in words, without a full stop."""
        rate, unit, most = _terms(self.late)
        grace = f", with a grace period of {self.grace}" if self.grace else ""
        begun = next(name for name, seconds in _SECONDS.items() if seconds == unit)
        cap = f", at most {number(100 * most)}%" if most < 1 else ""
        cost = f"{number(100 * rate)}% for each {begun} begun{cap}" if rate else "no points"
        return f"Due {self.due}{grace}; late work loses {cost}"

    @property
    def zone(self) -> str:
        """UTC offset of the due date, such as "+01:00", which is assumed for times without an offset."""
        return moment(self.due, "due").isoformat()[-6:]

    def of(self, student: str, assignment: str, time: str, spent: int = 0, due: str = "") -> Late:
        """Return how late a student's work is and the penalty for it.

        Args:
            student: Name of the student, as in the marks.
            assignment: Name of the problem set.
            time: Time of submission; empty if unknown, in which case there is no penalty.
            spent: Late days that the student has already used for other problem sets.
            due: A due date set by a platform, which applies if it is later than the problem set's.
        """
        if not time:
            return Late()
        terms = self._terms_of(student, assignment)
        ends = max(moment(one, "due") for one in (terms.due, due) if one)
        late = (moment(time, "time", self.zone) - ends).total_seconds()
        if late <= _seconds(terms.grace, "grace"):
            return Late()
        left = max(0, int(terms.late_days or 0) - spent)
        rate, unit, most = _terms(self.late)

        def share(days: int) -> float:
            return min(most, rate * max(0, math.ceil((late - days * _SECONDS["day"]) / unit)))

        # Late days that would not lower the penalty are kept.
        days = min(range(min(left, math.ceil(late / _SECONDS["day"])) + 1), key=lambda days: (share(days), days))
        return Late(share(days), days, _came(time, ends, late))

    def due_of(self, student: str, assignment: str) -> str:
        """Return when a student's work is due, including any extension."""
        return self._terms_of(student, assignment).due

    def _terms_of(self, student: str, assignment: str) -> Extension:
        """Return the rule for a student, with each term taken from the most specific row that sets it."""
        mine = [one for one in self.extensions if one.student in ("", student) and one.assignment in ("", assignment)]
        mine.sort(key=lambda one: (one.student != "", one.assignment != ""))
        found = {"due": self.due, "grace": self.grace, "late_days": ""}
        for one in mine:
            found |= {name: value for name in found if (value := getattr(one, name))}
        return Extension(student, assignment, **found)


def due_line(name: str, rule: Lateness | None) -> str:
    """Say in Markdown when a problem set or project is due, and name the files with the due date and the extensions."""
    if rule is None:
        return "There is no due date."
    return f"{rule.told} (`{name}.toml`; individual extensions: `{EXTENSIONS}`)."


def _came(time: str, ends: datetime, late: float) -> str:
    came, zone = moment(time, "time").astimezone(ends.tzinfo), ends.isoformat()[-6:]
    return f"Your work was submitted on {_clock(came)}, {_span(late)} after the deadline of {_clock(ends)} (UTC{zone})"


def _clock(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")


def _span(seconds: float) -> str:
    """Return a duration in words, using its two largest units, such as "1 day and 3 hours"."""
    whole = math.ceil(seconds)
    days, hours, minutes = whole // 86400, whole % 86400 // 3600, whole % 3600 // 60
    parts = [(days, "day"), (hours, "hour"), (minutes, "minute"), (whole % 60, "second")]
    return " and ".join([count(many, unit) for many, unit in parts if many][:2])


def _must_have_time(due: str, what: str) -> None:
    """Raise `ValueError` for a due date without a time of day, which would mean the beginning of that day."""
    moment(due, what)
    if re.fullmatch(r"\d{4}-?\d\d-?\d\d", due.strip()):
        raise ValueError(f"{what} must have a time of day, as in 2026-11-30T23:59+01:00, got {shown(due)}")


def _terms(rule: str) -> tuple[float, int, float]:
    """Parse a rule. Return the share deducted per unit of time, the unit in seconds, and the maximum share deducted."""
    found = _RULE.fullmatch(rule.strip())
    rate, most = (float(found[1]) / 100, float(found[3] or 100) / 100) if found else (math.inf, math.inf)
    if found is None or rate > 1 or most > 1:
        raise ValueError(
            f"late={shown(rule)}: expected a rule such as '10% a day, at most 50%', with no percentage above 100%"
        )
    return rate, _SECONDS[found[2]], most


def _seconds(grace: str, what: str) -> float:
    if not grace:
        return 0.0
    found = _GRACE.fullmatch(grace.strip())
    if found is None:
        raise ValueError(f"{what} must be a time such as '15 minutes', '2 hours' or '1 day', got {shown(grace)}")
    return float(found[1]) * _SECONDS[found[2]]


def read_settings(file: Path) -> dict[str, Any]:
    """Read a problem set's TOML file. The result is empty if the file does not exist.

    Raises:
        ValueError: If it is not valid TOML, has an unknown key or a value that is not text, or has only one of `due`
            and `late`.
    """
    if not file.is_file():
        return {}
    try:
        told = tomllib.loads(read_text(file))
        known = (*_KNOWN, "build", "items", "roster")
        if set(told) - {*known} or not all(isinstance(value, str) for value in told.values()):
            raise ValueError(f"expected {', '.join(known)}, each a string, got {', '.join(map(str, told))}")
        if ("due" in told) != ("late" in told):
            raise ValueError("expected due and late, both or neither")
        return told
    except (OSError, UnicodeError, ValueError) as error:
        raise ValueError(f"{file}: {why(error)}") from None


def read_rule(course: Path, assignment: str) -> Lateness | None:
    """Read a problem set's rule for late work and its extensions. Return None if there is no due date.

    Args:
        course: Folder into which the problem set was released.
        assignment: Name of the problem set.

    Raises:
        ValueError: If PSET.toml or extensions.csv is malformed.
    """
    file = course / f"{assignment}.toml"
    told = read_settings(file)
    if "due" not in told:
        return None
    try:
        return Lateness(told["due"], told["late"], told.get("grace", ""), read_extensions(course / EXTENSIONS))
    except ValueError as error:
        raise ValueError(f"{file}: {error}" if str(course) not in str(error) else str(error)) from None


def read_extensions(file: Path) -> tuple[Extension, ...]:
    """Read the rows of extensions.csv, or return none if the file does not exist.

    Raises:
        ValueError: If a column is unknown, a cell is malformed, or two rows set the same term for the same student and
            problem set.
    """
    if not file.is_file():
        return ()
    found, lines = [], dict[tuple[str, ...], int]()
    for line, row in enumerate(read_table(file), 2):
        where = f"{file}, line {line}"
        if unknown := set(row) - {*COLUMNS}:
            raise ValueError(f"{file}: expected the columns {', '.join(COLUMNS)}, got {', '.join(sorted(unknown))}")
        cells = {name: unquoted(row.get(name, "")).strip() for name in COLUMNS}
        if cells["due"]:
            _must_have_time(cells["due"], f"{where}, due")
        _seconds(cells["grace"], f"{where}, grace")
        if cells["late_days"] and not re.fullmatch(r"\d{1,3}", cells["late_days"]):
            raise ValueError(f"{where}, late_days must be a whole number of days, got {cells['late_days']!r}")
        for term in ("due", "grace", "late_days"):
            if cells[term] and lines.setdefault((cells["student_id"], cells["assignment"], term), line) != line:
                before = lines[cells["student_id"], cells["assignment"], term]
                raise ValueError(f"{where}, {term}: line {before} already sets it for this student and problem set")
        found.append(Extension(cells.pop("student_id"), **cells))
    return tuple(found)


def as_toml(settings: Mapping[str, str]) -> str:
    """Return settings as TOML that `read_settings` can read, without empty values."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items() if value)
