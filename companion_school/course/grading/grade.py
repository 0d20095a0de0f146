"""Grade all submissions of a class in parallel, each in a sandboxed process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from companion_school.build.parts import parts
from companion_school.build.stages import Stage
from companion_school.checking.exercise import Exercise
from companion_school.course.grading import project
from companion_school.course.grading.answers import LARGEST, Unreadable, contents
from companion_school.course.grading.exercise_mark import UNREADABLE, Graded, KeyRing, Mark, Text, begin
from companion_school.course.grading.results import EMPTY, FAILED, NOTHING, OTHER, READ
from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.sandbox.wall import Wall, choose
from companion_school.course.grading.submissions import Handed, plain
from companion_school.course.written.rubrics import MARK, Written


def grade(
    handed: Sequence[Handed],
    chosen: Sequence[Exercise],
    secret: bytes,
    *,
    written: Sequence[Written] = (),
    stages: Sequence[Stage] = (),
    jobs: int = 2,
    limits: Limits | None = None,
    wall: Wall | None = None,
    robust: float = 0.0,
    runs: bool = False,
    own: Callable[[str], Sequence[Exercise]] = lambda _: (),
    done: Callable[[Graded], None] = lambda _: None,
) -> list[Graded]:
    """Grade submissions, each in its own processes.

    A problem with a student's files affects only that student: it is recorded in their marks, and grading continues.

    Args:
        handed: The submissions.
        chosen: The exercises to grade.
        secret: The instructor's secret, which determines the hidden cases.
        written: The written answers to collect.
        stages: For a project, the stages to grade instead of exercises.
        jobs: Number of submissions graded at the same time.
        limits: Time and memory limits for each answer (default: `Limits()`).
        wall: Isolation of answers from the rest of the system (default: the strongest that this system offers).
        robust: Extra points for a robust answer, as a fraction of its exercise's points.
        runs: Whether to also collect the outputs and pictures beside each written answer, for the marker.
        own: Function that returns a student's individual questions.
        done: Function called with each student's marks as soon as these are ready.

    Returns:
        The marks, in the order of `handed`.

    Raises:
        ValueError: If `jobs` is below 1, the system has no fork, or `wall` is not given and the system offers no
            isolation.
        OSError: If the process that runs answers does not start.
    """
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: expected a whole number >= 1")
    keys = KeyRing(secret)

    # Python 3.11 may raise a SystemError if two threads parse code at the same time, so the parts are built here.
    for stage in stages:
        for part in parts(stage.number):
            part.exercise()

    def make(worker: Worker, one: Handed) -> Graded:
        asked = [*chosen, *own(one.student)]
        try:
            if stages:
                return project.grade_one(worker, one, stages, keys)
            return grade_one(worker, one, asked, keys, written, robust, runs)
        except OSError:  # no process can be started, so grading would fail for every student
            raise
        except Exception as error:  # an unforeseen error must not stop the grading of the whole class
            fault = f"the grader failed ({type(error).__name__}: {error}); grade it again with --regrade"
            if stages:
                return project.nothing(one, stages, FAILED, fault, worker.wall.warning)
            return _nothing(one, asked, written, robust, FAILED, fault, worker.wall.warning)

    behind, most = wall or choose(), limits or Limits()
    return _in_threads(min(jobs, len(handed)), lambda: Worker(most, behind), handed, make, done)


def _in_threads(
    threads: int,
    worker: Callable[[], Worker],
    handed: Sequence[Handed],
    make: Callable[[Worker, Handed], Graded],
    done: Callable[[Graded], None],
) -> list[Graded]:
    """Grade submissions in several threads, each with its own worker. An error in one stops the others."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(handed)):
        waiting.put(number)
    found: dict[int, Graded] = {}
    stop = threading.Event()

    def work() -> None:
        with worker() as own:
            while not stop.is_set():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                found[number] = make(own, handed[number])
                done(found[number])

    with ThreadPoolExecutor(threads or 1) as pool:
        try:
            for future in [pool.submit(work) for _ in range(threads)]:
                future.result()
        finally:
            stop.set()
    return [found[number] for number in range(len(handed))]


def grade_one(
    worker: Worker,
    handed: Handed,
    chosen: Sequence[Exercise],
    keys: KeyRing,
    written: Sequence[Written] = (),
    robust: float = 0.0,
    runs: bool = False,
) -> Graded:
    """Grade one student's submission. The arguments are the same as for `grade`, but for a single worker."""

    def nothing(submission: str, fault: str) -> Graded:
        return _nothing(handed, chosen, written, robust, submission, fault, worker.wall.warning)

    if handed.fault is not None:
        return nothing(NOTHING, handed.fault)
    asked = {exercise.name: exercise.forbidden for exercise in chosen}
    try:
        files = [(file.name, contents(file)) for file in handed.files]
        if sum(len(data) for _, data in files) > LARGEST:
            raise Unreadable(f"its files are larger than {LARGEST // 2**20} MiB in total")
        empty, found = worker.read(files, asked)
        lines = [f"{MARK}{item.id}" for item in written]
        wrote, shown = worker.read_texts(files, lines, runs=runs) if written else ({}, {})
    except Unreadable as error:
        return nothing(UNREADABLE, plain(str(error)))
    state, fault = READ, None
    texts = tuple(
        Text(item, wrote[line], tuple(shown.get(line, ()))) for item, line in zip(written, lines, strict=True)
    )
    if any(text.text for text in texts):
        pass
    elif empty:
        state, fault = EMPTY, "the notebook holds no code"
    elif chosen and not any(answer.defined for answer in found.values()):
        state = OTHER
        fault = "the notebook defines none of this problem set's functions; does it belong to another problem set?"
    # Run all public cases before any hidden case.
    # Feedback on public cases quotes what the code wrote, so the code must not have seen any hidden case by then.
    begun = [begin(worker, one, found[one.name], keys, handed.student, robust) for one in chosen]
    return Graded(handed, state, fault, tuple(finish() for finish in begun), texts, worker.wall.warning)


def _nothing(
    handed: Handed,
    chosen: Sequence[Exercise],
    written: Sequence[Written],
    robust: float,
    submission: str,
    fault: str,
    warning: str,
) -> Graded:
    texts = tuple(Text(item, "") for item in written)
    marks = tuple(Mark(exercise, UNREADABLE, share=robust) for exercise in chosen)
    return Graded(handed, submission, fault, marks, texts, warning)
