"""Contenders for one piece of work: found to compute the same function, then timed; what is not timed is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch

from companion.bench.timing import Spread, interleaved, paired_ratio
from companion.costs.chips import Chip

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
    kept:   bytes kept between forward and backward pass, where that was asked for.
    moved:  bytes that one run reads at least, where contenders differ in it; then `share` is of the memory's bandwidth.
    """

    name: str
    samples: tuple[float, ...]
    seconds: Spread
    ratio: Spread
    rate: float
    share: float
    kept: int | None = None
    moved: int | None = None


@dataclass
class Comparison:
    """One piece of work and everybody who does it.

    part:       train, decode, cache, kept, moe, attention or linear.
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
    length: int | None = None
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

    def time(
        self,
        runs: dict[str, Callable[[], Any]],
        setting: Setting,
        *,
        kept: dict[str, int] | None = None,
        moved: dict[str, int] | None = None,
    ) -> Comparison:
        """Time what is left. Raises `ValueError` unless ours is among it."""
        if OURS not in runs:
            raise ValueError(f"runs has {', '.join(runs) or 'nobody'}: expected {OURS!r} too, for the ratios")
        with _progress(self, setting.rounds * len(runs), setting.progress) as tick:
            samples = interleaved(
                runs, rounds=setting.rounds, device=setting.device, patience=setting.patience, tick=tick
            )
        if (done := len(samples[OURS])) < setting.rounds:
            self.remarks.append(
                f"{done} rounds, which took {setting.patience / 60:.0f} minutes; --rounds asks for more"
            )
        for name, times in samples.items():
            spread = Spread.of(times)
            read = None if moved is None else moved[name]
            least = self.least if read is None else read / setting.chip.bandwidth
            self.rows.append(
                Row(
                    name,
                    tuple(times),
                    spread,
                    paired_ratio(times, samples[OURS]),
                    rate=self.items / spread.median,
                    share=least / spread.median,
                    kept=None if kept is None else kept.get(name),
                    moved=read,
                )
            )
        return self


@contextmanager
def _progress(comparison: Comparison, runs: int, shown: bool) -> Iterator[Callable[[], Any]]:
    """What to call after each run. The bar's library is asked for only where a bar is shown."""
    if not shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm

    where = f" {comparison.length}" if comparison.length else ""
    with tqdm(
        total=runs, desc=f"{comparison.part} {comparison.size}{where}", unit="run", disable=None, leave=False
    ) as bar:
        yield bar.update
