"""How many answers are right, whole, and how sure that makes us."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from companion.ground.display import count, table


def wilson(right: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval that holds the true share of right answers with `confidence` (Wilson 1927).

    It is all shares p from which the observed one, right / total, lies at most z standard deviations
    sqrt(p (1 - p) / total) away. Unlike the plain share plus or minus z of *its* deviations it stays within 0 and 1,
    and says something sensible of none or all right: of 20 out of 20, that the share may be as low as 84 %.

    Raises `ValueError` unless 0 <= right <= total, total >= 1 and 0 < confidence < 1.
    """
    if total < 1 or not 0 <= right <= total:
        raise ValueError(f"right={right!r}, total={total!r}: expected 0 <= right <= total and at least one in total")
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
    """Right answers and all answers, by the number of digits."""

    by_digits: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, answers: Iterable[tuple[int, bool]]) -> ExactMatch:
        """From (digits, right or not) of each answer. Raises `ValueError` for no answer."""
        counts: dict[int, tuple[int, int]] = {}
        for digits, right in answers:
            before = counts.get(digits, (0, 0))
            counts[digits] = (before[0] + right, before[1] + 1)
        if not counts:
            raise ValueError("answers: expected at least one, got none")
        return cls(dict(sorted(counts.items())))

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> ExactMatch:
        """What `result` gave."""
        return cls({int(digits): (right, total) for digits, (right, total) in result["by_digits"].items()})

    @property
    def right(self) -> int:
        """How many answers are right, whole."""
        return sum(right for right, _ in self.by_digits.values())

    @property
    def total(self) -> int:
        """How many answers there are."""
        return sum(total for _, total in self.by_digits.values())

    @property
    def share(self) -> float:
        """Right answers over all answers, from 0 to 1."""
        return self.right / self.total

    @property
    def scores(self) -> dict[str, float]:
        """What a run's log keeps."""
        return {"exact_match": self.share}

    @property
    def error(self) -> float:
        """Smaller is better: by this the best checkpoint is told."""
        return 1 - self.share

    def result(self) -> dict[str, Any]:
        """What a finished run keeps."""
        low, high = wilson(self.right, self.total)
        counts = {str(digits): list(pair) for digits, pair in self.by_digits.items()}
        return {**self.scores, "low": low, "high": high, "by_digits": counts}

    def table(self) -> str:
        """A line for each length and one for all, each with its 95 % interval."""
        rows = []
        pairs = {count(digits, "digit"): pair for digits, pair in self.by_digits.items()}
        for name, (right, total) in {**pairs, "all": (self.right, self.total)}.items():
            low, high = wilson(right, total)
            rows.append((f"  {name}", f"{right:,}", f"{total:,}", f"{right / total:.2%}", f"{low:.2%} to {high:.2%}"))
        head = ("exact match on held-out numbers", "right", "of", "share", "95 % interval")
        return table(rows, head, left=(0, 4), indent=0)

    def __str__(self) -> str:
        return f"{self.share:6.1%} right"
