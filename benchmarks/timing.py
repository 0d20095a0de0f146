"""Timing on a machine that is also doing other work.

In each round, all contenders run once in a new random order, so that slow moments of the machine affect them equally.
Ratios are computed within each round and summarized afterwards.
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
from companion.ground.waiting import counted

FEWEST = 3
"""Minimum number of rounds, even after `patience` seconds, so that the median is meaningful."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the quartiles, interpolated linearly between the sorted samples."""
        lower, median, upper = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper)


def paired_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Return the spread of seconds / baseline, divided round by round so that slowdowns of a whole round cancel."""
    return Spread.of([a / b for a, b in zip(seconds, baseline, strict=True)])


def interleaved(
    runs: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    device: torch.device | str = "cpu",
    least: float = 0.03,
    patience: float = math.inf,
    what: str = "",
) -> dict[str, list[float]]:
    """Measure each function once in each of `rounds` rounds, after warm-up runs.

    Args:
        runs: Functions to time, by name.
        rounds: Number of rounds.
        device: Device to wait for after each sample.
        least: Minimum duration of a sample in seconds; faster runs are repeated, and the sample is their mean.
        patience: Number of seconds after which no new round is started, once `FEWEST` rounds are done.
        what: Name to show on the progress bar.

    Returns:
        The time of each function in each round, in seconds.

    Raises:
        ValueError: If `rounds` is less than 1.
    """
    require_whole("rounds", rounds)
    device = torch.device(device)
    repeats = {}
    for name, run in runs.items():
        first = _seconds(run, 1, device)  # caches, allocators and clock rates settle during these runs
        if first < 1:
            _seconds(run, 1, device)
        repeats[name] = max(1, math.ceil(least / max(_seconds(run, 1, device), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order = np.random.default_rng(0)
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()  # garbage collection would slow down the contender that happens to be running
    try:
        began = time.perf_counter()
        for done in counted(range(rounds), unit="round", what=what):
            if done >= FEWEST and time.perf_counter() - began > patience:
                break
            for name in order.permutation(list(runs)).tolist():
                samples[name].append(_seconds(runs[name], repeats[name], device))
    finally:
        if collecting:
            gc.enable()
    return samples


def _seconds(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Return the mean time of `repeats` runs in seconds, including the time until the device has finished them."""
    _finish(device)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    _finish(device)
    return (time.perf_counter() - start) / repeats


def _finish(device: torch.device) -> None:
    """Wait until the device has finished its kernels, because Python runs ahead of them."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
