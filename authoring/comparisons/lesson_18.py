"""Comparison for lesson 18: models trained with and without extra heads for later tokens."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.heads import AHEAD, BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def heads() -> Found:
    """Read the next-token loss on unseen stories from the record's runs, without and with extra heads."""
    run, found = Runs(Path("build/records/heads")), Found()
    for updates in BUDGETS:
        for count in (0, AHEAD):
            found[f"{count} heads", updates] = [run(count, start, updates)["loss"] for start in STARTS]
            print(row(f"{count} heads", f"{updates} updates", "nats a token", found[f"{count} heads", updates]))
    return found
