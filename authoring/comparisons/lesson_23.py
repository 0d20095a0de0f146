"""Comparisons for lesson 23: models of five sizes at the same compute, and parts of the text that are read again."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.law import ADVISED, EQUAL, PARTS, STARTS, Trials, eighths

FOLDER = Path(__file__).parents[2] / "build" / "records" / "law"


def valley() -> dict[tuple[int, str], list[float]]:
    """Compare held-out bits per byte of five widths after a quarter, a half and all of the same compute."""
    trial, found = Trials(FOLDER), {}
    for width, updates in EQUAL.items():
        runs = [trial(width, updates, at=eighths(updates), start=start) for start in STARTS]
        for budget, eighth in (("a quarter", 2), ("half", 4), ("all", 8)):
            ends = [list(run["scores"].values())[eighth - 1] for run in runs]
            found[width, budget] = ends
            print(row(f"width {width}", f"{budget} of the compute", "bits per byte", ends), flush=True)
    return found


def parts() -> dict[tuple[int, str], list[float]]:
    """Compare the advised run on all documents, every fourth and every eighth one, after half and all updates."""
    trial, found, updates = Trials(FOLDER), {}, EQUAL[ADVISED]
    for part in (1, *PARTS):
        more = {"part": part} if part > 1 else {}
        runs = [trial(ADVISED, updates, at=eighths(updates), start=start, **more) for start in STARTS]
        for budget, eighth in (("half", 4), ("all", 8)):
            ends = [list(run["scores"].values())[eighth - 1] for run in runs]
            found[part, budget] = ends
            print(row(f"1/{part} of the text", f"{budget} of the compute", "bits per byte", ends), flush=True)
    return found
