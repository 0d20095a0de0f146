"""The minutes that a lesson takes, estimated from its source rather than entered by hand.

Minutes of reading are visible words / 100 + visible lines of code / 10 + display equations / 2 + questions. Looking at
results takes another minute per still figure, two per interactive figure and a quarter per cell that prints. Waiting
times are those that cells declare (`:seconds: 40`). For ten lessons with measured reading times, these rates reproduce
the times to within three minutes.

The limit per lesson applies only to reading, but readers see the total. Cells with checks and text that the builder
inserts are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbformat import NotebookNode

from authoring import exercises
from authoring.markdown import DISPLAY, count_words, headings, without_code
from authoring.source import FOLDED, Source

WORDS, LINES, EQUATIONS = 100, 10, 2
FIGURE, MOVING, PRINTED = 1, 2, 0.25
LONGEST_LESSON, LONGEST_SITTING = 60, 20
"""Maximum minutes of reading for a lesson and for a sitting."""
LONGEST_IN_ALL = 26
"""Maximum minutes of a sitting with figures, outputs and waiting, as promised on the start page."""
_MOVES, _DRAWS, _PRINTS = (
    re.compile(rf"(?<![\w.]){what}\(") for what in (r"live\.\w+", r"figures\.show", r"(?:print|show)")
)


@dataclass
class Part:
    """A part of a lesson: everything under an H2 heading. The first part also includes everything above it.

    Attributes:
        title: Text of its heading.
        index: Index of the heading's cell, counted from 0.
        line: Line of the heading in its cell, counted from 0.
        words: Number of words to read.
        code_lines: Number of visible lines of code.
        equations: Number of display equations.
        asked: Numbers of its questions, such as "2.a".
        figures: Number of still figures.
        moving: Number of interactive figures.
        printing: Number of cells that print, not counting checks.
        seconds: Waiting time that its cells declare, in seconds.
    """

    title: str
    index: int
    line: int
    words: int = 0
    code_lines: int = 0
    equations: int = 0
    asked: list[str] = field(default_factory=list)
    figures: int = 0
    moving: int = 0
    printing: int = 0
    seconds: int = 0

    @property
    def reading(self) -> float:
        return self.words / WORDS + self.code_lines / LINES + self.equations / EQUATIONS + len(self.asked)

    @property
    def exact(self) -> float:
        shown = FIGURE * self.figures + MOVING * self.moving + PRINTED * self.printing
        return self.reading + shown + self.seconds / 60

    @property
    def minutes(self) -> int:
        return max(1, round(self.exact))

    @property
    def is_sitting(self) -> bool:
        return self.title.startswith("Sitting ")

    def __str__(self) -> str:
        return (
            f"{self.minutes} minutes: {self.words} words, {self.code_lines} lines of code, "
            f"{self.equations} equations, {len(self.asked)} questions: {self.reading:.0f} of reading; "
            f"{self.figures + self.moving} figures, {self.printing} cells that print, {self.seconds} seconds of waiting"
        )


def parts(source: Source) -> list[Part]:
    """Return the parts of a source in order, with their counts, or an empty list if the source has no H2."""
    second = [heading for heading in headings(source.cells) if heading.level == 2]
    found = [Part(heading.text, heading.index, heading.line) for heading in second]
    if not found:
        return []
    # readers do not read all of this list but choose from it
    listed = exercises.table(source.path.stem) if source.tables else None
    for index, cell in enumerate(source.cells):
        if index in source.questions:
            _at(found, index, 0).asked.append(source.questions[index].question.id)
        elif cell.cell_type == "code":
            _count_code(cell, _at(found, index, 0))
        else:
            _count(cell, index, found, listed or "\0")
    return found


def _at(found: Sequence[Part], index: int, line: int) -> Part:
    above = [part for part in found if (part.index, part.line) <= (index, line)]
    return above[-1] if above else found[0]


def _count_code(cell: NotebookNode, part: Part) -> None:
    part.seconds += int(cell.metadata.get("seconds", 0))
    if FOLDED not in cell.metadata.get("tags", []):
        part.code_lines += sum(1 for line in cell.source.split("\n") if line.strip())
    if cell.source.startswith("# checks"):
        return
    part.moving += bool(_MOVES.search(cell.source))
    part.figures += bool(_DRAWS.search(cell.source))
    part.printing += bool(_PRINTS.search(cell.source))


def _count(cell: NotebookNode, index: int, found: Sequence[Part], generated: str) -> None:
    rows = cell.source.split("\n")
    starts = sorted({0, *(part.line for part in found if part.index == index)})
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        text = without_code("\n".join(rows[start:end]).replace(generated, ""))
        part = _at(found, index, start)
        part.words += count_words(text.replace("{{ head }}", ""))
        part.equations += len(DISPLAY.findall(text))
