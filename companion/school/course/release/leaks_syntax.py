"""Code compared by its syntax tree: other names, comments, line breaks and spaces do not make it other code."""

from __future__ import annotations

import ast
import builtins
import json
import re
import textwrap
import warnings
from collections.abc import Iterator

from companion.school.course.release.leaks_pieces import strings

SUBSTANTIAL = 12
"""Nodes in a statement that says something: fewer, such as `x = x + 1`, are everybody's."""

_QUOTED = 20
"""Characters in a string that may hold code: more than so many."""
_LONG_LINE = 1000
_JSON = json.JSONDecoder()
_KEPT = frozenset(dir(builtins)) | {"torch", "math"}
_BLOCK = re.compile(r"^([ \t]*)(?:async def|def|class|for|while|if|with|try|@|lambda)\b.*$", re.MULTILINE)


def fragments(text: str) -> Iterator[str]:
    """The normal form of each substantial statement that is found in a text: code, or prose with code in it."""
    text, quoted = _without_json(text)
    for string in quoted:
        yield from fragments(string)
    for tree in _trees(text):
        yield from tree_fragments(tree)


def tree_fragments(tree: ast.AST) -> Iterator[str]:
    """The normal form of each substantial statement and lambda of a tree, also of code in its string constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > _QUOTED:
            yield from fragments(node.value)
        if not isinstance(node, (ast.stmt, ast.Lambda)):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            continue  # its statements count, not what it is called
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if sum(1 for _ in ast.walk(node) if not isinstance(_, ast.expr_context)) >= SUBSTANTIAL:
            yield normal(node)


def normal(node: ast.AST) -> str:
    """A tree as text, with its variables numbered in the order in which they come."""
    numbers: dict[str, str] = {}

    def name(old: str) -> str:
        return old if old in _KEPT else numbers.setdefault(old, f"v{len(numbers)}")

    def walk(part: object) -> str:
        if isinstance(part, ast.Name):
            return name(part.id)
        if isinstance(part, ast.arg):
            return name(part.arg)
        if isinstance(part, (ast.AnnAssign, ast.Assign, ast.Return, ast.Lambda, ast.Expr)):
            inner = part.body if isinstance(part, ast.Lambda) else part.value  # what is computed, not where it goes
            return walk(inner)
        if isinstance(part, ast.AST):
            fields = [
                (key, value) for key, value in ast.iter_fields(part) if key not in ("ctx", "kind", "type_comment")
            ]
            return f"{type(part).__name__}({','.join(walk(value) for _, value in fields)})"
        if isinstance(part, list):
            return f"[{','.join(walk(item) for item in part)}]"
        return repr(part)

    return walk(node)


def _without_json(text: str) -> tuple[str, list[str]]:
    """A text with a number in place of the JSON that a long line begins with, and the strings that were quoted there.

    A key with its cases is a line of a megabyte, which is Python as well: to read it as that takes a hundred times as
    long."""
    if len(text) < _LONG_LINE:
        return text, []
    quoted: list[str] = []

    def short(line: str) -> str:
        begins = len(line) - len(line.lstrip())
        if len(line) < _LONG_LINE or line[begins] not in "{[":
            return line
        try:
            value, ends = _JSON.raw_decode(line, begins)
        except (ValueError, RecursionError):
            return line
        quoted.extend(string for string in strings(value) if len(string) > _QUOTED)
        return f"{line[:begins]}(0){line[ends:]}"

    return "\n".join(map(short, text.splitlines())), quoted


def _trees(text: str) -> Iterator[ast.AST]:
    whole = _parsed(text)
    if whole is not None:
        yield whole
        return
    lines = text.splitlines()
    for match in _BLOCK.finditer(text):  # blocks of code in other text, by their indentation
        first = text.count("\n", 0, match.start())
        last = first + 1
        depth = len(match[1])
        while last < len(lines) and (not lines[last].strip() or len(lines[last]) - len(lines[last].lstrip()) > depth):
            last += 1
        block = _parsed("\n".join(lines[first:last]))
        if block is not None:
            yield block
    for line in lines:
        if "(" in line or "=" in line:
            single = _parsed(line.strip().lstrip("#>-*+ ").strip("`"))
            if single is not None:
                yield single


def _parsed(text: str) -> ast.AST | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
