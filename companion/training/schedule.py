"""The learning rate over a run, in optimizer updates."""

from __future__ import annotations

import math


def warmup_cosine(update: int, *, updates: int, warmup: int, peak: float, last: float) -> float:
    """The learning rate of update number `update` = 1 ... `updates`.

    It climbs in a straight line to `peak`, which update number `warmup` has, and falls along half a cosine to `last`,
    which the last update has. Updates are steps of the optimizer: with gradients accumulated over several
    micro-batches there is one for all of them, and a schedule counted in micro-batches would end far too early, or
    never. `warmup` is cut to a fifth of a short run.

    Raises `ValueError` for an update that is not in the run.
    """
    if not 1 <= update <= updates:
        raise ValueError(f"update={update!r}: expected a whole number from 1 to updates={updates}")
    warmup = min(warmup, updates // 5)
    if update <= warmup:
        return peak * (update / warmup)
    progress = (update - warmup) / (updates - warmup)
    return last + (peak - last) * (1 + math.cos(math.pi * progress)) / 2
