"""Comparisons for lesson 17: recall with one layer, random pairs in a table, and windowed layers in SmolLM2."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.recall import BUDGETS, KINDS, STARTS, Runs
from companion_school.study.real import real_model

Found = dict[tuple[str, int], list[float]]


def recall() -> Found:
    """Read the percentage of correct answers from the recorded runs, by layer type, number of pairs and updates.

    There are 4 or 32 pairs. Either all pairs are shown once, or half of them are shown twice.
    """
    run, found = Runs(Path("build/records/recall")), Found()
    for updates in BUDGETS:
        for kind in KINDS:
            right = [run(kind, start)["right"][str(updates)] for start in STARTS]
            for pairs in (4, 32):
                for again, words in ((0, "once"), (pairs // 2, "half again")):
                    setting = f"{kind}, {pairs} {words}"
                    found[setting, updates] = [
                        share for of in right for told, twice, share in of if (told, twice) == (pairs, again)
                    ]
                    print(row(setting, f"{updates} updates", "right in 100", found[setting, updates]), flush=True)
    return found


def signs() -> Found:
    """Measure how many of 100 signs are correct with addition and the delta rule, for all pairs and the last four."""
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
    """Measure how many of 100 signs are correct in a new chapter if a gate erases or keeps the old chapter."""
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


def windows() -> Found:
    """Count correct telephone numbers when some layers of SmolLM2 have a window, and measure the perplexity of a page.

    If the model is missing, the result is empty.
    """
    lesson, found = names_of("17", "setup", "looking", "sets-up-book"), Found()
    if (opened := real_model("smollm2")) is None:
        return found
    layers = {"all": range(30), "none": (), "every fourth": range(3, 30, 4), "all but 18": {*range(30)} - {18}}
    layers |= {"7, 8, 17, 18, 23": (7, 8, 17, 18, 23), "5 others": (4, 12, 15, 22, 26)}
    for near, count in ((64, 16), (128, 24)):
        for name, full in layers.items():
            right = lesson["numbers_right"](*opened, full, starts=STARTS, near=near, count=count)
            found[name, near] = [float(one) for one in right]
            page = torch.tensor([opened[1].encode(lesson["PAGE"])])
            loss = torch.nn.functional.cross_entropy(lesson["looking"](opened[0], page, full, near), page[0, 1:])
            print(row(name, f"window of {near}", f"right of {count}", found[name, near]), flush=True)
            print(row(name, f"window of {near}", "perplexity of a page", [loss.exp().item()]), flush=True)
    return found


def patterns() -> Found:
    """Count correct telephone numbers with full attention in every fourth or second layer, by the index of the first.

    All other layers of SmolLM2 have a window of 64 tokens. If the model is missing, the result is empty.
    """
    lesson, found = names_of("17", "setup", "looking", "sets-up-book"), Found()
    if (opened := real_model("smollm2")) is None:
        return found
    for every in (4, 2):
        for first in range(every):
            setting = f"layers {first}, {first + every}, ..."
            right = lesson["numbers_right"](*opened, range(first, 30, every), starts=STARTS)
            found[setting, every] = [float(one) for one in right]
            print(row(setting, f"one in {every}", "right of 16", found[setting, every]), flush=True)
    return found
