"""What a reader has done so far, kept from day to day in `progress.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import date

from companion.ground.display import count
from companion.ground.display import table as aligned
from companion.ground.user_files import read_kept, write_kept
from companion_school.checking.exercise import DIFFICULTIES, STAR
from companion_school.exercises.catalogue import exercises

FILE = "progress.json"


@dataclass(frozen=True)
class Record:
    """One exercise so far: how often it was checked, which hints and solution were read, the day it was first right,
    and the day it was first robust as well."""

    checks: int = 0
    hints: int = 0
    solution: bool = False
    passed: str | None = None
    robust: str | None = None


def read_progress() -> dict[str, Record]:
    """What is known, by exercise. Raises `ValueError` naming the file if it cannot be understood."""
    return read_kept(FILE, "the progress that the course wrote", lambda value: Record(**value))


def _write(known: dict[str, Record]) -> None:
    write_kept(FILE, {key: asdict(record) for key, record in known.items()})


def note_check(id: str, passed: bool, robust: bool = False) -> None:
    """Keep that an answer was checked. The days on which it was first right, and first robust, stay."""
    known = read_progress()
    record = known.get(id, Record())
    today = date.today().isoformat()
    right = record.passed or (today if passed else None)
    star = record.robust or (today if passed and robust else None)
    _write(known | {id: replace(record, checks=record.checks + 1, passed=right, robust=star)})


def note_hint(id: str) -> int:
    """Keep that one hint more was read; its number, from 1, and 3 again after the last."""
    known = read_progress()
    record = known.get(id, Record())
    number = min(record.hints + 1, 3)
    _write(known | {id: replace(record, hints=number)})
    return number


def note_solution(id: str) -> None:
    """Keep that the solution was read."""
    known = read_progress()
    _write(known | {id: replace(known.get(id, Record()), solution=True)})


def as_data() -> dict[str, dict[str, object]]:
    """Each exercise by its number: what it is, and what was done of it. Raises `ValueError` as `read_progress`."""
    known = read_progress()
    return {
        id: {
            "title": exercise.title,
            "lesson": exercise.lesson,
            "points": exercise.points,
            "minutes": exercise.minutes,
            **asdict(known.get(id, Record())),
        }
        for id, exercise in exercises().items()
    }


def table() -> str:
    """All exercises by lesson, with what was done of each; and the points that are reached."""
    known = read_progress()
    rows, reached, possible = [], 0, 0
    for id, exercise in exercises().items():
        record = known.get(id, Record())
        possible += exercise.points
        reached += exercise.points if record.passed else 0
        if record.passed:
            state = f"right on {record.passed}{f', robust {STAR}' if record.robust else ''}"
        elif record.checks:
            state = f"tried {count(record.checks, 'time')}"
        else:  # how long it takes, and how hard it is, is asked before it is begun
            state = f"{exercise.minutes:2} min, {DIFFICULTIES[exercise.difficulty]}"
        used = [count(record.hints, "hint")] * bool(record.hints)
        used += ["solution read"] * record.solution
        rows.append((id, exercise.title, count(exercise.points, "point"), ", ".join([state, *used])))
    lines: list[str] = []
    lesson = None
    drawn = aligned(rows, left=(0, 1, 2, 3), width=None).splitlines()
    for exercise, line in zip(exercises().values(), drawn, strict=True):
        if exercise.lesson != lesson:
            lesson = exercise.lesson
            lines += ["", f"lesson {lesson:02d}"]
        lines.append(line)
    done = sum(1 for id in exercises() if known.get(id, Record()).passed)
    stars = sum(1 for id in exercises() if known.get(id, Record()).robust)
    robust = f", {stars} {STAR}" if stars else ""
    lines.append(f"\n{done} of {len(exercises())} exercises, {reached} of {possible} points{robust}")
    return "\n".join(lines).strip("\n")
