"""Comparisons for lesson 17: the recall of one layer, and how well a table stores random pairs."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.recall import BUDGETS, KINDS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def recall() -> Found:
    """Read right answers per 100 with 32 pairs from the record's runs, by kind and updates.

    The pairs are told once, or half of them are told again.
    """
    run, found = Runs(Path("build/records/recall")), Found()
    for updates in BUDGETS:
        for kind in KINDS:
            for again, words in ((0, "once"), (16, "half again")):
                setting = f"{kind}, {words}"
                right = [run(kind, start)["right"][str(updates)] for start in STARTS]
                found[setting, updates] = [
                    share for of in right for pairs, twice, share in of if (pairs, twice) == (32, again)
                ]
                print(row(setting, f"{updates} updates", "right in 100", found[setting, updates]), flush=True)
    return found


def signs() -> Found:
    """Measure right signs per 100 of all pairs and of the last four, by adding and by the delta rule."""
    lesson, found = names_of("17", "setup", "sets-up-signs"), Found()
    for pairs in (16, 32):
        for name, delta in (("adding", False), ("delta rule", True)):
            each = []
            for start in STARTS:
                torch.manual_seed(start)
                each.append(lesson["signs_right"](pairs, delta))
            for which, share in enumerate(("all", "the last four")):
                found[f"{name}, {share}", pairs] = [one[which] for one in each]
                print(row(f"{name}, {share}", f"{pairs} pairs", "right in 100", found[f"{name}, {share}", pairs]))
    return found


def gates() -> Found:
    """Measure right signs per 100 of a new chapter, with the old one in the table and with a gate that empties it."""
    lesson, found = names_of("17", "setup", "sets-up-chapters"), Found()
    for old in (40, 80):
        for name, delta in (("adding", False), ("delta rule", True)):
            for gate in (False, True):
                setting = f"{name}{', gate' if gate else ''}"
                found[setting, old] = []
                for start in STARTS:
                    torch.manual_seed(start)
                    found[setting, old].append(lesson["chapter_right"](delta, gate, old=old))
                print(row(setting, f"{old} old pairs", "right in 100", found[setting, old]))
    return found
