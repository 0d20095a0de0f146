"""README.md: its list of lessons, written between two marks; the rest of it is by hand."""

from __future__ import annotations

from collections.abc import Sequence

from authoring.lesson import ROOT, Lesson, LessonError

FILE = "../README.md"
BEGIN, END = "<!-- the lessons, by make notebooks -->", "<!-- end of the lessons -->"


def table(lessons: Sequence[Lesson]) -> str:
    """The list: title, question, minutes."""
    lines = ["| lesson | question | minutes |", "|---|---|---|"]
    for lesson in lessons:
        link = f"[{lesson.label} {lesson.title}](notebooks/{lesson.name}.ipynb)"
        lines.append(f"| {link} | {lesson.question} | {lesson.minutes} |")
    hours = sum(lesson.minutes for lesson in lessons) / 60
    lines.append(f"| | all of them, without the exercises | {hours:.0f} hours |")
    return "\n".join(lines)


def render(lessons: Sequence[Lesson]) -> str:
    """The README with a fresh list.

    Raises:
        LessonError: one of the two marks is missing.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LessonError(
            f"README.md: the list of lessons stands between `{BEGIN}` and `{END}`; one of them is missing"
        )
    return f"{before}{BEGIN}\n{table(lessons)}\n{END}{after}"
