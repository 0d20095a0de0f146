"""What lesson 06 compares, with three starts and several budgets. Each function prints and returns what it found."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from authoring.comparisons.cells import names_of

STARTS, GUESSING = (0, 1, 2), 3.47
CELLS = ("setup", "sets-up-experiment", "forward", "train", "changed-home")
WAYS = ("post-norm", "pre-norm", "post-norm, small writes")
Losses = dict[tuple[str, float, int, int], dict[int, float]]


def _measure(cases: Sequence[tuple[str, str, float, int]], budgets: Sequence[int]) -> Losses:
    """The mean loss of the last five steps of each budget, by way and home, rate, warm-up and start; sixteen blocks."""
    lesson, found = SimpleNamespace(**names_of("06", *CELLS)), {}
    for way, home, rate, warmup in cases:
        code = lesson.forward if home == "as it is" else lesson.changed_home
        for start in STARTS:
            losses, _ = lesson.train(way, 16, start, rate, max(budgets), warmup, code)
            shown = {steps: sum(losses[steps - 5 : steps]) / 5 for steps in budgets}
            found[f"{way}, {home}", rate, warmup, start] = shown
            said = ", ".join(f"{loss:.2f} after {steps}" for steps, loss in shown.items())
            print(f"{way} ({home}), rate {rate:g}, warm-up {warmup}, start {start}: {said}", flush=True)
    return found


def rates() -> Losses:
    """The loss of the three ways against the rate, in few steps."""
    cases = [(way, "as it is", rate, 1) for rate in (3e-3, 1e-3, 1e-2, 3e-4) for way in WAYS]
    return _measure(cases, (50, 100))


def slow_and_warm() -> Losses:
    """Post-norm at lower rates, in 600 steps, and what a warm-up of 100 steps does at the middle one."""
    cases = [
        ("post-norm", "as it is", rate, warmup) for rate, warmup in ((3e-4, 1), (1e-3, 100), (1e-3, 1), (3e-3, 100))
    ]
    return _measure(cases, (50, 200, 400, 600))


def surgery() -> Losses:
    """Pre-norm with its identity path cut, post-norm with it opened."""
    return _measure([("pre-norm", "cut", 3e-3, 1), ("post-norm", "open", 3e-3, 1)], (50, 150))


def small_writes() -> Losses:
    """Post-norm with every write divided by the root of their number."""
    return _measure([("post-norm, small writes", "as it is", 3e-3, 1)], (50, 100, 150))
