"""The lessons as the pages need them: titles, minutes, headings, symbol tables, claims, imports.

Links lead to a cell by its id (`02_name.ipynb#cell-id=0843d100`): JupyterLab scrolls to it, whether the notebook is
open already or not, and so does a notebook that nbconvert made into HTML. A heading's name works in JupyterLab only
once the notebook is open. Ids follow from the text of the cell: a page is made again when a cell that it links changes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import build
import contract
from markdown_it import MarkdownIt
from nbformat import NotebookNode

NOTEBOOKS = build.HERE
ROOT = NOTEBOOKS.parent

_CLAIM = re.compile(r"\bS\d-\d\d\b")
_LESSONS = re.compile(r"\blessons?\s+(\d\d(?:\s*(?:,|and)\s*\d\d)*)")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


class PageError(Exception):
    """A page that cannot be made from the lessons; the message says which lesson and what was expected."""


@dataclass(frozen=True)
class Heading:
    """A heading of a lesson: its text as Markdown, and the id of the cell it stands in."""

    level: int
    text: str
    cell: str


@dataclass(frozen=True)
class Lesson:
    """One lesson, from its source."""

    name: str
    cells: Sequence[NotebookNode]

    @classmethod
    def read(cls, source: Path) -> Lesson:
        return cls(source.stem, build.read_source(source).cells)

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def label(self) -> str:
        return self.name[:2]

    @property
    def title(self) -> str:
        return self.headings[0].text

    def link(self, text: str, cell: str | None = None) -> str:
        """A Markdown link from a page in this folder to the lesson, or to one of its cells."""
        return f"[{text}]({self.name}.ipynb{f'#cell-id={cell}' if cell else ''})"

    @cached_property
    def headings(self) -> list[Heading]:
        return [heading for _, heading in self._headings]

    @cached_property
    def _headings(self) -> list[tuple[int, Heading]]:
        """Each heading, and the index of its cell."""
        return list(self._find_headings())

    def _find_headings(self) -> Iterator[tuple[int, Heading]]:
        for index, cell in enumerate(self.cells):
            if cell.cell_type == "markdown":
                tokens = _MARKDOWN.parse(cell.source)
                for opening, inline in pairwise(tokens):
                    if opening.type == "heading_open":
                        yield index, Heading(int(opening.tag[1]), inline.content.strip(), cell.id)

    def heading(self, text: str) -> Heading:
        """The heading of this text.

        Raises:
            PageError: there is none.
        """
        for heading in self.headings:
            if heading.text == text:
                return heading
        raise PageError(f"{self.name} has no heading {text!r}")

    def above(self, index: int) -> list[Heading]:
        """The headings that cell `index` stands under, outermost first."""
        path: list[Heading] = []
        for at, heading in self._headings:
            if at > index:
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
        raise PageError(f"{self.name}: no {start!r} before its first section")

    @property
    def question(self) -> str:
        return self.opening[1].strip("* ")

    @property
    def minutes(self) -> int:
        found = re.match(r"(\d+) minutes", self._opening_line("**Reading time:**"))
        if not found:
            raise PageError(f"{self.name}: the reading time is not 'NN minutes'")
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
        """The claims of the ledger that code cells name in a comment, and the indices of these cells."""
        found: dict[str, list[int]] = {}
        for index, cell in enumerate(self.cells):
            if cell.cell_type == "code":
                for _, comment in contract.comments(cell.source):
                    if re.search(r"\bclaims?\b", comment):
                        for claim in _CLAIM.findall(comment):
                            found.setdefault(claim, []).append(index)
        return {claim: sorted(set(indices)) for claim, indices in found.items()}

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


def read_lessons(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """All lessons in order: those that have a source and were built from it."""
    there = [lesson for lesson in build.lessons(folder) if lesson.source.exists() and lesson.notebook.exists()]
    return [Lesson.read(lesson.source) for lesson in there]


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


# --- which file of the companion stands behind a name


def modules_named(tree: ast.AST, package: Path = build.PACKAGE) -> set[str]:
    """The modules behind the companion's names that `tree` imports, or uses as `companion.name`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {_module(alias.name, None, package) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {_module(node.module, alias.name, package) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package.name:
            found.add(_module(package.name, node.attr, package))
    return found - {""}


def _module(module: str, name: str | None, package: Path) -> str:
    """The path of the module that `from module import name` reads, without `.py`; "" outside, and for the package."""
    first, *rest = module.split(".")
    if first != package.name:
        return ""
    base = package.joinpath(*rest)
    if name and ((base / f"{name}.py").exists() or (base / name / "__init__.py").exists()):
        base = base / name
    elif name and base == package and name in _handed_on(package):
        return _module(_handed_on(package)[name], name, package)
    return "" if base == package else base.relative_to(package).as_posix()


@cache
def _handed_on(package: Path) -> dict[str, str]:
    """The names that the package hands on, and from which module: its stub says so, or else its `__init__`."""
    stub = package / "__init__.pyi"
    path = stub if stub.exists() else package / "__init__.py"
    imports = [
        n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.ImportFrom) and n.module
    ]
    own = f"{package.name}."
    return {a.asname or a.name: (own if n.level else "") + str(n.module) for n in imports for a in n.names}
