"""Comparisons for lesson 11: mixtures and dense models that learn names, scored on unseen names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from authoring.comparisons.cells import names_of, row

Found = dict[tuple[str, int], list[float]]

BUDGETS = (120, 360)
CELLS = ("setup", "sets-up-names", "sets-up-training", "sets-up-learn", "sets-up-step", "sets-up-race")


def _race(kind: str, runners: Mapping[str, tuple[tuple[Any, ...] | None, int, float]]) -> Found:
    """Measure the bits per unseen letter of each start, by setting and updates.

    Args:
        kind: Activation of the feed-forward networks.
        runners: For each setting, the numbers of experts, of visited experts and of shared ones (`None`: dense),
            `d_ff`, and the weight of the balancing loss.
    """
    lesson, found = names_of("11", *CELLS), Found()
    for setting, (sizes, d_ff, balance) in runners.items():
        moe = None if sizes is None else lesson["MoEConfig"](sizes[0], sizes[1], shared=sizes[2])
        runs = []
        for start in range(3):
            model = lesson["build"](moe, start, d_ff, kind)
            runs.append(lesson["learn"](model, start, balance, rate=6e-3, steps=max(BUDGETS), score=lesson["score"]))
        for budget in BUDGETS:
            found[setting, budget] = [run.unseen[budget] for run in runs]
            print(row(setting, f"{budget} updates", "bits an unseen letter", found[setting, budget]), flush=True)
    return found


def gated() -> Found:
    """Compare gated networks.

    The settings are a mixture, dense models of equal active and equal total size, many small experts, and a shared
    expert.
    """
    runners: dict[str, tuple[tuple[Any, ...] | None, int, float]] = {
        "8 experts, top-2": ((8, 2, 0), 44, 0.02),
        "dense, equal active": (None, 88, 0.0),
        "dense, equal total": (None, 352, 0.0),
        "32 experts, top-8": ((32, 8, 0), 11, 0.02),
        "1 shared expert, 1 of 7": ((7, 1, 1), 44, 0.02),
    }
    return _race("swiglu", runners)


def plain() -> Found:
    """Compare plain networks, with a control in which every letter visits all experts."""
    runners: dict[str, tuple[tuple[Any, ...] | None, int, float]] = {
        "8 experts, top-2": ((8, 2, 0), 64, 0.02),
        "8 experts, top-8": ((8, 8, 0), 64, 0.0),
        "dense, equal active": (None, 128, 0.0),
        "dense, equal total": (None, 512, 0.0),
    }
    return _race("relu", runners)


def frozen() -> Found:
    """Measure a random, frozen router while the rest of the model learns.

    It prints how even its load is, and how large the common part of its inputs is.
    """
    lesson, found = names_of("11", *CELLS[:-1]), Found()
    for start in range(3):
        model = lesson["build"](lesson["top"](1), start=start, router=0.02)
        for block in model.decoder.blocks:
            block.feed_forward.router.weight.requires_grad_(False)
        run = lesson["learn"](model, start=start, steps=360)
        for step in (0, 20, 110, 350):
            found[f"start {start}", step] = lesson["as_even_as"](run.load[step : step + 10].mean(0)).tolist()
            common = [float(share) for share in run.common[max(at for at in run.common if at <= step)]]
            for measure, values in (("as even as", found[f"start {start}", step]), ("common part", common)):
                print(row(f"start {start}, frozen", f"{step} updates", measure, values), flush=True)
    return found
