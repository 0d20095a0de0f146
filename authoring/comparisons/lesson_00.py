"""What lesson 00 compares: its ten sentences learned with the turn, and without it."""

from __future__ import annotations

from authoring.comparisons.cells import names_of, row


def turn_or_not() -> dict[tuple[str, int], list[float]]:
    """New texts that are right, of four, and the loss, after the lesson's updates and twice as many."""
    by_hand = ("setup", "rows", "projections", "turn", "scores", "weights", "take-over", "norm")
    lesson = names_of("00", *by_hand, "whole-model", "sentences", "training", "new-starts")
    found = {}
    for updates in (600, 1200):
        for setting, turn in (("with the turn", lesson["turn"]), ("without", lambda pairs: pairs)):
            starts = [lesson["begin"](seed) for seed in range(12)]
            right, lost = lesson["right_of_four"](starts, turn, updates)
            print(row(setting, f"{updates} updates", "right, of 4 new texts", right), flush=True)
            print(row(setting, f"{updates} updates", "loss, at least 0.3229", lost), flush=True)
            found[setting, updates] = right
    return found
