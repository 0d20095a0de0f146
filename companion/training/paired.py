"""Compare two models on the same questions: the paired difference, its interval, and McNemar's exact test."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Paired:
    """Counts of the questions that both of two models, only one of them, or neither answered correctly.

    Attributes:
        both: Number of questions that both models answered correctly.
        only_first: Number that only the first model answered correctly.
        only_second: Number that only the second model answered correctly.
        neither: Number that neither model answered correctly.

    Raises:
        ValueError: If a number is negative, or there are no questions.
    """

    both: int
    only_first: int
    only_second: int
    neither: int

    def __post_init__(self) -> None:
        counts = (self.both, self.only_first, self.only_second, self.neither)
        if min(counts) < 0 or sum(counts) == 0:
            raise ValueError(
                f"counts: expected four non-negative numbers that add up to at least one question, got {counts}"
            )

    @classmethod
    def of(cls, first: Iterable[bool], second: Iterable[bool]) -> Paired:
        """Count the answers of two models to the same questions, listed in the same order as right or wrong.

        Raises:
            ValueError: If the models have different numbers of answers, or no answers.
        """
        one, two = list(map(bool, first)), list(map(bool, second))
        if len(one) != len(two):
            raise ValueError(f"second: expected {len(one)} answers, as many as in first, got {len(two)}")
        pairs = list(zip(one, two, strict=True))
        return cls(*(pairs.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False))))

    @property
    def total(self) -> int:
        """Number of questions."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """The first model's fraction of right answers minus that of the second model."""
        return (self.only_first - self.only_second) / self.total

    @property
    def standard_error(self) -> float:
        """Standard error of the difference, from the variance over questions; each question contributes 1, 0 or -1."""
        discordant = (self.only_first + self.only_second) / self.total
        return math.sqrt(max(0.0, discordant - self.difference**2) / self.total)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval for the difference.

        The interval is the difference plus or minus z standard errors, after half a question has been added to each of
        the four counts (Agresti and Min 2005). Without this correction, the interval would be too short if there are
        few discordant questions, and would have length 0 if there are none.

        Raises:
            ValueError: Unless 0 < confidence < 1.
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence!r}: expected a probability between 0 and 1, both excluded")
        total = self.total + 2
        middle = (self.only_first - self.only_second) / total
        spread = math.sqrt(((self.only_first + self.only_second + 1) / total - middle**2) / total)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * spread
        return max(-1.0, middle - half), min(1.0, middle + half)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of McNemar's exact test, also called the sign test.

        Only the questions on which exactly one model is right count. If neither model were better, each of them would
        be right with probability 1/2 on each of these questions.
        """
        discordant = self.only_first + self.only_second
        most = max(self.only_first, self.only_second)
        tail = sum(math.comb(discordant, wins) for wins in range(most, discordant + 1))
        return min(1.0, 2 * tail / 2**discordant)
