"""Comparisons for lesson 16: changes to the block.

They are limits on scores at a high rate, a gate on a head, partial rotary positions, norms around branches, and
balancing by a loss or a bias.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from authoring.comparisons.cells import names_of, row

STARTS = range(3)
BUDGETS = (150, 450)


def _noted(found: dict[Any, list[float]], setting: str, budget: str, measure: str, values: list[float]) -> None:
    found[setting, budget, measure] = values
    print(row(setting, budget, measure, values), flush=True)


def held() -> dict[Any, list[float]]:
    """Measure bits per held-out byte and the largest score of an update, at the usual rate and a high one."""
    cells = ("setup", "sets-up-text", "qk-clip", "sets-up-learn", "sets-up-watch", "sets-up-held")
    lesson, found = names_of("16", *cells), {}
    for rate in (lesson["usual"], lesson["high"]):
        for setting, (config, more) in lesson["holds"].items():
            runs = [lesson["learn"](config, start, rate, BUDGETS, **more) for start in STARTS]
            for at, budget in enumerate(BUDGETS):
                said = f"{budget} at {rate:g}"
                _noted(found, setting, said, "bits a held-out byte", [run.bits[at] for run in runs])
                _noted(found, setting, said, "the largest score", [run.score[budget - 1] for run in runs])
    return found


def silent() -> dict[Any, list[float]]:
    """Measure one head where an answer is asked for and where it is not, with and without a gate."""
    lesson, found, budgets = names_of("16", "setup", "sets-up-signs", "one-head", "sets-up-repeat"), {}, (200, 600)
    for gated in (False, True):
        runs = [lesson["repeat"](gated, start, budgets)[1] for start in STARTS]
        for at, budget in enumerate(budgets):
            for measure in runs[0][at]:
                for part, where in enumerate(("asked", "not asked")):
                    values = [run[at][measure][part] for run in runs]
                    _noted(found, f"gate {gated}", f"{budget} updates", f"{measure}, {where}", values)
    return found


def balanced() -> dict[Any, list[float]]:
    """Measure bits per held-out byte and the evenness of the load: without balancing, with the loss, with the bias."""
    cells = "setup", "sets-up-text", "sets-up-learn", "sets-up-watch", "sets-up-held", "sets-up-experts"
    lesson, found = names_of("16", *cells), {}
    for setting, (config, more) in lesson["remedies"].items():
        runs = [lesson["learn"](config, start, lesson["usual"], BUDGETS, **more) for start in STARTS]
        for at, budget in enumerate(BUDGETS):
            said, loads = f"{budget} updates", [SimpleNamespace(load=run.load[:budget]) for run in runs]
            _noted(found, setting, said, "bits a held-out byte", [run.bits[at] for run in runs])
            _noted(found, setting, said, "as even as", [lesson["evenness"](load) for load in loads])
    return found


def placed() -> dict[Any, list[float]]:
    """Measure bits per held-out byte in windows of 64 tokens, as in training, and of 256.

    The models rotate whole heads, half of each head, or whole heads except in every fourth layer.
    """
    cells = "setup", "sets-up-text", "sets-up-learn", "sets-up-watch", "sets-up-held", "sets-up-places"
    lesson, found = names_of("16", *cells), {}
    for setting, config in lesson["places"].items():
        for budget in BUDGETS:
            models = [lesson["learn"](config, start, lesson["usual"], (budget,)).model for start in STARTS]
            for window in (64, 256):
                values = [lesson["bits"](model, window, window) for model in models]
                _noted(found, setting, f"{budget} updates", f"bits, windows of {window}", values)
    return found
