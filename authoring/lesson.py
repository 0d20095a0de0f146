"""A lesson: its source, the notebook built from it, and the content of both.

Links lead to a cell by its id (`02_name.ipynb#cell-id=0843d100`). JupyterLab scrolls to that cell even if the notebook
is not open yet, and the links also work in HTML made by nbconvert. In JupyterLab, a link to a heading works only if the
notebook is already open. The id of a cell is computed from its text, so a page is rebuilt when a cell to which it links
changes.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from authoring.finish import Finished, deeper_source, finish, is_deeper, is_stage, lesson_minutes, notebook_of
from authoring.imports import modules_named
from authoring.markdown import Heading, headings, without_code
from authoring.minutes import Part
from authoring.notation import atoms, plain
from authoring.quoted_outputs import Said
from companion_school.questions.question import Question

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "authoring" / "lessons"
STAGES = ROOT / "authoring" / "stages"
NOTEBOOKS = ROOT / "notebooks"

_BOLD = re.compile(r"\*\*((?:[^*]|\*(?!\*))+)\*\*")
_LESSONS = re.compile(r"\blessons?\s+(\d\d(?:\s*(?:,|and)\s*\d\d)*)")


class LessonError(Exception):
    """Raised if a lesson lacks required content. The message names the lesson and what was expected."""


@dataclass(frozen=True)
class Lesson:
    """One lesson. Its files are read on first use; `again` returns a copy that reads them anew."""

    source: Path
    notebook: Path

    def again(self) -> Lesson:
        """Return a copy of this lesson that has not read its files yet, so that it picks up their changes."""
        return Lesson(self.source, self.notebook)

    @property
    def name(self) -> str:
        """The source's name, preceded by its folder for a deeper notebook or a stage."""
        folder = "deeper/" if self.is_deeper else "build/" if self.is_stage else ""
        return f"{folder}{self.source.stem}"

    @property
    def number(self) -> int:
        return int(self.label)

    @property
    def label(self) -> str:
        return self.source.name[:2]

    @property
    def prefix(self) -> str:
        """The part of equation numbers before the dot: "2", or "D2" in a deeper notebook."""
        return f"{'D' * self.is_deeper}{self.number}"

    @property
    def is_deeper(self) -> bool:
        return is_deeper(self.source)

    @property
    def is_stage(self) -> bool:
        return is_stage(self.source)

    @cached_property
    def deeper(self) -> Lesson | None:
        """The lesson's deeper notebook, or `None`."""
        source = deeper_source(self.source)
        alone = self.is_deeper or self.is_stage
        return Lesson.of(source, self.notebook.parent) if not alone and source.exists() else None

    @classmethod
    def of(cls, source: Path, notebooks: Path) -> Lesson:
        """Return the lesson, deeper notebook or stage for a source. `notebooks` is the lessons' notebook folder."""
        return cls(source, notebooks / notebook_of(source))

    @cached_property
    def _finished(self) -> Finished:
        return finish(self.source)

    @property
    def cells(self) -> list[NotebookNode]:
        """The cells of the notebook, before they are executed."""
        return self._finished.cells

    @property
    def lines(self) -> list[int]:
        """The line in the source at which each cell begins."""
        return self._finished.lines

    @property
    def tables(self) -> list[tuple[int, int]]:
        """The position of the table of exercises, as (cell, counted from 1; line in the cell, counted from 0)."""
        return self._finished.tables

    @property
    def parts(self) -> list[Part]:
        """The parts of the lesson, with their counts."""
        return self._finished.parts

    @property
    def sittings(self) -> list[Part]:
        return [part for part in self.parts if part.is_sitting]

    @property
    def targets(self) -> Mapping[str, str]:
        """The id of the cell that follows each target, such as `(coins)=`."""
        return self._finished.source.ids

    @property
    def borrowed(self) -> set[str]:
        """The letters that, according to its front matter, a deeper notebook uses in another sense than its lesson."""
        return {plain(atom) for symbol in self.borrows for atom in atoms(symbol)}

    @property
    def borrows(self) -> list[str]:
        """The borrowed letters as written in the front matter, such as `$n$`."""
        return [str(symbol) for symbol in self._finished.source.front.get("borrows", [])] if self.is_deeper else []

    @property
    def questions(self) -> list[Question]:
        """The lesson's questions, in order."""
        return self._finished.questions

    @property
    def said(self) -> list[Said]:
        """The statements about outputs of cells in the lesson's text."""
        return self._finished.said

    @property
    def written(self) -> list[NotebookNode]:
        """The cells as written in the source, without the links, head and navigation that are added later."""
        return self._finished.source.cells

    @cached_property
    def built(self) -> list[NotebookNode]:
        """The cells of the notebook, with their outputs."""
        return nbformat.read(self.notebook, as_version=4).cells

    # --- the source's content

    @property
    def title(self) -> str:
        return self.headings[0].text

    def link(self, text: str, cell: str | None = None) -> str:
        """Return a Markdown link to the lesson or one of its cells, for use on a page in the lessons' folder."""
        return f"[{text}]({notebook_of(self.source)}{f'#cell-id={cell}' if cell else ''})"

    @cached_property
    def headings(self) -> list[Heading]:
        return list(headings(self.cells))

    def heading(self, text: str) -> Heading:
        """Return the heading with this text.

        Raises:
            LessonError: If there is none.
        """
        for heading in self.headings:
            if heading.text == text:
                return heading
        raise LessonError(f"{self.name} has no heading {text!r}")

    def above(self, index: int) -> list[Heading]:
        """Return the headings above cell `index`, outermost first."""
        path: list[Heading] = []
        for heading in self.headings:
            if heading.index > index:
                break
            path = [*(h for h in path if h.level < heading.level), heading]
        return path

    @cached_property
    def opening(self) -> list[str]:
        """The paragraphs before the first H2, each as a single line."""
        text = "\n\n".join(cell.source for cell in self.written if cell.cell_type == "markdown").partition("\n## ")[0]
        return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]

    @property
    def question(self) -> str:
        return self.opening[1].strip("* ")

    @property
    def minutes(self) -> int:
        """The length of the lesson in minutes, estimated from its source."""
        return lesson_minutes(self.parts)

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The lessons on which this one builds, according to the first sentence of "You need"."""
        return self._named(self._need_sentences[:1])

    @cached_property
    def touches(self) -> tuple[int, ...]:
        """The lessons from which this one needs only a single thing, according to the other sentences of "You need"."""
        return tuple(n for n in self._named(self._need_sentences[1:]) if n not in self.needs)

    @property
    def _need_sentences(self) -> list[str]:
        text = " ".join(str(self._finished.source.front.get("needs", "")).split())
        text = re.sub(r"\([^()]*\)", "", text)
        return re.split(r"(?<=[.?!])\s+", text)

    def _named(self, sentences: Sequence[str]) -> tuple[int, ...]:
        wanted = [s for s in sentences if not re.search(r"[Nn]o (?:earlier|other) lesson|not needed", s)]
        found = {int(n) for s in wanted for run in _LESSONS.findall(s) for n in re.findall(r"\d\d", run)}
        return tuple(sorted(n for n in found if n < self.number))

    @cached_property
    def claims(self) -> dict[str, list[int]]:
        """The claims from the ledger that code cells name, with the indices of these cells."""
        found: dict[str, list[int]] = {}
        for index, cell in enumerate(self.cells):
            for claim in claimed(cell):
                found.setdefault(claim, []).append(index)
        return found

    @cached_property
    def text(self) -> str:
        """The text of all Markdown cells, without marks for emphasis or code, and with single spaces."""
        whole = "\n".join(cell.source for cell in self.written if cell.cell_type == "markdown")
        return " ".join(whole.replace("*", "").replace("`", "").split())

    @cached_property
    def bold(self) -> list[str]:
        """All bold text except the question under the title, in lower case and with single spaces."""
        cells = [without_code(cell.source) for cell in self.written if cell.cell_type == "markdown"]
        spans = [" ".join(span.lower().split()) for text in cells for span in _BOLD.findall(text)]
        return [span for span in spans if span != self.question.lower()]

    def meets(self, term: str) -> bool:
        """Return whether any bold text contains the term or its plural as whole words."""
        word = re.compile(rf"(?<![\w-]){re.escape(term.lower())}(?:s|es)?(?![\w-])")
        return any(word.search(span) for span in self.bold)

    @cached_property
    def imports(self) -> set[str]:
        """The modules that the lesson and its deeper notebook import, such as `companion/layers/attention`."""
        found = set(self.deeper.imports) if self.deeper else set()
        for cell in self.cells:
            if cell.cell_type == "code":
                found |= modules_named(ast.parse(cell.source))
        return found


def lessons(sources: Path = SOURCES, notebooks: Path = NOTEBOOKS) -> list[Lesson]:
    """Return all lessons in order: one for each source `NN_name.md`, and one for each notebook without a source."""
    names = {path.stem for path in sources.glob("[0-9][0-9]_*.md")}
    names |= {path.stem for path in notebooks.glob("[0-9][0-9]_*.ipynb")}
    return [Lesson.of(sources / f"{name}.md", notebooks) for name in sorted(names)]


def stages(sources: Path = STAGES, notebooks: Path = NOTEBOOKS) -> list[Lesson]:
    """Return the notebooks for the stages of *Your own transformer*, in order."""
    return [Lesson.of(path, notebooks) for path in sorted(sources.glob("[0-9][0-9]_*.md"))]


def with_deeper(some: Sequence[Lesson]) -> list[Lesson]:
    """Return the lessons, each followed by its deeper notebook."""
    return [part for lesson in some for part in (lesson, lesson.deeper) if part]


def built_lessons() -> list[Lesson]:
    """Return the lessons that have a source and a notebook."""
    return [lesson for lesson in lessons() if lesson.source.exists() and lesson.notebook.exists()]


# --- the content of cells


def comments(code: str) -> list[tuple[int, str]]:
    """Return the comments of a code cell as (line, counted from 0; text)."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [(token.start[0] - 1, token.string) for token in tokens if token.type == tokenize.COMMENT]


def claimed(cell: NotebookNode) -> list[str]:
    """Return the claims from the ledger that a code cell names and must therefore assert."""
    return list(cell.metadata.get("claims", [])) if cell.cell_type == "code" else []


def assertions(code: str) -> list[ast.expr | ast.Assert]:
    """Return all assertions in order, which are `assert` statements and calls of functions named `assert_...`."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []
    found: list[ast.expr | ast.Assert] = []
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and name.startswith("assert_")):
            found.append(node)
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def assertion_lines(code: str) -> list[int]:
    """Return the last line of every assertion, counted from 0."""
    return sorted((node.end_lineno or node.lineno) - 1 for node in assertions(code))


def asserted(code: str) -> list[str]:
    """Return each assertion as a single line, such as `x.shape == (3, 4)` or `assert_close(x, y)`."""
    return [ast.unparse(node.test if isinstance(node, ast.Assert) else node) for node in assertions(code)]
