"""Record for lesson 23: the runs behind its scaling law, and longer runs that test the law.

The lesson's own `trial` is run with three seeds for five widths at the same compute, and for smaller shares of the
text. It is also run for the widths to which the law is fitted, and for a model with eight times as many parameters as
the largest of these. Results are stored in `build/records/law` and reused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from authoring.records.stored import LessonRuns, stored

STARTS = (0, 1, 2)
LOOKS = (50, 80, 120, 170, 240)
FITTED = (8, 16, 32, 48, 64)
"""Widths of the lesson's own runs. The law is fitted to all but the largest."""
EQUAL = {16: 1990, 24: 1126, 32: 733, 48: 387, 64: 240}
"""Number of updates for each width, such that 6 * parameters * tokens is the same for all."""
ADVISED = 24
"""The width that the law recommends for this compute."""
PARTS = (4, 8)
"""The recommended run is repeated on every fourth and every eighth document."""
LARGE = 208
"""Width of a model with 8.3 times the parameters of the lesson's largest."""


class Trials(LessonRuns):
    """The lesson's `trial`, whose results are stored in a folder."""

    number, cells = "23", ("setup", "sets-up-text", "trial")

    def __call__(self, width: int, updates: int, **more: Any) -> dict[str, Any]:
        """Return a trial's record: its settings, its number of parameters, and its score by update."""
        asked = {"width": width, "updates": updates, **more}
        file = self.folder / f"{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]}.json"

        def make() -> dict[str, Any]:
            parameters, scores = self.lesson["trial"](**asked)
            return asked | {"parameters": parameters, "scores": {u: round(s, 4) for u, s in scores.items()}}

        return stored(file, make)


def eighths(updates: int) -> list[int]:
    """Return the numbers of updates after each eighth of a run."""
    return [round(updates * part / 8) for part in range(1, 9)]


def law(folder: Path) -> dict[str, Any]:
    """Return the record: lists of trials by purpose, with a constant learning rate except for those in "falling"."""
    trial = Trials(folder)
    advised = EQUAL[ADVISED]
    return {
        "fitted": [trial(width, 240, at=LOOKS) for width in FITTED],
        "equal": [
            trial(width, updates, at=eighths(updates), start=start)
            for width, updates in EQUAL.items()
            for start in STARTS
        ],
        "parts": [
            trial(ADVISED, advised, at=eighths(advised), start=start, part=part) for part in PARTS for start in STARTS
        ],
        "falling": [trial(width, EQUAL[width], last=0.05, start=start) for width in (ADVISED, 64) for start in STARTS],
        "large": [trial(LARGE, 240, rate=rate, at=LOOKS) for rate in (0.003, 0.01)],
    }
