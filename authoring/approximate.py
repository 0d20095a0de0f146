"""Rules for numbers that depend on the machine. A lesson prints them after `≈` and bounds them in an assertion.

    print(f"loss ≈ {loss:.2f}")
    assert 1.9 < loss < 2.3

A number after `≈` is shown but never compared (nbval.cfg), so `faults` requires a bound: an assertion that compares the
printed quantity, in the same cell or in a later cell before the next H2.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from authoring.imports import parsed

SIGN = "≈"
CONFIG = Path(__file__).with_name("nbval.cfg")
SHOWN = re.compile(re.findall(r"^regex: (.*)$", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)[0])
"""The pattern of the text that nbval removes from outputs before it compares them."""
_CLOSE = ("isclose", "allclose")


def faults(code: str, later: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the faults in a code cell's use of `≈`, as (line, counted from 0; message).

    Args:
        code: The cell's code.
        later: The later code cells of its section, which may contain the bounds.
    """
    printed = list(_printed(parsed(code)))
    if not printed:
        return
    bounded = {ast.unparse(node) for text in [code, *later] for node in _compared(parsed(text))}
    for line, value in printed:
        if value is None:
            yield line, f'write a number that is not compared as f"{SIGN} {{number}}", the braces right behind the sign'
            continue
        quantities = sorted({ast.unparse(node) for node in _quantities(value)})
        if not quantities:
            yield line, f"`{ast.unparse(value)}` is the same on every machine: print it without {SIGN}"
        elif not bounded.intersection(quantities):
            what = " or ".join(f"`{name}`" for name in quantities)
            yield (
                line,
                f"{what} is printed behind {SIGN} and has no bound: assert a comparison of it before the next H2",
            )


def shown_without_source(code: str, texts: Sequence[str]) -> bool:
    """Return whether a cell printed a number after `≈` although no `≈` in its code can be checked."""
    tree = parsed(code)
    return any(SHOWN.search(text) for text in texts) and bool(tree.body) and not list(_printed(tree))


def _printed(tree: ast.Module) -> Iterator[tuple[int, ast.expr | None]]:
    """Yield, for each `≈` in the code's strings, its line and the expression after it (`None` if there is none)."""
    behind: dict[ast.expr, ast.expr] = {}
    silent = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings are not printed
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pairs = zip(node.values, node.values[1:], strict=False)
            behind |= {part: after.value for part, after in pairs if isinstance(after, ast.FormattedValue)}
        elif isinstance(node, ast.Call):  # for example, print("loss ≈", loss)
            behind |= dict(zip(node.args, node.args[1:], strict=False))
    for node in ast.walk(tree):
        text = _text(node).rstrip(" ")
        if SIGN in text and node not in silent:
            last = behind.get(node) if text.endswith(SIGN) else None
            unbraced = text.count(SIGN) - (last is not None)
            yield from [(node.lineno - 1, None)] * unbraced + ([(node.lineno - 1, last)] if last else [])


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _quantities(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the quantities in an expression: names, attributes, subscripts and calls, including nested ones.

    For `100 * losses[-1]`, the only quantity is `losses[-1]`; for `round(share.item(), 2)`, the quantities are the call
    itself, `share.item()` and `share`.
    """
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
        yield value
    elif isinstance(value, ast.Call):
        yield value
        if isinstance(value.func, ast.Attribute) and not _is_module(value.func.value):
            yield from _quantities(value.func.value)
        for argument in value.args:
            yield from _quantities(argument)
    else:
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from _quantities(child)


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("math", "torch", "np", "F", "statistics")


def _compared(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield every expression inside an asserted comparison or a call to `assert_...` or `isclose`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Compare) or (isinstance(part, ast.Call) and _name(part).endswith(_CLOSE)):
                    yield from _expressions(part)
        elif isinstance(node, ast.Call) and _name(node).startswith("assert_"):
            yield from _expressions(node)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    return (part for part in ast.walk(node) if isinstance(part, ast.expr))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
