"""How long a lesson takes, counted: nobody types minutes.

Words that are seen / 100 + lines of code that are seen / 10 + display equations / 2 + questions. Not counted: what is
folded, what is printed, and what the builder writes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nbformat import NotebookNode

from authoring import exercises
from authoring.markdown import DISPLAY, count_words, headings, without_code
from authoring.source import FOLDED, Source

WORDS, LINES, EQUATIONS = 100, 10, 2
LONGEST_LESSON, LONGEST_SITTING = 60, 20


@dataclass
class Part:
    """A part of a lesson: what stands under a heading of the second level; the first one also what stands above it.

    index, line:  where its heading stands: the cell, and the line of the cell, from 0.
    asked:        the numbers of its questions: "2.a".
    """

    title: str
    index: int
    line: int
    words: int = 0
    code_lines: int = 0
    equations: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def exact(self) -> float:
        return self.words / WORDS + self.code_lines / LINES + self.equations / EQUATIONS + len(self.asked)

    @property
    def minutes(self) -> int:
        return max(1, round(self.exact))

    @property
    def is_sitting(self) -> bool:
        return self.title.startswith("Sitting ")

    def __str__(self) -> str:
        return (
            f"{self.minutes} minutes: {self.words} words, {self.code_lines} lines of code, "
            f"{self.equations} equations, {len(self.asked)} questions"
        )


def parts(source: Source) -> list[Part]:
    """The parts of a source, in order, with what is counted in each. None for a source without H2."""
    second = [heading for heading in headings(source.cells) if heading.level == 2]
    found = [Part(heading.text, heading.index, heading.line) for heading in second]
    if not found:
        return []
    listed = exercises.table(source.path.stem) if source.tables else None  # a list to choose from, not to read
    for index, cell in enumerate(source.cells):
        if index in source.questions:
            _at(found, index, 0).asked.append(source.questions[index].question.id)
        elif cell.cell_type == "code":
            if FOLDED not in cell.metadata.get("tags", []):
                _at(found, index, 0).code_lines += sum(1 for line in cell.source.split("\n") if line.strip())
        else:
            _count(cell, index, found, listed or "\0")
    return found


def _at(found: Sequence[Part], index: int, line: int) -> Part:
    above = [part for part in found if (part.index, part.line) <= (index, line)]
    return above[-1] if above else found[0]


def _count(cell: NotebookNode, index: int, found: Sequence[Part], generated: str) -> None:
    rows = cell.source.split("\n")
    starts = sorted({0, *(part.line for part in found if part.index == index)})
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        text = without_code("\n".join(rows[start:end]).replace(generated, ""))
        part = _at(found, index, start)
        part.words += count_words(text.replace("{{ head }}", ""))
        part.equations += len(DISPLAY.findall(text))
