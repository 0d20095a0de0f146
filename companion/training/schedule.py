"""Learning-rate schedules, counted in optimizer updates."""

from __future__ import annotations

import math
from typing import Literal, get_args

Schedule = Literal["cosine", "linear", "inverse_sqrt", "wsd"]
"""How the learning rate falls after the warm-up."""
DecayShape = Literal["linear", "1-sqrt"]
"""How `"wsd"` falls at the end."""


def learning_rate(
    kind: Schedule,
    update: int,
    *,
    updates: int,
    warmup: int,
    peak: float,
    last: float = 0.0,
    decay_share: float = 0.2,
    decay_shape: DecayShape = "linear",
) -> float:
    """Return the learning rate of update number `update` = 1 ... `updates` under one of the schedules below.

    Sources: Vaswani et al. 2017, section 5.3 (`"inverse_sqrt"`; lesson 09); lesson 14, equation 14.8 (`"cosine"`); Hu
    et al. 2024, MiniCPM (`"wsd"`; lesson 22).

    Args:
        kind: the schedule.
        update: number of the update, counted from 1.
        updates, last: number of updates and final rate, which `"inverse_sqrt"` does not use because it has no end.
        warmup: number of updates until the peak.
        peak: highest learning rate.
        decay_share, decay_shape: used only by `"wsd"` (see `warmup_stable_decay`).

    Raises:
        ValueError: if the schedule is unknown, or if the update number is out of range for the run.
    """
    match kind:
        case "cosine":
            return warmup_cosine(update, updates=updates, warmup=warmup, peak=peak, last=last)
        case "linear":
            return warmup_linear(update, updates=updates, warmup=warmup, peak=peak, last=last)
        case "inverse_sqrt":
            return inverse_sqrt(update, warmup=warmup, peak=peak)
        case "wsd":
            share, shape = decay_share, decay_shape
            return warmup_stable_decay(
                update, updates=updates, warmup=warmup, peak=peak, last=last, share=share, shape=shape
            )
    raise ValueError(f"schedule={kind!r}: expected 'cosine', 'linear', 'inverse_sqrt' or 'wsd'")


def warmup_cosine(update: int, *, updates: int, warmup: int, peak: float, last: float) -> float:
    """Return the learning rate of update number `update` = 1 ... `updates`.

    The rate rises linearly to `peak`, which it reaches at update number `warmup`, and falls along half a cosine to
    `last`, which it reaches at the last update. Updates are optimizer steps. If gradients are accumulated over several
    micro-batches, all of these have the same rate; a schedule counted in micro-batches would end far too early, or
    never. `warmup` is limited to a fifth of the run.

    Sources: Loshchilov and Hutter 2017 (SGDR), equation 5, for the cosine, here without restarts; lesson 14, equation
    14.8.

    Raises:
        ValueError: if the update number is out of range for the run.
    """
    climb, fall = _progress(update, updates, warmup)
    return peak * climb if fall == 0 else last + (peak - last) * (1 + math.cos(math.pi * fall)) / 2


def warmup_linear(update: int, *, updates: int, warmup: int, peak: float, last: float) -> float:
    """Return the learning rate of a schedule that is like `warmup_cosine` but falls linearly.

    Source: Devlin et al. 2019, appendix A.2, with `last` = 0.

    Raises:
        ValueError: if the update number is out of range for the run.
    """
    climb, fall = _progress(update, updates, warmup)
    return peak * climb if fall == 0 else last + (peak - last) * (1 - fall)


def warmup_stable_decay(
    update: int,
    *,
    updates: int,
    warmup: int,
    peak: float,
    last: float,
    share: float = 0.2,
    shape: DecayShape = "linear",
) -> float:
    """Return the learning rate of the warmup-stable-decay schedule (Hu et al. 2024, MiniCPM, section 4).

    The rate rises linearly to `peak`, reached at update number `warmup`, stays there, and falls to `last` over the last
    `share` of the updates. Before the fall, the rate does not depend on the length of the run, so runs of different
    lengths can branch off from a checkpoint in that phase.

    Args:
        update: number of the update, counted from 1.
        updates: number of updates.
        warmup: number of updates until the peak.
        peak: highest learning rate.
        last: learning rate of the last update.
        share: fraction of all updates in which the rate falls, rounded to at least one whole update; the warm-up is not
            shortened.
        shape: `"linear"`, or `"1-sqrt"`: last + (peak - last) (1 - sqrt(t)), where t is the completed fraction of the
            fall; this shape falls fast at first (Hägele et al. 2024, section 3).

    Raises:
        ValueError: if the update number is out of range for the run, the share is not in (0, 1], or the
            shape is unknown.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share!r}: expected a fraction above 0 and at most 1")
    if shape not in get_args(DecayShape):
        raise ValueError(f"shape={shape!r}: expected 'linear' or '1-sqrt'")
    climb, fall = _progress(update, updates, warmup)
    if fall == 0:
        return peak * climb
    falls = min(max(1, round(share * updates)), updates - cut_warmup(warmup, updates))
    done = max(0.0, (update - (updates - falls)) / falls)
    return last + (peak - last) * (1 - (done if shape == "linear" else math.sqrt(done)))


def inverse_sqrt(update: int, *, warmup: int, peak: float) -> float:
    """Return the learning rate of Vaswani et al. 2017, section 5.3: peak * min(update / warmup, sqrt(warmup / update)).

    The rate rises linearly to `peak`, reached at update number `warmup`, and falls with the inverse square root of the
    update number, so the schedule needs no end. With `peak = paper_peak(d_model, warmup)`, the rate equals the paper's
    d_model^-0.5 * min(update^-0.5, update * warmup^-1.5).

    Raises:
        ValueError: if the update is below 1.
    """
    if update < 1:
        raise ValueError(f"update={update!r}: expected a whole number >= 1")
    warmup = max(warmup, 1)
    return peak * min(update / warmup, math.sqrt(warmup / update))


def paper_peak(d_model: int, warmup: int) -> float:
    """Return the peak learning rate of Vaswani et al. 2017, equation 3: (d_model * warmup)^-0.5.

    Source: lesson 09, equation D9.7.

    Raises:
        ValueError: if `d_model` or `warmup` is below 1.
    """
    if d_model < 1 or warmup < 1:
        raise ValueError(f"d_model={d_model!r}, warmup={warmup!r}: expected whole numbers >= 1")
    return (d_model * warmup) ** -0.5


def cut_warmup(warmup: int, updates: int) -> int:
    """Return the number of warm-up updates: `warmup`, but at most a fifth of `updates`."""
    return min(warmup, updates // 5)


def _progress(update: int, updates: int, warmup: int) -> tuple[float, float]:
    """Return how much of the rise and of the fall is complete, both as fractions from 0 to 1."""
    if not 1 <= update <= updates:
        raise ValueError(f"update={update!r}: expected a whole number from 1 to updates={updates}")
    warmup = cut_warmup(warmup, updates)
    if update <= warmup:
        return update / warmup, 0.0
    return 1.0, (update - warmup) / (updates - warmup)
