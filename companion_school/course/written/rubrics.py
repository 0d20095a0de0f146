"""A written answer: what is asked, and the rubric by which a person marks it. `items.toml` holds all of them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from companion.ground.display import count
from companion.ground.fields import why
from companion.ground.reading import read_text

MARK = "Your answer to "
"""What the line begins with under which a student writes; the item's number follows."""


@dataclass(frozen=True)
class Level:
    """What an answer has that is worth so many points."""

    points: int
    text: str


@dataclass(frozen=True)
class Written:
    """One item.

    id:         "14.curves": lesson and name.
    prompt:     what is asked, in Markdown.
    code:       what the student runs first; may be empty.
    model:      an answer of the highest level, for the marker.
    looks_for:  what a marker looks for, in a line each.
    levels:     the rubric, the highest level first.
    """

    id: str
    title: str
    minutes: int
    prompt: str
    code: str
    model: str
    looks_for: tuple[str, ...]
    levels: tuple[Level, ...]

    @property
    def points(self) -> int:
        """What the highest level is worth."""
        return self.levels[0].points

    def level(self, points: float) -> Level:
        """The level that is worth so much. Raises `ValueError` where there is none."""
        found = next((level for level in self.levels if level.points == points), None)
        if found is None:
            offered = ", ".join(str(level.points) for level in reversed(self.levels))
            raise ValueError(f"expected points of one of the rubric's levels, {offered}; got {points:g}")
        return found


def is_written(id: str) -> bool:
    """Whether a number is a written answer's, as in "14.curves"."""
    return re.fullmatch(r"\d{1,2}\.[a-z][a-z-]+", id) is not None


_OWN: dict[str, Written] = {}


def written_items() -> dict[str, Written]:
    """Every item by its number, in the order of the course: the course's own, and those that were added."""
    both = _items_in(files(__package__).joinpath("items.toml").read_text(encoding="utf-8")) | _OWN
    return dict(sorted(both.items(), key=lambda pair: int(pair[0].split(".")[0])))


def add_items(file: Path) -> None:
    """Add an instructor's own items; the form is that of the course's, `items.toml` in this folder.

    Raises:
        ValueError: the file cannot be read, lacks something, has a number that is none or is taken, or levels that do
            not go down to 0.
    """
    try:
        made = _items_in(read_text(file))
    except (OSError, UnicodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"--own-items {file}: expected items as in companion_school/course/written/items.toml "
                         f"({why(error)})") from None  # fmt: skip
    for id, item in made.items():
        points = [level.points for level in item.levels]
        if not is_written(id) or id in _items_in(files(__package__).joinpath("items.toml").read_text("utf-8")):
            raise ValueError(
                f"--own-items {file}: the number of an item must be lesson and a new name, as in 14.mine, got {id!r}"
            )
        if len(points) < 2 or points[-1] != 0 or points != sorted(set(points), reverse=True):
            raise ValueError(f"--own-items {file}: {id}: the points of its levels must go down to 0, got {points}")
    _OWN.update(made)


@cache
def _items_in(text: str) -> dict[str, Written]:
    """The items of a file. Raises what a file raises that has something else in it."""
    made = {}
    for id, entry in tomllib.loads(text).items():
        levels = tuple(Level(**level) for level in entry.pop("levels"))
        texts: dict[str, Any] = {name: str(entry.pop(name, "")).strip() for name in ("prompt", "code", "model")}
        made[id] = Written(id=id, looks_for=tuple(entry.pop("looks_for", ())), levels=levels, **texts, **entry)
    return made


def find_written(id: str) -> Written:
    """The item of this number. Raises `ValueError` where there is none."""
    known = written_items()
    if id not in known:
        raise ValueError(f"written answer {id!r}: expected one of {', '.join(known)}")
    return known[id]


def rubric(item: Written) -> str:
    """The levels as a table in Markdown."""
    rows = [f"| {level.points} | {level.text} |" for level in item.levels]
    return "\n".join(["| points | the answer |", "|---:|---|", *rows])


def marking_page(item: Written) -> str:
    """What a marker needs beside the texts, in Markdown."""
    looks = "\n".join(f"- {line}" for line in item.looks_for)
    return (
        f"## {item.id} {item.title}\n\n*{count(item.points, 'point')}, about {count(item.minutes, 'minute')}.*\n\n"
        f"{item.prompt}\n\n**Rubric.** Give the highest level that the answer reaches, and a reason.\n\n"
        f"{rubric(item)}\n\n**Look for**\n\n{looks}\n\n**An answer of the highest level**\n\n{item.model}\n"
    )
