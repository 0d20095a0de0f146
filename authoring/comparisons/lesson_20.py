"""What lesson 20 compares: answers that rewards improve, by a checker and by one with a hole."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.answering import EVERY, STARTS, STEPS, Runs

Found = dict[tuple[str, int], list[float]]
FOLDER = Path("build/records/answering")
PAID, RIGHT, TOKENS, WORKING = 1, 2, 3, 4
"""Columns of a run's rows."""


def _told(reward: str, budgets: tuple[int, ...], columns: dict[str, int]) -> Found:
    """The runs of the record with one reward, after so many steps each."""
    run, found = Runs(FOLDER), Found()
    for steps in budgets:
        for name, column in columns.items():
            rows = [run(reward, start)["rows"][steps // EVERY] for start in STARTS]
            found[name, steps] = [one[column] for one in rows]
            print(row(reward, f"{steps} steps", name, found[name, steps]))
    return found


def checked() -> Found:
    """Right answers, and answers with working, of a model that is paid for the right digit."""
    return _told("checker", (0, 50, STEPS["checker"]), {"right": RIGHT, "with working": WORKING})


def holed() -> Found:
    """What is paid and what is right where the right digit may stand anywhere."""
    return _told("hole", (0, 30, STEPS["hole"]), {"paid": PAID, "right": RIGHT, "tokens": TOKENS})
