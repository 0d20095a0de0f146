"""Grade a folder of submissions: marks.csv for the gradebook, and a page of feedback for each student."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from companion_school.build.stages import Stage
from companion_school.checking.exercise import Exercise
from companion_school.checking.operator_watch import unwatched
from companion_school.course.grading import project
from companion_school.course.grading.answers import LARGEST, Unreadable, contents
from companion_school.course.grading.exercise_mark import UNREADABLE, Graded, KeyRing, Mark, Text, mark
from companion_school.course.grading.results import EMPTY, NOTHING, OTHER, READ
from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.submissions import Handed, plain
from companion_school.course.grading.worker_pool import side_by_side
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
    require_sandbox: bool = False,
    robust: float = 0.0,
    done: Callable[[Graded], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Graded]:
    """The submissions graded, each in processes of its own, in the order in which they are given.

    What a student handed in can only cost that student: whatever goes wrong with it is their row.

    chosen:           the exercises to grade.
    secret:           decides the hidden cases.
    written:          the written answers to collect.
    stages:           of a project: the stages to grade, in place of exercises.
    jobs:             processes at once.
    robust:           what a robust answer adds, as a share of its exercise's points.
    done:             gets each student's marks as they are made.
    warn:             gets a sentence on what this system does not guard.
    require_sandbox:  as `side_by_side` has it, and the last two.

    Raises `ValueError` for jobs < 1, a system without fork, or without the sandbox that is required; `OSError` if the
    process for answers does not start.
    """
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: expected a whole number >= 1")
    keys = KeyRing(secret)

    def make(worker: Worker, one: Handed) -> Graded:
        if stages:
            return project.grade_one(worker, one, stages, keys)
        return grade_one(worker, one, chosen, keys, written, robust)

    return side_by_side(
        handed,
        make,
        jobs=jobs,
        limits=limits or Limits(),
        require_sandbox=require_sandbox,
        done=done,
        warn=warn,
    )


def grade_one(
    worker: Worker,
    handed: Handed,
    chosen: Sequence[Exercise],
    keys: KeyRing,
    written: Sequence[Written] = (),
    robust: float = 0.0,
) -> Graded:
    """One student's marks."""

    def nothing(submission: str, fault: str) -> Graded:
        texts = tuple(Text(item, "") for item in written)
        marks = tuple(Mark(exercise, UNREADABLE, share=robust) for exercise in chosen)
        return Graded(handed, submission, fault, marks, texts)

    if handed.fault is not None:
        return nothing(NOTHING, handed.fault)
    asked = {exercise.name: unwatched(exercise.forbidden) for exercise in chosen}
    try:
        files = [(file.name, contents(file)) for file in handed.files]
        if sum(len(data) for _, data in files) > LARGEST:
            raise Unreadable(f"its files are larger than {LARGEST // 2**20} MiB together")
        empty, found = worker.read(files, asked)
        wrote = worker.read_texts(files, [f"{MARK}{item.id}" for item in written]) if written else {}
    except Unreadable as error:
        return nothing(UNREADABLE, plain(str(error)))
    state, fault = READ, None
    texts = tuple(Text(item, wrote[f"{MARK}{item.id}"]) for item in written)
    if any(text.text for text in texts):
        pass
    elif empty:
        state, fault = EMPTY, "the notebook holds no code"
    elif chosen and not any(answer.defined for answer in found.values()):
        state = OTHER
        fault = "the notebook defines none of the functions that were asked for: is it the one of this problem set?"
    marks = tuple(mark(worker, one, found[one.name], keys, handed.student, robust) for one in chosen)
    return Graded(handed, state, fault, marks, texts)
