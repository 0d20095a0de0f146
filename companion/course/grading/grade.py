"""Grade a folder of submissions: marks.csv for the gradebook, and a page of feedback for each student."""

from __future__ import annotations

import csv
import io
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from companion.files.models import write_atomic
from companion.course.grading.gradebook import COLUMNS
from companion.course.grading.submissions import Handed
from companion.course.grading.mark import OUTCOMES, UNREADABLE, KeyRing, Mark, mark
from companion.course.grading.answers import Submission, Unreadable
from companion.course.grading.sandbox.parent import Limits, Worker
from companion.checking.exercise import Exercise

READ, EMPTY, OTHER, NOTHING = "read", "empty", "other notebook", "nothing handed in"
TRIED = (READ, EMPTY)


@dataclass(frozen=True)
class Graded:
    """One student's marks. `submission`: "read", or in a word why not; `fault`: in a sentence."""

    handed: Handed
    submission: str
    fault: str | None
    marks: tuple[Mark, ...]

    @property
    def points(self) -> float:
        return sum(one.points for one in self.marks)

    @property
    def most(self) -> int:
        return sum(one.exercise.points for one in self.marks)


def grade(
    handed: Sequence[Handed],
    chosen: Sequence[Exercise],
    secret: bytes,
    *,
    jobs: int = 2,
    limits: Limits | None = None,
    done: Callable[[Graded], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Graded]:
    """Grade the submissions, `jobs` at once, each in processes of its own. In the order in which they are given.

    `done` gets each one as it is graded; `warn` a sentence on what this system does not guard.

    Raises:
        ValueError: for jobs < 1, or a system without fork.
        OSError: the process that runs answers does not start.
    """
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: expected a whole number >= 1")
    keys, limits = KeyRing(secret), limits or Limits()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(handed)):
        waiting.put(number)
    graded: dict[int, Graded] = {}
    stop = threading.Event()

    def work(place: int) -> None:
        with Worker(limits, place) as worker:
            if place == 0 and not worker.landlock:
                warn("this system has no Landlock: which files an answer may open is guarded by Python alone")
            while not stop.is_set():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                graded[number] = grade_one(worker, handed[number], chosen, keys)
                done(graded[number])

    with ThreadPoolExecutor(min(jobs, len(handed)) or 1) as pool:
        try:
            for future in [pool.submit(work, place) for place in range(min(jobs, len(handed)))]:
                future.result()
        finally:
            stop.set()
    return [graded[number] for number in range(len(handed))]


def grade_one(worker: Worker, handed: Handed, chosen: Sequence[Exercise], keys: KeyRing) -> Graded:
    """One student's marks."""

    def nothing(submission: str, fault: str) -> Graded:
        return Graded(handed, submission, fault, tuple(Mark(one, UNREADABLE, 0.0) for one in chosen))

    if handed.fault is not None:
        return nothing(NOTHING, handed.fault)
    try:
        submission = Submission.read(handed.files)
    except Unreadable as error:
        return nothing(UNREADABLE, str(error))
    state, fault = READ, None
    if submission.empty:
        state, fault = EMPTY, "the notebook holds no code"
    elif not any(submission.defines(one.name) for one in chosen):
        state = OTHER
        fault = "the notebook defines none of the functions that were asked for: is it the one of this problem set?"
    marks = tuple(mark(worker, one, submission, keys, handed.student) for one in chosen)
    return Graded(handed, state, fault, marks)


def table(graded: Sequence[Graded], assignment: str) -> str:
    """The marks as CSV: nbgrader's columns, how the submission was, and for each exercise its outcome and its points.

    What could not be read has no score: it is for the instructor to say what that is worth.
    """
    chosen = [one.exercise.id for one in graded[0].marks] if graded else []
    columns = [*COLUMNS, "submission", *(name for id in chosen for name in (id, f"{id} points"))]
    text = io.StringIO()
    rows = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    rows.writeheader()
    for one in graded:
        row: dict[str, str] = {
            "assignment": assignment,
            "timestamp": one.handed.timestamp,
            "student_id": one.handed.student,
            "max_score": f"{float(one.most)}",
            "submission": one.submission,
        }
        if one.submission in TRIED:
            row |= {"raw_score": f"{one.points}", "late_submission_penalty": "0.0", "score": f"{one.points}"}
        for each in one.marks:
            row |= {each.exercise.id: each.outcome, f"{each.exercise.id} points": f"{each.points:g}"}
        rows.writerow(row)
    return text.getvalue()


def summary(graded: Sequence[Graded]) -> str:
    """How often each exercise ended how, for the terminal."""
    lines = [f"{'':<6}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES)]
    for place, first in enumerate(graded[0].marks if graded else ()):
        counts = Counter(one.marks[place].outcome for one in graded)
        lines.append(f"{first.exercise.id:<6}" + "".join(f"{counts[outcome] or '.':>12}" for outcome in OUTCOMES))
    return "\n".join(lines)


def write(graded: Sequence[Graded], assignment: str, out: Path) -> None:
    """marks.csv and feedback/STUDENT.html, each whole or not at all; the CSV last."""
    from companion.course.grading.feedback import page

    for one in graded:
        write_atomic(out / "feedback" / f"{one.handed.student}.html", page(one, assignment))
    write_atomic(out / "marks.csv", table(graded, assignment))
