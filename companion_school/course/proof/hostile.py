"""A class of hostile students. Grading this class must not hang, award undeserved points or produce unknown outcomes.

Unless a student spoils the whole notebook, the answers to the other exercises are correct. This reveals whether code
for one exercise can change the mark of another.
"""

from __future__ import annotations

import inspect
import json
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from companion_school.checking.examine import key_of
from companion_school.checking.exercise import Exercise
from companion_school.checking.operator_watch import forbidden_uses
from companion_school.course.grading.exercise_mark import OUTCOMES, Graded
from companion_school.course.grading.grade import grade
from companion_school.course.grading.marks_csv import publish
from companion_school.course.grading.results import Results, record_of
from companion_school.course.grading.sandbox.parent import Limits
from companion_school.course.grading.submissions import handed_in
from companion_school.course.points import shares
from companion_school.course.proof.attacks import ATTACKS, BREACHES
from companion_school.course.proof.leaks import leaks
from companion_school.course.proof.verify import Trial, as_answer
from companion_school.exercises import lesson_02
from companion_school.exercises.catalogue import find_exercise

BOOK = ("2.1", "2.2", "2.3", "2.5")
TARGET = "2.3"
LIMITS = Limits(seconds=1.0, memory_gib=0.5)
"""Limits for each answer. They are low because a dozen students in the class run until the time limit."""
PATIENT = Limits(seconds=60.0, memory_gib=0.5)
"""Limits for trying again if students unexpectedly run out of time, as can happen on a slow machine."""
_SECRET = "the secret of the hostile class: 41f0c2"
_IMPORTS = "import torch\nimport math"


@dataclass(frozen=True)
class Student:
    """A student's submission and the expected result of grading it.

    Attributes:
        cells: The notebook's code cells, or the contents of a file that is not a notebook.
        ends: Acceptable outcomes by exercise; all other exercises must be right.
        submission: Expected status of the submission as a whole.
        points: Expected points for the target exercise, if the student should get only some of them.
        mistake: Known mistake that the feedback must name.
        file: Name of the submitted file.
        link: True if the file is a symbolic link to the instructor's secret.
        cell_metadata: Metadata of every cell.
        outputs: Number of characters in each cell's output.
        free: True if the student is graded with no operators forbidden.
    """

    cells: Sequence[str] | bytes
    ends: Mapping[str, Collection[str]] = field(default_factory=dict)
    submission: str = "read"
    points: float | None = None
    mistake: str | None = None
    file: str = "set.ipynb"
    link: bool = False
    cell_metadata: dict[str, Any] = field(default_factory=dict)
    outputs: int = 0
    free: bool = False


def run_hostile_class(jobs: int = 2) -> list[Trial]:
    """Grade the hostile class. Return a trial for each student, and one for the feedback to the whole class."""
    students = hostile_class()
    chosen = [find_exercise(id) for id in BOOK]
    with tempfile.TemporaryDirectory(prefix="companion-hostile-") as home:
        secret, submitted, out = Path(home, "secret"), Path(home, "submitted"), Path(home, "marks")
        secret.write_text(_SECRET)
        for name, student in students.items():
            _hand_in(student, submitted / name, secret)
        graded = []
        for free in (False, True):
            book = [replace(one, forbidden=()) if free else one for one in chosen]
            handed = [one for one in handed_in(submitted) if students[one.student].free == free]
            found = grade(handed, book, _SECRET.encode(), jobs=jobs, limits=LIMITS)
            late = [student.handed for student in found if _ran_out_of_time(student, students)]
            slowly = grade(late, book, _SECRET.encode(), jobs=jobs, limits=PATIENT) if late else []
            again = {one.handed: one for one in slowly}
            graded += [again.get(one.handed, one) for one in found]
        publish(Results("hostile", "", tuple(map(record_of, graded))), out)
        trials = [Trial(TARGET, "hostile", student.handed.student, 0, _fault(student, students)) for student in graded]
        told = _leaks_in(out, chosen, graded)
    return [*trials, Trial(TARGET, "hostile", "what the feedback reveals", 0, told)]


def _ran_out_of_time(graded: Graded, students: Mapping[str, Student]) -> bool:
    """Return True if running or reading a student's code unexpectedly exceeded the time limit."""
    student = students[graded.handed.student]
    if graded.submission != student.submission:
        return True
    return any(
        mark.outcome == "timeout" and "timeout" not in student.ends.get(mark.exercise.id, ()) for mark in graded.marks
    )


def _fault(graded: Graded, students: dict[str, Student]) -> str | None:
    """Return the first difference between the actual and the expected result, or None if there is none."""
    student = students[graded.handed.student]
    if graded.submission != student.submission:
        return f"the submission should be {student.submission!r}, is {graded.submission!r}: {graded.fault}"
    for mark in graded.marks:
        id = mark.exercise.id
        may = student.ends.get(id, ("right",))
        if mark.outcome not in may:
            told = "; ".join(str(verdict) for verdict in (mark.public, mark.hidden) if verdict is not None)
            return f"{id} should end as {' or '.join(may)}, is {mark.outcome}: {told}"
        due = float(mark.exercise.points) if mark.outcome == "right" else 0.0
        if id == TARGET and student.points is not None:
            due = student.points
        if mark.points != due:
            return f"{id} should earn {due:g}, earns {mark.points:g}"
        verdict = mark.public or mark.hidden
        verdict = mark.unstood or verdict
        named = verdict.mistake if verdict else None
        if id in student.ends and student.mistake is not None and named != student.mistake:
            return f"{id} should be told {student.mistake!r}, is told {named!r}"
    return None


def _leaks_in(out: Path, chosen: Sequence[Exercise], graded: Sequence[Graded]) -> str | None:
    """Check that no feedback page leaks anything and that every outcome occurs. Return the fault, or None."""
    told = [known.message for exercise in chosen for known in exercise.mistakes]
    found = leaks(out / "feedback", chosen, _SECRET.encode(), public=told)
    for file in sorted((out / "feedback").iterdir()):
        text = file.read_text("utf-8")
        found += [f"{file.name}: {what}" for what in ("<script", _SECRET, "HIDDEN INPUT") if what in text]
    if found:
        return f"{len(found)} leaks: {found[0]}"
    outcomes = {mark.outcome for student in graded for mark in student.marks}
    return None if outcomes == set(OUTCOMES) else f"expected every outcome, found {sorted(outcomes)}"


def _hand_in(student: Student, folder: Path, secret: Path) -> None:
    folder.mkdir(parents=True)
    if student.link:
        (folder / student.file).symlink_to(secret)
        return
    if isinstance(student.cells, bytes):
        (folder / student.file).write_bytes(student.cells)
        return
    known = {"{secret}": str(secret), "{references}": str(lesson_02.__file__)}
    known["{size}"] = str(Path(known["{references}"]).stat().st_size)
    cells = list(student.cells)
    for what, path in known.items():
        cells = [cell.replace(what, path) for cell in cells]
    if student.file.endswith(".py"):
        (folder / student.file).write_text("\n\n# %%\n".join(cells), "utf-8")
        return
    outputs = [{"output_type": "stream", "name": "stdout", "text": "x" * student.outputs}] * (student.outputs > 0)
    about = {"cell_type": "code", "execution_count": 7, "metadata": student.cell_metadata, "id": "same"}
    parts = [about | {"outputs": outputs, "source": cell} for cell in cells]
    (folder / student.file).write_text(json.dumps({"cells": parts, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


# The students


def hostile_class() -> dict[str, Student]:
    """Return all students of the hostile class, keyed by name."""
    book = {id: find_exercise(id) for id in BOOK}
    target = book[TARGET]
    right = {id: exercise.solution for id, exercise in book.items()}
    others = [_IMPORTS, *(text for id, text in right.items() if id != TARGET)]
    good = [_IMPORTS, *right.values()]
    head = "def visible_softmax(scores, may_look):\n"
    wrong = head + "    return scores"
    nothing = dict.fromkeys(BOOK, ("missing",))
    unreadable = dict.fromkeys(BOOK, ("unreadable",))
    students = {
        "right": Student(good),
        "right, in Python": Student(good, file="set.py"),
        "right, with stripped metadata": Student(good, cell_metadata={}),
        "right, with wrong metadata": Student(good, cell_metadata={"nbgrader": {"points": 999}}),
        "right, in reverse order": Student(good[::-1]),
        "right, every cell twice": Student(good * 2),
        "right, all in one cell": Student(["\n\n".join(good)]),
        "right, without its imports": Student(good[1:]),
        "right, with its checks edited": Student([*good, "def check(id): return True\ncheck('2.3')\nFalse"]),
        "right, beside a syntax error": Student([*good, "def broken(:", "%%bash\nls (", "!ls\n%time 1"]),
        "right, with huge outputs": Student(good, outputs=2**22),
        "right, prints a megabyte": Student([*others, _with_first_line(target, "print('x' * 2**20)")]),
        "right, leaves a thing to do at the end": Student(
            [*others, _with_first_line(target, "import atexit; atexit.register(print, 1)")]
        ),
        "right, over a blank one": Student([*good, target.stub]),
        "<script>right<b>": Student(good),
        "blank": Student([_IMPORTS, *(exercise.stub for exercise in book.values())], nothing),
        "empty": Student([], nothing, "empty"),
        "another notebook": Student(["import torch", "def something(x): return x"], nothing, "other notebook"),
        "no notebook": Student(b"Dear instructor, my dog ate it.", unreadable, "unreadable"),
        "a picture": Student(b"\x89PNG\r\n\x1a\n\x00\xff", unreadable, "unreadable"),
        "a list": Student(b"[1, 2]", unreadable, "unreadable"),
        "deep brackets": Student(b"[" * 10**6, unreadable, "unreadable"),
        "an empty file": Student(b"", unreadable, "unreadable"),
        "a letter": Student(b"%PDF", unreadable, "nothing to grade", file="answer.pdf"),
        "a link to the secret": Student([], unreadable, "nothing to grade", link=True),
        "an error in its own cell": Student([*others, head + "    return scores +"], {TARGET: ("crashed",)}),
        "deep code": Student([*others, head + "    return " + "-" * 10**5 + "scores"], {TARGET: ("crashed",)}),
        "defines it as a list": Student([*others, "visible_softmax = [1, 2]"], {TARGET: ("crashed",)}),
        "remembers the public cases": Student(
            [*others, _remembers(target, "return scores")], {TARGET: ("wrong",)}, points=shares(target)[0]
        ),
        "tells hidden inputs by its errors": Student(
            [*others, _remembers(target, "raise RuntimeError(f'HIDDEN INPUT {scores.tolist()}')")],
            {TARGET: ("crashed",)},
            points=shares(target)[0],
        ),
        "tells hidden inputs by its errors' names": Student(
            [*others, _remembers(target, _NAMED_ERROR)], {TARGET: ("crashed",)}, points=shares(target)[0]
        ),
        "spoils the notebook's head": Student(
            [*others, f"while True: scale = 1\n{wrong} * scale"], {TARGET: ("timeout",)}
        ),
        "changes what PyTorch is by default": Student(
            [*others, "torch.set_default_dtype(torch.float64)\ntorch.use_deterministic_algorithms(True)\n" + wrong],
            {TARGET: ("wrong",)},
        ),
        "replaces the comparisons outside": Student(
            [*others, f"torch.allclose = torch.equal = torch.isclose = torch.testing.assert_close = print\n{wrong}"],
            {TARGET: ("wrong",)},
        ),
    }
    for name, (body, ends) in (ATTACKS | BREACHES).items():
        cells = [*others, head + textwrap.indent(body.strip("\n"), "    ")]
        students[name] = Student(cells, {TARGET: ends}, free=name in ATTACKS)
    for id, name, text, message in _known(book.values()):
        cells = [_IMPORTS, *(right[other] for other in BOOK if other != id), *_helpers(), text]
        if message is None:
            students[name] = Student(cells)
        elif forbidden_uses(text, book[id].forbidden):
            students[name] = Student(cells, {id: ("refused",)})
        else:
            # The feedback on either mark may name the mistake.
            students[name] = Student(cells, {id: ("wrong", "right")}, mistake=message)
    return students


def _with_first_line(exercise: Exercise, line: str) -> str:
    head, _, body = exercise.solution.partition(":\n")
    return f"{head}:\n    {line}\n{body}"


_NAMED_ERROR = """\
class Told(Exception): pass
        Told.__name__ = f'HIDDEN INPUT {scores.tolist()}'
        raise Told"""
"""Code to use as `otherwise` below, which raises an exception whose name contains the input."""


def _remembers(target: Exercise, otherwise: str) -> str:
    """Return code that recognizes the public cases by the sum of their scores, and runs `otherwise` on all others."""
    # Compare strings, because NaN is not equal to itself.
    # Compare only six digits, because the order in memory may change the others.
    sums = sorted({f"{float(case.arguments[0].sum()):.6g}" for case in key_of(target).cases})
    body = target.solution.partition(":\n")[2]
    known = f"if f'{{float(scores.sum()):.6g}}' not in {sums!r}"
    return f"def visible_softmax(scores, may_look):\n    {known}:\n        {otherwise}\n{body}"


def _known(book: Collection[Exercise]) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each known answer: its exercise, name, code and expected message, which is None for a correct variant."""
    for exercise in book:
        for number, known in enumerate(exercise.mistakes, 1):
            yield exercise.id, f"{exercise.id} mistake {number}", as_answer(known.answer, exercise.name), known.message
        for number, answer in enumerate(exercise.variants, 1):
            yield exercise.id, f"{exercise.id} variant {number}", as_answer(answer, exercise.name), None


def _helpers() -> list[str]:
    """Return the imports and helper functions in the lesson's module that its known answers use."""
    made = [
        made for made in vars(lesson_02).values() if inspect.isfunction(made) and made.__module__ == lesson_02.__name__
    ]
    source = inspect.getsource(lesson_02)
    imports = [
        line for line in source.splitlines() if line.startswith(("import ", "from ")) and "companion" not in line
    ]
    return ["\n".join(imports), *(inspect.getsource(function) for function in made if function.__name__ != "_")]
