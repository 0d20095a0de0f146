"""A written answer: what is asked, and the rubric by which a person marks it. `items.toml` holds all of them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from companion.ground.display import count

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


@cache
def written_items() -> dict[str, Written]:
    """Every item by its number, in the order of the course."""
    told = tomllib.loads(files(__package__).joinpath("items.toml").read_text(encoding="utf-8"))
    made = {}
    for id, entry in sorted(told.items(), key=lambda pair: int(pair[0].split(".")[0])):
        levels = tuple(Level(**level) for level in entry.pop("levels"))
        texts = {name: entry.pop(name).strip() for name in ("prompt", "code", "model")}
        made[id] = Written(id=id, looks_for=tuple(entry.pop("looks_for")), levels=levels, **texts, **entry)
    return made


def find_written(id: str) -> Written:
    """The item of this number. Raises `ValueError` where there is none."""
    if id not in written_items():
        raise ValueError(f"written answer {id!r}: expected one of {', '.join(written_items())}")
    return written_items()[id]


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
