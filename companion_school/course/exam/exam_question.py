"""What a question of an examination is, with the numbers of one paper, and its key."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "reason", "code"]
KINDS: dict[Kind, str] = {"number": "a number", "reason": "a reason", "code": "a broken piece of code"}


@dataclass(frozen=True)
class Asked:
    """A question with the numbers of one paper. Texts are Markdown.

    text:    what is asked.
    key:     the way to the answer, or what a full answer says; for the marker alone.
    answer:  of a number: the number.
    code:    of a broken piece of code: as it is printed.
    mended:  the same, right.
    proof:   assertions that hold for the mended code and not for the broken one.
    """

    text: str
    key: str
    answer: float | None = None
    code: str = ""
    mended: str = ""
    proof: str = ""


@dataclass(frozen=True)
class Question:
    """A question of an examination.

    id:      "5.turn": lesson and name.
    points:  what it is worth; a point is about two minutes.
    make:    the question with numbers that a source of chance gives.
    """

    id: str
    kind: Kind
    points: int
    make: Callable[[random.Random], Asked]

    @property
    def lesson(self) -> int:
        return int(self.id.partition(".")[0])

    @property
    def minutes(self) -> int:
        return 2 * self.points


ASKED: dict[str, Question] = {}


def number(id: str, points: int = 3) -> Callable[[Callable[[random.Random], Asked]], None]:
    """Add a question for a number; the function makes it."""

    def add(make: Callable[[random.Random], Asked]) -> None:
        ASKED[id] = Question(id, "number", points, make)

    return add


def reason(id: str, text: str, key: str) -> None:
    """Add a question for a reason."""
    ASKED[id] = Question(id, "reason", 4, lambda draw: Asked(text, key))


def broken(id: str, text: str, code: str, mended: str, proof: str, key: str) -> None:
    """Add a piece of code with one fault: what is wrong with it, how it shows, and how it is mended."""
    code, mended, proof = code.strip(), mended.strip(), proof.strip()
    ask = f"{text} One line is wrong. Say which, what one would see, and write it as it should be."
    ASKED[id] = Question(id, "code", 4, lambda draw: Asked(ask, key, None, code, mended, proof))
