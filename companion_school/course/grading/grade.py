"""Grade a folder of submissions: marks.csv for the gradebook, and a page of feedback for each student."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from companion_school.build.stages import Stage
from companion_school.checking.exercise import Exercise
from companion_school.course.grading import project
from companion_school.course.grading.answers import LARGEST, Unreadable, contents
from companion_school.course.grading.exercise_mark import UNREADABLE, Graded, KeyRing, Mark, Text, begin
from companion_school.course.grading.results import EMPTY, NOTHING, OTHER, READ
from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.sandbox.wall import Wall, choose
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
    wall: Wall | None = None,
    robust: float = 0.0,
    own: Callable[[str], Sequence[Exercise]] = lambda _: (),
    done: Callable[[Graded], None] = lambda _: None,
) -> list[Graded]:
    """The submissions graded, each in processes of its own, in the order in which they are given.

    What a student handed in can only cost that student: whatever goes wrong with it is their row.

    Args:
        handed: The submissions.
        chosen: The exercises to grade.
        secret: Decides the hidden cases.
        written: The written answers to collect.
        stages: Of a project: the stages to grade, in place of exercises.
        jobs: Processes at once.
        limits: What an answer may take.
        wall: What stands between answers and everything else (default: the best that this system has).
        robust: What a robust answer adds, as a share of its exercise's points.
        own: The questions with a student's own numbers.
        done: Gets each student's marks as they are made.

    Raises:
        ValueError: For jobs < 1, a system without fork, or one without a wall where none is given.
        OSError: If the process for answers does not start.
    """
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}: expected a whole number >= 1")
    keys = KeyRing(secret)

    def make(worker: Worker, one: Handed) -> Graded:
        if stages:
            return project.grade_one(worker, one, stages, keys)
        return grade_one(worker, one, [*chosen, *own(one.student)], keys, written, robust)

    return side_by_side(
        handed,
        make,
        jobs=jobs,
        limits=limits or Limits(),
        wall=wall or choose(),
        done=done,
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
        return Graded(handed, submission, fault, marks, texts, worker.wall.warning)

    if handed.fault is not None:
        return nothing(NOTHING, handed.fault)
    asked = {exercise.name: exercise.forbidden for exercise in chosen}
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
    # All public cases before any hidden one: only what is said of public ones quotes what the code wrote.
    begun = [begin(worker, one, found[one.name], keys, handed.student, robust) for one in chosen]
    return Graded(handed, state, fault, tuple(finish() for finish in begun), texts, worker.wall.warning)
