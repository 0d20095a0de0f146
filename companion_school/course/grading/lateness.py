"""What late work costs: a problem set's rule, and what holds for single students.

A problem set's own file, PSET.toml, which `companion course release` writes beside the set:

    due = "2026-11-30T23:59+01:00"
    late = "10% a day, at most 50%"
    grace = "15 minutes"

One file for the whole course, extensions.csv beside it, which the instructor writes. An empty student or assignment
means all of them, and the row that names more wins:

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
    """How late a hand-in is, and what that costs.

    share:  of its points, what is taken off.
    days:   late days that it uses up.
    told:   a sentence for the student; empty where there is nothing to say.
    """

    share: float = 0.0
    days: int = 0
    told: str = ""


@dataclass(frozen=True)
class Extension:
    """What holds for one student and one problem set, or for all where a name is empty."""

    student: str = ""
    assignment: str = ""
    due: str = ""
    grace: str = ""
    late_days: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Lateness:
    """When work is due, and which share of its points each day or hour that has begun since then costs.

    Raises:
        ValueError: a time, a rule or a grace period is not one.
    """

    due: str
    late: str
    grace: str = ""
    extensions: Sequence[Extension] = field(default=())

    def __post_init__(self) -> None:
        moment(self.due, "due")
        _terms(self.late)
        _seconds(self.grace, "grace")

    @property
    def zone(self) -> str:
        """The offset of the due date, which holds for times that have none: "+01:00"."""
        return moment(self.due, "due").isoformat()[-6:]

    def of(self, student: str, assignment: str, time: str, spent: int = 0, due: str = "") -> Late:
        """How late a student's work is.

        Args:
            student: as in the marks.
            assignment: the problem set.
            time: when it was handed in; empty where that is not known.
            spent: late days that other problem sets have used up.
            due: a later due date that a platform has set.
        """
        if not time:
            return Late()
        terms = self._terms_of(student, assignment)
        ends = max(moment(one, "due") for one in (terms.due, due) if one)
        late = (moment(time, "time", self.zone) - ends).total_seconds()
        if late <= _seconds(terms.grace, "grace"):
            return Late()
        left = max(0, int(terms.late_days or 0) - spent)
        days = min(left, math.ceil(late / _SECONDS["day"]))
        rate, unit, most = _terms(self.late)
        share = min(most, rate * max(0, math.ceil((late - days * _SECONDS["day"]) / unit)))
        return Late(share, days, _told(time, ends, late, days, share))

    def due_of(self, student: str, assignment: str) -> str:
        """When a student's work is due, with an extension where there is one."""
        return self._terms_of(student, assignment).due

    def _terms_of(self, student: str, assignment: str) -> Extension:
        """What holds for a student: of each term the one of the row that names more."""
        mine = [one for one in self.extensions if one.student in ("", student) and one.assignment in ("", assignment)]
        mine.sort(key=lambda one: (one.student != "", one.assignment != ""))
        found = {"due": self.due, "grace": self.grace, "late_days": ""}
        for one in mine:
            found |= {name: value for name in found if (value := getattr(one, name))}
        return Extension(student, assignment, **found)


def _told(time: str, ends: datetime, late: float, days: int, share: float) -> str:
    """The sentence on a late hand-in."""
    came = moment(time, "time").astimezone(ends.tzinfo).strftime("%Y-%m-%d %H:%M")
    due = ends.strftime("%Y-%m-%d %H:%M")
    used = f"{count(days, 'late day')} {'was' if days == 1 else 'were'} used, and " if days else ""
    cost = f"{number(100 * share)} % of its points are taken off" if share else "nothing is taken off"
    return f"It was handed in on {came}, {_span(late)} after it was due on {due} (UTC{ends:%z}); {used}{cost}."


def _span(seconds: float) -> str:
    """A time in words: "1 day and 3 hours"."""
    minutes = math.ceil(seconds / 60)
    parts = [(minutes // 1440, "day"), (minutes % 1440 // 60, "hour"), (minutes % 60, "minute")]
    return " and ".join([count(many, unit) for many, unit in parts if many][:2])


def _terms(rule: str) -> tuple[float, int, float]:
    """The share that a unit of time costs, the unit in seconds, and the most that is taken off."""
    found = _RULE.fullmatch(rule.strip())
    rate, most = (float(found[1]) / 100, float(found[3] or 100) / 100) if found else (math.inf, math.inf)
    if found is None or rate > 1 or most > 1:
        raise ValueError(f"late={shown(rule)}: expected a rule such as '10% a day, at most 50%', up to 100%")
    return rate, _SECONDS[found[2]], most


def _seconds(grace: str, what: str) -> float:
    """A grace period in seconds."""
    if not grace:
        return 0.0
    found = _GRACE.fullmatch(grace.strip())
    if found is None:
        raise ValueError(f"{what} must be a time such as '15 minutes', '2 hours' or '1 day', got {shown(grace)}")
    return float(found[1]) * _SECONDS[found[2]]


def read_settings(file: Path) -> dict[str, Any]:
    """What a problem set's file says; nothing where there is none.

    Raises:
        ValueError: it is not TOML, or says something else than it may.
    """
    if not file.is_file():
        return {}
    try:
        told = tomllib.loads(read_text(file))
        known = (*_KNOWN, "build", "items", "roster")
        if set(told) - {*known} or not all(isinstance(value, str) for value in told.values()):
            raise ValueError(f"expected {', '.join(known)}, each with a text, got {', '.join(map(str, told))}")
        if ("due" in told) != ("late" in told):
            raise ValueError("expected due and late, both or neither")
        return told
    except (OSError, UnicodeError, ValueError) as error:
        raise ValueError(f"{file}: {why(error)}") from None


def read_rule(course: Path, assignment: str) -> Lateness | None:
    """The rule of a problem set, with what holds for single students; None where it has none.

    Args:
        course: the folder that the problem set was released into.
        assignment: its name.

    Raises:
        ValueError: a file holds something else.
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
    """The rows of extensions.csv; none where there is no such file.

    Raises:
        ValueError: a column or a cell is not as described in this module.
    """
    if not file.is_file():
        return ()
    found = []
    for line, row in enumerate(read_table(file), 2):
        where = f"{file}, line {line}"
        if unknown := set(row) - {*COLUMNS}:
            raise ValueError(f"{file}: expected the columns {', '.join(COLUMNS)}, got {', '.join(sorted(unknown))}")
        cells = {name: unquoted(row.get(name, "")).strip() for name in COLUMNS}
        if cells["due"]:
            moment(cells["due"], f"{where}, due")
        _seconds(cells["grace"], f"{where}, grace")
        if cells["late_days"] and not re.fullmatch(r"\d{1,3}", cells["late_days"]):
            raise ValueError(f"{where}, late_days must be a whole number of days, got {cells['late_days']!r}")
        found.append(Extension(cells.pop("student_id"), **cells))
    return tuple(found)


def as_toml(settings: Mapping[str, str]) -> str:
    """The file that `read_settings` reads."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items() if value)
