"""Find answers in a class that are equal or nearly equal, apart from the names that the students chose.

Exercise answers and project files are compared in the same way, with each other and with the course's own
answers. Similarity proves nothing. Very short answers are left out, because short exercises have only a few correct
answers. Answers equal to the stub are left out too.
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
from companion_school.course.grading.marks_csv import page_name
from companion_school.course.grading.project import sources_of
from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.sandbox.wall import best
from companion_school.course.grading.submissions import Handed
from companion_school.course.proof.verify import as_answer

LEAST = 40
"""Minimum length in tokens (see `words`) of answers that are compared. Shorter answers are often alike by chance."""

MOST = 5000
"""Maximum length in tokens of answers that are compared."""

ALIKE = 0.92
"""Minimum similarity for two answers to count as alike: the ratio of `difflib.SequenceMatcher` over their tokens."""

LONG = 200
"""Minimum length in tokens of an answer whose similarity to the course's own answer cannot be due to chance."""

COURSE = "(the course's own answer)"
_LONGEST = 100_000  # characters; longer programs are not parsed


@dataclass(frozen=True)
class Answers:
    """A class's answers to one exercise, or the students' versions of one project file.

    Attributes:
        id: Exercise number or file name.
        by_student: Programs by student.
        own: The course's own answers: the reference and other correct answers.
        given: The stub that students received.
    """

    id: str
    by_student: dict[str, str]
    own: tuple[str, ...]
    given: str


@dataclass(frozen=True)
class Alike:
    """Students whose answers are alike.

    Attributes:
        id: Exercise number or file name.
        students: Names of the students, beginning with `COURSE` if the answers match the course's own.
        share: Similarity of the answers, from 0 to 1; for a group of students, the lowest similarity among all pairs
            that count as alike.
    """

    id: str
    students: tuple[str, ...]
    share: float


def programs(handed: Sequence[Handed], chosen: Sequence[Exercise]) -> list[Answers]:
    """Collect the answers to exercises, each with the code that it needs from its notebook. No code is run.

    Students whose files cannot be read are omitted.

    Raises:
        ValueError: The system has no fork.
    """
    asked: dict[str, tuple[str, ...]] = {exercise.name: () for exercise in chosen}
    by_name: dict[str, dict[str, str]] = {name: {} for name in asked}
    with Worker(Limits(), behind=best()) as worker:  # the worker only reads files and does not run answers
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
    """Collect the files of a project, one `Answers` per stage."""
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
    """Find the answers that match the course's own, and groups of students whose answers are alike.

    An answer of at least `LONG` tokens matches one of the course's answers if the two are similar. A shorter answer
    must be equal to it, because there are few correct short answers. Answers that match the course's own are not in any
    other group.

    Returns:
        The groups, most similar first.
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
    """Return the similarity ratio of two token sequences, or 0 if it is below `ALIKE`."""
    if mine == theirs:
        return 1.0
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    if matcher.real_quick_ratio() < ALIKE or matcher.quick_ratio() < ALIKE:
        return 0.0
    share = matcher.ratio()
    return share if share >= ALIKE else 0.0


def export(found: Sequence[Answers], out: Path) -> int:
    """Write the answers as files for a tool that compares programs, such as JPlag or copydetect.

        OUT/handed_in/STUDENT/2.3.py   a student's answer
        OUT/known/2.3.py               the stub and the course's own answers, which the tool should ignore

    Returns:
        The number of students' answers.

    Raises:
        ValueError: If OUT already exists.
    """
    if out.exists():
        raise ValueError(f"--export {out}: it already exists; move it elsewhere or choose another name")
    for answers in found:
        name = f"{answers.id.removesuffix('.py')}.py"
        for student, program in answers.by_student.items():
            write_atomic(out / "handed_in" / page_name(student).removesuffix(".html") / name, program.rstrip() + "\n")
        known = (answers.given, *answers.own)
        write_atomic(out / "known" / name, "\n\n\n".join(text.strip() for text in known) + "\n")
    return sum(len(answers.by_student) for answers in found)


def words(program: str) -> list[str]:
    """Convert a program to a sequence of tokens: the node types, names and constants of its syntax tree.

    Names that the program defines are replaced with numbers in the order of their first use. Comments, docstrings,
    annotations, imports, line breaks and redundant parentheses make no difference. The result is empty for a program
    that is too long or cannot be parsed.
    """
    if len(program) > _LONGEST:
        return []
    try:
        tree = ast.parse(program)
        own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        return list(_walk(tree, own, {}))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


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
    """Format the groups as text, one per line. Percentages are rounded down, so only equal answers show 100%."""
    return "\n".join(f"{one.id}  {int(100 * one.share):3}%  {', '.join(one.students)}" for one in found)
