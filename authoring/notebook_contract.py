"""Rules for every notebook (README.md): functions that take a lesson and reference data, and yield `Fault`s.

Rules that apply only to lessons are in lesson_contract.py, and rules for deeper notebooks in deeper_contract.py.
contract.py applies all of them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nbformat import NotebookNode

from authoring import approximate, quoted_outputs
from authoring.figure_contract import figure_faults, shows_figure
from authoring.lesson import Lesson, assertions, comments
from authoring.markdown import DISPLAY, PARSER, TAG, equations, headings, without_code
from authoring.source import FOLDED

LONGEST_CELL = 40
LARGEST_NOTEBOOK = 800 * 1024
NOT_COMPARED = "nbval-ignore-output"
RUNG = "rung"

_BARE_DISPLAY = re.compile(r"\\begin\{(?:align|equation|gather|multline)\*?\}|\\\[")
_REFERENCE = re.compile(r"\((D?\d+)\.(\d+)\)")
_RANGE = re.compile(r"\((D?\d+)\.(\d+)\) to \(\1\.(\d+)\)")
_PROSE_REFERENCE = re.compile(r"[Ee]quations?\s+((?:\(D?\d+\.\d+\)(?:,?\s+(?:and|to|or)\s+|,\s*)?)+)")
_HTML_IMAGE = re.compile(r"<img[^>]*\bsrc\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """One broken rule.

    Attributes:
        what: Description of the problem.
        cell: Number of the cell, counted from 1.
        line: Line in the source, counted from 1.
    """

    what: str
    cell: int | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = [f"cell {self.cell}"] if self.cell else []
        where += [f"source line {self.line}"] if self.line else []
        return f"{', '.join(where) or 'notebook'}: {self.what}"


@dataclass(frozen=True)
class Known:
    """Data from outside a lesson that the rules compare with it.

    Attributes:
        companion_names: The module that defines each public name of the companion.
        not_compared: The reason for each cell of the lesson whose output is not compared, by the cell's name.
        other_equations: Equation numbers in other notebooks, by the part before the dot, such as "2" or "D2".
        symbols: The meaning of each letter, by lesson (notation.py).
    """

    companion_names: Mapping[str, str] = field(default_factory=dict)
    not_compared: Mapping[str, str] = field(default_factory=dict)
    other_equations: Mapping[str, set[str]] = field(default_factory=dict)
    symbols: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def numbered(lesson: Lesson, kind: str) -> Iterator[tuple[int, NotebookNode]]:
    """Yield the built cells of one kind with their numbers, counted from 1."""
    for number, cell in enumerate(lesson.built, 1):
        if cell.cell_type == kind:
            yield number, cell


def fault(lesson: Lesson, what: str, number: int, line: int = 0) -> Fault:
    """Return a fault in cell `number`, `line` lines below its first line, with the source line if it is known."""
    first = lesson.lines[number - 1] if number <= len(lesson.lines) else None
    return Fault(what, number, first + line if first else None)


def line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position)


# --- the rules


def title(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that there is one H1, that it comes first, and that no heading level is skipped."""
    there = list(headings(lesson.built))
    if not there or (there[0].index, there[0].level, there[0].line) != (1, 1, 0):  # below the navigation line
        yield Fault("a lesson begins with its title: `# ...` on the first line", 2)
        return
    above = 1
    for heading in there[1:]:
        place = heading.index + 1, heading.line
        if heading.level == 1:
            yield fault(lesson, f"a second title, {heading.text!r}: a lesson has one H1", *place)
        elif heading.level > above + 1:
            what = f"heading {heading.text!r} is H{heading.level} under an H{above}: no level is skipped"
            yield fault(lesson, what, *place)
        above = heading.level


def numbered_equations(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that every display equation has one number, and that the numbers run 1, 2, 3, ... through the lesson."""
    expected = 1
    for number, cell in numbered(lesson, "markdown"):
        text = without_code(cell.source)
        outside = DISPLAY.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for bare in _BARE_DISPLAY.finditer(outside):
            what = f"display maths is written `$$ ... $$` here, not `{bare[0]}`"
            yield fault(lesson, what, number, line_at(text, bare.start()))
        for stray in TAG.finditer(outside):
            yield fault(lesson, f"`{stray[0]}` stands outside `$$ ... $$`", number, line_at(text, stray.start()))
        for display in DISPLAY.finditer(text):
            line = line_at(text, display.start())
            tags = TAG.findall(display[1])
            if len(tags) != 1:
                count = "no number" if not tags else f"{len(tags)} numbers"
                what = f"this display equation has {count}: it needs one, `\\tag{{{lesson.prefix}.{expected}}}`"
                yield fault(lesson, what, number, line)
            for tag in tags:
                wanted = f"{lesson.prefix}.{expected}"
                if tag != wanted:
                    yield fault(lesson, f"equation number {tag} is out of order: expected {wanted}", number, line)
                expected += 1


def references(text: str) -> list[tuple[str, str]]:
    """Return the equations to which a text refers, as (part before the dot, number). "(2.5) to (2.7)" names three."""

    def spelt(found: re.Match[str]) -> str:
        return " ".join(f"({found[1]}.{number})" for number in range(int(found[2]), int(found[3]) + 1))

    return _REFERENCE.findall(_RANGE.sub(spelt, text))


def executed_equations(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that a code cell with assertions names each equation, and that all equations referred to exist."""
    there = {**known.other_equations, lesson.prefix: equations(lesson.built)}
    named = set()
    for number, cell in numbered(lesson, "code"):
        own = False
        for line, comment in comments(cell.source):
            for of, index in references(comment):
                own |= of == lesson.prefix
                named.add(f"{of}.{index}")
                if not _exists(of, index, there):
                    what = f"the comment names equation ({of}.{index}), which does not exist"
                    yield fault(lesson, what, number, line)
        if own and not assertions(cell.source):
            yield fault(lesson, "this cell names an equation and asserts nothing", number)
    for number, cell in numbered(lesson, "markdown"):
        text = without_code(cell.source)
        for found in TAG.finditer(text):
            if found[1] not in named:
                what = f"no code cell names equation ({found[1]}) in a comment: # ({found[1]})"
                yield fault(lesson, what, number, line_at(text, found.start()))
        for phrase in _PROSE_REFERENCE.finditer(text):
            for of, index in references(phrase[1]):
                if not _exists(of, index, there):
                    what = f"equation ({of}.{index}) does not exist"
                    yield fault(lesson, what, number, line_at(text, phrase.start()))


def _exists(of: str, index: str, there: Mapping[str, set[str]]) -> bool:
    return of not in there or f"{of}.{index}" in there[of]  # equations in a missing lesson cannot be checked


def figures(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that every figure is complete, numbered, described (figure_contract.py) and followed by a sentence."""
    for number, what in figure_faults(lesson.built, lesson.prefix):
        yield fault(lesson, what, number)
    for number, cell in numbered(lesson, "code"):
        if shows_figure(cell) and not any(map(begins_with_sentence, lesson.built[number : number + 1])):
            yield fault(lesson, "the cell under a figure must be Markdown and begin with a sentence about it", number)


def begins_with_sentence(cell: NotebookNode) -> bool:
    tokens = PARSER.parse(cell.source) if cell.cell_type == "markdown" else []
    return len(tokens) > 1 and tokens[0].type == "paragraph_open" and len(tokens[1].content.split()) >= 4


def code(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that code is plain Python, has at most 40 lines per cell, and does not redefine names of the companion."""
    for number, cell in numbered(lesson, "code"):
        count = len(cell.source.splitlines())
        if count > LONGEST_CELL:
            yield fault(lesson, f"a code cell of {count} lines; at most {LONGEST_CELL} are allowed", number)
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            yield fault(lesson, f"not plain Python ({error.msg}); no magics, no shell", number, (error.lineno or 1) - 1)
            continue
        if RUNG in cell.metadata.get("tags", []):
            continue
        for name, line in _definitions(tree):
            if name in known.companion_names:
                what = f"{name!r} is defined again; import it from {known.companion_names[name]}"
                yield fault(lesson, f"{what}, or tag the cell `{RUNG}` if it is proved equal to it", number, line)


def _definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno - 1
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from ((target.id, node.lineno - 1) for target in node.targets if isinstance(target, ast.Name))
        if not isinstance(node, ast.ClassDef):  # methods may have any name
            yield from _definitions(node)


def outputs(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that every cell was executed, in order, without errors or warnings."""
    for count, (number, cell) in enumerate(numbered(lesson, "code"), 1):
        if cell.execution_count is None:
            yield fault(lesson, "this cell was not executed", number)
        elif cell.execution_count != count:
            what = f"executed out of order: this is code cell {count}, executed as number {cell.execution_count}"
            yield fault(lesson, what, number)
        for output in cell.outputs:
            if output.output_type == "error":
                yield fault(lesson, f"a stored error: {output.ename}: {output.evalue}", number)
            elif output.get("name") == "stderr":
                yield fault(lesson, f"output on stderr: {''.join(output.text).strip()[:120]!r}", number)


def bounds(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that each number after `≈`, which is not compared, is bounded by an assertion in its section."""
    starts = {heading.index + 1 for heading in headings(lesson.cells) if heading.level <= 2}
    sections: list[list[tuple[int, NotebookNode]]] = [[]]
    for number, cell in enumerate(lesson.built, 1):
        if number in starts:
            sections.append([])
        if cell.cell_type == "code":
            sections[-1].append((number, cell))
    for cells in sections:
        for index, (number, cell) in enumerate(cells):
            later = [other.source for _, other in cells[index + 1 :]]
            for line, what in approximate.faults(cell.source, later):
                yield fault(lesson, what, number, line)
            if approximate.shown_without_source(cell.source, [_printed(output) for output in cell.outputs]):
                what = f"{approximate.SIGN} is printed by a function of another cell: write it here, before its number"
                yield fault(lesson, what, number)


def _printed(output: NotebookNode) -> str:
    return "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))


def tags(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that all tags are known, and that only few cells, each with a reason, have outputs that are not
    compared."""
    loose, names = [], set()
    known_tags = {RUNG, NOT_COMPARED, FOLDED}
    for number, cell in numbered(lesson, "code"):
        unknown = set(cell.metadata.get("tags", [])) - known_tags
        if unknown:
            yield fault(lesson, f"unknown tags {sorted(unknown)}; there are {', '.join(sorted(known_tags))}", number)
        name = cell.metadata.get("name")
        if name is not None and name in names:
            yield fault(lesson, f"the name {name!r} is taken", number)
        names.add(name)
        if NOT_COMPARED in cell.metadata.get("tags", []):
            loose.append(name)
            if not name or not str(known.not_compared.get(name, "")).strip():
                what = "not compared, without a reason: give the cell a `:name:` and list it in not_compared.toml"
                yield fault(lesson, f"{what} (name: {name!r})", number)
    for name in sorted(set(known.not_compared) - set(loose)):
        yield Fault(f"not_compared.toml lists {name!r}, and no cell of that name is tagged `{NOT_COMPARED}`")
    total = len(list(numbered(lesson, "code")))
    if 20 * len(loose) > total:
        yield Fault(f"{len(loose)} of {total} code cells are not compared; at most one in twenty may be")


def images(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that no image is loaded from the network."""
    for number, cell in numbered(lesson, "markdown"):
        sources = [
            str(child.attrs["src"])
            for token in PARSER.parse(cell.source)
            for child in token.children or []
            if child.type == "image"
        ]
        sources += _HTML_IMAGE.findall(without_code(cell.source))
        for source in sources:
            if re.match(r"([a-z][a-z0-9+.-]*:)?//", source, re.IGNORECASE):
                line = line_at(cell.source, max(cell.source.find(source), 0))
                yield fault(lesson, f"an image from elsewhere: {source}", number, line)
    for number, cell in numbered(lesson, "code"):
        for output in cell.outputs:
            for source in _HTML_IMAGE.findall("".join(output.get("data", {}).get("text/html", ""))):
                if not source.startswith("data:"):
                    yield fault(lesson, f"an output shows an image from elsewhere: {source}", number)


def said(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that statements in the text about outputs agree with the outputs (quoted_outputs.py)."""
    for line, what in quoted_outputs.faults(lesson.said, lesson.built):
        yield Fault(what, None, line)


def size(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that the notebook is not too large."""
    size_of = lesson.notebook.stat().st_size
    if size_of >= LARGEST_NOTEBOOK:
        weights = [(len(json.dumps(cell.outputs)) // 1024, number) for number, cell in numbered(lesson, "code")]
        heaviest, number = max(weights, default=(0, 1))
        what = f"the notebook has {size_of // 1024} KiB, and must stay under {LARGEST_NOTEBOOK // 1024}"
        yield fault(lesson, f"{what}; the heaviest output, {heaviest} KiB, is here", number)


COMMON: list[Callable[[Lesson, Known], Iterator[Fault]]] = [
    numbered_equations, executed_equations, figures, code, outputs, bounds, said, tags, images, size,
]  # fmt: skip
"""The rules for every notebook."""
