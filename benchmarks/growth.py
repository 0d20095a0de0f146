"""How the time of a decode step grows with cache, rows and experts, compared with the formulas in `companion.costs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.compare import Setting, cost_of_pass
from benchmarks.peers import drawn
from benchmarks.sizes import Size
from benchmarks.timing import Spread, interleaved
from companion.config.model import ModelConfig, MoEConfig
from companion.generation.prefill_decode import decode
from companion.ground.display import table
from companion.layers.cache import KVCache

HEAD = ("", "median", "at least", "share", "times the first", "by formula")
CACHED, ROWS, EXPERTS = (1024, 8192, 32768), (1, 8, 64), (8, 16, 64)
CHOSEN, CACHED_BESIDE, ROWS_BESIDE = 2, 256, 8
"""Experts per token; cached tokens while the rows or the experts grow; rows while the experts grow."""


@dataclass(frozen=True)
class Point:
    """One decode step.

    Attributes:
        axis, value: The quantity that grows, and its value in this measurement.
        seconds: Median and quartiles of the time.
        least: Lower bound on the time in seconds, computed from the formulas and this machine's measured peak rates.
    """

    axis: str
    value: int
    seconds: Spread
    least: float


def compare(size: Size, setting: Setting) -> list[Point]:
    """Measure decode steps with growing numbers of cached tokens, rows and experts."""
    config = size.config
    narrow = replace(config.feed_forward, d_ff=max(8, config.feed_forward.d_ff // 4))
    axes: dict[str, list[tuple[int, ModelConfig, int, int]]] = {
        "tokens in the cache": [(n, config, 1, n) for n in CACHED],
        "rows": [(n, config, n, CACHED_BESIDE) for n in ROWS],
        "experts": [
            (n, config.with_(feed_forward=narrow, moe=MoEConfig(n, CHOSEN)), ROWS_BESIDE, CACHED_BESIDE)
            for n in EXPERTS
        ],
    }
    found = []
    for axis, points in axes.items():
        runs = {str(n): step(one, rows, cached, setting) for n, one, rows, cached in points}
        samples = interleaved(runs, rounds=setting.rounds, device=setting.device, patience=setting.patience)
        for n, one, rows, cached in points:
            cost = cost_of_pass(one, 1, cached=cached, batch=rows, dtype=setting.dtype)
            found.append(Point(axis, n, Spread.of(samples[str(n)]), setting.chip.seconds(*cost)))
    return found


def step(config: ModelConfig, rows: int, cached: int, setting: Setting) -> Callable[[], Any]:
    """Return a decode step for `rows` rows, each with `cached` tokens in the cache."""
    model = drawn(config).to(setting.device, setting.dtype)
    cache = KVCache.create(config, rows, cached + 1, dtype=setting.dtype, device=setting.device)
    cache = replace(cache, lengths=cache.lengths + cached, filled=cached)
    tokens = torch.zeros(rows, dtype=torch.long, device=setting.device)
    return torch.inference_mode()(partial(decode, model, tokens, cache, None))


def report(found: Sequence[Point], size: Size) -> str:
    """Format one table for each axis."""
    lines = []
    for axis in dict.fromkeys(point.axis for point in found):
        first, *_ = points = [point for point in found if point.axis == axis]
        rows = [
            (
                f"{one.value:,}",
                f"{1e3 * one.seconds.median:.3g} ms",
                f"{1e3 * one.least:.3g} ms",
                f"{one.least / one.seconds.median:.0%}",
                f"{one.seconds.median / first.seconds.median:.2f}",
                f"{one.least / first.least:.2f}",
            )
            for one in points
        ]
        lines += [f"a decode step with more {axis}; {size.name}", table(rows, HEAD, indent=0)]
    return "\n".join(lines)
