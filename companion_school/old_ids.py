"""Old ids of exercises, questions and other items that have moved to another lesson.

Old ids still work wherever a reader or a course has stored them: in saved progress and answers, in calls of `check` in
an old copy of a notebook, in the schedule of `companion review`, and in the lists of a problem set. The old lesson
never reuses the number or letter of an item that has moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TypeVar

Entry = TypeVar("Entry")

MOVED: dict[str, str] = {
    # from lesson 14 to lesson 23
    "14.i": "23/follow",
    "14.j": "23/budget",
    "14.k": "23/half-way",
    # from lesson 19 to lesson 22
    "19.4": "22.1",
    "19.5": "22.2",
    "19.6": "22.3",
    "19.h": "22/after-five",
    "19.i": "22/orthogonal-number",
    "19.j": "22/decay-coupled",
    "19.k": "22/where-wide",
    "19.l": "22/noise-grows",
    "19.m": "22/transfer",
    "19.n": "22/schedule-choice",
    "19.o": "22/batch-gain",
    "19.muon": "22.muon",
}
"""Where each item has moved.

An entry is "19.4": "22.1" for an exercise, "19.h": "22/after-five" for a question (the new lesson, and the question's
name, which does not change), and "19.muon": "22.muon" for a written answer or an examination question. Saved answers to
a question remain under the key of its first lesson, here "19/after-five".
"""


def current(id: str) -> str:
    """Return the current id of an item; for a question that has moved, its lesson and name, as in "22/after-five"."""
    return MOVED.get(id, id)


def old_id(id: str) -> str | None:
    """Return the id that an item had before it moved, or None.

    Args:
        id: The current id; for a question, its lesson and name, as in "22/after-five".
    """
    return next((old for old, new in MOVED.items() if new == id), None)


def renamed(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return saved entries under their current ids. The entry under the current id takes precedence."""
    moved = {MOVED[id]: entry for id, entry in entries.items() if id in MOVED}
    return moved | {id: entry for id, entry in entries.items() if id not in MOVED}


def numbers(lesson: int) -> Iterator[str]:
    """Yield an endless sequence of ids for a lesson's exercises, skipping those that have moved away."""
    return (id for at in count(1) if (id := f"{lesson}.{at}") not in MOVED)


def letters(lesson: int) -> list[str]:
    """Return the possible ids of a lesson's questions in order, except those that have moved away."""
    return [id for letter in "abcdefghijklmnopqrstuvwxyz" if (id := f"{lesson}.{letter}") not in MOVED]
