"""Comparison for lesson 10: a trained reader with a correct cache and with two faulty caches."""

from __future__ import annotations

import torch

from authoring.comparisons.cells import names_of, row

BUDGETS = (260, 520)
CELLS = ("setup", "sets-up-reader", "step", "sets-up-nothing", "sets-up-share", "broken")


def mistakes() -> dict[tuple[str, int], list[float]]:
    """Measure correct answers per 100 for a model that reads a text symbol by symbol.

    The cache is correct, its position never advances, or its mask is cut from the wrong corner.
    """
    lesson, found = names_of("10", *CELLS), {}
    ways = {"as it should be": {}, "position stays at 0": {"position": 0}, "wrong corner": {"look": lesson["corner"]}}
    for steps in BUDGETS:
        scores = []
        for start in range(3):
            with torch.enable_grad():
                reader = lesson["Reader"]("rotary", start=start)
                lesson["reader"] = lesson["practise"](reader, start, steps, periods=(6, 12), length=32)
            scores.append([float(lesson["share"](**mistake)) for mistake in ways.values()])
        for setting, values in zip(ways, zip(*scores, strict=True), strict=True):
            found[setting, steps] = list(values)
            print(row(setting, f"{steps} updates", "right of 100", list(values)), flush=True)
    return found
