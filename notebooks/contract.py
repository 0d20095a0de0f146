"""The contract that every lesson keeps (README.md, "The contract"), as rules over a built notebook. Runs no cell.

    faults = check(Book.read(lesson, companion_names(), not_compared))

Each rule is a function from a `Book` to `Fault`s; `RULES` lists them all.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import approximate
import build
import catalogue
import nbformat
from markdown_it import MarkdownIt
from nbformat import NotebookNode

LONGEST_CELL = 40
LARGEST_NOTEBOOK = 600 * 1024
NOT_COMPARED = "nbval-ignore-output"
RUNG = "rung"
REQUIRED_PARTS = ("Break it", "Where texts differ", "Exercises", "Summary", "What to read next")
FIRST_LINES = ("**You will be able to**", "**Reading time:**", "**You need:**")

_MARKDOWN = MarkdownIt("commonmark")
_DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_TAG = re.compile(r"\\tag\{([^}]*)\}")
_BARE_DISPLAY = re.compile(r"\\begin\{(?:align|equation|gather|multline)\*?\}|\\\[")
_REFERENCE = re.compile(r"\((\d+)\.(\d+)\)")
_PROSE_REFERENCE = re.compile(r"[Ee]quations?\s+((?:\(\d+\.\d+\)(?:,?\s+(?:and|to|or)\s+|,\s*)?)+)")
_CODE_IN_PROSE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE)
_HTML_IMAGE = re.compile(r"<img[^>]*\bsrc\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """One broken rule: in which cell (from 1), on which line of the source, and what is wrong."""

    what: str
    cell: int | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = [f"cell {self.cell}"] if self.cell else []
        where += [f"source line {self.line}"] if self.line else []
        return f"{', '.join(where) or 'notebook'}: {self.what}"


@dataclass(frozen=True)
class Book:
    """A built notebook beside its source, and what the rules compare it with."""

    name: str
    cells: Sequence[NotebookNode]
    lines: Sequence[int | None]  # of the source, one a cell
    size: int
    tables: Sequence[tuple[int, int]] = ()  # where the source asks for the exercises: cell from 1, line of the cell
    companion_names: Mapping[str, str] = field(default_factory=dict)  # public name -> module
    not_compared: Mapping[str, str] = field(default_factory=dict)  # cell name -> reason
    other_equations: Mapping[int, set[str]] = field(default_factory=dict)  # lesson -> its tags

    @property
    def lesson(self) -> int:
        return int(self.name[:2])

    @property
    def exercise_file(self) -> str:
        """Where the lesson's exercises are written."""
        return catalogue.file_of(self.lesson, Path(build.PACKAGE.name)).as_posix()

    @classmethod
    def read(cls, lesson: build.Lesson, **known: Mapping) -> Book:
        """A lesson as it is stored. The lines are those of the source, as far as the notebook follows it."""
        cells = nbformat.read(lesson.notebook, as_version=4).cells
        source = build.read_source(lesson.source)
        padded = [source.lines[i] if i < len(source.lines) else None for i in range(len(cells))]
        return cls(lesson.name, cells, padded, lesson.notebook.stat().st_size, source.tables, **known)

    def numbered(self, kind: str) -> Iterator[tuple[int, NotebookNode]]:
        for number, cell in enumerate(self.cells, 1):
            if cell.cell_type == kind:
                yield number, cell

    def fault(self, what: str, number: int, line: int = 0) -> Fault:
        """A fault in cell `number`, `line` lines below the cell's first."""
        first = self.lines[number - 1]
        return Fault(what, number, first + line if first else None)


def companion_names(package: Path = build.PACKAGE) -> dict[str, str]:
    """Every public function and class of the companion, and the module that defines it.

    Not of the exercises and the course, which are no part of what the lessons build.
    """
    names = {}
    for path in sorted(package.rglob("*.py")):
        if {"exercises", "course"} & {*path.relative_to(package).parts}:
            continue
        module = ".".join([package.name, *path.relative_to(package).with_suffix("").parts])
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                names[node.name] = module
    return names


def equations(cells: Sequence[NotebookNode]) -> set[str]:
    """The numbers of all display equations, as "2.4"."""
    texts = (_without_code(cell.source) for cell in cells if cell.cell_type == "markdown")
    return {tag for text in texts for display in _DISPLAY.findall(text) for tag in _TAG.findall(display)}


def comments(code: str) -> list[tuple[int, str]]:
    """The comments of a code cell: (line from 0, text)."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [(token.start[0] - 1, token.string) for token in tokens if token.type == tokenize.COMMENT]


def assertion_lines(code: str) -> list[int]:
    """The last line (from 0) of every assertion: an `assert`, or a call of some `assert_...` function."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if isinstance(node, ast.Assert) or name.startswith("assert_"):
            found.append(node.end_lineno - 1)  # type: ignore[attr-defined]
    return sorted(found)


def _without_code(text: str) -> str:
    """Markdown with code blanked out, line for line: neither maths nor images stand there."""
    return _CODE_IN_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position)


# --- the rules


def parts(book: Book) -> Iterator[Fault]:
    """One H1, first, with its question; no heading level skipped; the parts of a lesson, in order."""
    headings = [(n, *h) for n, cell in book.numbered("markdown") for h in _headings(cell.source)]
    if not headings or headings[0][0] != 1 or headings[0][1:3] != (1, 0):
        yield Fault("a lesson begins with its title: `# ...` on the first line", 1)
        return
    above = 1
    for number, level, line, text in headings[1:]:
        if level == 1:
            yield book.fault(f"a second title, {text!r}: a lesson has one H1", number, line)
        elif level > above + 1:
            yield book.fault(f"heading {text!r} is H{level} under an H{above}: no level is skipped", number, line)
        above = level
    second = [(number, line, text.split(":")[0].strip()) for number, level, line, text in headings if level == 2]
    names = [name for _, _, name in second]
    for part in REQUIRED_PARTS:
        if part not in names:
            yield Fault(f"the part `## {part}` is missing")
    if set(REQUIRED_PARTS) <= set(names) and names[-3:] != list(REQUIRED_PARTS[2:]):
        last = f"the last three H2 must be {', '.join(REQUIRED_PARTS[2:])}, not {', '.join(names[-3:])}"
        yield book.fault(last, *second[-1][:2])
    for part in REQUIRED_PARTS[2:]:
        if names.count(part) > 1:
            yield Fault(f"the part `## {part}` is there {names.count(part)} times")
    yield from _opening(book)


def _headings(text: str) -> Iterator[tuple[int, int, str]]:
    tokens = _MARKDOWN.parse(text)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            yield int(opening.tag[1]), opening.map[0] if opening.map else 0, inline.content


def _opening(book: Book) -> Iterator[Fault]:
    opening = []
    for _, cell in book.numbered("markdown"):
        before, found, _ = ("\n" + cell.source).partition("\n## ")
        opening.append(before)
        if found:
            break
    text = "\n".join(opening)
    paragraphs = [t.content for t in _MARKDOWN.parse(text) if t.type == "inline"]
    if len(paragraphs) < 2 or not paragraphs[1].rstrip("*_ ").endswith("?"):
        yield Fault("the first paragraph under the title must be the lesson's question, ending in `?`", 1)
    for line in FIRST_LINES:
        if line not in text:
            yield Fault(f"`{line}` is missing before the first H2", 1)
    if not re.search(r"\*\*Reading time:\*\*[^\n]*\d", text):
        yield Fault("the reading time must name its minutes", 1)


def numbered_equations(book: Book) -> Iterator[Fault]:
    """Every display equation has one number; the numbers count 1, 2, 3, ... through the lesson."""
    expected = 1
    for number, cell in book.numbered("markdown"):
        text = _without_code(cell.source)
        outside = _DISPLAY.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for bare in _BARE_DISPLAY.finditer(outside):
            what = f"display maths is written `$$ ... $$` here, not `{bare[0]}`"
            yield book.fault(what, number, _line(text, bare.start()))
        for stray in _TAG.finditer(outside):
            yield book.fault(f"`{stray[0]}` stands outside `$$ ... $$`", number, _line(text, stray.start()))
        for display in _DISPLAY.finditer(text):
            line = _line(text, display.start())
            tags = _TAG.findall(display[1])
            if len(tags) != 1:
                count = "no number" if not tags else f"{len(tags)} numbers"
                what = f"this display equation has {count}: it needs one, `\\tag{{{book.lesson}.{expected}}}`"
                yield book.fault(what, number, line)
            for tag in tags:
                wanted = f"{book.lesson}.{expected}"
                if tag != wanted:
                    yield book.fault(f"equation number {tag} is out of order: expected {wanted}", number, line)
                expected += 1


def executed_equations(book: Book) -> Iterator[Fault]:
    """Every equation is named by a code cell that asserts; every equation that is named exists."""
    known, named = equations(book.cells), set()
    for number, cell in book.numbered("code"):
        own = False
        for line, comment in comments(cell.source):
            for lesson, index in _REFERENCE.findall(comment):
                tag = f"{lesson}.{index}"
                own |= int(lesson) == book.lesson
                named.add(tag)
                if not _exists(book, known, tag):
                    yield book.fault(f"the comment names equation ({tag}), which does not exist", number, line)
        if own and not assertion_lines(cell.source):
            yield book.fault("this cell names an equation and asserts nothing", number)
    for number, cell in book.numbered("markdown"):
        text = _without_code(cell.source)
        for found in _TAG.finditer(text):
            if found[1] not in named:
                what = f"no code cell names equation ({found[1]}) in a comment: # ({found[1]})"
                yield book.fault(what, number, _line(text, found.start()))
        for phrase in _PROSE_REFERENCE.finditer(text):
            for lesson, index in _REFERENCE.findall(phrase[1]):
                if not _exists(book, known, f"{lesson}.{index}"):
                    yield book.fault(f"equation ({lesson}.{index}) does not exist", number, _line(text, phrase.start()))


def _exists(book: Book, known: set[str], tag: str) -> bool:
    lesson = int(tag.split(".")[0])
    if lesson == book.lesson:
        return tag in known
    return tag in book.other_equations.get(lesson, {tag})  # a lesson that is not there cannot be asked


def figures(book: Book) -> Iterator[Fault]:
    """Every image was finished by `figures.show`, and the next cell begins with a sentence about it."""
    for number, cell in book.numbered("code"):
        images = [o for o in cell.outputs if any(kind.startswith("image/") for kind in o.get("data", {}))]
        for output in images:
            if not output.get("metadata", {}).get("image/png", {}).get("alt"):
                yield book.fault(
                    "this figure was not finished with figures.show(fig, alt=...), which checks it", number
                )
        if images and not _begins_with_sentence(book.cells[number] if number < len(book.cells) else None):
            yield book.fault("the cell under a figure must be Markdown and begin with a sentence about it", number)


def exercises(book: Book) -> Iterator[Fault]:
    """The part `Exercises`: a sentence, the table, one wrong answer that is caught; the exercises stand elsewhere."""
    second = [(n, h) for n, cell in book.numbered("markdown") for h in _headings(cell.source) if h[0] == 2]
    at = [index for index, (_, (_, _, text)) in enumerate(second) if text.split(":")[0].strip() == "Exercises"]
    if len(at) != 1 or at[0] + 1 == len(second):
        return  # `parts` says so
    (first, (_, top, _)), (last, (_, bottom, _)) = second[at[0] : at[0] + 2]
    if len(book.tables) != 1 or book.tables[0][0] != first:
        found = f"in cells {[cell for cell, _ in book.tables]}" if book.tables else "nowhere"
        what = f"the part `## Exercises` needs the line `{catalogue.PLACEHOLDER}` once, above its code; it is {found}"
        yield book.fault(what, first, top)
    elif catalogue.PLACEHOLDER in book.cells[first - 1].source.split("\n"):
        yield book.fault(f"this lesson has no exercises; they are written in {book.exercise_file}", *book.tables[0])
    under = NotebookNode(book.cells[first - 1], source="\n".join(book.cells[first - 1].source.split("\n")[top + 1 :]))
    if not _begins_with_sentence(under) or under.source.lstrip().startswith(("|", "{{")):
        yield book.fault("say in a sentence, above the table, what the exercises are about", first, top)
    for number, cell in book.numbered("markdown"):
        for _, row, text in _headings(cell.source):
            if (first, top) < (number, row) < (last, bottom):
                what = f"heading {text!r}: exercises are written once, in {book.exercise_file}, and not in the lesson"
                yield book.fault(what, number, row)
    yield from _check_at_work(book, [n for n, _ in book.numbered("code") if first < n < last] or [first])


def _check_at_work(book: Book, numbers: Sequence[int]) -> Iterator[Fault]:
    """The code cell of the exercises tries one wrong answer and shows what the check says; there is no other one."""
    for number in numbers[1:]:
        what = f"a second code cell: exercises are written once, in {book.exercise_file}, and not in the lesson"
        yield book.fault(what, number)
    cell = book.cells[numbers[0] - 1]
    for fault in _wrong_answer_faults(cell.source if cell.cell_type == "code" else "", book.lesson):
        yield book.fault(fault, numbers[0])
    if cell.cell_type == "code" and not _begins_with_sentence(book.cells[numbers[0]]):
        what = "the cell under this one must be Markdown, and say in a sentence what the check said"
        yield book.fault(what, numbers[0])


def _wrong_answer_faults(code: str, lesson: int) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return  # `code` says so
    calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "check"]
    ids = [str(n.args[0].value) for n in calls if len(n.args) == 2 and isinstance(n.args[0], ast.Constant)]
    if len(calls) != 1 or not any(re.fullmatch(rf"{lesson}\.\d+", id) for id in ids):
        yield f'the exercises need a code cell that tries one wrong answer: `check("{lesson}.1", wrong)`'
        return
    handlers = [ast.unparse(n.type) for n in nodes if isinstance(n, ast.ExceptHandler) and n.type is not None]
    if "NotYet" not in handlers:
        yield "show what the check says of the wrong answer: `except NotYet as fault: print(fault)`"
    if not assertion_lines(code):
        yield "assert a part of what the check says, so that it is what the reader is told"


def _begins_with_sentence(cell: NotebookNode | None) -> bool:
    if cell is None or cell.cell_type != "markdown":
        return False
    tokens = _MARKDOWN.parse(cell.source)
    return len(tokens) > 1 and tokens[0].type == "paragraph_open" and len(tokens[1].content.split()) >= 4


def code(book: Book) -> Iterator[Fault]:
    """Plain Python, at most 40 lines, nothing defined again that the companion defines."""
    for number, cell in book.numbered("code"):
        count = len(cell.source.splitlines())
        if count > LONGEST_CELL:
            yield book.fault(f"a code cell of {count} lines; at most {LONGEST_CELL} are allowed", number)
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            yield book.fault(f"not plain Python ({error.msg}); no magics, no shell", number, (error.lineno or 1) - 1)
            continue
        if RUNG in cell.metadata.get("tags", []):
            continue
        for name, line in _definitions(tree):
            if name in book.companion_names:
                what = f"{name!r} is defined again; import it from {book.companion_names[name]}"
                yield book.fault(f"{what}, or tag the cell `{RUNG}` if it is proved equal to it", number, line)


def _definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno - 1
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from ((target.id, node.lineno - 1) for target in node.targets if isinstance(target, ast.Name))
        if not isinstance(node, ast.ClassDef):  # what a class calls its methods is its own affair
            yield from _definitions(node)


def outputs(book: Book) -> Iterator[Fault]:
    """Every cell was executed, in order, without an error and without a warning."""
    for count, (number, cell) in enumerate(book.numbered("code"), 1):
        if cell.execution_count is None:
            yield book.fault("this cell was not executed", number)
        elif cell.execution_count != count:
            what = f"executed out of order: this is code cell {count}, executed as number {cell.execution_count}"
            yield book.fault(what, number)
        for output in cell.outputs:
            if output.output_type == "error":
                yield book.fault(f"a stored error: {output.ename}: {output.evalue}", number)
            elif output.get("name") == "stderr":
                yield book.fault(f"output on stderr: {''.join(output.text).strip()[:120]!r}", number)


def bounds(book: Book) -> Iterator[Fault]:
    """A number behind `≈`, which is not compared, is bounded by an assertion in its section (approximate.py)."""
    section: list[tuple[int, NotebookNode]] = []
    sections = [section]
    for number, cell in enumerate(book.cells, 1):
        if cell.cell_type == "code":
            section.append((number, cell))
        elif any(level <= 2 for level, _, _ in _headings(cell.source)):
            section = []
            sections.append(section)
    for cells in sections:
        for index, (number, cell) in enumerate(cells):
            later = [other.source for _, other in cells[index + 1 :]]
            for line, fault in approximate.faults(cell.source, later):
                yield book.fault(fault, number, line)
            if approximate.shown_without_source(cell.source, [_printed(output) for output in cell.outputs]):
                what = f"{approximate.SIGN} is printed by a function of another cell: write it here, before its number"
                yield book.fault(what, number)


def _printed(output: NotebookNode) -> str:
    return "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))


def tags(book: Book) -> Iterator[Fault]:
    """No tags but two; a cell that is not compared is listed with its reason; few are."""
    loose, names = [], set()
    for number, cell in book.numbered("code"):
        unknown = set(cell.metadata.get("tags", [])) - {RUNG, NOT_COMPARED}
        if unknown:
            yield book.fault(f"unknown tags {sorted(unknown)}; there are `{RUNG}` and `{NOT_COMPARED}`", number)
        name = cell.metadata.get("name")
        if name is not None and name in names:
            yield book.fault(f"the name {name!r} is taken", number)
        names.add(name)
        if NOT_COMPARED in cell.metadata.get("tags", []):
            loose.append(name)
            if not name or not str(book.not_compared.get(name, "")).strip():
                what = "not compared, without a reason: give the cell a `:name:` and list it in not_compared.toml"
                yield book.fault(f"{what} (name: {name!r})", number)
    for name in sorted(set(book.not_compared) - set(loose)):
        yield Fault(f"not_compared.toml lists {name!r}, and no cell of that name is tagged `{NOT_COMPARED}`")
    total = len(list(book.numbered("code")))
    if 20 * len(loose) > total:
        yield Fault(f"{len(loose)} of {total} code cells are not compared; at most one in twenty may be")


def images(book: Book) -> Iterator[Fault]:
    """No image comes from an address."""
    for number, cell in book.numbered("markdown"):
        sources = [
            str(child.attrs["src"])
            for token in _MARKDOWN.parse(cell.source)
            for child in token.children or []
            if child.type == "image"
        ]
        sources += _HTML_IMAGE.findall(_without_code(cell.source))
        for source in sources:
            if re.match(r"([a-z][a-z0-9+.-]*:)?//", source, re.IGNORECASE):
                line = _line(cell.source, max(cell.source.find(source), 0))
                yield book.fault(f"an image from elsewhere: {source}", number, line)
    for number, cell in book.numbered("code"):
        for output in cell.outputs:
            for source in _HTML_IMAGE.findall("".join(output.get("data", {}).get("text/html", ""))):
                if not source.startswith("data:"):
                    yield book.fault(f"an output shows an image from elsewhere: {source}", number)


def size(book: Book) -> Iterator[Fault]:
    """A notebook stays small enough to read and to store."""
    if book.size >= LARGEST_NOTEBOOK:
        weights = [(len(json.dumps(cell.outputs)) // 1024, number) for number, cell in book.numbered("code")]
        heaviest, number = max(weights, default=(0, 1))
        what = f"the notebook has {book.size // 1024} KiB, and must stay under {LARGEST_NOTEBOOK // 1024}"
        yield book.fault(f"{what}; the heaviest output, {heaviest} KiB, is here", number)


RULES: list[Callable[[Book], Iterator[Fault]]] = [
    parts, numbered_equations, executed_equations, figures, exercises, code, outputs, bounds, tags, images, size,
]  # fmt: skip


def check(book: Book) -> list[Fault]:
    """All faults of a lesson, by place."""
    faults = [fault for rule in RULES for fault in rule(book)]
    return sorted(faults, key=lambda fault: (fault.cell or 0, fault.line or 0))
