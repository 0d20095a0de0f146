"""What lesson 11 compares: mixtures and dense models that learn names, scored on names that none of them has read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from authoring.comparisons import Outcome, names_of

BUDGETS = (120, 360)
CELLS = ("setup", "sets-up-names", "sets-up-training", "sets-up-learn", "sets-up-step", "sets-up-race")


def _outcomes(kind: str, runners: Mapping[str, tuple[tuple[Any, ...] | None, int, float]]) -> Iterator[Outcome]:
    """runners: the experts, how many of them are visited and how many shared; d_ff; the weight of the balancing loss."""
    lesson = names_of("11", *CELLS)
    for setting, (sizes, d_ff, balance) in runners.items():
        moe = None if sizes is None else lesson["MoEConfig"](sizes[0], sizes[1], shared=sizes[2])
        runs = []
        for start in range(3):
            model = lesson["build"](moe, start, d_ff, kind)
            runs.append(lesson["learn"](model, start, balance, rate=6e-3, steps=max(BUDGETS), score=lesson["score"]))
        for budget in BUDGETS:
            values = tuple(run.unseen[budget] for run in runs)
            yield Outcome(setting, f"{budget} updates", "bits per unseen letter", values)


def gated() -> Iterator[Outcome]:
    """Gated networks: a mixture, dense models of equal active and equal total size, many small and shared experts."""
    runners: dict[str, tuple[tuple[Any, ...] | None, int, float]] = {
        "8 experts, top-2": ((8, 2, 0), 44, 0.02),
        "dense, equal active": (None, 88, 0.0),
        "dense, equal total": (None, 352, 0.0),
        "32 experts, top-8": ((32, 8, 0), 11, 0.02),
        "1 shared expert, 1 of 7": ((7, 1, 1), 44, 0.02),
    }
    yield from _outcomes("swiglu", runners)


def plain() -> Iterator[Outcome]:
    """The same with plain networks, and a control in which every letter visits all experts."""
    runners: dict[str, tuple[tuple[Any, ...] | None, int, float]] = {
        "8 experts, top-2": ((8, 2, 0), 64, 0.02),
        "8 experts, top-8": ((8, 8, 0), 64, 0.0),
        "dense, equal active": (None, 128, 0.0),
        "dense, equal total": (None, 512, 0.0),
    }
    yield from _outcomes("relu", runners)
