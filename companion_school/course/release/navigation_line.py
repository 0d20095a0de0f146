"""The navigation line, which is the first and last cell of every notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["lesson", "deeper", "exercises"]
Titles = Mapping[int, tuple[str, str]]
"""The name of each lesson's notebook without suffix, and the lesson's title, keyed by lesson number."""

TAG = "navigation"
"""Tag of the cells with the line. The website leaves these cells out, because it has its own navigation."""
START, GLOSSARY = "start.ipynb", "glossary.md"


def exercises_of(number: int) -> str:
    """Return the path of a lesson's exercise notebook, relative to the folder of the lessons' notebooks."""
    return f"exercises/{number:02}_exercises.ipynb"


def deeper_of(number: int) -> str:
    """Return the path of a lesson's deeper notebook, relative to the folder of the lessons' notebooks."""
    return f"deeper/{number:02}_deeper.ipynb"


def navigation(kind: Kind, number: int, known: Titles, *, deeper: bool = False) -> str:
    """Return the navigation line in Markdown.

    It links to the previous notebook, the start page, the next lesson (except from a deeper notebook), the exercises,
    the deeper notebook and the glossary. Links to the notebook itself and links whose target does not exist are
    omitted.

    Args:
        kind: Kind of notebook that the line is for. For exercises and deeper notebooks, the previous notebook is their
            lesson's notebook.
        number: Number of the notebook's lesson.
        known: All lessons.
        deeper: True if the lesson has a deeper notebook.
    """
    up = "" if kind == "lesson" else "../"
    before, after = known.get(number - 1), known.get(number + 1)
    links = []
    if kind != "lesson" and number in known:
        links.append(f"[← lesson {number:02}: {known[number][1]}]({up}{known[number][0]}.ipynb)")
    elif kind == "lesson" and before:
        links.append(f"[← {number - 1:02} {before[1]}]({before[0]}.ipynb)")
    links.append(f"[Start]({up}{START})")
    if kind != "deeper" and after:
        links.append(f"[{number + 1:02} {after[1]} →]({up}{after[0]}.ipynb)")
    if kind != "exercises":
        links.append(f"[Exercises]({up}{exercises_of(number)})")
    if kind != "deeper" and deeper:
        links.append(f"[Deeper]({up}{deeper_of(number)})")
    links.append(f"[Glossary]({up}{GLOSSARY})")
    return " · ".join(links)
