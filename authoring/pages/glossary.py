"""glossary.md: the terms of the course, one line each, with links to the sections that explain them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from authoring.lesson import Lesson, LessonError

FILE = "glossary.md"
SOURCE = Path(__file__).with_name("glossary.toml")


def terms(lessons: Sequence[Lesson]) -> list[tuple[str, str, Lesson, str]]:
    """Return (term, its line, the lesson, the heading) in alphabetical order, for terms explained in these lessons.

    Raises:
        LessonError: If a lesson lacks the heading, or its text never uses the term.
    """
    by_label = {lesson.label: lesson for lesson in lessons}
    found = []
    for term, line, label, heading in tomllib.loads(SOURCE.read_text(encoding="utf-8"))["terms"]:
        if label in by_label:
            lesson = _explaining(by_label[label], heading)
            lesson.heading(heading)
            if term.lower() not in lesson.text.lower():
                raise LessonError(f"{SOURCE.name}: {lesson.name} never says {term!r}")
            found.append((term, line, lesson, heading))
    return sorted(found, key=lambda item: item[0].lower())


def aliases(*kinds: str) -> dict[str, list[str]]:
    """Return alternative words for each term.

    Args:
        kinds: Names of tables in the file. `aliases` contains other names that the page shows; `searched` contains
            words that only the search treats like the term.
    """
    tables = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for term, words in [entry for kind in kinds for entry in tables[kind].items()]:
        found.setdefault(term, []).extend(words)
    return found


def _explaining(lesson: Lesson, heading: str) -> Lesson:
    deeper = lesson.deeper
    return deeper if deeper and heading in [there.text for there in deeper.headings] else lesson


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page as Markdown."""
    also = {term: f" ({', '.join(names)})" for term, names in aliases("aliases").items()}
    rows = [
        f"| **{term}**{also.get(term, '')} | {line} "
        f"| {lesson.link(f'{lesson.label}: {heading}', lesson.heading(heading).cell)} |"
        for term, line, lesson, heading in terms(lessons)
    ]
    parts = [
        "# Glossary",
        f"This page explains the {len(rows)} terms of the course in one line each and links to the sections that "
        "introduce them. Symbols are in [the notation](notation.md). Other names for a term are in brackets, and the "
        "search finds them too.",
        "\n".join(["| term | in a line | explained in |", "|---|---|---|", *rows]),
    ]
    return "\n\n".join(parts) + "\n"
