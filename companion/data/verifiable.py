"""Problems whose answers a function checks: what a reward is made of that nobody has to label (lesson 20).

A task is a small class: it draws problems, says how one is answered with its steps, and checks an answer. One problem
in ten, by its own number, is held out: nobody who trains is shown it.
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
    """What is asked, an answer with its steps, and what is right."""

    prompt: str
    worked: str
    right: int

    @property
    def straight(self) -> str:
        """The right answer without its steps."""
        return spaced(self.right)

    @property
    def held_out(self) -> bool:
        """Whether it is kept from training."""
        return zlib.crc32(self.prompt.encode()) % 10 == 0

    @property
    def messages(self) -> list[Message]:
        """The conversation that asks for it."""
        return [{"role": "user", "content": self.prompt}]


class Checkable(ABC):
    """A task whose answers can be checked."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def draw(self, random: np.random.Generator) -> Problem:
        """Some problem, held out or not."""

    @abstractmethod
    def reward(self, problem: Problem, answer: str) -> float:
        """1 for an answer that is right, 0 for any other."""

    @abstractmethod
    def wrong(self, problem: Problem, random: np.random.Generator) -> str:
        """An answer in the same form that is not right."""

    def problems(self, count: int, seed: int, *, held_out: bool = False) -> list[Problem]:
        """So many problems, the same for the same seed: held-out ones, or others alone."""
        random = np.random.default_rng(seed)
        found: list[Problem] = []
        while len(found) < count:
            if (problem := self.draw(random)).held_out == held_out:
                found.append(problem)
        return found


def spaced(number: int) -> str:
    """A number with its digits apart: a tokenizer that learned on prose would make one token of some of them."""
    return " ".join(str(number))


def number_in(answer: str) -> int | None:
    """The number that an answer ends with, behind its last semicolon; `None` where there is none."""
    digits = answer.rpartition(";")[2].replace(" ", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


@dataclass(frozen=True)
class Sums(Checkable):
    """The sum of two numbers of so many digits, column by column from the right, with what is carried.

    `4 7 + 3 8` is answered `7 + 8 = 1 5; 4 + 3 + 1 = 8; 8 5`; only what is behind the last semicolon is checked.
    """

    digits: int = 2
    name: ClassVar[str] = "sums"
    title: ClassVar[str] = "sums of two numbers, with steps"

    def draw(self, random: np.random.Generator) -> Problem:
        one, other = (int(number) for number in random.integers(10 ** (self.digits - 1), 10**self.digits, size=2))
        return Problem(f"{spaced(one)} + {spaced(other)}", self._worked(one, other), one + other)

    def reward(self, problem: Problem, answer: str) -> float:
        return float(number_in(answer) == problem.right)

    def wrong(self, problem: Problem, random: np.random.Generator) -> str:
        """The steps as they are, with another number behind them."""
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
    """The number of an English name below a million: `forty-seven thousand and two` is answered `4 7 0 0 2`.

    Raises `ValueError` where num2words is missing, which knows the names.
    """

    name: ClassVar[str] = "names"
    title: ClassVar[str] = "numbers of their English names"

    def __post_init__(self) -> None:
        try:
            import num2words  # noqa: F401
        except ImportError:
            raise ValueError("--task names needs num2words; pip install 'executable-transformer[school]'") from None

    def draw(self, random: np.random.Generator) -> Problem:
        from companion.data.number_names import language

        number = int(random.integers(10 ** int(random.integers(1, 7))))
        return Problem(language("en").name(number), spaced(number), number)

    def reward(self, problem: Problem, answer: str) -> float:
        return float(number_in(answer) == problem.right)

    def wrong(self, problem: Problem, random: np.random.Generator) -> str:
        """The number with one of its digits changed."""
        digits = [int(digit) for digit in str(problem.right)]
        place = int(random.integers(len(digits)))
        digits[place] = (digits[place] + int(random.integers(1, 10))) % 10
        return " ".join(map(str, digits))


CHECKABLE: dict[str, type[Checkable]] = {kind.name: kind for kind in (Sums, Names)}
"""Every such task, by its name."""


def checkable(name: str) -> Checkable:
    """The task of that name. Raises `ValueError` for another name."""
    if name not in CHECKABLE:
        raise ValueError(f"name={shown(name)}: expected one of {', '.join(CHECKABLE)}")
    return CHECKABLE[name]()
