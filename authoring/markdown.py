"""Read the content of Markdown cells: headings, formulas, code and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from nbformat import NotebookNode

DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
TAG = re.compile(r"\\tag\{([^}]*)\}")
_CODE_IN_PROSE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<![\\$])\$(?!\$)[^$]+?(?<!\\)\$(?!\$)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Heading:
    """A heading in a lesson, with its position.

    Attributes:
        level: 1 to 6.
        text: The heading's text, as Markdown.
        index: Index of its cell, counted from 0.
        cell: The id of its cell.
        line: Line in the cell, counted from 0.
    """

    level: int
    text: str
    index: int
    cell: str
    line: int

    @property
    def part(self) -> str:
        """The heading's text before the colon, such as "Break it" in "Break it: a longer mask"."""
        return self.text.split(":")[0].strip()


def headings(cells: Sequence[NotebookNode]) -> Iterator[Heading]:
    """Yield the headings of the Markdown cells, in order."""
    for index, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            for level, text, line in _headings(cell.source):
                yield Heading(level, text, index, cell.id, line)


@cache
def _headings(text: str) -> list[tuple[int, str, int]]:
    """Return the level, text and line of each heading. The result is cached because every link to a cell needs it."""
    return [
        (int(opening.tag[1]), inline.content.strip(), opening.map[0] if opening.map else 0)
        for opening, inline in pairwise(PARSER.parse(text))
        if opening.type == "heading_open"
    ]


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables in a Markdown text, each as a list of rows of cells that begins with the header."""
    rows: list[list[str]] = []
    tokens = PARSER.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(tokens[at + 1].content.strip())
        elif token.type == "table_close":
            yield rows


def without_code(text: str) -> str:
    """Return Markdown with all code replaced by spaces, line by line, because code contains no formulas or images."""
    return _CODE_IN_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def in_prose(change: Callable[[str], str], text: str) -> str:
    """Apply `change` only to the prose in `text`, which excludes code, formulas, links, comments and headings."""
    kept: list[str] = []

    def put_away(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    heading = re.compile(r"^#{1,6} .*$", re.MULTILINE)
    for pattern in (_CODE_IN_PROSE, _COMMENT, DISPLAY, INLINE, heading, _LINK):
        text = pattern.sub(put_away, text)
    text = change(text)
    while "\0" in text:
        text = re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], text)
    return text


def formulas(text: str) -> list[tuple[int, str]]:
    """Return the formulas in a Markdown text without their dollars, and the line (from 0) at which each begins."""
    text = without_code(text)
    display = [(found.start(), found[1]) for found in DISPLAY.finditer(text)]
    blank = DISPLAY.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    inline = [(found.start(), found[0][1:-1]) for found in INLINE.finditer(blank)]
    return [(text.count("\n", 0, start), formula) for start, formula in sorted(display + inline)]


def count_words(text: str) -> int:
    """Count the words to read.

    An inline formula counts as one word and a display equation as none. Only the text of a link counts.
    """
    text = _COMMENT.sub(" ", DISPLAY.sub(" ", text))
    text = _LINK.sub(r"\1", INLINE.sub(" formula ", text))
    return len(re.findall(r"\S*\w\S*", text))


def equations(cells: Sequence[NotebookNode]) -> set[str]:
    """Return the numbers of all display equations, such as "2.4"."""
    texts = (without_code(cell.source) for cell in cells if cell.cell_type == "markdown")
    return {tag for text in texts for display in DISPLAY.findall(text) for tag in TAG.findall(display)}
