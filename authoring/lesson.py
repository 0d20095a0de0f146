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
from authoring.said import Said
from companion_school.questions.question import Question

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "authoring" / "lessons"
STAGES = ROOT / "authoring" / "stages"
NOTEBOOKS = ROOT / "notebooks"

_BOLD = re.compile(r"\*\*((?:[^*]|\*(?!\*))+)\*\*")
_LESSONS = re.compile(r"\blessons?\s+(\d\d(?:\s*(?:,|and)\s*\d\d)*)")


class LessonError(Exception):
    """A lesson that does not say what is asked of it; the message says which and what was expected."""


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
        """Of the lesson; of its deeper notebook with the folder before it."""
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
        """What stands before the dot in the numbers of its equations: "2", and "D2" in its deeper notebook."""
        return f"{'D' * self.is_deeper}{self.number}"

    @property
    def is_deeper(self) -> bool:
        return is_deeper(self.source)

    @property
    def is_stage(self) -> bool:
        return is_stage(self.source)

    @cached_property
    def deeper(self) -> Lesson | None:
        """Its deeper notebook, if there is one."""
        source = deeper_source(self.source)
        alone = self.is_deeper or self.is_stage
        return Lesson.of(source, self.notebook.parent) if not alone and source.exists() else None

    @classmethod
    def of(cls, source: Path, notebooks: Path) -> Lesson:
        """The lesson, or the deeper notebook, of a source; `notebooks` is the folder of the lessons'."""
        return cls(source, notebooks / notebook_of(source))

    @cached_property
    def _finished(self) -> Finished:
        return finish(self.source)

    @property
    def cells(self) -> list[NotebookNode]:
        """The cells of the notebook, before they are run."""
        return self._finished.cells

    @property
    def lines(self) -> list[int]:
        """The line of the source on which each cell begins."""
        return self._finished.lines

    @property
    def tables(self) -> list[tuple[int, int]]:
        """Where the source asks for the table of exercises: cell from 1, line of the cell from 0."""
        return self._finished.tables

    @property
    def parts(self) -> list[Part]:
        """What is counted in each of its parts."""
        return self._finished.parts

    @property
    def sittings(self) -> list[Part]:
        return [part for part in self.parts if part.is_sitting]

    @property
    def targets(self) -> Mapping[str, str]:
        """The ids of the cells that targets name: `(coins)=`."""
        return self._finished.source.ids

    @property
    def borrowed(self) -> set[str]:
        """The letters to which a deeper notebook gives a meaning of its own, and says so in its front matter."""
        return {plain(atom) for symbol in self.borrows for atom in atoms(symbol)}

    @property
    def borrows(self) -> list[str]:
        """The same letters as its front matter lists them: `$n$`."""
        return [str(symbol) for symbol in self._finished.source.front.get("borrows", [])] if self.is_deeper else []

    @property
    def questions(self) -> list[Question]:
        """The questions that it asks, in order."""
        return self._finished.questions

    @property
    def said(self) -> list[Said]:
        """What its text says of the outputs of its cells."""
        return self._finished.said

    @property
    def written(self) -> list[NotebookNode]:
        """The cells as they are written: without links, head and line at both ends."""
        return self._finished.source.cells

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
        return f"[{text}]({notebook_of(self.source)}{f'#cell-id={cell}' if cell else ''})"

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
        text = "\n\n".join(cell.source for cell in self.written if cell.cell_type == "markdown").partition("\n## ")[0]
        return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]

    @property
    def question(self) -> str:
        return self.opening[1].strip("* ")

    @property
    def minutes(self) -> int:
        """How long it takes, counted."""
        return lesson_minutes(self.parts)

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
        text = " ".join(str(self._finished.source.front.get("needs", "")).split())
        text = re.sub(r"\([^()]*\)", "", text)
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
    def text(self) -> str:
        """All Markdown of the lesson, emphasis marks removed, each run of white space one space."""
        whole = "\n".join(cell.source for cell in self.written if cell.cell_type == "markdown")
        return " ".join(whole.replace("*", "").replace("`", "").split())

    @cached_property
    def bold(self) -> list[str]:
        """What its text says in bold, but the question under its title; small letters, white space one space."""
        cells = [without_code(cell.source) for cell in self.written if cell.cell_type == "markdown"]
        spans = [" ".join(span.lower().split()) for text in cells for span in _BOLD.findall(text)]
        return [span for span in spans if span != self.question.lower()]

    def meets(self, term: str) -> bool:
        """Whether one of the bold places of its text is a term, or has it as whole words, or its plural."""
        word = re.compile(rf"(?<![\w-]){re.escape(term.lower())}(?:s|es)?(?![\w-])")
        return any(word.search(span) for span in self.bold)

    @cached_property
    def imports(self) -> set[str]:
        """The modules that its code and its deeper notebook's code import: `companion/layers/attention`."""
        found = set(self.deeper.imports) if self.deeper else set()
        for cell in self.cells:
            if cell.cell_type == "code":
                found |= modules_named(ast.parse(cell.source))
        return found


def lessons(sources: Path = SOURCES, notebooks: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons, in order: each source `NN_name.md`, and each notebook that has lost its source."""
    names = {path.stem for path in sources.glob("[0-9][0-9]_*.md")}
    names |= {path.stem for path in notebooks.glob("[0-9][0-9]_*.ipynb")}
    return [Lesson.of(sources / f"{name}.md", notebooks) for name in sorted(names)]


def stages(sources: Path = STAGES, notebooks: Path = NOTEBOOKS) -> list[Lesson]:
    """The notebooks that guide through the stages of *Your own transformer*, in order."""
    return [Lesson.of(path, notebooks) for path in sorted(sources.glob("[0-9][0-9]_*.md"))]


def with_deeper(some: Sequence[Lesson]) -> list[Lesson]:
    """The lessons, each followed by its deeper notebook."""
    return [part for lesson in some for part in (lesson, lesson.deeper) if part]


def built_lessons() -> list[Lesson]:
    """The lessons that have a source and were built from it."""
    return [lesson for lesson in lessons() if lesson.source.exists() and lesson.notebook.exists()]


# --- what cells say


def comments(code: str) -> list[tuple[int, str]]:
    """The comments of a code cell: (line from 0, text)."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [(token.start[0] - 1, token.string) for token in tokens if token.type == tokenize.COMMENT]


def claimed(cell: NotebookNode) -> list[str]:
    """The claims of the ledger that a code cell names, and which it must assert."""
    return list(cell.metadata.get("claims", [])) if cell.cell_type == "code" else []


def assertions(code: str) -> list[ast.expr | ast.Assert]:
    """Every assertion, in order: an `assert`, or a call of some `assert_...` function."""
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
    """The last line (from 0) of every assertion."""
    return sorted((node.end_lineno or node.lineno) - 1 for node in assertions(code))


def asserted(code: str) -> list[str]:
    """What every assertion says, in a line, as Python itself writes it: `x.shape == (3, 4)`, `assert_close(x, y)`."""
    return [ast.unparse(node.test if isinstance(node, ast.Assert) else node) for node in assertions(code)]
