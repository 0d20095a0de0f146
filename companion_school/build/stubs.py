"""The reference file of each stage, and the stub that learners start from.

The references of stages 2 to 9 are sections of the one-page model (`companion/page.py`), separated by comments of the
form `# --- stage N, file.py: lessons ...`. The references of the other stages are files in `references/`. References
and stubs are ordinary Python files with only the imports that they need. They import names defined in another stage
from that stage's file.

A definition whose first line ends in `# given` is not part of the exercise: the stub contains it in full, marked as
given. A definition that is not given and whose name begins with an underscore is private to the reference: no stub
contains it, and no check uses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from companion_school.build.stages import STAGES, Stage

GIVEN = "# given"
_MARK = re.compile(r"^# --- stage (\d+), .*$", re.MULTILINE)
_STUB = "raise NotImplementedError"
Definition = ast.FunctionDef | ast.ClassDef


@cache
def reference(number: int) -> str:
    """Return the source text of a stage's reference."""
    stage = STAGES[number]
    body = _sections().get(number)
    if body is None:
        return files("companion_school.build.references").joinpath(stage.file).read_text("utf-8")
    laid_out = _laid_out(body)
    return f'"""{_about(stage)}"""\n\n{_imports(number, body)}\n\n\n{laid_out}'


def names(number: int) -> tuple[str, ...]:
    """Return the names of the definitions that learners write in a stage, in the order of its file."""
    source = reference(number)
    return tuple(
        node.name
        for node in _definitions(source)
        if not _is_given(node, source.splitlines()) and not node.name.startswith("_")
    )


def due(stage: Stage) -> dict[int, tuple[str, ...]]:
    """For each lesson, return the names of the definitions that can be written after it, in the order of the file."""
    early = {name: lesson for lesson, some in stage.begun for name in some.split()}
    last = stage.lessons[-1]
    return {
        lesson: tuple(name for name in names(stage.number) if early.get(name, last) == lesson)
        for lesson in (*dict(stage.begun), last)
    }


def given(number: int) -> tuple[str, ...]:
    """Return the names of the given definitions, which a stage's stub contains in full."""
    source = reference(number)
    return tuple(node.name for node in _definitions(source) if _is_given(node, source.splitlines()))


@cache
def stub(number: int) -> str:
    """Return the stub of a stage: imports, constants, signatures, docstrings and given definitions."""
    stage, source = STAGES[number], reference(number)
    tree, lines = ast.parse(source), source.splitlines()
    parts = [f'"""{_about(stage)}\n\n{_told(stage)}\n"""']
    imports: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(_text(node, lines))
    parts.append("\n".join(_grouped(imports)))
    for node in tree.body:
        if not isinstance(node, Definition):
            if isinstance(node, (ast.Assign, ast.AnnAssign)):  # constants and type aliases used in signatures
                after = "\n" if parts[-1].lstrip().startswith(("def ", "class ", "@")) else ""
                parts.append(after + _text(node, lines))
        elif _is_given(node, lines):
            parts.append(f"\n{_text(node, lines)}")
        elif not node.name.startswith("_"):
            parts.append("\n" + "\n".join(_without_body(node, lines)))
    return "\n\n".join(parts) + "\n"


@cache
def plain_race() -> str:
    """Return a plain race.py that uses stages 1 to 6, for learners who have not written their own."""
    return files("companion_school.build.references").joinpath("plain_race.py").read_text("utf-8")


def definitions(source: str) -> dict[str, str]:
    """Return the source text of each function and class in a file, by name."""
    lines = source.splitlines()
    return {node.name: _text(node, lines) for node in _definitions(source)}


def lines_written(source: str) -> int:
    """Count the lines of code in a file's functions and methods, excluding given definitions.

    Docstrings, comments and blank lines do not count.
    """
    functions = [node for node in _definitions(source) if not _is_given(node, source.splitlines())]
    methods = [part for node in functions for part in getattr(node, "body", []) if isinstance(node, ast.ClassDef)]
    bodies = [node for node in (*functions, *methods) if isinstance(node, ast.FunctionDef)]
    numbers: set[int] = set()
    for node in bodies:
        for statement in node.body[ast.get_docstring(node) is not None :]:
            numbers |= {*range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)}
    text = source.splitlines()
    return sum(1 for number in numbers if text[number - 1].strip() and not text[number - 1].lstrip().startswith("#"))


def is_untouched(number: int, source: str) -> bool:
    """Return True if a file still contains the stub's code, apart from docstrings and comments."""
    try:
        return _code(source) == _code(stub(number))
    except (SyntaxError, ValueError):
        return False


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def _about(stage: Stage) -> str:
    several = "s" if len(stage.lessons) > 1 else ""
    numbers = [f"{lesson:02d}" for lesson in stage.lessons]
    listed = " and ".join([", ".join(numbers[:-1]), numbers[-1]]) if several else numbers[0]
    return f"Your own transformer, stage {stage.number}, {stage.file}: {stage.title}. Lesson{several} {listed}."


def _told(stage: Stage) -> str:
    there = f"\nCode marked `{GIVEN}` is complete; leave it unchanged." if given(stage.number) else ""
    return (
        f"Replace each NotImplementedError, from top to bottom, and check your file as often as you like:\n"
        f'check("{stage.id}") in a notebook, `companion build check {stage.number}` in a terminal.{there}'
    )


# The page


@cache
def _page() -> str:
    return files("companion").joinpath("page.py").read_text("utf-8")


@cache
def _sections() -> dict[int, str]:
    marks = list(_MARK.finditer(_page()))
    ends = [mark.start() for mark in marks[1:]] + [len(_page())]
    return {int(mark[1]): _page()[mark.end() : end].strip("\n") for mark, end in zip(marks, ends, strict=True)}


@cache
def _home() -> dict[str, str]:
    """Map each name defined on the page to the module of its stage."""
    return {node.name: STAGES[number].module for number, body in _sections().items() for node in _definitions(body)}


def _imports(number: int, body: str) -> str:
    """Return the imports that a section needs: those of the page, and one line for each other stage that it uses."""
    own = {node.name for node in _definitions(body)}
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)} - own
    head = ast.parse(_page()[: next(_MARK.finditer(_page())).start()])
    lines = []
    for node in head.body:
        match node:
            case ast.Import(names=[alias]) if (alias.asname or alias.name) in used:
                lines.append(ast.unparse(node))
            case ast.ImportFrom(module=module, names=aliases):
                wanted = [alias.name for alias in aliases if alias.name in used]
                lines += [f"from {module} import {', '.join(wanted)}"] * bool(wanted)
    for other in sorted(STAGES.values(), key=lambda stage: stage.module):
        wanted = sorted(name for name in used if _home().get(name) == other.module)
        lines += [f"from {other.module} import {', '.join(wanted)}"] * bool(wanted)
    return "\n".join(_grouped(lines))


def _grouped(lines: list[str]) -> list[str]:
    """Group imports into the standard library, other libraries, and the learner's files."""
    own = {stage.module for stage in STAGES.values()}

    def group(line: str) -> int:
        module = line.split()[1].split(".")[0]
        return 2 if module in own else 1 if module in ("torch", "safetensors", "numpy") else 0

    made: list[str] = []
    for number in range(3):
        made += [""] * bool(made) + [line for line in lines if group(line) == number]
    return [line for at, line in enumerate(made) if line or (at + 1 < len(made) and made[at + 1])]


def _laid_out(body: str) -> str:
    """Put two blank lines between definitions and one between methods, as PEP 8 requires."""
    lines, before = body.splitlines(), dict[int, int]()
    for node in ast.parse(body).body:
        before[_first_line(node, lines)] = 2
        if isinstance(node, ast.ClassDef):
            documented = ast.get_docstring(node) is not None
            for at, part in enumerate(node.body[1:]):
                if isinstance(part, ast.FunctionDef) or (at == 0 and documented):
                    before[_first_line(part, lines)] = 1
    made: list[str] = []
    for number, line in enumerate(lines, 1):
        if number in before:
            while made and not made[-1].strip():
                made.pop()
            made += [""] * before[number]
        made.append(line)
    return "\n".join(made).strip("\n") + "\n"


def _first_line(node: ast.stmt, lines: list[str]) -> int:
    """Return the number of a statement's first line, which may be a decorator or a comment above it."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


# The stub


def _definitions(source: str) -> Iterator[Definition]:
    return (node for node in ast.parse(source).body if isinstance(node, Definition))


def _is_given(node: Definition, lines: list[str]) -> bool:
    return lines[node.lineno - 1].rstrip().endswith(GIVEN)


def _text(node: ast.stmt, lines: list[str]) -> str:
    return "\n".join(lines[_first_line(node, lines) - 1 : node.end_lineno])


def _without_body(node: Definition, lines: list[str]) -> list[str]:
    """Return the signature and docstring of a function, or of a class and its public and special methods."""
    has_docstring = ast.get_docstring(node) is not None
    first, rest = node.body[0], node.body[has_docstring:]
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    made = lines[start - 1 : (first.end_lineno or 0) if has_docstring else first.lineno - 1]
    if isinstance(node, ast.FunctionDef):
        while not has_docstring and made[-1].strip() and not made[-1].rstrip().endswith(":"):
            made.pop()  # comments between the signature and the first statement
        return [*made, f"{' ' * (node.col_offset + 4)}{_STUB}"]
    for method in rest:
        if isinstance(method, ast.FunctionDef) and (not method.name.startswith("_") or method.name.endswith("__")):
            made += ["", *_without_body(method, lines)]
    return made
