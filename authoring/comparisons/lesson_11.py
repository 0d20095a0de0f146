"""Comparisons for lesson 11: mixtures of experts and dense models that learn lines of prose, scored on unseen lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from authoring.comparisons.cells import names_of, row

Found = dict[tuple[str, int], list[float]]

BUDGETS = (120, 360)
CELLS = ("setup", "sets-up-lines", "build", "learn")


def _race(kind: str, runners: Mapping[str, tuple[tuple[Any, ...] | None, int, float]]) -> Found:
    """Measure the bits per unseen letter, by setting, number of updates and seed.

    Args:
        kind: Activation of the feed-forward networks.
        runners: For each setting, a tuple (sizes, `d_ff`, weight of the balancing loss). `sizes` holds the numbers of
            experts, experts per token and shared experts, and is `None` for a dense network.
    """
    lesson, found = names_of("11", *CELLS), Found()
    for setting, (sizes, d_ff, balance) in runners.items():
        moe = None if sizes is None else lesson["MoEConfig"](sizes[0], sizes[1], shared=sizes[2])
        runs = []
        for start in range(3):
            model = lesson["build"](moe, start, d_ff, kind)
            runs.append(lesson["learn"](model, start, balance, rate=6e-3, steps=max(BUDGETS)))
        for budget in BUDGETS:
            found[setting, budget] = [run.unseen[budget] for run in runs]
            print(row(setting, f"{budget} updates", "bits an unseen letter", found[setting, budget]), flush=True)
    return found


def gated() -> Found:
    """Compare gated networks.

    The settings are a mixture of experts, dense models with as many parameters as are active or as there are in all,
    many small experts, and a shared expert.
    """
    runners: dict[str, tuple[tuple[Any, ...] | None, int, float]] = {
        "8 experts, top-2": ((8, 2, 0), 44, 0.02),
        "dense, equal active": (None, 88, 0.0),
        "dense, equal total": (None, 352, 0.0),
        "32 experts, top-8": ((32, 8, 0), 11, 0.02),
        "1 shared expert, 1 of 7": ((7, 1, 1), 44, 0.02),
    }
    return _race("swiglu", runners)


def collapse() -> Found:
    """Measure how even the load is with a trained router, a frozen router, top-2 routing, and several remedies.

    Also print how much the experts' inputs have in common, and the bits per unseen letter.
    """
    lesson, found = names_of("11", *CELLS, "alone", "even"), Found()
    learn, build, top = lesson["learn"], lesson["build"], lesson["top"]
    for setting in ("no remedy", "frozen router", "top-2", "balancing loss", "bias"):
        for start in range(3):
            moe = top(2 if setting == "top-2" else 1, balanced=setting == "bias")
            model = build(moe, start, router=0.02)
            if setting == "frozen router":
                for block in model.decoder.blocks:
                    block.feed_forward.router.weight.requires_grad_(False)
            remedy = {"balance": 0.02 * (setting == "balancing loss"), "bias": 0.005 * (setting == "bias")}
            run = learn(model, start, steps=max(BUDGETS), **remedy)
            for step in (0, 20, 110, 350):
                found[f"{setting}, start {start}", step] = values = lesson["evenness"](run, step).tolist()
                print(row(f"{setting}, start {start}", f"{step} updates", "as even as", values), flush=True)
            for step in (0, 20, 120):
                print(row(f"{setting}, start {start}", f"{step} updates", "common part", run.common[step]), flush=True)
            bits = [run.unseen[budget] for budget in BUDGETS]
            print(row(f"{setting}, start {start}", "both budgets", "bits an unseen letter", bits), flush=True)
    return found
