"""Record for lesson 22: AdamW and Muon at several learning rates, several widths with and without muP, and schedules.

The runs use the lesson's own `small_model`, `learn` and `loss_of`. Results are stored in `build/records/steps` and
reused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from authoring.records.stored import LessonRuns, stored

STARTS = (0, 1, 2)
CELLS = ("setup", "rung-orthogonal", "rung-muon", "sets-up-text", "small-model", "rates-of", "learn", "take-step")
RATES = {"AdamW": (0.003, 0.006, 0.012, 0.024, 0.048), "Muon": (0.01, 0.02, 0.04, 0.08, 0.16)}
BEST = {("AdamW", 100): 0.012, ("AdamW", 300): 0.012, ("Muon", 100): 0.04, ("Muon", 300): 0.02}
"""The best learning rate for each budget, tuned with the first seed. It is also run with the other seeds."""
WIDTHS, WIDE_RATES = (32, 128), (0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
CARRIED = {60: 0.064, 180: 0.016}
"""The narrow model's best learning rate at each budget, which the wide model uses with every seed."""
TUNED = 0.012
OTHER = {"rates": 0.03, "schedules": 0.03, "widths": None}
"""AdamW's learning rate for the embedding table, the head and the gains, whichever optimizer trains the other matrices.

`None` means the rate of those matrices.
"""


class Run(NamedTuple):
    """A run of the lesson's `learn`.

    Attributes:
        part: `"rates"`, `"schedules"` or `"widths"`.
        way: `"AdamW"`, `"Muon"` or `"muP"`.
        width: Width of the model.
        rate: Learning rate.
        updates: Number of updates.
        start: Seed for the weights and the order of the data.
        falls: Name of the schedule.
        long: Number of updates for which the schedule is planned; 0 means `updates`.
    """

    part: str
    way: str
    width: int
    rate: float
    updates: int
    start: int
    falls: str = "stable"
    long: int = 0


def asked() -> Iterator[Run]:
    """Yield all runs: every learning rate with the first seed, and the best rates with all seeds."""
    first = STARTS[0]
    for start in STARTS:
        for (way, updates), best in BEST.items():
            for rate in RATES[way] if start == first else (best,):
                yield Run("rates", way, 64, rate, updates, start)
        for updates in (100, 300) if start == first else ():
            for long in (0, 3 * updates):
                yield Run("schedules", "AdamW", 64, TUNED, updates, start, "cosine", long)
        for updates, carried in CARRIED.items():
            for rate in WIDE_RATES if start == first else (carried,):
                for way in ("AdamW", "muP"):
                    yield Run("widths", way, WIDTHS[1], rate, updates, start)
                if start == first:
                    yield Run("widths", "AdamW", WIDTHS[0], rate, updates, start)


class Runs(LessonRuns):
    """The lesson's training runs, whose results are stored in a folder."""

    number, cells = "22", CELLS

    def __call__(self, run: Run) -> dict[str, Any]:
        """Return a run's settings and its loss on unseen stories, in nats per token."""
        file = self.folder / ("-".join(map(str, run)) + ".json")

        def make() -> dict[str, Any]:
            lesson = self.lesson
            model = lesson["small_model"](run.start, run.width, run.way == "muP")
            long = {"updates": run.long or run.updates, "stop": run.updates}
            rest = {"other": OTHER[run.part]}
            lesson["learn"](model, run.start, rate=run.rate, way=run.way, falls=lesson[run.falls], **long, **rest)
            return run._asdict() | {"loss": round(lesson["loss_of"](model), 4)}

        return stored(file, make)


def steps(folder: Path) -> dict[str, Any]:
    """Return the record, which is a list of runs."""
    run = Runs(folder)
    return {"runs": [run(one) for one in asked()]}
