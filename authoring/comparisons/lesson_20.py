"""What lesson 20 compares: answers that a checker's rewards improve, with those before."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.answering import EVERY, Runs

Found = dict[tuple[str, int], list[float]]
RIGHT, WORKING = 2, 4
"""Columns of a run's rows."""


def checked() -> Found:
    """Right answers, and answers with working, of a model that is paid for the right digit: the runs of the record."""
    run, found = Runs(Path("build/records/answering")), Found()
    for steps in (0, 10, 30):
        for name, column in (("right", RIGHT), ("with working", WORKING)):
            found[name, steps] = [run("checker", start)["rows"][steps // EVERY][column] for start in range(3)]
            print(row("checker", f"{steps} steps", name, found[name, steps]))
    return found
