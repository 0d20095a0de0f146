"""Compare contenders: check that they compute the same function, time those that do, and list the others."""

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
    """Settings of a measurement.

    Attributes:
        device: The device that runs the models.
        precision: `"fp32"` or `"bf16"`. With `"bf16"`, contenders are checked against each other in both precisions.
        compile: True to compile the models too.
        rounds: Number of times that each contender is measured.
        chip: The measured peak rates of this machine.
        progress: True to show a progress bar.
        patience: Time limit in seconds: after it, no further round of a table starts, once three are done.
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
        """Data types in which contenders are checked against each other; the last one is timed."""
        return (torch.float32,) if self.precision == "fp32" else (torch.float32, torch.bfloat16)

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[-1]


def ceiling(dtype: torch.dtype, device: torch.device) -> tuple[Chip, float]:
    """Measure the peak arithmetic rate and the memory bandwidth of this machine.

    Each is the best of two measurements, because another process may slow down one of them.

    Returns:
        A chip with the peak FLOP/s and the read bandwidth, and the copy bandwidth, both in bytes/s.
    """
    chips = [measure_chip(dtype, device) for _ in range(2)]
    reading = max(measure_reading(device) for _ in range(2))
    return Chip(max(chip.flops for chip in chips), reading), max(chip.bandwidth for chip in chips)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress other libraries' warnings, so that they do not interrupt the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class LeftOut:
    """A contender without a time.

    Attributes:
        name: The contender's name.
        kind: `"missing"` if it is not installed, `"refused"` if it does not support this workload, `"failed"` if it
            raised another error, and `"differs"` if it computes a different function, which should never happen.
        why: The reason, in one line.
    """

    name: str
    kind: Literal["missing", "refused", "failed", "differs"]
    why: str


@dataclass(frozen=True)
class Row:
    """The times of one contender.

    Attributes:
        name: The contender's name.
        samples: Seconds of each round.
        seconds: Median and quartiles of `samples`.
        ratio: Its time divided by ours, round by round: 2 means that it takes twice as long.
        rate: Items (tokens) per second at the median.
        share: Shortest time that the machine's measured peak rates allow, divided by the median.
    """

    name: str
    samples: tuple[float, ...]
    seconds: Spread
    ratio: Spread
    rate: float
    share: float


@dataclass
class Comparison:
    """One workload and all contenders that run it.

    Attributes:
        part: `"training"`, `"decode"` or `"prefill"`.
        title: Headline of the table.
        size: Name of the `Size`.
        items: Tokens that one run processes.
        flops: FLOPs of the model's matrix products in one run.
        least: Lower bound on the seconds of one run, from the measured peak rates.
        bound: The resource that limits the speed, `"compute"` or `"memory"`.
        rows: Contenders that were timed.
        left_out: Contenders that were not.
        remarks: Lines to print below the table.
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
        """Rebuild a comparison from the result of `asdict`, possibly after a round trip through JSON."""
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
        """Return whether a contender may be timed, and record the reason if not.

        Args:
            name: The contender's name.
            check: Returns `None` if the contender computes the same function, else the difference. A `ValueError` means
                that it does not support this workload, and any other exception that it failed.
        """
        try:
            if (why := check()) is None:
                return True
            self.omit(name, "differs", why)
        except ValueError as error:
            self.omit(name, "refused", error)
        except Exception as error:  # other libraries may raise anything, and that must not end the comparison
            self.omit(name, "failed", f"{type(error).__name__}: {error}")
        return False

    def omit(self, name: str, kind: Literal["missing", "refused", "failed", "differs"], why: object) -> None:
        """Record that a contender is left out, with the reason as one line of at most 300 characters."""
        text = " ".join(str(why).split()) or type(why).__name__
        self.left_out.append(LeftOut(name, kind, text if len(text) <= 300 else text[:297] + "..."))

    def time(self, runs: dict[str, Callable[[], Any]], setting: Setting) -> Comparison:
        """Time the remaining contenders and return this comparison.

        Raises:
            ValueError: If `runs` does not contain ours.
        """
        if OURS not in runs:
            raise ValueError(f"runs has {', '.join(runs) or 'no contender'}: expected {OURS!r} too, to compute ratios")
        with _progress(self, setting.rounds * len(runs), setting.progress) as tick:
            samples = interleaved(
                runs, rounds=setting.rounds, device=setting.device, patience=setting.patience, tick=tick
            )
        if (done := len(samples[OURS])) < setting.rounds:
            self.remarks.append(f"stopped after {done} rounds, which took {setting.patience / 60:.0f} minutes")
        for name, times in samples.items():
            spread, ratio = Spread.of(times), paired_ratio(times, samples[OURS])
            rate, share = self.items / spread.median, self.least / spread.median
            self.rows.append(Row(name, tuple(times), spread, ratio, rate, share))
        return self


@contextmanager
def _progress(comparison: Comparison, runs: int, shown: bool) -> Iterator[Callable[[], Any]]:
    """Yield a function to call after each run. tqdm is only imported if a bar is shown."""
    if not shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=runs, desc=f"{comparison.part} {comparison.size}", unit="run", disable=None, leave=False) as bar:
        yield bar.update


def differs(expected: Sequence[Tensor], got: Sequence[Tensor], whats: Sequence[str], dtype: torch.dtype) -> str | None:
    """Return a line about the first tensor that differs from `expected` by more than rounding explains, or `None`.

    The difference is measured as its root mean square divided by that of `expected`. It may be at most 1e-4 in float32
    and 5e-2 otherwise. Different shapes and NaN always count as a difference.

    Args:
        expected: Our tensors.
        got: The contender's tensors.
        whats: A name for each tensor.
        dtype: The data type in which they were computed.
    """
    most = 1e-4 if dtype == torch.float32 else 5e-2
    for a, b, what in zip(expected, got, whats, strict=True):
        a, b = a.detach().double().cpu(), b.detach().double().cpu()
        error = math.inf
        if a.shape == b.shape:
            error = float((a - b).square().mean().sqrt() / a.square().mean().sqrt().clamp_min(1e-30))
        if not error <= most:
            return f"its {what} differs from ours by {error:.1e} (relative error); at most {most:.0e} is allowed"
    return None
