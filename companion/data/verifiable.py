"""Problems whose answers a function can check, so that rewards need no labels (lesson 20).

A task is a small class that draws problems, writes answers with their steps, and checks answers. One problem in ten,
chosen by a hash of its prompt, is held out and never used for training.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from companion.data.chat_template import Message
from companion.ground.fields import shown


class Problem(NamedTuple):
    """A question, an answer with its steps, and the right result."""

    prompt: str
    worked: str
    right: int

    @property
    def straight(self) -> str:
        """The right answer without its steps."""
        return spaced(self.right)

    @property
    def held_out(self) -> bool:
        """True if the problem is excluded from training."""
        return zlib.crc32(self.prompt.encode()) % 10 == 0

    @property
    def messages(self) -> list[Message]:
        """The conversation that poses the problem."""
        return [{"role": "user", "content": self.prompt}]


class Checkable(ABC):
    """A task whose answers can be checked."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def draw(self, random: np.random.Generator) -> Problem:
        """Draw a problem from either the held-out set or the training set."""

    def reward(self, problem: Problem, answer: str) -> float:
        """Return 1 for a right answer, and 0 for any other."""
        return float(number_in(answer) == problem.right)

    @abstractmethod
    def wrong(self, problem: Problem, random: np.random.Generator) -> str:
        """Return a wrong answer in the same form."""

    def problems(self, count: int, seed: int, *, held_out: bool = False) -> list[Problem]:
        """Draw `count` held-out problems or `count` training problems; the same seed gives the same problems."""
        random = np.random.default_rng(seed)
        found: list[Problem] = []
        while len(found) < count:
            if (problem := self.draw(random)).held_out == held_out:
                found.append(problem)
        return found


def spaced(number: int) -> str:
    """Return a number with spaces between its digits, because a tokenizer trained on prose would merge some of them."""
    return " ".join(str(number))


def number_in(answer: str) -> int | None:
    """Return the number after the last semicolon of an answer, or `None` if there is no number."""
    digits = answer.rpartition(";")[2].replace(" ", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


@dataclass(frozen=True)
class Sums(Checkable):
    """Add two numbers with `digits` digits each, column by column from the right with carries.

    The answer to `4 7 + 3 8` is `7 + 8 = 1 5; 4 + 3 + 1 = 8; 8 5`; only the text after the last semicolon is checked.
    """

    digits: int = 2
    name: ClassVar[str] = "sums"
    title: ClassVar[str] = "sums of two numbers, with steps"

    def draw(self, random: np.random.Generator) -> Problem:
        one, other = (int(number) for number in random.integers(10 ** (self.digits - 1), 10**self.digits, size=2))
        return Problem(f"{spaced(one)} + {spaced(other)}", self._worked(one, other), one + other)

    def wrong(self, problem: Problem, random: np.random.Generator) -> str:
        """Return an answer with the same steps, followed by a different number."""
        steps, _, _ = problem.worked.rpartition(";")
        shift = int(random.integers(1, 10)) * (-1) ** int(random.integers(2))
        return f"{steps}; {spaced(abs(problem.right + shift) or 1)}"

    def _worked(self, one: int, other: int) -> str:
        steps, carried = [], 0
        for a, b in zip(reversed(str(one)), reversed(str(other)), strict=True):
            column = int(a) + int(b) + carried
            steps.append(f"{a} + {b}{' + 1' if carried else ''} = {spaced(column)}")
            carried = column // 10
        return "; ".join([*steps, spaced(one + other)])


@dataclass(frozen=True)
class Names(Checkable):
    """Read English number names below a million: the answer to `forty-seven thousand and two` is `4 7 0 0 2`.

    Raises:
        ValueError: if num2words, which provides the names, is not installed.
    """

    name: ClassVar[str] = "names"
    title: ClassVar[str] = "numbers from their English names"

    def __post_init__(self) -> None:
        try:
            import num2words  # noqa: F401
        except ImportError:
            raise ValueError("--task names needs num2words; pip install 'executable-transformer[school]'") from None

    def draw(self, random: np.random.Generator) -> Problem:
        from companion.data.number_names import language

        number = int(random.integers(10 ** int(random.integers(1, 7))))
        return Problem(language("en").name(number), spaced(number), number)

    def wrong(self, problem: Problem, random: np.random.Generator) -> str:
        """Return the number with one of its digits changed."""
        digits = [int(digit) for digit in str(problem.right)]
        place = int(random.integers(len(digits)))
        digits[place] = (digits[place] + int(random.integers(1, 10))) % 10
        return " ".join(map(str, digits))


CHECKABLE: dict[str, type[Checkable]] = {kind.name: kind for kind in (Sums, Names)}
"""All checkable tasks by name."""


def checkable(name: str) -> Checkable:
    """Return the task with this name. Raises `ValueError` for an unknown name."""
    if name not in CHECKABLE:
        raise ValueError(f"name={shown(name)}: expected one of {', '.join(CHECKABLE)}")
    return CHECKABLE[name]()
