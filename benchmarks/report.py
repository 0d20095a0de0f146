"""Reports of the measurements, as tables and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.compare import Comparison, LeftOut
from companion.ground import display
from companion.ground.atomic import write_atomic

HEAD = ("", "median", "quartiles", "ratio", "quartiles", "tokens/s", "share")


def preamble(record: dict[str, Any]) -> str:
    """Describe the machine and its measured ceiling."""
    machine, ceiling = record["machine"], record["ceiling"]
    lines = [
        f"machine   {machine['device']}, {display.count(machine['threads'], 'thread')}, "
        f"{machine['precision']}, {'compiled' if machine['compile'] else 'not compiled'}",
        f"ceiling   {si(ceiling['flops'])}FLOP/s in matrix products, {si(ceiling['bandwidth'])}B/s when memory is "
        f"only read, as a decode step reads its weights ({si(ceiling['copying'])}B/s in a copy, which counts each "
        "byte as read and as written); all measured with this number of threads"
        + (f" (published: {si(ceiling['published_flops'])}FLOP/s)" if ceiling["published_flops"] else ""),
        f"rounds    {machine['rounds']}, each contender once per round, in a new random order; load of the machine: "
        f"{machine['load'][0]:.1f} processes on average over the last minute",
        "versions  " + ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
        "",
        "ratio: time divided by ours; 2.00 takes twice as long",
        "share: part of this machine's ceiling that was reached",
    ]
    return "\n".join(_wrapped(line, 10) for line in lines)


def table(comparison: Comparison) -> str:
    """Format one comparison, with the fastest contender first."""
    rows = []
    for row in sorted(comparison.rows, key=lambda row: row.seconds.median):
        t, r = row.seconds, row.ratio
        unit, scale = _unit(t.median)
        times = (f"{t.median / scale:.3g} {unit}", f"{t.lower / scale:.3g}–{t.upper / scale:.3g}")
        ratios = (_ratio(r.median), f"{_ratio(r.lower)}–{_ratio(r.upper)}")
        rows.append((row.name, *times, *ratios, f"{row.rate:,.0f}", f"{row.share:.0%}"))
    lines = [f"{comparison.title}; {comparison.size}", *([display.table(rows, HEAD, indent=0)] if rows else [])]
    beyond = max((row.share for row in comparison.rows), default=0) > 1
    if comparison.bound == "memory":
        lines.append(
            "memory bandwidth is the ceiling" + (", and the weights stay in the processor's cache" if beyond else "")
        )
    elif beyond:
        lines.append("more than the ceiling: the machine was busy with something else while the ceiling was measured")
    lines += [_wrapped(remark, 2) for remark in comparison.remarks]
    return "\n".join(lines + _left_out(comparison.left_out))


def tables(comparisons: Sequence[Comparison]) -> str:
    """Format all comparisons."""
    return "\n\n".join(map(table, comparisons))


def write_json(path: Path, record: dict[str, Any], comparisons: Sequence[Comparison]) -> None:
    """Write the results, including every single sample, to one JSON file."""
    data = record | {"comparisons": [asdict(comparison) for comparison in comparisons]}
    write_atomic(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def _left_out(entries: Sequence[LeftOut]) -> list[str]:
    return [_wrapped(f"not timed: {entry.name}: {entry.why}", 2) for entry in entries]


def _wrapped(line: str, indent: int) -> str:
    """Wrap a line to the width of the terminal, with continuation lines indented by `indent` spaces."""
    return textwrap.fill(
        line, display.WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _unit(seconds: float) -> tuple[str, float]:
    """Return a suitable unit for a time, and the unit's length in seconds."""
    return next(((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e-3)) if seconds >= scale), ("us", 1e-6))


def _ratio(value: float) -> str:
    """Format a ratio with three significant digits, as in 0.98 and 12.3."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.3g}"


def si(value: float) -> str:
    """Format a number with an SI prefix: 1.23e9 becomes `1.23 G`."""
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "
