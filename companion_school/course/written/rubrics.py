"""Written answers: the prompts, and the rubrics for marking them. They are defined in `items.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from companion.ground.display import count
from companion.ground.fields import why
from companion.ground.reading import read_text
from companion_school.old_ids import current

MARK = "Your answer to "
"""Start of the line below which a student writes. It is followed by the item's number."""


@dataclass(frozen=True)
class Level:
    """A level of a rubric, with its points and a description of the answers at this level."""

    points: float
    text: str


@dataclass(frozen=True)
class Written:
    """A written answer, also called an item.

    Attributes:
        id: Lesson and name, as in "14.curves".
        title: Title of the item.
        minutes: Expected writing time, in minutes.
        prompt: The task, in Markdown.
        code: Code that the student runs first; may be empty.
        model: Model answer at the highest level, shown only to the marker.
        looks_for: Points that a marker should look for in an answer.
        levels: The rubric, from the highest level to the lowest.
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
    def points(self) -> float:
        """The maximum points."""
        return self.levels[0].points

    def level(self, points: float) -> Level:
        """Return the level worth this many points or, halfway between two levels, a level that names both.

        Raises:
            ValueError: The rubric has no such level.
        """
        between = [
            Level(
                (high.points + low.points) / 2, f"Between {low.points:g} ({low.text}) and {high.points:g} ({high.text})"
            )
            for high, low in pairwise(self.levels)
        ]
        found = next((level for level in (*self.levels, *between) if level.points == points), None)
        if found is None:
            offered = ", ".join(f"{level.points:g}" for level in reversed(self.levels))
            raise ValueError(
                f"expected the points of one of the rubric's levels ({offered}), or halfway between two, got {points:g}"
            )
        return found


def is_written(id: str) -> bool:
    """Return True if `id` looks like a written answer's id, as in "14.curves"."""
    return re.fullmatch(r"\d{1,2}\.[a-z][a-z-]+", id) is not None


_OWN: dict[str, Written] = {}


def written_items() -> dict[str, Written]:
    """Return all items, keyed by id, in course order. Items added by `add_items` are included."""
    both = _items_in(files(__package__).joinpath("items.toml").read_text(encoding="utf-8")) | _OWN
    return dict(sorted(both.items(), key=lambda pair: int(pair[0].split(".")[0])))


def add_items(file: Path) -> None:
    """Add an instructor's own items.

    Args:
        file: TOML file in the format of this folder's `items.toml`.

    Raises:
        ValueError: The file is unreadable or incomplete, an id is invalid or already used in the course, or the points
            for an item's levels do not decrease to 0.
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
                f"--own-items {file}: expected a lesson and a new word as the name of an item, as in 14.mine, "
                f"got {id!r}"
            )
        if len(points) < 2 or points[-1] != 0 or points != sorted(set(points), reverse=True):
            raise ValueError(f"--own-items {file}: {id}: the points of its levels must decrease to 0, got {points}")
    _OWN.update(made)


@cache
def _items_in(text: str) -> dict[str, Written]:
    """Parse items from TOML text. Invalid text raises various exceptions, which `add_items` catches."""
    made = {}
    for id, entry in tomllib.loads(text).items():
        _must_have(id, entry, ("title", "minutes", "prompt", "model", "levels"), ("code", "looks_for"))
        for level in entry["levels"]:
            _must_have(f"a level of {id}", level, ("points", "text"))
        levels = tuple(Level(**level) for level in entry.pop("levels"))
        texts: dict[str, Any] = {name: str(entry.pop(name, "")).strip() for name in ("prompt", "code", "model")}
        made[id] = Written(id=id, looks_for=tuple(entry.pop("looks_for", ())), levels=levels, **texts, **entry)
    return made


def _must_have(what: str, entry: Mapping[str, Any], needed: Sequence[str], also: Sequence[str] = ()) -> None:
    if missing := [name for name in needed if name not in entry]:
        raise ValueError(f"{what} has no {missing[0]}")
    if unknown := [name for name in entry if name not in (*needed, *also)]:
        raise ValueError(f"{what} has an unknown entry {unknown[0]}; expected only {', '.join((*needed, *also))}")


def find_written(id: str) -> Written:
    """Return the item with this id.

    Raises:
        ValueError: There is no such item.
    """
    known = written_items()
    if (found := known.get(current(id))) is None:
        raise ValueError(f"written answer {id!r}: expected one of {', '.join(known)}")
    return found


def rubric(item: Written) -> str:
    """Return an item's rubric as a Markdown table."""
    rows = [f"| {level.points} | {level.text} |" for level in item.levels]
    return "\n".join(["| points | the answer |", "|---:|---|", *rows])


def marking_page(item: Written) -> str:
    """Return the marker's page for an item in Markdown: prompt, rubric, hints and model answer."""
    looks = "\n".join(["**Look for**", "", *(f"- {line}" for line in item.looks_for), "", ""]) if item.looks_for else ""
    return (
        f"## {item.id} {item.title}\n\n*{count(item.points, 'point')}, about {count(item.minutes, 'minute')}.*\n\n"
        f"{item.prompt}\n\n**Rubric.** Give the highest level that the answer reaches, and a reason.\n\n"
        f"{rubric(item)}\n\n{looks}**An answer of the highest level**\n\n{item.model}\n"
    )
