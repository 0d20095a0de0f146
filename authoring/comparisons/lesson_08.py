"""Comparisons for lesson 08, with three starts and several budgets. Each function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from authoring.comparisons.cells import names_of

STARTS = (0, 1, 2)
CASES = {"right": (1, 0), "mask too wide": (1, 1), "not shifted": (0, 0), "shifted twice": (2, 0)}


def leaks() -> dict[tuple[str, str, int, int], tuple[float, float]]:
    """Measure the loss and how many of 100 written tokens follow the habit, by text, mistake, steps and start."""
    lesson, found = SimpleNamespace(**names_of("08", "setup", "sets-up-writers", "train", "sets-up-writing")), {}
    for kind in ("dice", "habit"):
        for case, (shift, wide) in CASES.items():
            for steps in (160, 320):
                for start in STARTS:
                    loss, net = lesson.train(kind, shift, wide, steps, start)
                    written = 100 * lesson.follows(lesson.write(net, wide))
                    found[kind, case, steps, start] = loss, written
                    print(f"{kind}, {case}, {steps} steps, start {start}: loss {loss:.2f}, follows the habit in "
                          f"{written:.0f} of 100", flush=True)  # fmt: skip
    return found


def express() -> dict[tuple[str, int, int], float]:
    """Measure how often, of 100, the two stops before the last are right, by numbers of layers, steps and start."""
    cells = ("setup", "sets-up-model", "sets-up-journeys", "sets-up-traveller", "sets-up-practice", "a-journey")
    lesson, found = SimpleNamespace(**names_of("08", *cells)), {}
    plans = [("one decoder layer", False, 1, (350, 3000)), ("two decoder layers", False, 2, (350, 1050))]
    for word, encoder, layers, budgets in [*plans, ("an encoder layer and a decoder layer", True, 1, (350, 1050))]:
        for steps in budgets:
            for start in STARTS:
                traveller = lesson.practise(lesson.Traveller(encoder, start, layers), steps, 2, 3e-3, start)
                with torch.no_grad():
                    rows = traveller.remember(lesson.leaves, lesson.goes)
                _, stops = lesson.look_inside(traveller, rows, lesson.way[:, 1::2])
                right = (stops == lesson.way[:, 1::2])[:, :2].double().mean().item()
                found[word, steps, start] = 100 * right
                print(f"{word}, {steps} steps, start {start}: {100 * right:.0f} of 100", flush=True)
    return found
