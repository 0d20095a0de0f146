"""Comparisons for lesson 15: kinds of attention at equal bytes, and a head with and without its mark."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.cache import BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def kinds() -> Found:
    """Read the loss on unseen text from the record's runs, by kind of attention and updates."""
    run, found = Runs(Path("build/records/cache")), Found()
    for updates, trained in BUDGETS.items():
        for kind in trained:
            found[kind, updates] = [run(kind, start, updates)["loss"] for start in STARTS]
            print(row(kind, f"{updates} updates", "nats a token", found[kind, updates]), flush=True)
    return found


def marks() -> Found:
    """Measure right answers per 100 for names that are absent: with the mark, without it, and with a learned sink."""
    lesson, found = names_of("15", "setup", "rung-sink", "sets-up-clerk", "sets-up-training"), Found()
    for updates in (200, 400):
        heads = [lesson["clerk"](start, updates) for start in STARTS]
        gated = [lesson["clerk"](start, updates, sink=True, mark=False) for start in STARTS]
        with torch.no_grad():
            of = lesson["right_of"]
            found["with the mark", updates] = [of(head)[1] for head in heads]
            found["without it", updates] = [of(head, mark=False)[1] for head in heads]
            found["a learned sink", updates] = [of(head, mark=False)[1] for head in gated]
        for setting in ("with the mark", "without it", "a learned sink"):
            print(row(setting, f"{updates} updates", "right in 100", found[setting, updates]), flush=True)
    return found
