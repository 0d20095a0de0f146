"""Comparisons for lesson 11: mixtures of experts and dense models that learn lines of prose, scored on unseen lines."""

from __future__ import annotations

from authoring.comparisons.cells import names_of, row

Found = dict[tuple[str, int], list[float]]

BUDGETS = (120, 360)
CELLS = ("setup", "sets-up-lines", "build", "learn")


def gated() -> Found:
    """Compare a mixture of gated experts with dense models of its active and of its total size.

    The smaller dense model is also scored after 480 updates, which take about as long as 360 updates of the mixture.
    """
    lesson, found = names_of("11", *CELLS), Found()
    settings = {
        "8 experts, top-2": (lesson["MoEConfig"](8, 2), 44, 0.02, BUDGETS),
        "dense, equal active": (None, 88, 0.0, (*BUDGETS, 480)),
        "dense, equal total": (None, 352, 0.0, BUDGETS),
    }
    for setting, (moe, d_ff, balance, budgets) in settings.items():
        models = [lesson["build"](moe, start, d_ff, "swiglu") for start in range(3)]
        runs = [
            lesson["learn"](model, start, balance, rate=6e-3, steps=max(budgets)) for start, model in enumerate(models)
        ]
        for budget in budgets:
            found[setting, budget] = [run.unseen[budget] for run in runs]
            print(row(setting, f"{budget} updates", "bits an unseen letter", found[setting, budget]), flush=True)
    return found


def collapse() -> Found:
    """Measure how even the load is with a trained router, a frozen router, top-2 routing, and several remedies.

    Also print how much the experts' inputs have in common, and the bits per letter in the last training batches.
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
            run, name = learn(model, start, **remedy), f"{setting}, start {start}"
            for step in (0, 20, 110):
                found[name, step] = lesson["evenness"](run, step).tolist()
                print(row(name, f"{step} updates", "as even as, by layer", found[name, step]), flush=True)
            for step in (0, 20, 120):
                print(row(name, f"{step} updates", "common part, by layer", run.common[step]), flush=True)
            print(row(name, "120 updates", "training bits", [lesson["last"](run.bits)]), flush=True)
    return found
