"""Record for lesson 18: how extra heads that predict later tokens affect the loss, with two budgets and three seeds.

The runs use the lesson's own `learn`, `loss_of` and `agreement`. Results are stored in `build/records/heads` and
reused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from authoring.records.stored import LessonRuns, stored

STARTS, BUDGETS, AHEAD = (0, 1, 2), (300, 900), 3


class Runs(LessonRuns):
    """The lesson's training runs, whose results are stored in a folder."""

    number, cells = "18", ("setup", "sets-up-text", "rung-heads", "sets-up-learn", "sets-up-scores")

    def __call__(self, heads: int, start: int, updates: int) -> dict[str, Any]:
        """Return a run's record: next-token loss on unseen stories, and how often each head agrees with the model."""
        file = self.folder / f"{heads}-{start}-{updates}.json"

        def make() -> dict[str, Any]:
            lesson = self.lesson
            model = lesson["small_model"](start, layers=2, d_model=64)
            own = lesson["OwnHeads"](64, heads) if heads else None
            lesson["learn"](model, own, start, updates)
            model.eval()
            with torch.no_grad():
                loss = lesson["loss_of"](model)
                agree = lesson["agreement"](model, own) if own else []
            return {
                "heads": heads,
                "start": start,
                "updates": updates,
                "loss": round(loss, 4),
                "agreement": [round(share, 4) for share in agree],
            }

        return stored(file, make)


def heads(folder: Path) -> dict[str, Any]:
    """Return the record, which is a list of runs without and with extra heads."""
    run = Runs(folder)
    asked = ((count, start, updates) for updates in BUDGETS for start in STARTS for count in (0, AHEAD))
    return {"runs": [run(*one) for one in asked]}
