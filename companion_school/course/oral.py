"""Oral questions about students' own answers, which take about ten minutes per student.

Each question is about a line that the student wrote and comes with the points that a good answer mentions. The
questions do not affect the marks.
"""

from __future__ import annotations

import ast
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from companion_school.course.grading.similarity import Answers
from companion_school.course.grading.submissions import plain
from companion_school.course.hidden_seeds import keyed

_LONGEST = 100_000  # characters; longer programs are not parsed
_LONGEST_LINE = 110


@dataclass(frozen=True)
class Oral:
    """A question about one line in a student's answer.

    Attributes:
        exercise: Id of the exercise that the line belongs to.
        kind: Subject of the question; a student gets at most one question of each kind.
        line: Line number in the answer, starting at 1.
        code: The text of the line.
        ask: The question.
        names: Points that a good answer mentions.
    """

    exercise: str
    kind: str
    line: int
    code: str
    ask: str
    names: str


Found = tuple[str, str, str]  # kind of question, the question, and points that a good answer mentions
_SHAPING = {"transpose", "permute", "movedim", "mT", "T", "view", "reshape", "flatten", "expand"}
_SHAPING |= {"unsqueeze", "squeeze"}
_REDUCING = dict.fromkeys(("softmax", "log_softmax"), "normalized to a sum of one")
_REDUCING |= dict.fromkeys(("max", "amax", "argmax"), "compared") | dict.fromkeys(("sum", "mean"), "added up")
_REDUCING |= {"cumsum": "accumulated step by step"} | dict.fromkeys(("norm", "logsumexp", "var"), "combined")
_OTHER = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_SIGN = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def _calls(node: ast.AST) -> Iterator[Found]:
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    keywords = {one.arg: _told(one.value) for one in node.keywords}
    if (done := _REDUCING.get(name)) and (axis := keywords.get("dim", keywords.get("axis"))):
        yield (
            "axis",
            f"Why `dim={axis}` in this call of `{name}`? What would the result mean along another axis?",
            f"which axis `{axis}` is (its name and its size for one input), and what is {done} along it",
        )
    if keywords.get("keepdim") == "True":
        yield (
            "keepdim",
            "What happens in the next step without `keepdim=True`?",
            "the shapes with and without it, and the axis along which the smaller one would be broadcast",
        )
    if name in ("masked_fill", "masked_fill_", "where") and any("inf" in _told(one) for one in node.args[1:]):
        yield (
            "mask",
            "Why minus infinity here, and not a zero after the softmax?",
            "exp(-inf) = 0, so the other weights still add up to one; and what happens to a row in which everything "
            "is masked",
        )
    if name in ("tril", "triu"):
        shift = keywords.get("diagonal") or next((_told(one) for one in node.args[-1:]), "0")
        yield (
            "diagonal",
            f"What does `{name}` keep here, with the diagonal at `{shift}`? Which entries change if it moves by one?",
            "the entries of the first and the last row, and which tokens could see which if the diagonal were off by "
            "one",
        )
    formula = _short(str(node.args[0].value)) if node.args and isinstance(node.args[0], ast.Constant) else ""
    if name == "einsum" and "->" in formula:
        before, _, after = formula.partition("->")
        gone = sorted({letter for letter in before if letter.isalpha()} - {*after})
        yield (
            "einsum",
            f"Read `{formula}` aloud: what is multiplied, and what is summed over?",
            f"the sum runs over {', '.join(gone) or 'nothing'}; what each letter means, with a size",
        )
    if name in ("sqrt", "rsqrt"):
        yield (
            "root",
            "What is under this square root, and what goes wrong without it?",
            "where the number comes from, and how the size of the result changes as the input gets wider",
        )
    if name in ("clone", "detach", "contiguous"):
        yield (name, f"What would a caller notice without this `{name}`?", "shared memory, or gradients, by an example")
    if name in ("topk", "sort", "argsort", "gather", "scatter", "scatter_", "cumsum", "searchsorted", "index_select"):
        yield (
            name,
            f"Take an input of three numbers. What does this `{name}` return, and in what order?",
            "the values and the positions, worked out by hand",
        )


def _shapes(node: ast.AST) -> Iterator[Found]:
    if isinstance(node, ast.Attribute) and node.attr in _SHAPING:
        yield (
            "shape",
            f"What is the shape before this `{node.attr}`, and after it? Which axis is which?",
            "both shapes with the names of their axes, for one input of unequal sizes",
        )


def _comparisons(node: ast.AST) -> Iterator[Found]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        now, other = _SIGN[type(node.ops[0])], _OTHER[type(node.ops[0])]
        yield (
            "comparison",
            f"Give an input for which `{other}` instead of `{now}` changes the result of this line.",
            f"the case of equality in `{_told(node)}`, and what is right there",
        )


def _statements(node: ast.AST) -> Iterator[Found]:
    if isinstance(node, ast.Raise) and node.exc is not None and "NotImplemented" not in _told(node):
        yield "refusal", "Give the smallest input that reaches this line.", "an input, and why it has no right result"
    if isinstance(node, (ast.For, ast.While)):
        yield (
            "loop",
            "How many more times does this loop run if the input is twice as large? Could an operation replace it?",
            "the number of rounds as a function of a size, and an operator or a broadcast that does them all at once, "
            "or why each round needs the one before",
        )
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Slice, ast.Tuple)):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        cut = [one for one in parts if isinstance(one, ast.Slice) and (one.lower or one.upper or one.step)]
        if cut:
            yield (
                "slice",
                f"Which entries does `{_told(node)}` leave out, and why those?",
                "the first and the last entry that stay, for a small size",
            )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield (
            "product",
            f"Give the shapes on both sides of the `@` in `{_told(node)}`. What is one entry of the result?",
            "the axis that is summed over, and one entry as a sum in words",
        )


RULES: tuple[Callable[[ast.AST], Iterator[Found]], ...] = (_calls, _comparisons, _statements, _shapes)


def questions(exercise: str, program: str) -> list[Oral]:
    """Return all questions that can be asked about an answer, ordered by line, or none if it cannot be parsed."""
    if len(program) > _LONGEST:
        return []
    try:
        tree, lines = ast.parse(program), program.splitlines()
        nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
        found = [
            Oral(exercise, kind, node.lineno, _short(lines[node.lineno - 1]), plain(ask), plain(names))
            for node in nodes
            for rule in RULES
            for kind, ask, names in rule(node)
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError):
        return []
    return sorted(found, key=lambda one: one.line)


def _told(node: ast.AST) -> str:
    return _short(ast.unparse(node))


def _short(line: str) -> str:
    """Return a student's code as one line that Markdown shows unchanged between backticks."""
    text = plain(line.strip().replace("`", "'"))
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} ..."


def drawn(answers: Sequence[Answers], student: str, secret: bytes, each: int) -> list[Oral]:
    """Draw up to `each` questions of different kinds for a student, spread evenly over the exercises.

    The same secret and student always give the same questions.
    """
    waiting = [one for of in answers if student in of.by_student for one in questions(of.id, of.by_student[student])]
    Random(keyed(secret, "oral", student)).shuffle(waiting)
    chosen: list[Oral] = []
    while waiting and len(chosen) < each:
        asked = [one.exercise for one in chosen]
        best = min(waiting, key=lambda one: asked.count(one.exercise))
        chosen.append(best)
        waiting = [one for one in waiting if one.kind != best.kind]
    order = [one.id for one in answers]
    return sorted(chosen, key=lambda one: (order.index(one.exercise), one.line))


def page(students: Sequence[str], answers: Sequence[Answers], secret: bytes, each: int, about: str = "") -> str:
    """Return the instructor's list in Markdown: each student's questions, their lines, and what to listen for."""
    pieces = [
        f"# Questions about your students' own answers\n\n{about}Keep the answer in view of both of you while you ask. "
        "Students who wrote a line can say what it does; students who copied it often cannot change it. Line numbers "
        "refer to the answer with its helpers."
    ]
    for student in students:
        lines = [f"## {html.escape(plain(student).replace('#', ' '))}"]
        for number, one in enumerate(drawn(answers, student, secret, each), 1):
            lines.append(
                f"{number}. **{one.exercise}**, line {one.line}: `{one.code}`\n   {one.ask}\n"
                f"   *Listen for:* {one.names}."
            )
        pieces.append("\n\n".join(lines if len(lines) > 1 else [*lines, "There is no answer to ask about."]))
    return "\n\n".join(pieces) + "\n"
