"""Comparison for lesson 20: answers before and after training on a checker's rewards."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.answering import EVERY, Runs

Found = dict[tuple[str, int], list[float]]
RIGHT, WORKING = 2, 4
"""Columns of a run's rows."""


def checked() -> Found:
    """Read the shares of right answers and of answers with working from the record's runs.

    The model is rewarded for the right digit.
    """
    run, found = Runs(Path("build/records/answering")), Found()
    for steps in (0, 10, 100):
        for name, column in (("right", RIGHT), ("with working", WORKING)):
            found[name, steps] = [run("checker", start)["rows"][steps // EVERY][column] for start in range(3)]
            print(row("checker", f"{steps} steps", name, found[name, steps]))
    return found
