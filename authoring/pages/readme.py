"""README.md: a cell of a lesson and the list of lessons, between marks; the rest is written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from authoring.lesson import ROOT, Lesson, LessonError

FILE = "../README.md"
BEGIN, END = "<!-- the lessons, by make notebooks -->", "<!-- end of the lessons -->"
CELL, END_CELL = "<!-- a cell of lesson 02, by make notebooks -->", "<!-- end of the cell -->"
SHOWN = (2, "measured-size")
"""The lesson, and the name of its cell."""


def table(lessons: Sequence[Lesson]) -> str:
    """The list: title, question, minutes."""
    lines = ["| lesson | question | minutes |", "|---|---|---|"]
    for lesson in lessons:
        link = f"[{lesson.label} {lesson.title}](notebooks/{lesson.name}.ipynb)"
        lines.append(f"| {link} | {lesson.question} | {lesson.minutes} |")
    hours = sum(lesson.minutes for lesson in lessons) / 60
    lines.append(f"| | all of them, without the exercises | {hours:.0f} hours |")
    return "\n".join(lines)


def excerpt(lessons: Sequence[Lesson]) -> str:
    """The cell `SHOWN`, and what it printed. Raises `LessonError` where there is none."""
    number, name = SHOWN
    cells = [cell for lesson in lessons if lesson.number == number for cell in lesson.built]
    for cell in cells:
        if cell.cell_type == "code" and cell.metadata.get("name") == name:
            printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
            return f"```python\n{cell.source}\n```\n\n```\n{printed.rstrip()}\n```"
    raise LessonError(f"README.md shows the cell {name!r} of lesson {number:02d}, and there is none")


def render(lessons: Sequence[Lesson]) -> str:
    """Return the README with both pieces made anew. Raises `LessonError` if a mark is missing."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = between(text, CELL, excerpt(lessons), END_CELL, "the cell of a lesson")
    return between(text, BEGIN, table(lessons), END, "the list of lessons")


def between(text: str, begin: str, new: str, end: str, what: str) -> str:
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise LessonError(f"the README: {what} stands between `{begin}` and `{end}`; one of them is missing")
    return f"{before}{begin}\n{new}\n{end}{after}"
