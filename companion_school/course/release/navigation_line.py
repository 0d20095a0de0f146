"""The line at both ends of every notebook: where a reader may go from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["lesson", "deeper", "exercises"]
Titles = Mapping[int, tuple[str, str]]
"""The lessons by number: the name of each one's notebook without its ending, and its title."""

TAG = "navigation"
"""The tag of the cells that hold the line. The pages of the site leave them out: they have a way of their own."""
START, GLOSSARY = "start.ipynb", "glossary.md"


def exercises_of(number: int) -> str:
    """Where the notebook of a lesson's exercises is, from the folder of the lessons' notebooks."""
    return f"exercises/{number:02}_exercises.ipynb"


def deeper_of(number: int) -> str:
    """Where the deeper notebook of a lesson is, from the folder of the lessons' notebooks."""
    return f"deeper/{number:02}_deeper.ipynb"


def navigation(kind: Kind, number: int, known: Titles, *, deeper: bool = False) -> str:
    """The line in Markdown: previous, start, next, exercises, deeper, glossary. What is not there is left out.

    kind     of the notebook that the line is for; from a lesson's deeper notebook and its exercises the lesson is
             what came before
    number   of its lesson
    known    all lessons
    deeper   whether the lesson has a deeper notebook
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
