"""What was measured: as a table, as JSON, as a picture."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from companion.bench.compare import OURS, Comparison, LeftOut, Row
from companion.ground import readable
from companion.ground.atomic import write_atomic

HEAD = ("", "median", "quartiles", "ratio", "quartiles", "tokens/s", "share")


def preamble(record: dict[str, Any]) -> str:
    """The machine, and what it can reach at best."""
    machine, ceiling = record["machine"], record["ceiling"]
    lines = [
        f"machine   {machine['device']}, {readable.count(machine['threads'], 'thread')}, "
        f"{machine['precision']}, {'compiled' if machine['compile'] else 'not compiled'}",
        f"ceiling   {si(ceiling['flops'])}FLOP/s in matrix products, {si(ceiling['bandwidth'])}B/s of memory when it "
        f"is only read, as a decode step does its weights ({si(ceiling['copying'])}B/s in a copy, which counts each "
        "byte as read and as written); all measured with as many threads"
        + (f" (published: {si(ceiling['published_flops'])}FLOP/s)" if ceiling["published_flops"] else ""),
        f"rounds    {machine['rounds']}, everybody once in each, in a new order each time",
        "versions  " + ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
        "",
        "ratio: of times; 2.00 takes twice as long as ours",
        "share: of what this machine could reach at best, its ceiling",
    ]
    return "\n".join(_wrapped(line, 10) for line in lines)


def table(comparison: Comparison) -> str:
    """One comparison, quickest first."""
    rows = []
    for row in sorted(comparison.rows, key=lambda row: row.seconds.median):
        t, r = row.seconds, row.ratio
        unit, scale = _unit(t.median)
        times = (f"{t.median / scale:.3g} {unit}", f"{t.lower / scale:.3g}–{t.upper / scale:.3g}")
        ratios = (_ratio(r.median), f"{_ratio(r.lower)}–{_ratio(r.upper)}")
        speed = () if row.moved is None else (f"{si(row.moved / t.median)}B/s",)
        rows.append((row.name, *times, *ratios, f"{row.rate:,.0f}", f"{row.share:.0%}", *speed))
    head = HEAD if comparison.rows[0].moved is None else (*HEAD, "read")
    lines = [f"{comparison.title}; {comparison.size}", readable.table(rows, head, indent=0)]
    beyond = max(row.share for row in comparison.rows) > 1
    if comparison.bound == "memory":
        lines.append(
            "the ceiling here is the memory's" + (", and the weights stay in a cache before it" if beyond else "")
        )
    elif beyond:
        lines.append("more than the ceiling: something else kept the machine busy while that was measured")
    lines += [_wrapped(remark, 2) for remark in comparison.remarks]
    return "\n".join(lines + _left_out(comparison.left_out))


def attention_table(comparisons: Sequence[Comparison]) -> str:
    """One pass of attention: backends by lengths."""
    names = list(dict.fromkeys(row.name for c in comparisons for row in c.rows))
    found = [{row.name: row for row in comparison.rows} for comparison in comparisons]
    head = ("tokens", *(f"{comparison.length:,}" for comparison in comparisons))

    def timed(row: Row) -> str:
        return f"{duration(row.seconds.median)} ({_ratio(row.ratio.median)})"

    rows = [(name, *(timed(at[name]) if name in at else "-" for at in found)) for name in names]
    rows.append(("ours, share", *(f"{at[OURS].share:.0%}" for at in found)))
    lines = [
        f"{comparisons[0].title}; {comparisons[0].size}; median (ratio) at each length",
        readable.table(rows, head, indent=0),
    ]
    if any(row.kept is not None for at in found for row in at.values()):
        kept = [
            (name, *(f"{si(at[name].kept or 0)}B" if name in at and at[name].kept else "-" for at in found))
            for name in names
        ]
        lines += ["bytes kept for the backward pass", readable.table(kept, head, indent=0)]
    seen: dict[tuple[str, str], LeftOut] = {}
    for comparison in comparisons:
        for out in comparison.left_out:
            seen.setdefault((out.name, out.kind), out)
    return "\n".join(lines + _left_out(list(seen.values())))


def tables(comparisons: Sequence[Comparison]) -> str:
    """All comparisons, those of attention drawn together."""
    blocks, done = [], set()
    for comparison in comparisons:
        if comparison.part != "attention":
            blocks.append(table(comparison))
        elif (key := (comparison.title, comparison.size)) not in done:
            done.add(key)
            blocks.append(attention_table([c for c in comparisons if (c.title, c.size) == key]))
    return "\n\n".join(blocks)


def write_json(path: Path, record: dict[str, Any], comparisons: Sequence[Comparison]) -> None:
    """The same figures, and every single sample, in one file."""
    data = record | {"comparisons": [asdict(comparison) for comparison in comparisons]}
    write_atomic(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_plot(path: Path, record: dict[str, Any], comparisons: Sequence[Comparison]) -> bool:
    """Bars of time relative to ours, with quartiles, and attention's times against length. False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    bars = [c for c in comparisons if c.part != "attention"]
    lines: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.part == "attention":
            lines.setdefault((comparison.title, comparison.size), []).append(comparison)
    heights = [0.6 + 0.24 * len(c.rows) for c in bars] + [2.6] * len(lines)
    figure = Figure(figsize=(8, 0.8 + sum(heights)), dpi=100, layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, comparison in zip(grid, bars, strict=False):
        rows = sorted(comparison.rows, key=lambda row: -row.ratio.median)
        middle = [row.ratio.median for row in rows]
        whiskers = [
            [row.ratio.median - row.ratio.lower for row in rows],
            [row.ratio.upper - row.ratio.median for row in rows],
        ]
        colors = ["#0072B2" if row.name == OURS else "#BBBBBB" for row in rows]
        axes.barh([row.name for row in rows], middle, xerr=whiskers, color=colors, ecolor="#444444", capsize=2)
        for place, row in enumerate(rows):
            axes.annotate(
                f"{row.ratio.median:.2f}",
                (row.ratio.upper, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axes.axvline(1, color="#0072B2", linewidth=0.8)
        axes.set_xlim(0, 1.12 * max(row.ratio.upper for row in rows))
        axes.set_title(f"{comparison.title}; {comparison.size}", fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    if bars:
        grid[len(bars) - 1].set_xlabel("time, ours = 1 (lower is better; whiskers: quartiles)", fontsize=8)
    palette = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
    for axes, ((title, size), group) in zip(grid[len(bars) :], lines.items(), strict=True):
        names = list(dict.fromkeys(row.name for c in group for row in c.rows))
        for name, color in zip(names, palette * len(names), strict=False):
            points = [(c.length, row.seconds) for c in group for row in c.rows if row.name == name]
            lengths = [length for length, _ in points]
            axes.plot(lengths, [1e3 * s.median for _, s in points], marker="o", markersize=3, color=color, label=name)
            axes.fill_between(
                lengths, [1e3 * s.lower for _, s in points], [1e3 * s.upper for _, s in points], color=color, alpha=0.2
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([c.length for c in group], [f"{c.length:,}" for c in group])
        axes.set_title(f"{title}; {size}", fontsize=8, loc="left")
        axes.set_xlabel("tokens", fontsize=8)
        axes.set_ylabel("milliseconds", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7)
    machine = record["machine"]
    threads = readable.count(machine["threads"], "thread")
    figure.suptitle(f"{machine['device']}, {threads}, {machine['precision']}", fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(path, picture.getvalue())
    return True


def _left_out(entries: Sequence[LeftOut]) -> list[str]:
    return [_wrapped(f"not timed: {entry.name}: {entry.why}", 2) for entry in entries]


def _wrapped(line: str, indent: int) -> str:
    """A line as several that a terminal has room for, `indent` spaces before those that follow."""
    return textwrap.fill(
        line, readable.WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def duration(seconds: float) -> str:
    unit, scale = _unit(seconds)
    return f"{seconds / scale:.3g} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    """The unit that suits a time, and its length in seconds."""
    return next(((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e-3)) if seconds >= scale), ("us", 1e-6))


def _ratio(value: float) -> str:
    """Three digits: 0.98, 12.3."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.3g}"


def si(value: float) -> str:
    """1.23e9 -> `1.23 G`."""
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "
