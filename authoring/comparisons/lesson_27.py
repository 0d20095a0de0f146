"""Comparisons for lesson 27: three ways to lengthen the context, compared with a control, and a leaking test set."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import names_of, row
from authoring.records.evening import FURTHER, STARTS, Evening

FOLDER = Path(__file__).parents[2] / "build" / "records" / "evening"


def longer() -> dict[tuple[str, str], list[float]]:
    """Compare the bits per token at positions after 127, before and after continued training, with three seeds."""
    steps, found = Evening(FOLDER), {}
    runs = [steps.longer(start) for start in STARTS]
    for how in runs[0]["rows"]:
        for at, budget in enumerate(("0 updates", f"{FURTHER} updates")):
            values = [run["rows"][how][at][2] for run in runs]
            found[how, budget] = values
            print(row(how, budget, "bits per token", values), flush=True)
    return found


def leaks() -> dict[tuple[str, str], list[float]]:
    """Measure the share of test texts with near-duplicates in the training set if splitting precedes deduplication."""
    lesson, found = names_of("27", "setup", "raw-folder"), {}
    for count in (500, 2000):
        shares = []
        for seed in (27, 28, 29):
            texts = lesson["raw_folder"](count, seed)
            groups = lesson["near_duplicates"](texts)
            twins = {groups[at] for at in range(len(texts)) if at % 20}
            test = [at for at in range(len(texts)) if at % 20 == 0]
            shares.append(sum(groups[at] in twins for at in test) / len(test))
        found["divided first", f"{count} stories"] = shares
        print(row("divided first", f"{count} stories", "share of the test", shares), flush=True)
    return found
