"""Comparisons for lesson 21: heads and streams of story models from three starts, and how readers' heads form."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.inside import BUDGETS, READERS, STARTS, Measures

Found = dict[tuple[str, int], list[float]]


def _measures() -> Measures:
    return Measures(Path("build/records/inside"))


def carried() -> Found:
    """Read the shares of heads in carrying the hero.

    They are the share of the best head, the smaller of its two directions, and the largest share of another head.
    """
    of, found = _measures(), Found()
    for updates in BUDGETS:
        runs = [of.story(start, updates) for start in STARTS]
        found["best", updates] = [min(run["denoising"], run["noising"]) for run in runs]
        found["next", updates] = [run["next"] for run in runs]
        for name in ("best", "next"):
            print(row("story models", f"{updates} updates", f"share of the {name} head", found[name, updates]))
    return found


def read_out() -> Found:
    """Read how often a probe finds the hero, and the purity of features by the current and the next word.

    0 updates means an untrained model.
    """
    of, found = _measures(), Found()
    for updates in (0, *BUDGETS):
        runs = [of.stream(start, updates) for start in STARTS]
        found["probe", updates] = [run["probe"] for run in runs]
        for at, name in enumerate(("word there", "next word")):
            found[name, updates] = [run["purity"][at] for run in runs]
        for name in ("probe", "word there", "next word"):
            print(row("streams", f"{updates} updates", name, found[name, updates]))
    return found


def formed() -> Found:
    """Find the first measurement where a reader's best induction score exceeds one half."""
    of, found = _measures(), Found()
    for updates in READERS:
        rows = [of.reader(start, updates)["rows"] for start in STARTS]
        found["formed", updates] = [next(done for done, *_, score in run if score > 0.5) for run in rows]
        print(row("readers", f"{updates} updates", "updates to a score of 0.5", found["formed", updates]))
    return found
