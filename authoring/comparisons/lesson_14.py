"""What lesson 14 compares: the run that its law advises with its largest, two rates of a model of eight times that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from authoring.comparisons import Outcome
from authoring.records.law import ADVISED, LARGE, Trials

FOLDER = Path(__file__).parents[2] / "build" / "records" / "law"


def advice() -> Iterator[Outcome]:
    """Held-out bits per byte for the same compute, the lesson's and half of it: the advised width, and the largest."""
    trial = Trials(FOLDER)
    for half, updates, largest in (("half", 546, 120), ("whole", 1093, 240)):
        for name, width, length in (("advised", ADVISED, updates), ("largest", 64, largest)):
            runs = [trial(width, length, 0.01, start=start, last_share=1.0) for start in range(3)]
            ends = tuple(run["scores"][str(length)] for run in runs)
            yield Outcome(f"{name}, width {width}", f"{half} compute", "bits per byte", ends)


def rate_of_the_large() -> Iterator[Outcome]:
    """Held-out bits per byte of the model of eight times the weights, at a rate of its own and at the fit's."""
    trial = Trials(FOLDER)
    for updates in (120, 240):
        for rate in (0.003, 0.01):
            runs = [trial(LARGE, updates, rate, start=start, last_share=1.0) for start in range(3)]
            ends = tuple(run["scores"][str(updates)] for run in runs)
            yield Outcome(f"rate {rate}", f"{updates} updates", "bits per byte", ends)
