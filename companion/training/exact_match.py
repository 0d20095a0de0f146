"""Exact match: count the answers that are entirely right, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from companion.ground.display import count, table


def wilson(right: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval that contains the true fraction of right answers with probability `confidence` (Wilson 1927).

    The interval consists of all fractions p that are at most z standard deviations sqrt(p (1 - p) / total) away from
    the observed fraction, right / total. Unlike the observed fraction plus or minus z of *its* standard deviations,
    this interval stays within 0 and 1, and it is informative even if all answers or none are right: with 20 out of 20,
    the true fraction may still be as low as 84 %.

    Raises:
        ValueError: unless 0 <= right <= total, total >= 1 and 0 < confidence < 1.
    """
    if total < 1 or not 0 <= right <= total:
        raise ValueError(f"right={right!r}, total={total!r}: expected 0 <= right <= total and total >= 1")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r}: expected a probability between 0 and 1, both excluded")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = right / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    low = 0.0 if right == 0 else max(0.0, middle - half)
    high = 1.0 if right == total else min(1.0, middle + half)
    return low, high


@dataclass(frozen=True)
class ExactMatch:
    """The numbers of right answers and of all answers, for each number of digits."""

    by_digits: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, answers: Iterable[tuple[int, bool]]) -> ExactMatch:
        """Count answers, given as pairs (digits, whether the answer is right). Raises `ValueError` if there are no
        answers."""
        counts: dict[int, tuple[int, int]] = {}
        for digits, right in answers:
            before = counts.get(digits, (0, 0))
            counts[digits] = (before[0] + right, before[1] + 1)
        if not counts:
            raise ValueError("answers: expected at least one, got none")
        return cls(dict(sorted(counts.items())))

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> ExactMatch:
        """Restore an instance from the value of its `result`."""
        return cls({int(digits): (right, total) for digits, (right, total) in result["by_digits"].items()})

    @property
    def right(self) -> int:
        """Number of answers that are entirely right."""
        return sum(right for right, _ in self.by_digits.values())

    @property
    def total(self) -> int:
        """Number of answers."""
        return sum(total for _, total in self.by_digits.values())

    @property
    def share(self) -> float:
        """Fraction of right answers, from 0 to 1."""
        return self.right / self.total

    @property
    def scores(self) -> dict[str, float]:
        """Scores for the run's log."""
        return {"exact_match": self.share}

    @property
    def error(self) -> float:
        """Score that selects the best checkpoint; smaller is better."""
        return 1 - self.share

    def result(self) -> dict[str, Any]:
        """Return the scores to store with a finished run."""
        low, high = wilson(self.right, self.total)
        counts = {str(digits): list(pair) for digits, pair in self.by_digits.items()}
        return {**self.scores, "low": low, "high": high, "by_digits": counts}

    def table(self) -> str:
        """Return a table with a line for each length and one for all lengths, each with a 95 % confidence interval."""
        rows = []
        pairs = {count(digits, "digit"): pair for digits, pair in self.by_digits.items()}
        for name, (right, total) in {**pairs, "all": (self.right, self.total)}.items():
            low, high = wilson(right, total)
            rows.append((f"  {name}", f"{right:,}", f"{total:,}", f"{right / total:.2%}", f"{low:.2%} to {high:.2%}"))
        head = ("exact match on held-out numbers", "right", "of", "share", "95 % interval")
        return table(rows, head, left=(0, 4), indent=0)

    def __str__(self) -> str:
        return f"{self.share:6.1%} right"
