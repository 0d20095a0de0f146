"""A lesson: its source, the notebook that is built from it, and what they say.

Links lead to a cell by its id (`02_name.ipynb#cell-id=0843d100`): JupyterLab scrolls to it, whether the notebook is
open already or not, and so does a notebook that nbconvert made into HTML. A heading's name works in JupyterLab only
once the notebook is open. Ids follow from the text of the cell: a page is made again when a cell that it links changes.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import nbformat
from markdown_it import MarkdownIt
from nbformat import NotebookNode

from authoring.imports import modules_named
from authoring.source import Source, read_source

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "authoring" / "lessons"
NOTEBOOKS = ROOT / "notebooks"

_CLAIM = re.compile(r"\bS\d-\d\d\b")
_LESSONS = re.compile(r"\blessons?\s+(\d\d(?:\s*(?:,|and)\s*\d\d)*)")
DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
TAG = re.compile(r"\\tag\{([^}]*)\}")
_CODE_IN_PROSE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


class LessonError(Exception):
    """A lesson that does not say what is asked of it; the message says which and what was expected."""


@dataclass(frozen=True)
class Heading:
    """A heading of a lesson: its text as Markdown, and where it stands.

    index:  of its cell, from 0.
    cell:   the id of its cell.
    line:   of the cell, from 0.
    """

    level: int
    text: str
    index: int
    cell: str
    line: int

    @property
    def part(self) -> str:
        """Its text before a colon: "Break it" of "Break it: a longer mask"."""
        return self.text.split(":")[0].strip()


@dataclass(frozen=True)
class Lesson:
    """One lesson, read when it is first asked; `again` reads it anew."""

    source: Path
    notebook: Path

    def again(self) -> Lesson:
        """The same lesson, to be read from its files as they are now."""
        return Lesson(self.source, self.notebook)

    @property
    def name(self) -> str:
        return self.source.stem

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def label(self) -> str:
        return self.name[:2]

    @cached_property
    def _source(self) -> Source:
        return read_source(self.source)

    @property
    def cells(self) -> list[NotebookNode]:
        """The cells of the source, without outputs."""
        return self._source.cells

    @property
    def lines(self) -> list[int]:
        """The line of the source on which each cell begins."""
        return self._source.lines

    @property
    def tables(self) -> list[tuple[int, int]]:
        """Where the source asks for the table of exercises: cell from 1, line of the cell from 0."""
        return self._source.tables

    @cached_property
    def built(self) -> list[NotebookNode]:
        """The cells of the notebook, with what they printed and drew."""
        return nbformat.read(self.notebook, as_version=4).cells

    # --- what its source says

    @property
    def title(self) -> str:
        return self.headings[0].text

    def link(self, text: str, cell: str | None = None) -> str:
        """A Markdown link from a page in the lessons' folder to the lesson, or to one of its cells."""
        return f"[{text}]({self.notebook.name}{f'#cell-id={cell}' if cell else ''})"

    @cached_property
    def headings(self) -> list[Heading]:
        return list(headings(self.cells))

    def heading(self, text: str) -> Heading:
        """The heading of this text. Raises `LessonError` if there is none."""
        for heading in self.headings:
            if heading.text == text:
                return heading
        raise LessonError(f"{self.name} has no heading {text!r}")

    def above(self, index: int) -> list[Heading]:
        """The headings that cell `index` stands under, outermost first."""
        path: list[Heading] = []
        for heading in self.headings:
            if heading.index > index:
                break
            path = [*(h for h in path if h.level < heading.level), heading]
        return path

    @cached_property
    def opening(self) -> list[str]:
        """The paragraphs before the first H2, each in one line."""
        text = "\n\n".join(cell.source for cell in self.cells if cell.cell_type == "markdown").partition("\n## ")[0]
        return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]

    def _opening_line(self, start: str) -> str:
        for paragraph in self.opening:
            if start in paragraph:
                return paragraph.partition(start)[2].strip()
        raise LessonError(f"{self.name}: no {start!r} before its first section")

    @property
    def question(self) -> str:
        return self.opening[1].strip("* ")

    @property
    def minutes(self) -> int:
        found = re.match(r"(\d+) minutes", self._opening_line("**Reading time:**"))
        if not found:
            raise LessonError(f"{self.name}: the reading time is not 'NN minutes'")
        return int(found[1])

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The lessons that this one builds on: those of the first sentence of "You need"."""
        return self._named(self._need_sentences[:1])

    @cached_property
    def touches(self) -> tuple[int, ...]:
        """The lessons from which it takes a single thing: those of the other sentences."""
        return tuple(n for n in self._named(self._need_sentences[1:]) if n not in self.needs)

    @property
    def _need_sentences(self) -> list[str]:
        text = re.sub(r"\([^()]*\)", "", self._opening_line("**You need:**"))
        return re.split(r"(?<=[.?!])\s+", text)

    def _named(self, sentences: Sequence[str]) -> tuple[int, ...]:
        wanted = [s for s in sentences if not re.search(r"[Nn]o (?:earlier|other) lesson|not needed", s)]
        found = {int(n) for s in wanted for run in _LESSONS.findall(s) for n in re.findall(r"\d\d", run)}
        return tuple(sorted(n for n in found if n < self.number))

    @cached_property
    def claims(self) -> dict[str, list[int]]:
        """The claims of the ledger that code cells name, and the indices of these cells."""
        found: dict[str, list[int]] = {}
        for index, cell in enumerate(self.cells):
            for claim in claimed(cell):
                found.setdefault(claim, []).append(index)
        return found

    @cached_property
    def symbols(self) -> list[dict[str, str]]:
        """The rows of its tables of symbols, as {header: cell}: those whose first header is `symbol`."""
        rows = []
        for cell in self.cells:
            if cell.cell_type == "markdown":
                for header, *body in _tables(cell.source):
                    if header[0] == "symbol":
                        rows += [dict(zip(header, row, strict=True)) for row in body]
        return rows

    @cached_property
    def text(self) -> str:
        """All Markdown of the lesson, emphasis marks removed, each run of white space one space."""
        whole = "\n".join(cell.source for cell in self.cells if cell.cell_type == "markdown")
        return " ".join(whole.replace("*", "").replace("`", "").split())

    @cached_property
    def imports(self) -> set[str]:
        """The modules of the companion that its code cells name, as paths: `layers/attention`, `transformer`."""
        found: set[str] = set()
        for cell in self.cells:
            if cell.cell_type == "code":
                found |= modules_named(ast.parse(cell.source))
        return found


def lessons(sources: Path = SOURCES, notebooks: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons, in order: each source `NN_name.md`, and each notebook that has lost its source."""
    names = {path.stem for path in sources.glob("[0-9][0-9]_*.md")}
    names |= {path.stem for path in notebooks.glob("[0-9][0-9]_*.ipynb")}
    return [Lesson(sources / f"{name}.md", notebooks / f"{name}.ipynb") for name in sorted(names)]


def built_lessons() -> list[Lesson]:
    """The lessons that have a source and were built from it."""
    return [lesson for lesson in lessons() if lesson.source.exists() and lesson.notebook.exists()]


# --- what cells say


def headings(cells: Sequence[NotebookNode]) -> Iterator[Heading]:
    """The headings of the Markdown cells, in order."""
    for index, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            for opening, inline in pairwise(_MARKDOWN.parse(cell.source)):
                if opening.type == "heading_open":
                    line = opening.map[0] if opening.map else 0
                    yield Heading(int(opening.tag[1]), inline.content.strip(), index, cell.id, line)


def equations(cells: Sequence[NotebookNode]) -> set[str]:
    """The numbers of all display equations, as "2.4"."""
    texts = (without_code(cell.source) for cell in cells if cell.cell_type == "markdown")
    return {tag for text in texts for display in DISPLAY.findall(text) for tag in TAG.findall(display)}


def without_code(text: str) -> str:
    """Markdown with code blanked out, line for line: neither maths nor images stand there."""
    return _CODE_IN_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def comments(code: str) -> list[tuple[int, str]]:
    """The comments of a code cell: (line from 0, text)."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [(token.start[0] - 1, token.string) for token in tokens if token.type == tokenize.COMMENT]


def claimed(cell: NotebookNode) -> dict[str, int]:
    """The claims of the ledger that a cell names in comments, and the (last) line of each from 0."""
    if cell.cell_type != "code":
        return {}
    named = [(line, text) for line, text in comments(cell.source) if re.search(r"\bclaims?\b", text)]
    return {claim: line for line, text in named for claim in _CLAIM.findall(text)}


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


def _tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a Markdown text, each as rows of cells, the header first."""
    rows: list[list[str]] = []
    tokens = _MARKDOWN.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(tokens[at + 1].content.strip())
        elif token.type == "table_close":
            yield rows
