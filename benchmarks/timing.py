"""How long something takes, on a machine that does other things too.

All contenders run once in each round, in an order drawn anew, so that a slow moment hits everyone alike; ratios are
taken within a round and only then summarised.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from companion.ground.fields import require_whole

FEWEST = 3
"""Rounds that there are at least where patience ends, so that a median is one."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Quartiles by linear interpolation between the sorted samples. Raises `ValueError` if there is none."""
        if len(samples) == 0:
            raise ValueError("samples is empty: expected at least one measurement")
        lower, median, upper = np.quantile(np.asarray(samples, dtype=float), (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper)


def paired_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """The spread of seconds / baseline, round by round: what slowed a whole round down cancels.

    Raises `ValueError` unless both have the same rounds.
    """
    if len(seconds) != len(baseline):
        raise ValueError(f"seconds has {len(seconds)} rounds: expected {len(baseline)}, as many as the baseline")
    return Spread.of([a / b for a, b in zip(seconds, baseline, strict=True)])


def interleaved(
    runs: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    device: torch.device | str = "cpu",
    least: float = 0.03,
    patience: float = math.inf,
    tick: Callable[[], Any] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each run in each of `rounds` rounds, after warm-up runs.

    least:     seconds that a sample takes at least: quicker runs are repeated within it and their mean is the sample.
    patience:  seconds after which no further round begins, once there are `FEWEST` of them.
    tick:      called after each sample, for a progress bar.

    Raises `ValueError` unless rounds >= 1.
    """
    require_whole("rounds", rounds)
    device = torch.device(device)
    repeats = {}
    for name, run in runs.items():
        first = _seconds(run, 1, device)  # caches, allocators and clocks settle
        if first < 1:
            _seconds(run, 1, device)
        repeats[name] = max(1, math.ceil(least / max(_seconds(run, 1, device), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order = np.random.default_rng(0)
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()  # a collection would fall on whoever happens to run
    try:
        began = time.perf_counter()
        for done in range(rounds):
            if done >= FEWEST and time.perf_counter() - began > patience:
                break
            for name in order.permutation(list(runs)).tolist():
                samples[name].append(_seconds(runs[name], repeats[name], device))
                tick()
    finally:
        if collecting:
            gc.enable()
    return samples


def _seconds(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Mean seconds of `repeats` runs, until the device has finished them."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize(device)
    return (time.perf_counter() - start) / repeats


def synchronize(device: torch.device) -> None:
    """Wait for the device: its kernels run on while Python goes ahead."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
