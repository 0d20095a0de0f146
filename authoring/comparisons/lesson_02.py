"""Comparison for lesson 02: a head that learns to look up words, with scaled, unscaled and even smaller scores."""

from __future__ import annotations

import math
from types import SimpleNamespace

from authoring.comparisons.cells import names_of, row

SETTINGS = {"divided": (8, 1), "not divided": (1, 1), "W_q smaller": (1, 8)}


def root_or_not() -> dict[tuple[str, float], list[float]]:
    """Measure the number of steps until half of the answers are right, with three seeds and five learning rates.

    The number is infinity if a head never reaches half.
    """
    lesson, found = SimpleNamespace(**names_of("02", "setup", "answer", "learn")), {}
    for rate in (0.001, 0.002, 0.004, 0.008, 0.016):
        for setting, (divisor, smaller) in SETTINGS.items():
            shares = [lesson.learn(start, divisor, smaller, steps=560, lr=rate) for start in range(3)]
            for steps in (280, 560):
                right = [100 * share[steps // 20 - 1].item() for share in shares]
                print(row(f"{setting}, rate {rate}", f"{steps} steps", "right, of 100", right), flush=True)
            reached = [(share > 0.5).nonzero() for share in shares]
            half = [20.0 + 20 * steps[0, 0].item() if len(steps) else math.inf for steps in reached]
            print(row(f"{setting}, rate {rate}", "560 steps", "steps to one half", half), flush=True)
            found[setting, rate] = half
    return found
