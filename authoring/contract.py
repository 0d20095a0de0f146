"""The contract that every lesson keeps (README.md, "The contract"), as rules over a built notebook. Runs no cell.

    faults = check(lesson, Known(companion_names(), not_compared))

Each rule is a function from a lesson and what it is compared with to `Fault`s; `RULES` lists them all.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from nbformat import NotebookNode

from authoring.exercises import PLACEHOLDER, file_of
from authoring.figures import figure_faults, shows_figure
from authoring.imports import PACKAGE
from authoring.lesson import (
    DISPLAY,
    TAG,
    Lesson,
    assertion_lines,
    comments,
    equations,
    headings,
    without_code,
)

LONGEST_CELL = 40
LARGEST_NOTEBOOK = 600 * 1024
NOT_COMPARED = "nbval-ignore-output"
RUNG = "rung"
REQUIRED_PARTS = ("Break it", "Where texts differ", "Exercises", "Summary", "What to read next")
FIRST_LINES = ("**You will be able to**", "**Reading time:**", "**You need:**")

_MARKDOWN = MarkdownIt("commonmark")
_BARE_DISPLAY = re.compile(r"\\begin\{(?:align|equation|gather|multline)\*?\}|\\\[")
_REFERENCE = re.compile(r"\((\d+)\.(\d+)\)")
_PROSE_REFERENCE = re.compile(r"[Ee]quations?\s+((?:\(\d+\.\d+\)(?:,?\s+(?:and|to|or)\s+|,\s*)?)+)")
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
class Known:
    """What the rules compare a lesson with, besides itself.

    companion_names:  each public name of the companion, and the module that defines it.
    not_compared:     the lesson's cells that are not compared, by name, and the reason.
    other_equations:  the numbers of the other lessons' equations, by lesson.
    """

    companion_names: Mapping[str, str] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)
    other_equations: Mapping[int, set[str]] = field(default_factory=dict)


def companion_names(package: Path = PACKAGE) -> dict[str, str]:
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


def _numbered(lesson: Lesson, kind: str) -> Iterator[tuple[int, NotebookNode]]:
    """The built cells of a kind, and their numbers from 1."""
    for number, cell in enumerate(lesson.built, 1):
        if cell.cell_type == kind:
            yield number, cell


def _fault(lesson: Lesson, what: str, number: int, line: int = 0) -> Fault:
    """A fault in cell `number`, `line` lines below the cell's first, as far as the notebook follows its source."""
    first = lesson.lines[number - 1] if number <= len(lesson.lines) else None
    return Fault(what, number, first + line if first else None)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position)


# --- the rules


def parts(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """One H1, first, with its question; no heading level skipped; the parts of a lesson, in order."""
    there = list(headings(lesson.built))
    if not there or (there[0].index, there[0].level, there[0].line) != (0, 1, 0):
        yield Fault("a lesson begins with its title: `# ...` on the first line", 1)
        return
    above = 1
    for heading in there[1:]:
        place = heading.index + 1, heading.line
        if heading.level == 1:
            yield _fault(lesson, f"a second title, {heading.text!r}: a lesson has one H1", *place)
        elif heading.level > above + 1:
            what = f"heading {heading.text!r} is H{heading.level} under an H{above}: no level is skipped"
            yield _fault(lesson, what, *place)
        above = heading.level
    second = [heading for heading in there if heading.level == 2]
    names = [heading.part for heading in second]
    for part in REQUIRED_PARTS:
        if part not in names:
            yield Fault(f"the part `## {part}` is missing")
    if set(REQUIRED_PARTS) <= set(names) and names[-3:] != list(REQUIRED_PARTS[2:]):
        last = f"the last three H2 must be {', '.join(REQUIRED_PARTS[2:])}, not {', '.join(names[-3:])}"
        yield _fault(lesson, last, second[-1].index + 1, second[-1].line)
    for part in REQUIRED_PARTS[2:]:
        if names.count(part) > 1:
            yield Fault(f"the part `## {part}` is there {names.count(part)} times")
    yield from _opening(lesson)


def _opening(lesson: Lesson) -> Iterator[Fault]:
    opening = []
    for _, cell in _numbered(lesson, "markdown"):
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


def numbered_equations(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Every display equation has one number; the numbers count 1, 2, 3, ... through the lesson."""
    expected = 1
    for number, cell in _numbered(lesson, "markdown"):
        text = without_code(cell.source)
        outside = DISPLAY.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for bare in _BARE_DISPLAY.finditer(outside):
            what = f"display maths is written `$$ ... $$` here, not `{bare[0]}`"
            yield _fault(lesson, what, number, _line(text, bare.start()))
        for stray in TAG.finditer(outside):
            yield _fault(lesson, f"`{stray[0]}` stands outside `$$ ... $$`", number, _line(text, stray.start()))
        for display in DISPLAY.finditer(text):
            line = _line(text, display.start())
            tags = TAG.findall(display[1])
            if len(tags) != 1:
                count = "no number" if not tags else f"{len(tags)} numbers"
                what = f"this display equation has {count}: it needs one, `\\tag{{{lesson.number}.{expected}}}`"
                yield _fault(lesson, what, number, line)
            for tag in tags:
                wanted = f"{lesson.number}.{expected}"
                if tag != wanted:
                    yield _fault(lesson, f"equation number {tag} is out of order: expected {wanted}", number, line)
                expected += 1


def executed_equations(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Every equation is named by a code cell that asserts; every equation that is named exists."""
    there = {**known.other_equations, lesson.number: equations(lesson.built)}
    named = set()
    for number, cell in _numbered(lesson, "code"):
        own = False
        for line, comment in comments(cell.source):
            for of, index in _REFERENCE.findall(comment):
                own |= int(of) == lesson.number
                named.add(f"{of}.{index}")
                if not _exists(f"{of}.{index}", there):
                    what = f"the comment names equation ({of}.{index}), which does not exist"
                    yield _fault(lesson, what, number, line)
        if own and not assertion_lines(cell.source):
            yield _fault(lesson, "this cell names an equation and asserts nothing", number)
    for number, cell in _numbered(lesson, "markdown"):
        text = without_code(cell.source)
        for found in TAG.finditer(text):
            if found[1] not in named:
                what = f"no code cell names equation ({found[1]}) in a comment: # ({found[1]})"
                yield _fault(lesson, what, number, _line(text, found.start()))
        for phrase in _PROSE_REFERENCE.finditer(text):
            for of, index in _REFERENCE.findall(phrase[1]):
                if not _exists(f"{of}.{index}", there):
                    what = f"equation ({of}.{index}) does not exist"
                    yield _fault(lesson, what, number, _line(text, phrase.start()))


def _exists(tag: str, there: Mapping[int, set[str]]) -> bool:
    return tag in there.get(int(tag.split(".")[0]), {tag})  # a lesson that is not there cannot be asked


def figures(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Every figure is finished, numbered and described (figures.py); the next cell begins with a sentence about it."""
    for number, what in figure_faults(lesson.built, lesson.number):
        yield _fault(lesson, what, number)
    for number, cell in _numbered(lesson, "code"):
        if shows_figure(cell) and not _begins_with_sentence(
            lesson.built[number] if number < len(lesson.built) else None
        ):
            yield _fault(lesson, "the cell under a figure must be Markdown and begin with a sentence about it", number)


def exercises(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """The part `Exercises`: a sentence, the table, one wrong answer that is caught; the exercises stand elsewhere."""
    there = list(headings(lesson.built))
    second = [heading for heading in there if heading.level == 2]
    at = [index for index, heading in enumerate(second) if heading.part == "Exercises"]
    if len(at) != 1 or at[0] + 1 == len(second):
        return  # `parts` says so
    start, end = second[at[0] : at[0] + 2]
    first, top, last = start.index + 1, start.line, end.index + 1
    if len(lesson.tables) != 1 or lesson.tables[0][0] != first:
        found = f"in cells {[cell for cell, _ in lesson.tables]}" if lesson.tables else "nowhere"
        what = f"the part `## Exercises` needs the line `{PLACEHOLDER}` once, above its code; it is {found}"
        yield _fault(lesson, what, first, top)
    elif PLACEHOLDER in lesson.built[first - 1].source.split("\n"):
        yield _fault(
            lesson, f"this lesson has no exercises; they are written in {file_of(lesson.number)}", *lesson.tables[0]
        )
    cell = lesson.built[first - 1]
    under = NotebookNode(cell, source="\n".join(cell.source.split("\n")[top + 1 :]))
    if not _begins_with_sentence(under) or under.source.lstrip().startswith(("|", "{{")):
        yield _fault(lesson, "say in a sentence, above the table, what the exercises are about", first, top)
    for heading in there:
        if (start.index, start.line) < (heading.index, heading.line) < (end.index, end.line):
            where = file_of(lesson.number)
            what = f"heading {heading.text!r}: exercises are written once, in {where}, and not in the lesson"
            yield _fault(lesson, what, heading.index + 1, heading.line)
    yield from _check_at_work(lesson, [n for n, _ in _numbered(lesson, "code") if first < n < last] or [first])


def _check_at_work(lesson: Lesson, numbers: Sequence[int]) -> Iterator[Fault]:
    """The code cell of the exercises tries one wrong answer and shows what the check says; there is no other one."""
    for number in numbers[1:]:
        what = f"a second code cell: exercises are written once, in {file_of(lesson.number)}, and not in the lesson"
        yield _fault(lesson, what, number)
    cell = lesson.built[numbers[0] - 1]
    for fault in _wrong_answer_faults(cell.source if cell.cell_type == "code" else "", lesson.number):
        yield _fault(lesson, fault, numbers[0])
    if cell.cell_type == "code" and not _begins_with_sentence(lesson.built[numbers[0]]):
        what = "the cell under this one must be Markdown, and say in a sentence what the check said"
        yield _fault(lesson, what, numbers[0])


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


def code(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Plain Python, at most 40 lines, nothing defined again that the companion defines."""
    for number, cell in _numbered(lesson, "code"):
        count = len(cell.source.splitlines())
        if count > LONGEST_CELL:
            yield _fault(lesson, f"a code cell of {count} lines; at most {LONGEST_CELL} are allowed", number)
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            yield _fault(
                lesson, f"not plain Python ({error.msg}); no magics, no shell", number, (error.lineno or 1) - 1
            )
            continue
        if RUNG in cell.metadata.get("tags", []):
            continue
        for name, line in _definitions(tree):
            if name in known.companion_names:
                what = f"{name!r} is defined again; import it from {known.companion_names[name]}"
                yield _fault(lesson, f"{what}, or tag the cell `{RUNG}` if it is proved equal to it", number, line)


def _definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno - 1
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from ((target.id, node.lineno - 1) for target in node.targets if isinstance(target, ast.Name))
        if not isinstance(node, ast.ClassDef):  # what a class calls its methods is its own affair
            yield from _definitions(node)


def outputs(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Every cell was executed, in order, without an error and without a warning."""
    for count, (number, cell) in enumerate(_numbered(lesson, "code"), 1):
        if cell.execution_count is None:
            yield _fault(lesson, "this cell was not executed", number)
        elif cell.execution_count != count:
            what = f"executed out of order: this is code cell {count}, executed as number {cell.execution_count}"
            yield _fault(lesson, what, number)
        for output in cell.outputs:
            if output.output_type == "error":
                yield _fault(lesson, f"a stored error: {output.ename}: {output.evalue}", number)
            elif output.get("name") == "stderr":
                yield _fault(lesson, f"output on stderr: {''.join(output.text).strip()[:120]!r}", number)


def tags(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """No tags but two; a cell that is not compared is listed with its reason; few are."""
    loose, names = [], set()
    for number, cell in _numbered(lesson, "code"):
        unknown = set(cell.metadata.get("tags", [])) - {RUNG, NOT_COMPARED}
        if unknown:
            yield _fault(lesson, f"unknown tags {sorted(unknown)}; there are `{RUNG}` and `{NOT_COMPARED}`", number)
        name = cell.metadata.get("name")
        if name is not None and name in names:
            yield _fault(lesson, f"the name {name!r} is taken", number)
        names.add(name)
        if NOT_COMPARED in cell.metadata.get("tags", []):
            loose.append(name)
            if not name or not str(known.not_compared.get(name, "")).strip():
                what = "not compared, without a reason: give the cell a `:name:` and list it in not_compared.toml"
                yield _fault(lesson, f"{what} (name: {name!r})", number)
    for name in sorted(set(known.not_compared) - set(loose)):
        yield Fault(f"not_compared.toml lists {name!r}, and no cell of that name is tagged `{NOT_COMPARED}`")
    total = len(list(_numbered(lesson, "code")))
    if 20 * len(loose) > total:
        yield Fault(f"{len(loose)} of {total} code cells are not compared; at most one in twenty may be")


def images(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """No image comes from an address."""
    for number, cell in _numbered(lesson, "markdown"):
        sources = [
            str(child.attrs["src"])
            for token in _MARKDOWN.parse(cell.source)
            for child in token.children or []
            if child.type == "image"
        ]
        sources += _HTML_IMAGE.findall(without_code(cell.source))
        for source in sources:
            if re.match(r"([a-z][a-z0-9+.-]*:)?//", source, re.IGNORECASE):
                line = _line(cell.source, max(cell.source.find(source), 0))
                yield _fault(lesson, f"an image from elsewhere: {source}", number, line)
    for number, cell in _numbered(lesson, "code"):
        for output in cell.outputs:
            for source in _HTML_IMAGE.findall("".join(output.get("data", {}).get("text/html", ""))):
                if not source.startswith("data:"):
                    yield _fault(lesson, f"an output shows an image from elsewhere: {source}", number)


def size(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """A notebook stays small enough to read and to store."""
    size_of = lesson.notebook.stat().st_size
    if size_of >= LARGEST_NOTEBOOK:
        weights = [(len(json.dumps(cell.outputs)) // 1024, number) for number, cell in _numbered(lesson, "code")]
        heaviest, number = max(weights, default=(0, 1))
        what = f"the notebook has {size_of // 1024} KiB, and must stay under {LARGEST_NOTEBOOK // 1024}"
        yield _fault(lesson, f"{what}; the heaviest output, {heaviest} KiB, is here", number)


RULES: list[Callable[[Lesson, Known], Iterator[Fault]]] = [
    parts, numbered_equations, executed_equations, figures, exercises, code, outputs, tags, images, size,
]  # fmt: skip


def check(lesson: Lesson, known: Known) -> list[Fault]:
    """All faults of a lesson, by place."""
    faults = [fault for rule in RULES for fault in rule(lesson, known)]
    return sorted(faults, key=lambda fault: (fault.cell or 0, fault.line or 0))
