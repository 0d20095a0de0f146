"""What lesson 21 compares: heads and streams of story models from three starts, and how heads of readers form."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.inside import BUDGETS, READERS, STARTS, Measures

Found = dict[tuple[str, int], list[float]]


def _measures() -> Measures:
    return Measures(Path("build/records/inside"))


def carried() -> Found:
    """The share of the head that brings the word, the smaller of both directions, and the largest of another head."""
    of, found = _measures(), Found()
    for updates in BUDGETS:
        runs = [of.story(start, updates) for start in STARTS]
        found["best", updates] = [min(run["denoising"], run["noising"]) for run in runs]
        found["next", updates] = [run["next"] for run in runs]
        for name in ("best", "next"):
            print(row("story models", f"{updates} updates", f"share of the {name} head", found[name, updates]))
    return found


def read_out() -> Found:
    """Right answers of a probe about the hero, and purity by the word there and the next one; 0 updates: untrained."""
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
    """The first look at which a reader's best induction score is above a half."""
    of, found = _measures(), Found()
    for updates in READERS:
        rows = [of.reader(start, updates)["rows"] for start in STARTS]
        found["formed", updates] = [next(done for done, *_, score in run if score > 0.5) for run in rows]
        print(row("readers", f"{updates} updates", "updates to a score of 0.5", found["formed", updates]))
    return found
