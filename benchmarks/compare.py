"""Contenders for one piece of work: found to compute the same function, then timed; what is not timed is named."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor

from benchmarks.timing import Spread, interleaved, paired_ratio
from companion.costs.chips import Chip, measure_chip, measure_reading

OURS = "ours"
"""The contender that all ratios are relative to."""


@dataclass(frozen=True)
class Setting:
    """Where and how everything is measured.

    precision:  `"fp32"` or `"bf16"`. Contenders are compared with each other in both.
    chip:       this machine's measured ceiling.
    patience:   seconds after which no further round of a table begins, once there are three.
    """

    device: torch.device
    precision: str
    compile: bool
    rounds: int
    chip: Chip
    progress: bool = True
    patience: float = math.inf

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Those in which contenders are compared with each other; the last is timed."""
        return (torch.float32,) if self.precision == "fp32" else (torch.float32, torch.bfloat16)

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[-1]


def ceiling(dtype: torch.dtype, device: torch.device) -> tuple[Chip, float]:
    """Return what this machine reaches, with the memory's speed in reading, and that speed in a copy.

    The best of two measurements: a moment in which something else runs would lower it.
    """
    chips = [measure_chip(dtype, device) for _ in range(2)]
    reading = max(measure_reading(device) for _ in range(2))
    return Chip(max(chip.flops for chip in chips), reading), max(chip.bandwidth for chip in chips)


@contextmanager
def quiet() -> Iterator[None]:
    """Other libraries' advice to their users stays out of the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class LeftOut:
    """A contender without a time. `kind` says whether it is not here, does not do this work, broke, or computes
    something else, which should never happen."""

    name: str
    kind: Literal["missing", "refused", "failed", "differs"]
    why: str


@dataclass(frozen=True)
class Row:
    """One contender's times.

    ratio:  its time over ours, taken round by round: 2 means that it needs twice as long.
    rate:   items (tokens) per second at the median.
    share:  the least time the machine's measured ceiling allows, over the median.
    """

    name: str
    samples: tuple[float, ...]
    seconds: Spread
    ratio: Spread
    rate: float
    share: float


@dataclass
class Comparison:
    """One piece of work and everybody who does it.

    part:       train, decode, prefill or memory.
    items:      tokens that one run deals with.
    flops:      of the model (its matrix products), in one run.
    least:      seconds that the measured ceiling allows at best.
    bound:      what that ceiling is: the arithmetic or the memory.
    """

    part: str
    title: str
    size: str
    items: int
    flops: float
    least: float
    bound: str = "compute"
    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """The comparison that `asdict` was told of, by way of JSON."""
        rows = [
            Row(
                **row
                | {"samples": tuple(row["samples"])}
                | {part: Spread(**row[part]) for part in ("seconds", "ratio")}
            )
            for row in told["rows"]
        ]
        return cls(**{**told, "rows": rows, "left_out": [LeftOut(**out) for out in told["left_out"]]})

    def admits(self, name: str, check: Callable[[], str | None]) -> bool:
        """Whether a contender may be timed: `check` says why not, by what it gives or by what it raises."""
        try:
            if (why := check()) is None:
                return True
            self.omit(name, "differs", why)
        except ValueError as error:
            self.omit(name, "refused", error)
        except Exception as error:  # whatever somebody else's code raises must not end the comparison
            self.omit(name, "failed", f"{type(error).__name__}: {error}")
        return False

    def omit(self, name: str, kind: Literal["missing", "refused", "failed", "differs"], why: object) -> None:
        """Leave a contender out, and say why in one line."""
        text = " ".join(str(why).split()) or type(why).__name__
        self.left_out.append(LeftOut(name, kind, text if len(text) <= 300 else text[:297] + "..."))

    def time(self, runs: dict[str, Callable[[], Any]], setting: Setting) -> Comparison:
        """Time what is left. Raises `ValueError` unless ours is among it."""
        if OURS not in runs:
            raise ValueError(f"runs has {', '.join(runs) or 'nobody'}: expected {OURS!r} too, for the ratios")
        with _progress(self, setting.rounds * len(runs), setting.progress) as tick:
            samples = interleaved(
                runs, rounds=setting.rounds, device=setting.device, patience=setting.patience, tick=tick
            )
        if (done := len(samples[OURS])) < setting.rounds:
            self.remarks.append(f"{done} rounds, which took {setting.patience / 60:.0f} minutes")
        for name, times in samples.items():
            spread, ratio = Spread.of(times), paired_ratio(times, samples[OURS])
            rate, share = self.items / spread.median, self.least / spread.median
            self.rows.append(Row(name, tuple(times), spread, ratio, rate, share))
        return self


@contextmanager
def _progress(comparison: Comparison, runs: int, shown: bool) -> Iterator[Callable[[], Any]]:
    """What to call after each run. The bar's library is asked for only where a bar is shown."""
    if not shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=runs, desc=f"{comparison.part} {comparison.size}", unit="run", disable=None, leave=False) as bar:
        yield bar.update


def differs(expected: Sequence[Tensor], got: Sequence[Tensor], whats: Sequence[str], dtype: torch.dtype) -> str | None:
    """Return a line about what of `got` is further from `expected` than rounding explains, or `None`.

    The difference is a root mean square over that of `expected`; shapes that differ and NaN are never explained.
    """
    most = 1e-4 if dtype == torch.float32 else 5e-2
    for a, b, what in zip(expected, got, whats, strict=True):
        a, b = a.detach().double().cpu(), b.detach().double().cpu()
        error = math.inf
        if a.shape == b.shape:
            error = float((a - b).square().mean().sqrt() / a.square().mean().sqrt().clamp_min(1e-30))
        if not error <= most:
            return f"its {what} differs from ours by {error:.1e} of its size; {most:.0e} is allowed"
    return None
