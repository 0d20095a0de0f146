"""What was measured: as a table, as JSON, as a picture."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from companion.bench.compare import OURS, Comparison, LeftOut
from companion.files.atomic import write_atomic

COLUMNS = "  {:<28}{:>10}  {:<20}{:>14}  {:<13}{:>10}{:>9}"
HEAD = COLUMNS.format("", "median", "quartiles", "time, ours = 1", "quartiles", "tokens/s", "ceiling")


def preamble(record: dict[str, Any]) -> str:
    """The machine, and what it can reach at best."""
    machine, ceiling = record["machine"], record["ceiling"]
    lines = [
        f"machine   {machine['device']}, {machine['threads']} thread{'' if machine['threads'] == 1 else 's'}, "
        f"{machine['precision']}, {'compiled' if machine['compile'] else 'not compiled'}",
        f"ceiling   {_si(ceiling['flops'])}FLOP/s in matrix products, {_si(ceiling['bandwidth'])}B/s of memory, both "
        "measured" + (f" (published: {_si(ceiling['published_flops'])}FLOP/s)" if ceiling["published_flops"] else ""),
        f"rounds    {machine['rounds']}, everybody once in each, in a new order each time",
        "versions  " + ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
        "",
        "time, ours = 1: 2.00 takes twice as long as ours",
        "ceiling: the share of what this machine could reach at best",
    ]
    return "\n".join(lines)


def table(comparison: Comparison) -> str:
    """One comparison, quickest first."""
    lines = [f"{comparison.title}; {comparison.size}", HEAD]
    for row in sorted(comparison.rows, key=lambda row: row.seconds.median):
        t, r = row.seconds, row.ratio
        lines.append(
            COLUMNS.format(
                row.name,
                _time(t.median),
                f"{_time(t.lower)} to {_time(t.upper)}",
                f"{r.median:.2f}",
                f"{r.lower:.2f} to {r.upper:.2f}",
                f"{row.rate:,.0f}",
                f"{row.share:.0%}",
            )
        )
    beyond = max(row.share for row in comparison.rows) > 1
    if comparison.bound == "memory":
        lines.append(
            "  the ceiling here is the memory's" + (", and the weights stay in a cache before it" if beyond else "")
        )
    elif beyond:
        lines.append("  more than the ceiling: something else kept the machine busy while that was measured")
    return "\n".join(lines + _left_out(comparison.left_out))


def attention_table(comparisons: Sequence[Comparison]) -> str:
    """One pass of attention: backends by lengths."""
    names = list(dict.fromkeys(row.name for c in comparisons for row in c.rows))
    lines = [f"{comparisons[0].title}; {comparisons[0].size}; median (time, ours = 1) at each length"]
    lines.append(f"  {'tokens':<14}" + "".join(f"{c.length:>20,}" for c in comparisons))
    for name in names:
        cells = []
        for comparison in comparisons:
            found = [row for row in comparison.rows if row.name == name]
            cells.append(f"{_time(found[0].seconds.median)} ({found[0].ratio.median:.2f})" if found else "-")
        lines.append(f"  {name:<14}" + "".join(f"{cell:>20}" for cell in cells))
    shares = [next(row.share for row in c.rows if row.name == OURS) for c in comparisons]
    lines.append(f"  {'ours, ceiling':<14}" + "".join(f"{share:>20.0%}" for share in shares))
    if any(row.kept is not None for c in comparisons for row in c.rows):
        lines.append("  bytes kept for the backward pass")
        for name in names:
            cells = []
            for comparison in comparisons:
                found_bytes = [row.kept for row in comparison.rows if row.name == name and row.kept]
                cells.append(f"{_si(found_bytes[0])}B" if found_bytes else "-")
            lines.append(f"  {name:<14}" + "".join(f"{cell:>20}" for cell in cells))
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
    threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    figure.suptitle(f"{machine['device']}, {threads}, {machine['precision']}", fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(path, picture.getvalue())
    return True


def _left_out(entries: Sequence[LeftOut]) -> list[str]:
    return [f"  not timed: {entry.name}: {entry.why}" for entry in entries]


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _si(value: float) -> str:
    """1.23e9 -> `1.23 G`."""
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "
