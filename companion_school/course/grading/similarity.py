"""Which answers of a class are alike: equal, or nearly, after everything that a student names has been renamed.

Answers of exercises and files of a project are compared in the same way, and with the course's own: what equals the
reference is told as well. Likeness is no proof of anything: short exercises have few right answers, so answers as short
as that, and those that equal the stub, are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion_school.build.stages import Stage
from companion_school.build.stubs import reference, stub
from companion_school.checking.exercise import Exercise
from companion_school.course.grading.answers import Unreadable, contents
from companion_school.course.grading.project import sources_of
from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.sandbox.wall import best
from companion_school.course.grading.submissions import Handed
from companion_school.course.proof.verify import as_answer

LEAST = 40
"""Words of code: answers below that are alike by chance."""

MOST = 5000
"""Words of code: longer answers are not compared."""

ALIKE = 0.92
"""The share of two answers' words, in order, from which on they are alike."""

LONG = 200
"""Words of code: answers from there on are not near the course's own by chance."""

COURSE = "(the course's own answer)"
_LONGEST = 100_000  # letters of a program that is parsed here


@dataclass(frozen=True)
class Answers:
    """A class's answers to one exercise or one file of a project.

    by_student:  their programs.
    own:         what the course shows: the reference and other right answers.
    given:       what was handed out.
    """

    id: str
    by_student: dict[str, str]
    own: tuple[str, ...]
    given: str


@dataclass(frozen=True)
class Alike:
    """Students whose answers are alike, and the least share of words that two neighbours have in common."""

    id: str
    students: tuple[str, ...]
    share: float


def programs(handed: Sequence[Handed], chosen: Sequence[Exercise]) -> list[Answers]:
    """The answers to exercises, with what they need of the same notebook. Runs no line of them.

    Students whose files cannot be read are left out. Raises `ValueError` on a system without fork.
    """
    asked: dict[str, tuple[str, ...]] = {exercise.name: () for exercise in chosen}
    by_name: dict[str, dict[str, str]] = {name: {} for name in asked}
    with Worker(Limits(), behind=best()) as worker:  # which only reads
        for one in handed:
            try:
                found = worker.read([(file.name, contents(file)) for file in one.files], asked)[1]
            except Unreadable:
                continue
            for name, there in found.items():
                if there.answer.program:
                    by_name[name][one.student] = there.answer.program
    made = []
    for exercise in chosen:
        own = (exercise.solution, *(as_answer(answer, exercise.name) for answer in exercise.variants))
        made.append(Answers(exercise.id, by_name[exercise.name], own, exercise.stub))
    return made


def modules(handed: Sequence[Handed], stages: Sequence[Stage]) -> list[Answers]:
    """The files of a project, by stage."""
    sources = {one.student: sources_of(one)[0] for one in handed if one.fault is None}
    return [
        Answers(
            stage.file,
            {student: files[stage.module] for student, files in sources.items() if stage.module in files},
            (reference(stage.number),),
            stub(stage.number),
        )
        for stage in stages
    ]


def alike(answers: Answers) -> list[Alike]:
    """The answers that are the course's own, and the groups of students whose answers are alike; the most alike first.

    A long answer is the course's own where it is near it; a short one, of which there are few that are right, only
    where it is equal.
    """
    given = words(answers.given)
    spoken = {student: words(program) for student, program in answers.by_student.items()}
    spoken = {who: said for who, said in spoken.items() if LEAST <= len(said) <= MOST and said != given}
    own = [words(program) for program in answers.own]
    found: dict[tuple[str, ...], float] = {}
    copied: dict[float, list[str]] = {}
    for who, said in spoken.items():
        share = max((_share(said, one) for one in own), default=0.0)
        if share == 1 or (share and len(said) >= LONG):
            copied.setdefault(share, []).append(who)
    found |= {(COURSE, *students): share for share, students in copied.items()}
    rest = {who: said for who, said in spoken.items() if not any(who in one for one in copied.values())}
    pairs = {pair: _share(rest[pair[0]], rest[pair[1]]) for pair in combinations(sorted(rest), 2)}
    groups: list[set[str]] = []
    for pair, share in pairs.items():
        if share:
            near = [group for group in groups if group & {*pair}]
            groups = [group for group in groups if group not in near] + [set(pair).union(*near)]
    for group in groups:
        found[tuple(sorted(group))] = min(share for pair, share in pairs.items() if share and group >= {*pair})
    return sorted(
        (Alike(answers.id, who, share) for who, share in found.items()), key=lambda one: (-one.share, one.students)
    )


def _share(mine: Sequence[str], theirs: Sequence[str]) -> float:
    """The share of two answers' words, in order, that they have in common; 0 where it is less than `ALIKE`."""
    if mine == theirs:
        return 1.0
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    if matcher.real_quick_ratio() < ALIKE or matcher.quick_ratio() < ALIKE:
        return 0.0
    share = matcher.ratio()
    return share if share >= ALIKE else 0.0


def export(found: Sequence[Answers], out: Path) -> int:
    """Write the answers for a tool that compares files, such as JPlag or copydetect; how many there are.

    OUT/handed_in/STUDENT/2.3.py   what each of them wrote
    OUT/known/2.3.py               what everybody was given and what the course shows: to be left out of the comparison

    Raises:
        ValueError: OUT is there already.
    """
    if out.exists():
        raise ValueError(f"--export {out}: it is there already; move it away, or choose another name")
    for answers in found:
        name = f"{answers.id.removesuffix('.py')}.py"
        for student, program in answers.by_student.items():
            write_atomic(out / "handed_in" / student / name, program.rstrip() + "\n")
        known = (answers.given, *answers.own)
        write_atomic(out / "known" / name, "\n\n\n".join(text.strip() for text in known) + "\n")
    return sum(len(answers.by_student) for answers in found)


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


def as_text(found: Sequence[Alike]) -> str:
    """A line for each group."""
    return "\n".join(f"{one.id}  {one.share:4.0%}  {', '.join(one.students)}" for one in found)
