"""Which answers of a class are too alike: equal, or nearly, after everything that a student names has been renamed.

Likeness is no proof of anything: short exercises have few right answers. So what is as short as that, what equals the
stub, and what equals the reference or another answer that the course knows is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.checking.exercise import Exercise
from companion_school.course.grading.answers import Unreadable, contents
from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.sandbox.wall import best
from companion_school.course.grading.submissions import Handed
from companion_school.course.proof.verify import as_answer

LEAST = 40
"""Words of code: answers below that are alike by chance."""

MOST = 5000
"""Words of code: longer answers are not compared."""

ALIKE = 0.92
"""The share of two answers' words, in order, from which on they are told."""


_LONGEST = 100_000  # letters of a program that is parsed here


@dataclass(frozen=True)
class Pair:
    """Two students' answers to an exercise, and the share of their words that they have in common, in order."""

    exercise: str
    first: str
    second: str
    share: float


def too_alike(handed: Sequence[Handed], chosen: Sequence[Exercise]) -> list[Pair]:
    """All pairs of answers that are too alike, the most alike first. Runs no line of them.

    Whose files cannot be read is left out. Raises `ValueError` on a system without fork.
    """
    submissions = _programs(handed, chosen)
    found: list[Pair] = []
    for exercise in chosen:
        known = {tuple(words(as_answer(answer, exercise.name))) for answer in exercise.variants}
        known |= {tuple(words(text)) for text in (exercise.solution, exercise.stub)}
        answers = []
        for student, programs in submissions:
            spoken = tuple(words(programs.get(exercise.name, "")))
            if LEAST <= len(spoken) <= MOST and spoken not in known:
                answers.append((student, spoken))
        found += _pairs(exercise.id, answers)
    return sorted(found, key=lambda pair: (-pair.share, pair.exercise, pair.first))


def _programs(handed: Sequence[Handed], chosen: Sequence[Exercise]) -> list[tuple[str, dict[str, str]]]:
    """Each student's programs by the names of their functions, with what they need of the same notebook."""
    asked: dict[str, tuple[str, ...]] = {exercise.name: () for exercise in chosen}
    made = []
    with Worker(Limits(), behind=best()) as worker:  # which only reads
        for one in handed:
            try:
                found = worker.read([(file.name, contents(file)) for file in one.files], asked)[1]
            except Unreadable:
                continue
            programs = {name: there.answer.program for name, there in found.items()}
            made.append((one.student, {name: program for name, program in programs.items() if program}))
    return made


def export(handed: Sequence[Handed], chosen: Sequence[Exercise], out: Path) -> int:
    """Write the answers for a tool that compares files, such as JPlag or copydetect; how many there are.

    OUT/handed_in/STUDENT/2.3.py   what each of them wrote
    OUT/known/2.3.py               what everybody was given and what the course shows: to be left out of the comparison

    Raises `ValueError` if OUT is there already, or on a system without fork.
    """
    if out.exists():
        raise ValueError(f"--export {out}: it is there already; move it away, or choose another name")
    total = 0
    for student, programs in _programs(handed, chosen):
        for exercise in chosen:
            if program := programs.get(exercise.name):
                write_atomic(out / "handed_in" / student / f"{exercise.id}.py", program.rstrip() + "\n")
                total += 1
    for exercise in chosen:
        known = [exercise.stub, exercise.solution, *(as_answer(one, exercise.name) for one in exercise.variants)]
        write_atomic(out / "known" / f"{exercise.id}.py", "\n\n\n".join(text.strip() for text in known) + "\n")
    return total


def _pairs(id: str, answers: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Pair]:
    for (first, mine), (second, theirs) in combinations(answers, 2):
        matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
        if matcher.real_quick_ratio() < ALIKE or matcher.quick_ratio() < ALIKE:
            continue
        if (share := matcher.ratio()) >= ALIKE:
            yield Pair(id, first, second, share)


def words(program: str) -> list[str]:
    """A program as a row of words in which names that it gives itself are numbered in the order of their use.

    Comments, docstrings, annotations, imports, line breaks and brackets make no difference.
    """
    if len(program) > _LONGEST:
        return []
    try:
        tree = ast.parse(program)
        return _renamed(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _renamed(tree: ast.Module) -> list[str]:
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    numbers: dict[str, int] = {}
    return list(_walk(tree, own, numbers))


def _walk(node: ast.AST, own: set[str], numbers: dict[str, int]) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.expr_context):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    yield type(node).__name__
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_comment", "kind"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _walk(part, own, numbers)
            elif part is not None:
                is_own = field in ("id", "name", "arg") and part in own
                yield f"name {numbers.setdefault(part, len(numbers))}" if is_own else repr(part)


def as_text(pairs: Sequence[Pair]) -> str:
    """A line for each pair."""
    return "\n".join(f"{one.exercise}  {one.share:4.0%}  {one.first}  {one.second}" for one in pairs)
