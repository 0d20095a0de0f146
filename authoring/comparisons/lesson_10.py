"""What lesson 10 compares: two mistakes of a decoding step, in models that were trained rightly."""

from __future__ import annotations

import torch.nn.functional as F

from authoring.comparisons.cells import names_of, row
from companion.school.study.rounds import Reader, practise


def mistakes() -> dict[tuple[str, int], list[float]]:
    """How often of 100 the next symbol is known, read rightly and with each mistake, by updates."""
    lesson = names_of("10", "setup", "sets-up-reader", "step", "sets-up-nothing", "sets-up-share")
    ways = {
        "right": {},
        "position stands still": {"place": 0},
        "wrong corner": {"look": lambda q, K, V: F.scaled_dot_product_attention(q, K, V, is_causal=True)},
    }
    found: dict[tuple[str, int], list[float]] = {(way, steps): [] for way in ways for steps in (260, 520)}
    for steps in (260, 520):
        for start in range(3):
            with lesson["torch"].enable_grad():
                trained = practise(Reader("rotary", start), start, steps=steps, periods=(6, 12), length=32)
            lesson["reader"] = trained  # `step` looks it up by this name
            for way, mistake in ways.items():
                found[way, steps].append(lesson["share"](**mistake).item())
        for way in ways:
            print(row(way, f"{steps} updates", "known, of 100", found[way, steps]), flush=True)
    return found
