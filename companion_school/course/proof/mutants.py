"""Mutants: copies of a reference with one small, automatic change each.

A mutant changes a comparison, a constant (including an axis or the bound of a slice), an operator, a sign or a name
such as `amax` or `sin`. It may also swap the first two arguments of a call, or drop a keyword argument, a method call
(such as a clamp, a copy or a dtype conversion), a branch or a statement. `raise` and `assert` statements are not
mutated, because no check compares error messages.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from companion_school.checking.exercise import Answer, Exercise

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
_PAIRS = (
    ("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("cummin", "cummax"), ("minimum", "maximum"),
    ("clamp_min", "clamp_max"), ("sum", "mean"), ("any", "all"), ("sin", "cos"), ("floor", "ceil"), ("triu", "tril"),
    ("zeros", "ones"), ("zeros_like", "ones_like"), ("log", "log2"), ("exp", "expm1"), ("sqrt", "square"),
    ("float32", "float64"), ("repeat", "repeat_interleave"),
)  # fmt: skip
_EITHER_WAY = {"transpose", "swapaxes", "maximum", "minimum", "max", "min", "isclose", "allclose", "dist", "einsum"}
"""Calls that are symmetric in their first two arguments, and einsum, where swapping them always raises an error."""

_OTHER = {name: other for pair in _PAIRS for name, other in (pair, pair[::-1])}


@dataclass(frozen=True)
class Mutant:
    """A reference with one change.

    Attributes:
        exercise: Exercise number.
        change: The code before and after, as in "a + b -> a - b", numbered if the same change occurs more than once.
        line: Line number of the change in the reference.
        answer: The mutated function.
    """

    exercise: str
    change: str
    line: int
    answer: Answer


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """Yield all distinct mutants of an exercise's reference."""
    for change, line, text in changed_texts(exercise.solution):
        if (answer := _function(text, exercise)) is not None:
            yield Mutant(exercise.id, change, line, answer)


def changed_texts(source: str, name: str | None = None) -> Iterator[tuple[str, int, str]]:
    """Yield all distinct mutants of a source text.

    Args:
        source: Python code.
        name: The top-level function or class to mutate (default: the first top-level statement).

    Yields:
        The change, as in "a + b -> a - b", its line number, and the complete mutated text.
    """
    tree = ast.parse(source)
    defined = [at for at, node in enumerate(tree.body) if name is None or getattr(node, "name", None) == name]
    home = defined[0]
    for node in ast.walk(tree.body[home]):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body[:1] = [ast.Pass()] if len(node.body) == 1 else []
    seen = {ast.unparse(tree)}
    times: dict[str, int] = {}
    for place in range(sum(1 for _ in _places(tree.body[home]))):
        for number in range(len(list(_changes(_at(tree.body[home], place))))):
            changed = deepcopy(tree)
            node = _at(changed.body[home], place)
            before, line = _line(node), getattr(node, "lineno", 0)
            list(_changes(node))[number]()
            text = ast.unparse(ast.fix_missing_locations(changed))
            if text in seen:
                continue
            seen.add(text)
            change = f"{before} -> {_line(node)}"
            times[change] = times.get(change, 0) + 1
            if times[change] > 1:
                change += f" ({times[change]})"
            yield change, line, text


def _at(function: ast.AST, place: int) -> ast.AST:
    return next(node for number, node in enumerate(_places(function)) if number == place)


def _places(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that can be mutated, in order, leaving out signatures, `raise`, `assert` and `strict=`."""
    if isinstance(node, ast.Raise | ast.Assert) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    inner = node.body if isinstance(node, ast.FunctionDef | ast.ClassDef) else ast.iter_child_nodes(node)
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node
    for part in inner:
        yield from _places(part)


def _line(node: ast.AST) -> str:
    text = f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _function(text: str, exercise: Exercise) -> Answer | None:
    names = dict(vars(inspect.getmodule(exercise.reference)))
    try:
        exec(compile(text, f"mutant of {exercise.id}", "exec"), names)  # safe, because the code comes from this package
    except (SyntaxError, ValueError):
        return None
    return names[exercise.name]


def _become(node: ast.AST, other: ast.AST) -> None:
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(other.__dict__)


def _changes(node: ast.AST) -> Iterator[Callable[[], Any]]:
    """Yield every possible change to a node, as a function that makes the change in place."""

    def become(other: ast.AST) -> Callable[[], None]:
        return lambda: _become(node, other)

    def put(name: str, value: Any, at: int | None = None) -> Callable[[], None]:
        def change() -> None:
            if at is None:
                setattr(node, name, value)
            else:
                getattr(node, name)[at] = value

        return change

    match node:
        case ast.Compare(ops=operators):
            for at, operator in enumerate(operators):
                for other in _COMPARISONS[type(operator)]:
                    yield put("ops", other(), at)
        case ast.Constant(value=bool(value)):
            yield put("value", not value)
        case ast.Constant(value=int(value)):
            yield put("value", value + 1)
            yield put("value", value - 1)
        case ast.Constant(value=float(value)):
            yield put("value", value * 2 if value else 1.0)
        case ast.BinOp(op=operator, left=left, right=right):
            for instead in _OPERATORS.get(type(operator), ()):
                yield put("op", instead())
            if isinstance(operator, _ORDERED):
                yield become(ast.BinOp(right, operator, left))
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield become(operand)
        case ast.BoolOp(op=operator, values=values):
            yield put("op", ast.Or() if isinstance(operator, ast.And) else ast.And())
            yield from (become(value) for value in values)
        case ast.IfExp(body=body, orelse=otherwise):
            yield become(body)
            yield become(otherwise)
        case ast.If():
            yield put("test", ast.Constant(True))
            yield put("test", ast.Constant(False))
        case ast.Call(func=function, args=arguments, keywords=keywords):
            called = getattr(function, "attr", getattr(function, "id", ""))
            starred = any(isinstance(one, ast.Starred) for one in arguments)
            if len(arguments) > 1 and called not in _EITHER_WAY and not starred:
                yield put("args", [arguments[1], arguments[0], *arguments[2:]])
            if isinstance(function, ast.Attribute) and not _is_module(function.value):
                yield become(function.value)
            # Dropping `strict` from a zip changes nothing, because unequal lengths are rejected earlier.
            for keyword in (one for one in keywords if one.arg != "strict"):
                yield put("keywords", [one for one in keywords if one is not keyword])
        case ast.Attribute(attr=name) if name in _OTHER:
            yield put("attr", _OTHER[name])
        case ast.Name(id=name) if name in _OTHER:
            yield put("id", _OTHER[name])
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield put("lower", None)
            if upper is not None:
                yield put("upper", None)
        case ast.AugAssign() | ast.Expr() | ast.Break() | ast.Continue():
            yield become(ast.Pass())
        case ast.Assign(targets=[ast.Subscript()]):
            yield become(ast.Pass())


def _is_module(node: ast.expr) -> bool:
    """Return True if a method is called on a library, as in `torch.zeros`, rather than on a value."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in {"torch", "math", "itertools", "functools", "F", "nn"}
