"""Comparisons for lesson 19: ways of rounding."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import names_of, row
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


def aware() -> Found:
    """Compute bits per byte with weights of 2 bits, rounded after training and in training (the lesson's own cells)."""
    cells = ("setup", "rung-rounding", "measure", "small-model", "learn", "take-step", "through", "aware-training")
    after, found = names_of("19", *cells)["after"], Found()
    for updates in dict.fromkeys(updates for updates, _ in after):
        runs = [bits for (budget, _), bits in after.items() if budget == updates]
        for way, values in zip(("32 bits", "rounded", "aware"), map(list, zip(*runs, strict=True)), strict=True):
            found[way, updates] = values
            print(row(way, f"{updates} updates", "bits per byte", values), flush=True)
    return found
