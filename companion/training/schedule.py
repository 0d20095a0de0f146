"""The learning rate over a run, in optimizer updates."""

from __future__ import annotations

import math
from typing import Literal, get_args

Schedule = Literal["cosine", "linear", "inverse_sqrt", "wsd"]
"""How the learning rate falls after its warm-up."""
DecayShape = Literal["linear", "1-sqrt"]
"""How `"wsd"` falls at its end."""


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
    """The learning rate of update number `update` = 1 ... `updates` under one of the schedules below.

    updates, last:             `"inverse_sqrt"` has no end, and needs neither.
    decay_share, decay_shape:  of `"wsd"` alone.

    Sources: Vaswani et al. 2017, section 5.3 (`"inverse_sqrt"`; lesson 09); lesson 14, equation 14.8 (`"cosine"`); Hu
    et al. 2024, MiniCPM (`"wsd"`; lesson 19).

    Raises `ValueError` for a schedule that is not known, and for an update that is not in the run.
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
    """The learning rate of update number `update` = 1 ... `updates`.

    It climbs in a straight line to `peak`, which update number `warmup` has, and falls along half a cosine to `last`,
    which the last update has. Updates are steps of the optimizer: with gradients accumulated over several
    micro-batches there is one for all of them, and a schedule counted in micro-batches would end far too early, or
    never. `warmup` is cut to a fifth of a short run.

    Sources: Loshchilov and Hutter 2017 (SGDR), equation 5, for the cosine, here without restarts; lesson 14, equation
    14.8.

    Raises `ValueError` for an update that is not in the run.
    """
    climb, fall = _progress(update, updates, warmup)
    return peak * climb if fall == 0 else last + (peak - last) * (1 + math.cos(math.pi * fall)) / 2


def warmup_linear(update: int, *, updates: int, warmup: int, peak: float, last: float) -> float:
    """As `warmup_cosine`, but it falls in a straight line too (Devlin et al. 2019, appendix A.2, with `last` = 0).

    Raises `ValueError` for an update that is not in the run.
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
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM, section 4): it climbs in a straight line to `peak`, which update
    number `warmup` has, stays there, and falls over the last `share` of the updates to `last`, which the last one has.

    Until it falls it does not depend on how long the run is: from a checkpoint of that part, runs of several lengths
    can be ended.

    share:  of all updates, those in which it falls, rounded to whole updates, at least one; what warms up stays.
    shape:  `"linear"`, or `"1-sqrt"`: last + (peak - last) (1 - sqrt(t)), with t the part of the fall that is done,
            which falls fast at first (Hägele et al. 2024, section 3).

    Raises `ValueError` for an update that is not in the run, a share that is not above 0 and at most 1, and another
    shape.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share!r}: expected a share above 0 and at most 1")
    if shape not in get_args(DecayShape):
        raise ValueError(f"shape={shape!r}: expected 'linear' or '1-sqrt'")
    climb, fall = _progress(update, updates, warmup)
    if fall == 0:
        return peak * climb
    falls = min(max(1, round(share * updates)), updates - cut_warmup(warmup, updates))
    done = max(0.0, (update - (updates - falls)) / falls)
    return last + (peak - last) * (1 - (done if shape == "linear" else math.sqrt(done)))


def inverse_sqrt(update: int, *, warmup: int, peak: float) -> float:
    """The schedule of Vaswani et al. 2017, section 5.3: peak * min(update / warmup, sqrt(warmup / update)).

    It climbs in a straight line to `peak`, which update number `warmup` has, and falls with one over the square root of
    the update, without an end that it would have to know. With `peak = paper_peak(d_model, warmup)` it is the paper's
    d_model^-0.5 * min(update^-0.5, update * warmup^-1.5).

    Raises `ValueError` for an update below 1.
    """
    if update < 1:
        raise ValueError(f"update={update!r}: expected a whole number >= 1")
    warmup = max(warmup, 1)
    return peak * min(update / warmup, math.sqrt(warmup / update))


def paper_peak(d_model: int, warmup: int) -> float:
    """The highest learning rate of Vaswani et al. 2017, equation 3: (d_model * warmup)^-0.5 (lesson 09, equation D9.7).

    Raises `ValueError` for a `d_model` or a `warmup` below 1.
    """
    if d_model < 1 or warmup < 1:
        raise ValueError(f"d_model={d_model!r}, warmup={warmup!r}: expected whole numbers >= 1")
    return (d_model * warmup) ** -0.5


def cut_warmup(warmup: int, updates: int) -> int:
    """How many of `updates` warm up where `warmup` are asked for: at most a fifth of them."""
    return min(warmup, updates // 5)


def _progress(update: int, updates: int, warmup: int) -> tuple[float, float]:
    """How far the climb has come and how far the fall, both from 0 to 1."""
    if not 1 <= update <= updates:
        raise ValueError(f"update={update!r}: expected a whole number from 1 to updates={updates}")
    warmup = cut_warmup(warmup, updates)
    if update <= warmup:
        return update / warmup, 0.0
    return 1.0, (update - warmup) / (updates - warmup)
