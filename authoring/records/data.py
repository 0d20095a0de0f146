"""Record for lesson 24: models of one size, trained with the same compute on differently cleaned text.

The lesson's own `trial` is run with three seeds on each version of its crawl: raw, deduplicated, filtered, both of
these, and selected by a classifier. Results are stored in `build/records/data` and reused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from authoring.records.stored import LessonRuns, stored

STARTS = (0, 1, 2)
LOOKS = (120,)
UPDATES = 360
TEXTS = ("raw", "deduplicated", "filtered", "both", "chosen")


class Trials(LessonRuns):
    """The lesson's `trial`, whose results are stored in a folder."""

    number, cells = "24", ("setup", "crawl", "rules", "cleaned", "sets-up-text", "trial", "classifier", "chosen")

    def __call__(self, text: str, start: int) -> dict[str, Any]:
        """Return a trial's record: its text, its seed, and its score on each test by update.

        Args:
            text: Kind of text, one of `TEXTS`.
            start: Seed for the model and for the order of the batches.
        """

        def make() -> dict[str, Any]:
            pages = self.lesson["texts"][text]
            scores = self.lesson["trial"](pages, UPDATES, at=LOOKS, start=start)
            rounded = {at: {test: round(bits, 4) for test, bits in found.items()} for at, found in scores.items()}
            return {"setting": text, "start": start, "scores": rounded}

        return stored(self.folder / f"text-{text}-{start}.json", make)


def data(folder: Path) -> dict[str, Any]:
    """Return the record, which holds the trials by text and seed."""
    trial = Trials(folder)
    return {"texts": [trial(name, start) for name in TEXTS for start in STARTS]}
