"""Record for lesson 17: how well a layer recalls pairs with softmax attention, several kinds of tables, or both.

The runs use the lesson's own `learn` and `recalled`. Results are stored in `build/records/recall` and reused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from authoring.records.stored import LessonRuns, stored

STARTS = (0, 1, 2)
KINDS = ("linear", "delta", "softmax", "decay", "gated delta", "hybrid")
BUDGETS = (450, 1800)
"""Updates after which the model of a run is tested. The rate is constant, so one run serves both."""


class Runs(LessonRuns):
    """The lesson's training runs, whose results are stored in a folder."""

    number, cells = "17", ("setup", "tables", "sets-up-layer", "sets-up-texts", "training")

    def __call__(self, kind: str, start: int) -> dict[str, Any]:
        """Return a run's record: right answers per 100 at each budget, by numbers of pairs and of repeated pairs."""
        file = self.folder / f"{kind.replace(' ', '_')}-{start}.json"

        def make() -> dict[str, Any]:
            _, found = self.lesson["learn"](kind, start, BUDGETS[-1], at=BUDGETS)
            right = {
                str(updates): [[pairs, again, round(share, 1)] for (pairs, again), share in of.items()]
                for updates, of in found.items()
            }
            return {"kind": kind, "start": start, "right": right}

        return stored(file, make)


def recall(folder: Path) -> dict[str, Any]:
    """Return the record, which is a list of runs."""
    run = Runs(folder)
    return {"runs": [run(kind, start) for start in STARTS for kind in KINDS]}
