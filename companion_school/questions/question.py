"""The lessons' questions, and the grading of answers.

Questions are written in the lessons' sources. `make notebooks` collects them in `questions.json`, and a test checks
that the file is up to date.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from companion.ground.fields import shown
from companion_school.old_ids import current, old_id
from companion_school.questions.numbers import read_number

Kind = Literal["choice", "number", "predict"]
KINDS: tuple[str, ...] = get_args(Kind)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Answer:
    """A known answer to a question, and why it is right or wrong. Texts are Markdown.

    Attributes:
        text: Text of a choice, or a number as written in the lesson's source, such as "1.414".
        right: True if the answer is right.
        why: Explanation of why it is right or wrong.
        tolerance: Absolute tolerance of a number.
    """

    text: str
    right: bool
    why: str
    tolerance: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Judgment of an answer. `right` is None for a prediction, which only the reader can judge."""

    right: bool | None
    why: str


@dataclass(frozen=True)
class Question:
    """A question of a lesson.

    Attributes:
        id: Lesson and letter, as in "2.a"; letters follow the order in the lesson.
        name: Name under which the answers are stored, such as "size". It stays the same when another question is
            inserted before this one.
        kind: One of `KINDS`: choose an answer, give a number, or predict an outcome.
        text: The question, in Markdown.
        answers: All choices, or the right number and known mistakes; empty for a prediction.
        otherwise: Feedback on a number that matches none of the answers.
        outcome: The actual outcome, with which readers compare their prediction.
        choices: Possible outcomes, if a prediction can be graded. Only problem sets show them.
        reasons: Possible reasons, if a prediction can be graded. Only problem sets show them.
        alone: Points that a problem set gives for the right choice with the wrong reason.
        html: HTML shown in the lesson, without the script that handles answers.
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
        """The number of the question's lesson."""
        return int(self.id.split(".")[0])

    @property
    def key(self) -> str:
        """The key under which answers are stored, such as "2/size", with the lesson that first asked the question."""
        first = old_id(self.place) or self.id
        return f"{first.split('.')[0]}/{self.name}"

    @property
    def place(self) -> str:
        """The question's lesson and name, such as "2/size"."""
        return f"{self.lesson}/{self.name}"

    @property
    def right(self) -> Answer | None:
        """The right answer, or None for a prediction."""
        return next((answer for answer in self.answers if answer.right), None)

    @property
    def is_gradable(self) -> bool:
        """True if answers can be graded automatically. A prediction can be graded only if it lists choices."""
        return self.kind != "predict" or bool(self.choices)

    def hint(self, wrong: Collection[str]) -> str:
        """Return a hint for a reader who has given these wrong answers.

        For a multiple-choice question, the hint narrows the answer down to two of the remaining choices. For a numeric
        question, it gives a range. The hint is empty for a prediction, or if it would give away the answer.
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
        """Judge an answer.

        Args:
            given: The letter of a choice, a number, or the text of a prediction.

        Raises:
            ValueError: The answer has the wrong form for this question.
        """
        given = str(given).strip()
        if self.kind == "predict":
            if not given:
                raise ValueError(f"question {self.id}: expected your prediction, got nothing")
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
    """Return a range that contains a number without revealing it.

    The range extends from about 0.7 to about 1.4 times the number, and its ends are rounded outwards.

    Args:
        value: The number, which must not be 0.
    """
    size = abs(value)
    step = 10.0 ** math.floor(math.log10(size / 2))
    low, high = math.floor(0.7 * size / step) * step, math.ceil(1.4 * size / step) * step
    return (low, high) if value > 0 else (-high, -low)


def shown_number(value: float) -> str:
    """Format a number with up to six significant digits, a typographic minus sign and no exponent."""
    return f"{Decimal(f'{value:.6g}'):f}".replace("-", "\u2212")


def from_json(entry: Mapping[str, Any]) -> Question:
    """Build a question from an entry of `questions.json`."""
    lists = {name: tuple(Answer(**answer) for answer in entry[name]) for name in ("answers", "choices", "reasons")}
    return Question(**{**entry, **lists})


@cache
def questions() -> dict[str, Question]:
    """Return all questions, keyed by id, in course order."""
    text = files(__package__).joinpath("questions.json").read_text(encoding="utf-8")
    return {entry["id"]: from_json(entry) for entry in json.loads(text)}


def find_question(id: str) -> Question:
    """Return the question with this id, which may be its old id if the question has moved to another lesson.

    Raises:
        ValueError: There is no such question. The message lists the lesson's questions or, if the lesson has no
            questions, the lessons that do.
    """
    known = questions()
    wanted = str(id).strip().lower()
    if (found := known.get(wanted)) is not None:
        return found
    for question in known.values():
        if question.place == current(wanted):
            return question
    lesson = wanted.split(".")[0].lstrip("0") or "0"
    near = [key for key in known if key.split(".")[0] == lesson]
    lessons = sorted({key.split(".")[0] for key in known}, key=int)
    there = ", ".join(near) if near else f"a question from lessons {', '.join(lessons)}, such as 2.a"
    raise ValueError(f"question {shown(id)}: expected {'one of ' if near else ''}{there}")
