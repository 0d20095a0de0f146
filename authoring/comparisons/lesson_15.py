"""Comparisons for lesson 15: kinds of attention at equal bytes."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.cache import BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def kinds() -> Found:
    """Read the loss on unseen text from the record's runs, for each kind of attention and number of updates."""
    run, found = Runs(Path("build/records/cache")), Found()
    for updates, trained in BUDGETS.items():
        for kind in trained:
            found[kind, updates] = [run(kind, start, updates)["loss"] for start in STARTS]
            print(row(kind, f"{updates} updates", "nats a token", found[kind, updates]), flush=True)
    return found
