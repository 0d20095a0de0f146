"""Comparison for lesson 14: the run that its scaling law advises, and its largest."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.law import ADVISED, Trials

FOLDER = Path(__file__).parents[2] / "build" / "records" / "law"


def advice() -> dict[tuple[str, str], list[float]]:
    """Compare held-out bits per byte of the advised and the largest width, at the lesson's compute and half of it."""
    trial, found = Trials(FOLDER), {}
    for half, updates, largest in (("half", 546, 120), ("whole", 1093, 240)):
        for name, width, length in (("advised", ADVISED, updates), ("largest", 64, largest)):
            runs = [trial(width, length, 0.01, start=start, last_share=1.0) for start in range(3)]
            ends = found[name, half] = [run["scores"][str(length)] for run in runs]
            print(row(f"{name}, width {width}", f"{half} compute", "bits per byte", ends), flush=True)
    return found
