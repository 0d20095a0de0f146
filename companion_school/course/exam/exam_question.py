"""Examination questions, with numbers for one version of the paper and an entry in the marking key."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "reason", "code"]
KINDS: dict[Kind, str] = {"number": "a number", "reason": "a reason", "code": "a broken piece of code"}


@dataclass(frozen=True)
class Asked:
    """A question with the numbers for one version of the paper. Texts are Markdown.

    Attributes:
        text: The question.
        key: The derivation of the answer or the points of a complete answer, shown only to the marker.
        answer: The correct number, if the question asks for a number.
        code: The broken code as printed, if the question shows code.
        mended: The corrected code.
        proof: Assertions that hold for the corrected code and fail for the broken code.
    """

    text: str
    key: str
    answer: float | None = None
    code: str = ""
    mended: str = ""
    proof: str = ""


@dataclass(frozen=True)
class Question:
    """An examination question.

    Attributes:
        id: Lesson and name, as in "5.turn".
        points: Maximum points; a point is worth about two minutes.
        make: Function that builds the question with numbers from a random generator.
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
    """Register the decorated function as a question that asks for a number."""

    def add(make: Callable[[random.Random], Asked]) -> None:
        ASKED[id] = Question(id, "number", points, make)

    return add


def reason(id: str, text: str, key: str) -> None:
    """Register a question that asks for a reason."""
    ASKED[id] = Question(id, "reason", 4, lambda draw: Asked(text, key))


def broken(id: str, text: str, code: str, wrong: str, right: str, proof: str, key: str) -> None:
    """Register a question about code with one faulty line, which students must find, explain and correct.

    `wrong` is that line without its indentation, or the first of several equal ones, and `right` replaces it.
    """
    code = code.strip()
    ask = f"{text} One line is wrong. Say which one it is and how you would notice, and write the correct line."
    asked = Asked(ask, key, None, code, code.replace(wrong, right, 1), proof.strip())
    ASKED[id] = Question(id, "code", 4, lambda draw: asked)
