"""What lesson 00 compares: its ten sentences learned with the turn, and without it."""

from __future__ import annotations

from typing import Any

import torch

from authoring.comparisons.cells import names_of, row

NEW = {
    "hello world the world is": "good",
    "hello boss is": "happy",
    "hello world the boss is": "happy",
    "hello ai the boss is": "happy",
}
"""Texts that are not among the ten sentences, and the word that goes with whom they are about."""


def _start(like: Any, seed: int) -> Any:
    """136 numbers drawn anew: the gains are 1."""
    draw = torch.Generator().manual_seed(seed)
    parts = [0.5 * torch.randn(part.shape, generator=draw, dtype=part.dtype) for part in like]
    return type(like)(*(torch.ones_like(part) if part.ndim == 1 else part for part in parts))


def turn_or_not() -> dict[tuple[str, int], list[float]]:
    """New texts that are right, of four, and the loss, after the lesson's updates and twice as many."""
    by_hand = ("setup", "rows", "projections", "turn", "scores", "weights", "take-over", "norm")
    lesson = names_of("00", *by_hand, "whole-model", "sentences", "training")
    words, found = lesson["words"], {}
    for updates in (601, 1202):
        for setting, turn in (("with the turn", lesson["turn"]), ("without", lambda pairs: pairs)):
            right, lost = [], []
            for seed in range(12):
                model, losses = lesson["train"](_start(lesson["w"], seed), turn, updates)
                said = [lesson["answer"]([words.index(x) for x in text.split()], model, turn)[0][-1] for text in NEW]
                right.append(sum(words[one.argmax()] == word for one, word in zip(said, NEW.values(), strict=True)))
                lost.append(losses[-1])
            print(row(setting, f"{updates} updates", "right, of 4 new texts", right), flush=True)
            print(row(setting, f"{updates} updates", "loss, at least 0.3229", lost), flush=True)
            found[setting, updates] = right
    return found
