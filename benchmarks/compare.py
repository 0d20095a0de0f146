"""Compare contenders: check which of them compute the same function as ours, time those, and list the others."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.timing import Spread, interleaved, paired_ratio
from companion.config.model import ModelConfig
from companion.costs import account
from companion.costs.chips import Chip, measure_chip, measure_reading
from companion.ground import display

OURS = "ours"
"""The contender that all ratios are relative to."""
HEAD = ("", "median", "quartiles", "ratio", "quartiles", "tokens/s", "share")


@dataclass(frozen=True)
class Setting:
    """Settings of a measurement.

    Attributes:
        device: The device that runs the models.
        precision: `"fp32"`, or `"bf16"` to check contenders against each other in both precisions and to time them in
            bf16.
        compile: Whether to measure compiled models as well.
        rounds: Number of measurements of each contender.
        chip: This machine's measured peak rates.
        patience: Number of seconds after which no new round for a table is started, once three rounds are done.
    """

    device: torch.device
    precision: str
    compile: bool
    rounds: int
    chip: Chip
    patience: float = 300.0

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Data types in which contenders are checked against each other. Times are measured in the last one."""
        return (torch.float32,) if self.precision == "fp32" else (torch.float32, torch.bfloat16)

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[-1]


def ceiling(dtype: torch.dtype, device: torch.device) -> tuple[Chip, float]:
    """Measure this machine's peak arithmetic rate and memory bandwidth.

    Each value is the better of two measurements, because another process may slow down one of them.

    Returns:
        A chip with the peak FLOP/s and the read bandwidth, and separately the copy bandwidth. Both bandwidths are in
        bytes/s.
    """
    chips = [measure_chip(dtype, device) for _ in range(2)]
    reading = max(measure_reading(device) for _ in range(2))
    return Chip(max(chip.flops for chip in chips), reading), max(chip.bandwidth for chip in chips)


def cost_of_pass(
    config: ModelConfig, tokens: int, *, cached: int, batch: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[float, float]:
    """Return the FLOPs of a forward pass that computes the last token's logits, and the bytes that it moves."""
    flops = account.forward_flops(config, tokens, batch=batch, cached=cached, logits="last").total
    return flops, account.forward_bytes(config, tokens, batch=batch, cached=cached, dtype=dtype)


@dataclass(frozen=True)
class LeftOut:
    """A contender without a time.

    Attributes:
        name: The contender's name.
        kind: `"missing"` if it is not installed, `"failed"` if it raised an error, and `"differs"` if it computes a
            different function, which should never happen.
        why: The reason, on one line.
    """

    name: str
    kind: Literal["missing", "failed", "differs"]
    why: str


@dataclass(frozen=True)
class Row:
    """The times of one contender.

    Attributes:
        name: The contender's name.
        samples: Time of each round, in seconds.
        seconds: Median and quartiles of `samples`.
        ratio: The contender's time divided by ours, round by round. A ratio of 2 means that it takes twice as long.
        rate: Items (tokens) per second at the median time.
        share: The shortest time possible at the machine's measured peak rates, divided by the median time.
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
        title: Title of the table.
        size: Name of the `Size`.
        items: Number of tokens that one run processes.
        least: Lower bound on the time of one run in seconds, computed from the measured peak rates.
        bound: The resource that limits the speed, `"compute"` or `"memory"`.
        rows: Contenders that were timed.
        left_out: Contenders that were not timed.
        remarks: Lines of text to print below the table.
    """

    part: str
    title: str
    size: str
    items: int
    least: float
    bound: str = "compute"
    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def admits(self, name: str, check: Callable[..., str | None], *given: Any) -> bool:
        """Return whether a contender may be timed, and record the reason if it may not.

        Args:
            name: The contender's name.
            check: Function that returns `None` if the contender computes the same function, and otherwise the
                difference.
            given: Arguments for `check`.
        """
        try:
            if (why := check(*given)) is None:
                return True
            self.omit(name, "differs", why)
        except Exception as error:  # other libraries may raise any exception, which must not end the comparison
            self.omit(name, "failed", f"{type(error).__name__}: {error}")
        return False

    def omit(self, name: str, kind: Literal["missing", "failed", "differs"], why: str) -> None:
        """Record that a contender is left out, and the reason as a single line of at most 300 characters."""
        self.left_out.append(LeftOut(name, kind, textwrap.shorten(why, 300, placeholder="...")))

    def time_equal(
        self,
        runs: dict[str, Callable[[], Any]],
        models: Collection[nn.Module],
        difference: Callable[[Any, Any, torch.dtype], str | None],
        setting: Setting,
    ) -> Comparison:
        """Time those contenders that return the same result as ours in each data type of the setting.

        Args:
            runs: Functions to time, by contender.
            models: All models that these functions use.
            difference: Function that takes our result, another result and the data type, and says how the results
                differ.
            setting: Settings of the measurement.
        """

        def check(run: Callable[[], Any], expected: Any, dtype: torch.dtype) -> str | None:
            return difference(expected, run(), dtype)

        for dtype in setting.dtypes:
            for model in models:
                model.to(setting.device, dtype).eval()
            expected = runs[OURS]()
            for name, run in [*runs.items()]:
                if name != OURS and not self.admits(name, check, run, expected, dtype):
                    del runs[name]
        return self.time(runs, setting)

    def time(self, runs: dict[str, Callable[[], Any]], setting: Setting) -> Comparison:
        """Time the contenders, one of which is ours, and return this comparison."""
        samples = interleaved(
            runs,
            rounds=setting.rounds,
            device=setting.device,
            patience=setting.patience,
            what=f"{self.part} {self.size}",
        )
        if (done := len(samples[OURS])) < setting.rounds:
            self.remarks.append(f"stopped after {done} rounds, which took {setting.patience / 60:.0f} minutes")
        for name, times in samples.items():
            spread, ratio = Spread.of(times), paired_ratio(times, samples[OURS])
            rate, share = self.items / spread.median, self.least / spread.median
            self.rows.append(Row(name, tuple(times), spread, ratio, rate, share))
        return self

    def table(self) -> str:
        """Format the comparison, with the fastest contender first."""
        rows = []
        for row in sorted(self.rows, key=lambda row: row.seconds.median):
            t, r = row.seconds, row.ratio
            unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if t.median >= s), ("us", 1e-6))
            times = (f"{t.median / scale:.3g} {unit}", f"{t.lower / scale:.3g}–{t.upper / scale:.3g}")
            ratios = (f"{r.median:.2f}", f"{r.lower:.2f}–{r.upper:.2f}")
            rows.append((row.name, *times, *ratios, f"{row.rate:,.0f}", f"{row.share:.0%}"))
        lines = [f"{self.title}; {self.size}", *([display.table(rows, HEAD, indent=0)] if rows else [])]
        beyond = max((row.share for row in self.rows), default=0) > 1
        if self.bound == "memory":
            cached = ", and the weights stay in the processor's cache" if beyond else ""
            lines.append("memory bandwidth is the ceiling" + cached)
        elif beyond:
            lines.append("more than the ceiling: the machine was busy with something else while it was measured")
        notes = self.remarks + [f"not timed: {entry.name}: {entry.why}" for entry in self.left_out]
        return "\n".join(lines + [wrapped(note, 2) for note in notes])


def differs(expected: Tensor, got: Tensor, what: str, dtype: torch.dtype) -> str | None:
    """Describe how a tensor differs from `expected` if rounding cannot explain it; otherwise return `None`.

    The measure is the root mean square of the difference divided by the root mean square of `expected`. At most 1e-4 is
    allowed in float32, and 5e-2 in other types. Different shapes and NaN always count as a difference.

    Args:
        expected: Our tensor.
        got: The contender's tensor.
        what: The tensor's name.
        dtype: The data type in which both were computed.
    """
    most, error = 1e-4 if dtype == torch.float32 else 5e-2, math.inf
    a, b = expected.detach().double().cpu(), got.detach().double().cpu()
    if a.shape == b.shape:
        error = float((a - b).square().mean().sqrt() / a.square().mean().sqrt().clamp_min(1e-30))
    if error <= most:  # false for NaN
        return None
    return f"its {what} differs from ours by {error:.1e} (relative error); at most {most:.0e} is allowed"


def wrapped(line: str, indent: int) -> str:
    """Wrap a line to the width of the terminal, with continuation lines indented by `indent` spaces."""
    return textwrap.fill(
        line, display.WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def si(value: float) -> str:
    """Format a number with an SI prefix: 1.23e9 becomes `1.23 G`."""
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "
