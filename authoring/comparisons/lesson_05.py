"""What lesson 05 compares, with three starts and two budgets. Each function prints, and returns, what it measured."""

from __future__ import annotations

import torch

from companion_school.study.rounds import CONTEXT, KINDS, Reader, practise, right

STARTS, BUDGETS = (0, 1, 2), (260, 1000)
SHIFTS, PERIODS = (0, 8, 32, 400), (12, 20, 40, 62)


def shifted_and_longer() -> dict[tuple[str, int, int], dict[str, float]]:
    """Per cent right, by kind of positions, updates and start: texts moved along, and rounds that are longer."""
    found, where = {}, torch.arange(CONTEXT)
    for updates in BUDGETS:
        for kind in KINDS:
            for start in STARTS:
                model = practise(Reader(kind, start=start), start=start, steps=updates)
                shares = {f"moved by {by}": right(model, (8, 16), CONTEXT, positions=where + by) for by in SHIFTS}
                shares |= {f"rounds of {p}": right(model, (p, p), 2 * p, batch=32) for p in PERIODS}
                found[kind, updates, start] = {name: 100 * share for name, share in shares.items()}
                said = ", ".join(f"{name} {share:.1f}" for name, share in found[kind, updates, start].items())
                print(f"{kind:13} {updates:5} updates, start {start}: {said}", flush=True)
    return found
