"""Comparisons for lesson 22: optimizers at several learning rates, and models of several widths."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.steps import BEST, CARRIED, RATES, STARTS, WIDE_RATES, WIDTHS, Run, Runs

Found = dict[tuple[str, int], list[float]]


def _losses(run: Runs, setting: str, updates: int, found: Found, *of: Run) -> None:
    found[setting, updates] = [run(one)["loss"] for one in of]
    print(row(setting, f"{updates} updates", "nats a token", found[setting, updates]), flush=True)


def rates() -> Found:
    """Read the loss on unseen stories from the recorded runs, by optimizer and learning rate.

    The best rate was run with all seeds, and the other rates only with the first seed.
    """
    run, found = Runs(Path("build/records/steps")), Found()
    for (way, updates), best in BEST.items():
        for rate in RATES[way]:
            starts = STARTS if rate == best else STARTS[:1]
            _losses(run, f"{way} at {rate}", updates, found, *[Run("rates", way, 64, rate, updates, s) for s in starts])
    return found


def widths() -> Found:
    """Read the loss on unseen stories from the recorded runs, by width, method and learning rate.

    Wide models at the transferred rate were run with all seeds, and all others only with the first seed.
    """
    run, found = Runs(Path("build/records/steps")), Found()
    for updates, carried in CARRIED.items():
        for width, way in ((32, "AdamW"), (128, "AdamW"), (128, "muP")):
            for rate in WIDE_RATES:
                starts = STARTS if rate == carried and width > min(WIDTHS) else STARTS[:1]
                of = [Run("widths", way, width, rate, updates, start) for start in starts]
                _losses(run, f"{width}, {way} at {rate}", updates, found, *of)
    return found
