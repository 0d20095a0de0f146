"""Record for lesson 19: the cost of rounding weights with and without outlier channels (two budgets, three seeds).

The runs use the lesson's own `learn`, `to_levels`, `affine`, `second_order` and `aware`. Results are stored in
`build/records/rounding` and reused.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from authoring.records.stored import LessonRuns, stored

STARTS, BUDGETS, BITS, GROUP, LOUDER = (0, 1, 2), (100, 300), 3, 32, 30
CELLS = ("setup", "rung-rounding", "measure", "read-by", "rung-second-order", "one-matrix", "rung-aware", "small-model",
         "learn", "take-step")  # fmt: skip
WAYS = ("per row", "plain", "affine", "second order", "aware")
"""Rounding to the nearest level per row, and four kinds of rounding in groups."""


class Runs(LessonRuns):
    """The lesson's models, trained and rounded. The cost of rounding is stored in a folder."""

    number, cells = "19", CELLS

    def __call__(self, start: int, updates: int) -> dict[str, Any]:
        """Return a run's record: the percentage by which each way of rounding raises the bits per byte on stories."""
        file = self.folder / f"{start}-{updates}.json"

        def make() -> dict[str, Any]:
            model = self.lesson["small_model"](start)
            self.lesson["learn"](model, start, updates)
            models = {"plain model": model, "loud channels": _loud(model, start)}
            more = {title: self._lost(of) for title, of in models.items()}
            return {"start": start, "updates": updates, "more": more}

        return stored(file, make)

    def _lost(self, model: Any) -> dict[str, float]:
        lesson = self.lesson
        rows = lesson["read_by"](model, lesson["calibration"])
        levels, before = lesson["to_levels"], lesson["bits_of"](model)
        how = {
            "per row": lambda W, x: levels(W, BITS),
            "plain": lambda W, x: levels(W, BITS, GROUP),
            "affine": lambda W, x: lesson["affine"](W, BITS, GROUP),
            "second order": lambda W, x: lesson["second_order"](W, x, BITS, GROUP),
            "aware": lambda W, x: lesson["aware"](W, x, BITS, GROUP),
        }

        def cost(way: str) -> float:
            def change(name: str, W: Tensor) -> Tensor:
                kept: Tensor = how[way](W, rows[name])
                return kept

            return round(100 * (lesson["bits_of"](lesson["with_weights"](model, change)) / before - 1), 3)

        return {way: cost(way) for way in WAYS}


def _loud(model: Any, start: int) -> Any:
    """Return a copy of the model that computes the same function but has outlier channels, with much larger values.

    In each of a block's norms, two gains are enlarged, and the weights that read these channels are divided by the same
    factor.
    """
    loud, dice = copy.deepcopy(model), torch.Generator().manual_seed(start)
    with torch.no_grad():
        for block in loud.decoder.blocks:
            look, think = block.attention, block.feed_forward
            for norm, readers in (
                (block.attention_norm, (look.query, look.key, look.value)),
                (block.feed_forward_norm, (think.gate, think.inner)),
            ):
                channels = torch.randperm(len(norm.weight), generator=dice)[:2]
                norm.weight[channels] *= LOUDER
                for reader in readers:
                    reader.weight[:, channels] /= LOUDER
    return loud


def rounding(folder: Path) -> dict[str, Any]:
    """Return the record, which is a list of runs."""
    run = Runs(folder)
    return {"runs": [run(start, updates) for start in STARTS for updates in BUDGETS]}
