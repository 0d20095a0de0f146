"""Find answers in a student's submission.

Code is found by the names that it defines, not by cell metadata. It therefore does not matter if metadata is stripped
or if cells are duplicated, moved or deleted. Nothing in this module runs the code that it reads. The grader
nevertheless reads files in a sandboxed process with limits, because a file can be crafted so that parsing it never ends
or uses up all memory. This file imports only the standard library, because `sandbox/child.py` loads it on its own.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import symtable
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

LARGEST = 200 * 2**20
"""Maximum size of a file in bytes. Notebooks may hold large outputs; a larger file is rejected without reading it."""

LONGEST_TEXT = 20_000
"""Maximum length of a written answer in characters."""

TEXT_STUB = "YOUR ANSWER HERE"
_MOST_MAGICS = 200
_NEAR = 0.75  # minimum similarity (0 to 1) for a name to be considered misspelled
_HEADING = re.compile(r"## \d+\.\w")  # heading of an exercise, such as "## 2.3 A softmax that can hide"
# Names of the cells of a problem set, from nbgrader's `grade_id` or the cell's id.
_RELEASED = re.compile(r"(about|imports|(statement|answer|public|hidden|run|written)_\w+)$")
_SHELL = re.compile(r"[^=#'\"]*=[ \t]*[!%]")  # as in here = !pwd
_LINES = re.compile("\r\n|\r|\n")  # Python's line endings; `str.splitlines` also splits at other characters
_PERCENT = re.compile(r"^# %%.*$", re.MULTILINE)
_IMPORTS = (ast.Import, ast.ImportFrom)
_GIVEN = ("torch", "math", "__name__")  # names that every answer may use
_FAULTS = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two are raised by deeply nested code


class Unreadable(ValueError):
    """Raised for a file that is not a readable notebook or Python file. The message says why."""


@dataclass(frozen=True)
class Answer:
    """An answer found under an exercise's function name.

    Attributes:
        program: The definition with the imports, constants and helpers that it needs; None if there is no definition.
        broken: Syntax error in the cell that should define the function; None if another cell defines it.
        notes: Remarks for the student, such as "softmax is defined 2 times; the last counts".
    """

    program: str | None
    broken: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Statement:
    cell: int
    node: ast.stmt
    text: str
    binds: frozenset[str]
    touches: frozenset[str]
    uses: frozenset[str]


class Submission:
    """Code that a student handed in, as a sequence of cells."""

    def __init__(self, cells: Sequence[str]) -> None:
        self.cells = tuple(cells)
        self._broken: dict[int, str] = {}
        self._statements = [
            statement for number, cell in enumerate(self.cells) for statement in self._parsed(number, cell)
        ]

    @classmethod
    def read(cls, files: Sequence[Path]) -> Submission:
        """Read these files in order as one submission. Raises `Unreadable` if a file cannot be read."""
        return cls([cell for file in files for cell in cells_of(file.name, contents(file, follow=True))])

    @property
    def empty(self) -> bool:
        """True if the submission contains no code."""
        return not any(cell.strip() for cell in self.cells)

    def defines(self, name: str) -> bool:
        """Return True if a cell defines this name or tries to define it but has a syntax error."""
        return any(name in statement.binds for statement in self._statements) or self._unfinished(name) is not None

    def find(self, name: str) -> Answer:
        """Find the answer with this name: its last definition, but not an untouched stub if there is another one."""
        found = [
            statement
            for statement in self._statements
            if name in statement.binds and not isinstance(statement.node, ast.Import)
        ]
        unfinished = self._unfinished(name)
        if not found:
            return Answer(None, unfinished)
        written = [statement for statement in found if not _is_blank(statement.node)]
        notes = []
        chosen = (written or found)[-1]
        if len(found) > 1:
            which = "the last counts" if chosen is found[-1] else "the last that is written counts"
            notes.append(f"{name} is defined {len(found)} times; {which}")
        if unfinished is not None:
            notes.append(f"another cell that defines {name} cannot be read and does not count: {unfinished}")
        return Answer(self._program(chosen), None, tuple(notes))

    def nearly(self, name: str, asked: Collection[str]) -> Iterator[str]:
        """Yield a remark on a function whose name is almost this one, unless its name is in `asked`."""
        others = {one.node.name for one in self._statements if isinstance(one.node, ast.FunctionDef)} - {*asked}
        for other in get_close_matches(name, sorted(others), 1, _NEAR):
            yield f"there is a function {other}; was it meant to be {name}?"

    def _parsed(self, number: int, cell: str) -> Iterator[_Statement]:
        try:
            lines, tree = _tree(cell)
            texts = [(_text(lines, node), node) for node in tree.body]
            yield from [_Statement(number, node, text, *_names(node), _reads(text)) for text, node in texts]
        except _FAULTS as error:
            self._broken[number] = _message_of(error)

    def _unfinished(self, name: str) -> str | None:
        """Return the syntax error of the last cell that starts to define this name but cannot be parsed."""
        begins = re.compile(
            rf"^[ \t]*(?:async\s+)?(?:def\s+{re.escape(name)}\b|{re.escape(name)}\s*=[^=])", re.MULTILINE
        )
        faults = [fault for number, fault in self._broken.items() if begins.search(self.cells[number])]
        return faults[-1] if faults else None

    def _program(self, answer: _Statement) -> str:
        """Return the answer with only the code that it needs, so that no other cell can change its mark.

        If a helper is defined several times, use the definition that is in force after the answer's cell has run.
        """
        taken: dict[int, _Statement] = {id(answer): answer}
        wanted = list(answer.uses)
        seen = set(answer.binds)
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            for statement in self._definitions_before(name, answer.cell):
                if id(statement) not in taken:
                    taken[id(statement)] = statement
                    if not isinstance(statement.node, _IMPORTS):
                        wanted.extend(statement.uses)
        users = (statement for statement in taken.values() if not isinstance(statement.node, _IMPORTS))
        needed = answer.binds.union(*(statement.uses for statement in users))
        missing = needed.difference(_GIVEN, *(statement.binds for statement in taken.values()))
        lines = []
        for statement in self._statements:
            if _may_bind(statement.node, missing):
                lines.append(statement.text)
            elif id(statement) in taken:
                node = statement.node
                lines.append(_import(node, needed) if isinstance(node, _IMPORTS) else statement.text)
        return "\n".join(lines) + "\n"

    def _definitions_before(self, name: str, cell: int) -> list[_Statement]:
        """Return the statements that determine the value of a name.

        Only statements up to the end of `cell` are considered, unless none of them binds the name. The result starts
        with the last statement that sets the name to a value independent of its earlier values.
        """
        of_name = [statement for statement in self._statements if name in statement.binds or name in statement.touches]
        before = [statement for statement in of_name if statement.cell <= cell]
        if not any(name in statement.binds for statement in before):
            before = of_name
        starts = [i for i, statement in enumerate(before) if name in statement.binds and _is_whole(statement.node)]
        return before[starts[-1] :] if starts else before


def read_answers(
    files: Sequence[tuple[str, bytes]], asked: Mapping[str, Sequence[str]], uses: Callable[..., Sequence[str]]
) -> dict[str, Any]:
    """Read a student's files and return what the grader needs from them as a JSON value.

    Args:
        files: Names and contents.
        asked: Names of the functions to find, mapped to the names that the answer must not use.
        uses: `operator_watch.forbidden_uses`, passed in because this module imports only the standard library.

    Returns:
        Either `{"unreadable": reason}`, or a dictionary with "empty" (True if there is no code) and "answers". For each
        function, "answers" contains "defined", the fields of its `Answer`, and "used", which lists the forbidden names
        in its code or is None if the code cannot be parsed as a whole.
    """
    try:
        submission = Submission([cell for name, data in files for cell in cells_of(name, data)])
    except Unreadable as error:
        return {"unreadable": str(error)}
    answers = {}
    for name, forbidden in asked.items():
        found = submission.find(name)
        if found.program is None and found.broken is None:
            found = replace(found, notes=tuple(submission.nearly(name, asked)))
        used: list[str] | None = []
        if found.program is not None:
            try:
                used = list(uses(found.program, forbidden))
            except _FAULTS:  # each part can be parsed on its own, but not all of them together
                used = None
        told = {"program": found.program, "broken": found.broken, "notes": list(found.notes), "used": used}
        answers[name] = {"defined": submission.defines(name), **told}
    return {"empty": submission.empty, "answers": answers}


def survey(
    files: Sequence[tuple[str, bytes]],
    bans: Sequence[Sequence[str]],
    known: Sequence[str],
    uses: Callable[..., Sequence[str]],
) -> dict[str, Any]:
    """Report any syntax error, the imports and the forbidden names of each Python file.

    Args:
        files: Names and contents.
        bans: Lists of forbidden names.
        known: Modules that the files may import, besides each other.
        uses: `operator_watch.forbidden_uses`.

    Returns:
        For each file name, a dictionary with "fault" (empty if the file is valid Python), "imports" (names of top-level
        modules) and "used" (for each list in `bans`, the names found in the file).
    """
    found, beside = {}, [*known, *(name.removesuffix(".py") for name, _ in files)]
    for name, data in files:
        text, fault, imports = data.decode("utf-8", "replace"), "", set[str]()
        used: list[Sequence[str]] = [() for _ in bans]
        try:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Import):
                    imports |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imports |= {(node.module or alias.name).split(".")[0] for alias in node.names}
            used = [uses(text, names, beside) for names in bans]
        except _FAULTS as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            fault = f"{name}{line}: it is not valid Python"
        found[name] = {"fault": fault, "imports": sorted(imports), "used": used}
    return found


def read_texts(files: Sequence[tuple[str, bytes]], wanted: Sequence[str]) -> dict[str, str]:
    """Find the text that a student wrote under each of the wanted lines in Markdown cells.

    A text may continue in the Markdown cells that follow; it ends at a code cell, another cell of the problem set, the
    heading of an exercise, or another one of the wanted lines. If the student deleted the line, its cell is recognized
    by its name in the problem set. If the cell is unchanged, the text comes from cells that the student added just
    above or below it. If there are no such cells, or if the original cell was deleted, the text comes from cells added
    elsewhere. If there are several texts under the same line, the last non-empty one counts.

    Args:
        files: Names and contents; Python files are skipped.
        wanted: The lines; each ends with the id of a written answer.

    Returns:
        The text under each line, truncated to `LONGEST_TEXT` characters; empty if there is none.

    Raises:
        Unreadable: If a file is not a notebook.
    """
    found = dict.fromkeys(wanted, "")
    for name, data in files:
        cells = [] if name.lower().endswith(".py") else _cells(name, data)
        begins = _places(cells, wanted)
        taken: set[int] = set()
        texts = dict.fromkeys(wanted, "")
        for at, line in begins.items():
            after = _end(cells, at, begins)
            sources = [_under(cells[at].source, line), *(cell.source for cell in cells[at + 1 : after])]
            texts[line] = "\n\n".join(sources).replace(TEXT_STUB, "").strip() or _beside(cells, at) or texts[line]
            taken |= {*range(at, after)} if texts[line] else set()
        for line, text in texts.items():
            text = text or _elsewhere(cells, taken)
            found[line] = (text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} [...]") or found[line]
    return found


def _places(cells: Sequence[_Cell], wanted: Sequence[str]) -> dict[int, str]:
    """Return the wanted lines, keyed by the index of the cell that contains the line or is named after it."""
    names = {f"written_{re.sub('[.-]', '_', line.rpartition(' ')[2])}": line for line in wanted}
    found = {
        at: next((line for line in wanted if line in cell.source), names.get(cell.name))
        for at, cell in enumerate(cells)
    }
    return {at: line for at, line in found.items() if line}


def _end(cells: Sequence[_Cell], at: int, begins: Collection[int]) -> int:
    """Return the index of the first cell after `at` that is not part of the text beginning there."""
    for after in range(at + 1, len(cells)):
        cell = cells[after]
        if cell.kind != "markdown" or after in begins or cell.name or _HEADING.match(cell.source):
            return after
    return len(cells)


def _under(source: str, line: str) -> str:
    """Return the part of a cell below a line, or the whole cell if it does not contain the line."""
    return source.partition(line)[2].partition("\n")[2] if line in source else source


def _beside(cells: Sequence[_Cell], at: int) -> str:
    """Return the text of Markdown cells and the comments of code cells that a student added next to cell `at`."""
    if not cells[at].name:  # without names, added cells look like those of the problem set
        return ""
    first = next((before + 1 for before in range(at - 1, -1, -1) if cells[before].name), 0)
    last = next((after for after in range(at + 1, len(cells)) if cells[after].name), len(cells))
    sources = []
    for cell in (*cells[first:at], *cells[at + 1 : last]):
        comments = [line.strip("# ") for line in cell.source.splitlines() if line.lstrip().startswith("#")]
        sources.append("\n".join(comments) if cell.kind == "code" else cell.source)
    text = "\n\n".join(filter(None, map(str.strip, sources)))
    return f"[beside the cell that was meant for it]\n\n{text}" if text else ""


def _elsewhere(cells: Sequence[_Cell], taken: Collection[int]) -> str:
    """Return the text of all Markdown cells that a student added, except those that belong to another text."""
    if not any(cell.name for cell in cells):  # without names, added cells look like those of the problem set
        return ""
    added = [
        cell.source for at, cell in enumerate(cells) if cell.kind == "markdown" and not cell.name and at not in taken
    ]
    text = "\n\n".join(filter(None, map(str.strip, added)))
    return f"[elsewhere in the notebook]\n\n{text}" if text else ""


LARGEST_SHOWN = 400_000
"""Maximum length, in characters, of the outputs that `read_runs` returns for a line."""
PICTURES = ("image/png", "image/jpeg", "image/gif")


def read_runs(files: Sequence[tuple[str, bytes]], wanted: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Find the outputs to show beside each text: its pictures, and what the code before it printed or drew.

    Args:
        files: Names and contents; Python files are skipped.
        wanted: The lines, as in `read_texts`.

    Returns:
        For each line, a list of pairs: either "text" and the text, or a picture's media type and its base64 data.

    Raises:
        Unreadable: If a file is not a notebook.
    """
    found: dict[str, list[tuple[str, str]]] = {line: [] for line in wanted}
    for name, data in files:
        cells = [] if name.lower().endswith(".py") else _cells(name, data)
        begins = _places(cells, wanted)
        for at, line in begins.items():
            first = next(
                (before for before in range(at - 1, -1, -1) if cells[before].name.startswith("statement_")), at
            )
            left = LARGEST_SHOWN
            for cell in cells[first : _end(cells, at, begins)]:
                with suppress(AttributeError, TypeError):  # malformed outputs
                    for kind, content in _shown_by(cell.raw):
                        left -= len(content)
                        found[line].append((kind, content) if left >= 0 else ("text", "[too large to be shown here]"))
    return found


def _shown_by(cell: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the outputs of a code cell, and the pictures in a text cell."""
    for output in cell.get("outputs") or ():
        data = output.get("data") or {}
        picture = next((kind for kind in PICTURES if kind in data), None)
        if picture:
            yield picture, _joined(data[picture])
        elif output.get("output_type") == "error":
            yield "text", f"{output.get('ename')}: {output.get('evalue')}"
        elif text := _joined(output.get("text") or data.get("text/plain") or ""):
            yield "text", text
    for attached in (cell.get("attachments") or {}).values():
        for kind in PICTURES:
            if kind in attached:
                yield kind, _joined(attached[kind])


def _joined(lines: object) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else str(lines)


def contents(file: Path, *, follow: bool = False) -> bytes:
    """Read a regular file of at most `LARGEST` bytes, without ever blocking on a pipe or a device.

    Args:
        file: The path.
        follow: Whether to follow a symbolic link instead of rejecting it.

    Raises:
        Unreadable: If the file cannot be opened, is not a regular file, or is too large.
    """
    try:
        flags = 0 if follow else getattr(os, "O_NOFOLLOW", 0)
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | flags)
    except OSError as error:
        raise Unreadable(f"{file.name} cannot be read ({error.strerror})") from None
    try:
        known = os.fstat(opened)
        if not stat.S_ISREG(known.st_mode):
            raise Unreadable(f"{file.name} is not a file")
        if known.st_size > LARGEST:
            raise Unreadable(f"{file.name} is larger than {LARGEST // 2**20} MiB")
        with open(opened, "rb", closefd=False) as read:
            return read.read(LARGEST)
    finally:
        os.close(opened)


def cells_of(name: str, data: bytes) -> list[str]:
    """Return the code cells of a notebook, or of a Python file in which `# %%` separates cells.

    Raises:
        Unreadable: If the contents are not a notebook or not UTF-8 text.
    """
    if name.lower().endswith(".py"):
        return _PERCENT.split(_decoded(name, data))
    return [cell.source for cell in _cells(name, data) if cell.kind == "code"]


@dataclass(frozen=True)
class _Cell:
    kind: str  # "code" or "markdown"
    source: str
    name: str  # in the problem set, from nbgrader's metadata or the cell's id; empty for a cell the student added
    raw: Mapping[str, Any]  # as stored in the file

    @classmethod
    def of(cls, cell: dict[str, Any]) -> _Cell:
        metadata = cell.get("metadata")
        marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        name = (marks.get("grade_id") if isinstance(marks, dict) else None) or cell.get("id") or ""
        known = isinstance(name, str) and _RELEASED.match(name)
        source = _joined(cell.get("source", cell.get("input", "")))
        return cls(str(cell.get("cell_type")), source, name if known else "", cell)


def _cells(name: str, data: bytes) -> list[_Cell]:
    text = _decoded(name, data)
    if not text.strip():
        raise Unreadable(f"{name} is an empty file")
    try:
        book = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable(
            f"{name} is not a notebook: its text is not JSON, so the file may be cut off or damaged"
        ) from None
    try:
        sheets = book.get("worksheets", [book])  # notebook format 3 grouped cells into worksheets
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        return [_Cell.of(cell) for cell in cells]
    except (KeyError, TypeError, AttributeError):
        raise Unreadable(f"{name} is not a notebook: it has no list of cells") from None


def _decoded(name: str, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # byte order marks, which some Windows editors write
        raise Unreadable(f"{name} is text in UTF-16 or UTF-32; expected UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeError:
        raise Unreadable(f"{name} is not text") from None


def _tree(cell: str) -> tuple[list[str], ast.Module]:
    """Replace IPython syntax with lines that do nothing, and return the cell's lines and syntax tree."""
    lines = _LINES.split(cell)
    first: SyntaxError | None = None
    for _ in range(_MOST_MAGICS):
        try:
            return lines, ast.parse("\n".join(lines))
        except SyntaxError as error:
            first = first or error
            place = (error.lineno or 0) - 1
            plain = _without_magic(lines[place]) if 0 <= place < len(lines) else None
            if plain is None:
                break
            while lines[place].rstrip().endswith("\\") and place + 1 < len(lines):  # continued below
                lines[place], plain, place = plain, "", place + 1
            lines[place] = plain
    assert first is not None
    raise first


def _without_magic(line: str) -> str | None:
    """Return valid Python in place of an IPython line (%magic, !command, help?, x = !command), or None for others."""
    code = line.strip()
    before = line[: len(line) - len(line.lstrip())]
    if code.startswith(("%", "!", "?")) or code.partition("#")[0].rstrip().endswith("?"):
        return f"{before}pass"
    match = _SHELL.match(line)
    return f"{match[0][:-1]}None" if match else None


def _message_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno} of its cell: " if error.lineno else ""
        return f"{where}{error.msg}"
    return "its code is nested too deeply" if isinstance(error, (RecursionError, MemoryError)) else str(error)


def _text(lines: Sequence[str], node: ast.stmt) -> str:
    """Return the source of a statement, including any decorators and their indentation."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    decorators = getattr(node, "decorator_list", [])
    first = min((decorator.lineno for decorator in decorators), default=node.lineno)
    taken = list(lines[first - 1 : node.end_lineno])
    taken[-1] = taken[-1].encode()[: node.end_col_offset].decode()
    if not decorators:
        taken[0] = taken[0].encode()[node.col_offset :].decode()
    return "\n".join(taken)


def _names(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a top-level statement binds, and the names of values that it changes in place."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
        kinds = [_root(each) for each in called if isinstance(each, ast.Attribute) and each.attr == "register"]
        # `@f.register` adds a type to the functools.singledispatch function f, which changes f in place.
        return frozenset({node.name}), frozenset[str]().union(*kinds)
    binds: set[str] = set()
    touches: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                binds.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                binds.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                binds |= {_bound(alias) for alias in aliases}
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                touches |= _root(part)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        touches |= _root(node.value.func)  # as in TABLE.append(3)
    return frozenset(binds), frozenset(touches - binds)


def _reads(text: str) -> frozenset[str]:
    """Return the global names that a top-level statement uses, including names used by functions inside it."""
    top = symtable.symtable(text, "answer", "exec")
    names = set(top.get_identifiers())
    inner = list(top.get_children())
    while inner:
        table = inner.pop()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        inner.extend(table.get_children())
    return frozenset(names)


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _is_whole(node: ast.stmt) -> bool:
    """Return True if a statement sets its names to values that do not depend on their earlier values."""
    if isinstance(node, ast.Assign):
        read = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
        return not any(isinstance(target, ast.Name) and target.id in read for target in node.targets)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.decorator_list


def _may_bind(node: ast.stmt, names: Collection[str]) -> bool:
    """Return True for `from x import *` if it may bind one of these names, which the course's packages never do."""
    if not isinstance(node, ast.ImportFrom) or all(alias.name != "*" for alias in node.names):
        return False
    if (node.module or "").split(".")[0] in ("companion", "companion_school"):
        return False
    module = sys.modules.get(node.module or "")
    if module is None:  # an unknown module may bind anything
        return True
    public = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    return not {*names}.isdisjoint(public)


def _import(node: ast.Import | ast.ImportFrom, needed: frozenset[str]) -> str:
    """Return an import of only the needed names, so that unused forbidden names on the same line are not penalized."""
    kept = [alias for alias in node.names if _bound(alias) in needed]
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(kept))
    return ast.unparse(ast.ImportFrom(node.module, kept, node.level))


def _is_blank(node: ast.stmt) -> bool:
    """Return True for an untouched stub, whose body contains only constants, `pass` and `raise NotImplementedError`."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    for statement in node.body:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
                continue
        return False
    return True
