"""README.md, where the list of lessons is inserted between two marks. The rest of the file is written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from authoring.lesson import ROOT, Lesson, LessonError

FILE = "../README.md"
BEGIN, END = "<!-- the lessons, by make notebooks -->", "<!-- end of the lessons -->"


def table(lessons: Sequence[Lesson]) -> str:
    """Return the list of lessons with titles, questions and minutes."""
    lines = ["| lesson | question | minutes |", "|---|---|---|"]
    for lesson in lessons:
        link = f"[{lesson.label} {lesson.title}](notebooks/{lesson.name}.ipynb)"
        lines.append(f"| {link} | {lesson.question} | {lesson.minutes} |")
    hours = sum(lesson.minutes for lesson in lessons) / 60
    lines.append(f"| | all of them, without the exercises | {hours:.0f} hours |")
    return "\n".join(lines)


def render(lessons: Sequence[Lesson]) -> str:
    """Return the README with an up-to-date list.

    Raises:
        LessonError: If a mark is missing.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return between(text, BEGIN, table(lessons), END, "the list of lessons")


def between(text: str, begin: str, new: str, end: str, what: str) -> str:
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise LessonError(f"README: {what} belongs between `{begin}` and `{end}`; one of these marks is missing")
    return f"{before}{begin}\n{new}\n{end}{after}"
