"""Moving figure of two models on the same questions, with unpaired and paired confidence intervals (lesson 25)."""

from __future__ import annotations

import math

from companion_school.study import figures
from companion_school.study.live import moving

QUESTIONS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
POINTS = (1, 2, 3, 5, 10)
DIFFER = (5, 10, 20, 30, 45)
"""Percentages of questions that exactly one of the two models answers correctly."""
Z = 1.96


def comparing(
    *, first: float = 0.6, questions: int = 400, points: int = 5, differ: int = 10, caption: str = ""
) -> None:
    """Show two scores with their 95 % intervals, and the unpaired and paired 95 % intervals of their difference.

    The scores are p = `first` and q = `first` plus `points`. The unpaired standard error of the difference is sqrt((p
    (1 - p) + q (1 - q)) / questions); the paired one is sqrt((differ - difference^2) / questions).

    Args:
        first: Accuracy of the first model.
        questions: Initial number of questions, from `QUESTIONS`.
        points: Initial lead of the second model in percentage points, one of `POINTS`.
        differ: Initial percentage of questions that exactly one of the models answers correctly, one of `DIFFER`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: `first` is not between 0.25 and 0.75, an initial value is not on its slider, or `points` exceeds
            `differ`.
    """
    if not 0.25 <= first <= 0.75:
        raise ValueError(f"first: expected a share from 0.25 to 0.75, got {first}")
    for name, value, known in (
        ("questions", questions, QUESTIONS), ("points", points, POINTS), ("differ", differ, DIFFER),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, known))}, got {value}")
    if points > differ:
        raise ValueError(f"points: expected at most differ={differ}, got {points}")
    gap = points / 100
    shares = (first, first + gap)
    alone = [math.sqrt(p * (1 - p) / questions) for p in shares]
    errors = {"unpaired": math.hypot(*alone), "paired": math.sqrt(max(0.0, differ / 100 - gap**2) / questions)}
    ends = [(100 * share, 100 * Z * error) for share, error in zip(shares, alone, strict=True)]
    ends += [(points, 100 * Z * error) for error in errors.values()]
    fig, (left, right) = figures.subplots(1, 2, width=8.4, height=2.8)
    for at, (middle, wide) in enumerate(ends[:2]):
        left.errorbar(middle, -at, xerr=wide, fmt="o", color=figures.PALETTE["blue"], capsize=4)
    left.set(xlabel="% right", ylabel="model", ylim=(-1.6, 0.6))
    left.set_yticks([0, -1], ["first", "second"])
    for at, (middle, wide) in enumerate(ends[2:]):
        right.errorbar(middle, -at, xerr=wide, fmt="s", color=figures.PALETTE["red"], capsize=4)
    right.axvline(0, color="black", linestyle="--", linewidth=1)
    right.set(xlabel="difference in points", ylabel="interval", ylim=(-1.6, 0.6))
    right.set_yticks([0, -1], list(errors))
    moving.show(
        "comparing",
        {"first": first, "questions": QUESTIONS, "points": POINTS, "differ": DIFFER,
         "start": [questions, points, differ]},
        fig,
        alt="Left, the scores of two models with their intervals, which overlap. Right, two intervals of their "
        "difference: the unpaired one is wide and contains zero, the paired one is short. They move with the number "
        "of questions, the difference, and how often only one model is right.",
        caption=caption,
        numbers={"interval": ["first model", "second model", "unpaired difference", "paired difference"],
                 "low": [round(middle - wide, 1) for middle, wide in ends],
                 "high": [round(middle + wide, 1) for middle, wide in ends]},
    )  # fmt: skip
