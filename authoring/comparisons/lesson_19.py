"""Comparisons for lesson 19: ways of rounding."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records import rounding as rounded

Found = dict[tuple[str, int], list[float]]


def rounding() -> Found:
    """Read the increase (%) in bits per byte at 3 bits from the record's runs, with and without loud channels."""
    run, found = rounded.Runs(Path("build/records/rounding")), Found()
    for updates in rounded.BUDGETS:
        for title in ("plain model", "loud channels"):
            for way in rounded.WAYS:
                setting = f"{title}, {way}"
                found[setting, updates] = [run(start, updates)["more"][title][way] for start in rounded.STARTS]
                print(row(setting, f"{updates} updates", "percent more bits", found[setting, updates]), flush=True)
    return found
