"""Comparisons for lesson 18: models with and without extra heads, and MTP modules with and without a sampled token."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
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


def modules() -> Found:
    """Train MTP modules on the frozen model, reading the sampled token or the one before it, and measure acceptance."""
    lesson, found = names_of("18", "setup", "sets-up-text", "module", "teach"), Found()
    for updates in (100, 250):
        for drawn in (False, True):
            setting = f"{'drawn' if drawn else 'previous'} token"
            found[setting, updates] = []
            for start in STARTS:
                torch.manual_seed(start)
                module = lesson["NextModule"](lesson["writer"].config, drawn)
                found[setting, updates].append(lesson["teach"](module, updates, start))
            print(row(setting, f"{updates} updates", "accepted", found[setting, updates]), flush=True)
    return found
