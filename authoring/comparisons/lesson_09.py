"""Comparisons for lesson 09, with three seeds and two budgets. Each function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from authoring.comparisons.cells import names_of, row
from authoring.comparisons.translators import learning

STARTS, BUDGETS = (0, 1, 2), (200, 400)
CELLS = ("setup", "one-pass", "task", "both-lanes")
MOMENTS = (80, 100)
"""Updates at which scheduled sampling is judged."""


def curve() -> dict[tuple[int, int], dict[int, tuple[float, float, float]]]:
    """Measure the training loss, and the accuracy of tokens with teacher forcing and of names in free running.

    Returns:
        The three values after each update, by total number of updates and seed.
    """
    lesson, found = SimpleNamespace(**names_of("09", *CELLS)), {}
    held = lesson.held
    filler = held.targets == lesson.IGNORE
    for updates in BUDGETS:
        for start in STARTS:
            torch.manual_seed(start)
            model = lesson.Transformer(lesson.config)
            found[updates, start] = {}
            for update, loss in learning(model, lesson.words, start, updates):
                if update in (60, 80, 100, 120, updates):
                    lanes = lesson.forced(model, held), lesson.free(model, held)
                    right = [(says == held.targets) | filler for says in lanes]
                    tokens = right[0][~filler].double().mean().item()
                    names = right[1].all(dim=1).double().mean().item()
                    found[updates, start][update] = loss, tokens, names
                    print(f"{updates} updates, start {start}, update {update}: loss {loss:.3f}, tokens "
                          f"{tokens:.3f}, to the power 10 {tokens**10:.3f}, names {names:.3f}", flush=True)  # fmt: skip
    return found


def sampling() -> dict[tuple[str, int], list[float]]:
    """Measure how many more mistakes a wrong name contains in free running, with and without scheduled sampling.

    The training and the measure are those of the deeper notebook. The measure is the mean number of edits in free
    running minus the number of wrong slots with teacher forcing.
    """
    cells = "setup", "sets-up-training", "sets-up-lanes", "sets-up-translator", "two-passes", "sets-up-excess"
    lesson, found = names_of("deeper/09", *cells), {}
    for way, loss in (("forced", "forced_loss"), ("sampled", "two_passes")):
        runs = []
        for start in range(6):
            lesson["made"], lesson["chance"] = lesson["counting"](), torch.Generator().manual_seed(start)
            runs.append(lesson["train"](max(MOMENTS), seed=start, loss=lesson[loss], moments=MOMENTS)[1])
        for update in MOMENTS:
            found[way, update] = [lesson["excess_of"](run[update])[0] for run in runs]
            print(row(way, f"{update} updates", "more mistakes", found[way, update]), flush=True)
    return found
