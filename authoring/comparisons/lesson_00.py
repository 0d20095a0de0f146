"""Comparison for lesson 00: learning its ten sentences with and without rotating queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from authoring.comparisons.cells import names_of, row


def rotated_or_not() -> dict[tuple[str, int], list[float]]:
    """Compare two rotation speeds with no rotation, by loss and by right answers on eleven unseen texts."""
    by_hand = ("setup", "rows", "projections", "turn", "scores", "weights", "take-over", "norm")
    lesson = names_of("00", *by_hand, "whole-model", "sentences", "training", "trained", "no-turn", "new-starts")

    def slowly(pairs: Tensor) -> Tensor:
        i = torch.arange(pairs.shape[-2], dtype=torch.float64) / 10
        x, y = pairs[..., 0], pairs[..., 1]
        return torch.stack([x * i.cos() - y * i.sin(), x * i.sin() + y * i.cos()], dim=-1)

    found = {}
    for updates in (600, 1200):
        for setting, rule in (("rotated", lesson["rotated"]), ("at a tenth", slowly), ("not", lambda pairs: pairs)):
            starts = [lesson["begin"](seed) for seed in range(12)]
            right, lost = lesson["right_of_eleven"](starts, rule, updates)
            print(row(setting, f"{updates} updates", "right, of 11 new texts", right), flush=True)
            print(row(setting, f"{updates} updates", "loss, at least 0.3229", lost), flush=True)
            found[setting, updates] = right
    return found
