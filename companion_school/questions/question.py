"""A question of a lesson, and what is right and wrong about an answer. `questions.json` holds all of them.

The lessons' sources are where a question is written; `make notebooks` collects them into the file, and a test asks
whether it is current.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from companion.ground.fields import shown
from companion_school.questions.numbers import read_number

Kind = Literal["choice", "number", "predict"]
KINDS: tuple[str, ...] = get_args(Kind)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Answer:
    """An answer that the question knows, and why it is right or wrong. Texts are Markdown.

    text:       of a choice; of a number, as it was written: "1.414".
    tolerance:  how far a number may be away.
    """

    text: str
    right: bool
    why: str
    tolerance: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What is said of an answer. `right` is None for a prediction, which only who made it can judge."""

    right: bool | None
    why: str


@dataclass(frozen=True)
class Question:
    """One question.

    id:         "2.a": lesson and letter, in the order of the lesson.
    name:       "size": what it is kept under, so that a question put in before it changes nothing.
    kind:       one of `KINDS`: choose one, give a number, or write down what you expect.
    answers:    of a choice all that are offered; of a number the right one and known mistakes; of a prediction none.
    otherwise:  what is said of a number that no answer matches.
    outcome:    of a prediction: what happens, to compare it with.
    choices:    of a prediction that can be graded: what may happen, in words to choose from; a lesson shows none of it.
    reasons:    and why, likewise.
    alone:      of a prediction's points in a problem set, those for the right choice with a wrong reason.
    html:       how a lesson shows it, without the script that makes it answer.
    """

    id: str
    name: str
    kind: Kind
    text: str
    answers: tuple[Answer, ...] = ()
    otherwise: str = ""
    outcome: str = ""
    choices: tuple[Answer, ...] = ()
    reasons: tuple[Answer, ...] = ()
    alone: int = 0
    html: str = field(default="", repr=False)

    @property
    def lesson(self) -> int:
        """The number of its lesson."""
        return int(self.id.split(".")[0])

    @property
    def key(self) -> str:
        """What the reader's answers are kept under."""
        return f"{self.lesson}/{self.name}"

    @property
    def right(self) -> Answer | None:
        """The right answer; None for a prediction."""
        return next((answer for answer in self.answers if answer.right), None)

    @property
    def is_gradable(self) -> bool:
        """Whether a machine can tell right from wrong: of a prediction, where choices and reasons are listed."""
        return self.kind != "predict" or bool(self.choices)

    def hint(self, wrong: Collection[str]) -> str:
        """Return what helps a reader who has given these wrong answers: which choices are left, or a range of numbers.

        Empty if no more can be said without giving the answer away.
        """
        if self.right is None:
            return ""
        if self.kind == "choice":
            left = [at for at, answer in enumerate(self.answers) if answer.right or LETTERS[at] not in wrong]
            kept = sorted([*[at for at in left if not self.answers[at].right][:1], self.answers.index(self.right)])
            return f"It is {LETTERS[kept[0]]} or {LETTERS[kept[1]]}." if len(kept) > 1 and len(left) > 2 else ""
        value = read_number(self.right.text)
        return f"It lies between {' and '.join(map(shown_number, around(value)))}." if value else "It is close to 0."

    def judge(self, given: str) -> Verdict:
        """What is to be said of an answer: a choice's letter, a number, or the text of a prediction.

        Raises `ValueError` if it is not of that kind.
        """
        given = str(given).strip()
        if self.kind == "predict":
            if not given:
                raise ValueError(f"question {self.id}: expected what you think will happen, got nothing")
            return Verdict(None, self.outcome)
        if self.kind == "choice":
            letters = LETTERS[: len(self.answers)]
            if len(given) != 1 or given.lower() not in letters:
                raise ValueError(f"question {self.id}: expected one of {', '.join(letters)}, got {given!r}")
            chosen = self.answers[letters.index(given.lower())]
            return Verdict(chosen.right, chosen.why)
        number = read_number(given)
        if number is None:
            raise ValueError(f"question {self.id}: expected a number, such as 0.25, 1/4 or e^2, got {given!r}")
        for known in self.answers:
            value = read_number(known.text)
            assert value is not None
            if math.isclose(number, value, rel_tol=1e-9, abs_tol=known.tolerance):
                return Verdict(known.right, known.why)
        return Verdict(False, self.otherwise)


def around(value: float) -> tuple[float, float]:
    """Return a range that holds a number and does not say which it is, with ends of one significant digit."""
    size = abs(value)
    step = 10.0 ** math.floor(math.log10(size / 2))
    low, high = math.floor(0.7 * size / step) * step, math.ceil(1.4 * size / step) * step
    return (low, high) if value > 0 else (-high, -low)


def shown_number(value: float) -> str:
    """Return a number as a reader writes it, with at most six significant digits."""
    return f"{value:.6g}".replace("-", "\u2212")


def from_json(entry: Mapping[str, Any]) -> Question:
    """The question of an entry of `questions.json`."""
    lists = {name: tuple(Answer(**answer) for answer in entry[name]) for name in ("answers", "choices", "reasons")}
    return Question(**{**entry, **lists})


@cache
def questions() -> dict[str, Question]:
    """Every question by its number, in the order of the course."""
    text = files(__package__).joinpath("questions.json").read_text(encoding="utf-8")
    return {entry["id"]: from_json(entry) for entry in json.loads(text)}


def find_question(id: str) -> Question:
    """The question of this number. Raises `ValueError` that lists the lesson's, or the lessons, if there is none."""
    known = questions()
    wanted = str(id).strip().lower()
    if wanted in known:
        return known[wanted]
    lesson = wanted.split(".")[0].lstrip("0") or "0"
    near = [key for key in known if key.split(".")[0] == lesson]
    lessons = sorted({key.split(".")[0] for key in known}, key=int)
    there = ", ".join(near) if near else f"a question of lessons {', '.join(lessons)}, as in 2.a"
    raise ValueError(f"question {shown(id)}: expected {'one of ' if near else ''}{there}")
