"""The reader's progress, stored in `progress.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date

from companion.ground.display import count
from companion.ground.display import table as aligned
from companion.ground.user_files import read_kept, write_kept
from companion_school.checking.exercise import DIFFICULTIES, STAR, Exercise
from companion_school.exercises.catalogue import exercises
from companion_school.old_ids import renamed

FILE = "progress.json"


@dataclass(frozen=True)
class Record:
    """Progress in one exercise.

    Attributes:
        checks: Number of checks.
        hints: Number of hints that were read.
        solution: True if the solution was read.
        passed: Date on which an answer was first right, or None.
        robust: Date on which an answer was first robust, or None.
    """

    checks: int = 0
    hints: int = 0
    solution: bool = False
    passed: str | None = None
    robust: str | None = None


def read_progress() -> dict[str, Record]:
    """Return the progress in each exercise. Raises a `ValueError` that names the file if the file cannot be parsed."""
    return renamed(read_kept(FILE, "the progress that the course wrote", lambda value: Record(**value)))


def _write(known: dict[str, Record]) -> None:
    write_kept(FILE, {key: asdict(record) for key, record in known.items()})


def note_check(id: str, passed: bool, robust: bool = False) -> None:
    """Record that an answer was checked. The dates on which an answer was first right and first robust never change."""
    known = read_progress()
    record = known.get(id, Record())
    today = date.today().isoformat()
    right = record.passed or (today if passed else None)
    star = record.robust or (today if passed and robust else None)
    _write(known | {id: replace(record, checks=record.checks + 1, passed=right, robust=star)})


def note_hint(id: str) -> int:
    """Record that one more hint was read. Return its number, from 1 to 3; the last hint is repeated."""
    known = read_progress()
    record = known.get(id, Record())
    number = min(record.hints + 1, 3)
    _write(known | {id: replace(record, hints=number)})
    return number


def note_solution(id: str) -> None:
    """Record that the solution was read."""
    known = read_progress()
    _write(known | {id: replace(known.get(id, Record()), solution=True)})


def as_data() -> dict[str, dict[str, object]]:
    """Return the description of each exercise and the progress in it, by exercise number. Raises a `ValueError` when
    `read_progress` does."""
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


def table(lesson: int | str | None = None) -> str:
    """Return one line per exercise that shows the progress in it, followed by the total for the course.

    Args:
        lesson: Number of the lesson whose exercises are listed (default: every lesson).

    Raises:
        ValueError: There is no such lesson, or it has no exercises.
    """
    known = read_progress()
    there = {str(exercise.lesson): exercise.lesson for exercise in exercises().values()}
    wanted = None if lesson is None else there.get(str(lesson).strip().lstrip("0") or "0")
    if lesson is not None and wanted is None:
        raise ValueError(
            f"lesson must be a number from {min(there.values())} to {max(there.values())}, or 'all'; got {lesson!r}"
        )
    listed = {id: exercise for id, exercise in exercises().items() if wanted in (None, exercise.lesson)}
    rows = []
    for id, exercise in listed.items():
        record = known.get(id, Record())
        if record.passed:
            state = f"right on {record.passed}{f', robust {STAR}' if record.robust else ''}"
        elif record.checks:
            state = f"tried {count(record.checks, 'time')}"
        else:  # readers want to know the time and the difficulty before they begin
            state = f"{exercise.minutes:2} min, {DIFFICULTIES[exercise.difficulty]}"
        used = [count(record.hints, "hint")] * bool(record.hints)
        used += ["solution read"] * record.solution
        rows.append((id, exercise.title, count(exercise.points, "point"), ", ".join([state, *used])))
    lines: list[str] = []
    last = None
    drawn = aligned(rows, left=(0, 1, 2, 3), width=None).splitlines()
    for exercise, line in zip(listed.values(), drawn, strict=True):
        if exercise.lesson != last:
            last = exercise.lesson
            lines += ["", f"lesson {last:02d}"]
        lines.append(line)
    some = [f"lesson {wanted:02d}: {_sum(listed, known)}"] if wanted is not None else []
    return "\n".join([*lines, "", *some, f"{'the course: ' * bool(some)}{_sum(exercises(), known)}"]).strip("\n")


def overview(more: str = 'progress(2) lists the exercises of lesson 02, progress("all") all') -> str:
    """Return one line per lesson that says how many of its exercises are right, followed by the total for the course.

    Args:
        more: Last line, which says how to list the exercises.
    """
    known = read_progress()
    of_lesson: dict[int, dict[str, Exercise]] = {}
    for id, exercise in exercises().items():
        of_lesson.setdefault(exercise.lesson, {})[id] = exercise
    lines = [f"lesson {lesson:02d}: {_sum(book, known)}" for lesson, book in of_lesson.items()]
    lines += [
        "",
        f"the course: {_sum(exercises(), known)}",
        more,
    ]
    return "\n".join(lines)


def _sum(book: Mapping[str, Exercise], known: Mapping[str, Record]) -> str:
    done = [exercise for id, exercise in book.items() if known.get(id, Record()).passed]
    stars = sum(1 for id in book if known.get(id, Record()).robust)
    points, possible = (sum(exercise.points for exercise in some) for some in (done, book.values()))
    return f"{len(done)} of {len(book)} exercises, {points} of {possible} points{f', {stars} {STAR}' if stars else ''}"
