"""Grade a folder of submissions: marks.csv for the gradebook, and a page of feedback for each student."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from companion.checking.exercise import Exercise
from companion.course.grading.answers import Submission, Unreadable
from companion.course.grading.mark import UNREADABLE, Graded, KeyRing, Mark, mark
from companion.course.grading.sandbox.parent import Limits, Worker
from companion.course.grading.submissions import Handed

READ, EMPTY, OTHER, NOTHING = "read", "empty", "other notebook", "nothing handed in"
TRIED = (READ, EMPTY)


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

    Raises `ValueError` for jobs < 1, or a system without fork; `OSError` if the process for answers does not start.
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
        return Graded(handed, submission, fault, tuple(Mark(exercise, UNREADABLE, 0.0) for exercise in chosen))

    if handed.fault is not None:
        return nothing(NOTHING, handed.fault)
    try:
        submission = Submission.read(handed.files)
    except Unreadable as error:
        return nothing(UNREADABLE, str(error))
    state, fault = READ, None
    if submission.empty:
        state, fault = EMPTY, "the notebook holds no code"
    elif not any(submission.defines(exercise.name) for exercise in chosen):
        state = OTHER
        fault = "the notebook defines none of the functions that were asked for: is it the one of this problem set?"
    marks = tuple(mark(worker, exercise, submission, keys, handed.student) for exercise in chosen)
    return Graded(handed, state, fault, marks)
