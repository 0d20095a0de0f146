"""Training curves of a run."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from companion.ground.atomic import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_loss(
    entries: Sequence[Mapping[str, Any]], path: str | Path, *, bytes_per_token: float, baselines: Mapping[str, float]
) -> bool:
    """Plot training and held-out bits per byte against updates.

    Baselines are drawn as lines. If there are experts, their load is drawn in a panel below.

    Args:
        entries: the lines of a run's log.
        path: file of the PNG.
        bytes_per_token: converts nats per token to bits per byte.
        baselines: bits per byte of the baselines, keyed by name.

    Returns:
        False if matplotlib is not installed.
    """
    experts = _with_experts(entries)
    try:
        figure, (axes, *below) = _panels(5, 1.8) if experts else _panels(5)
    except ImportError:
        return False
    to_bits = 1 / (math.log(2) * bytes_per_token)
    updates, measured = _series(entries, "bits_per_byte")
    axes.plot(*_series(entries, "loss", to_bits), color="#999999", linewidth=0.8, label="training text, each batch")
    axes.plot(updates, measured, color="#0072B2", marker="o", linewidth=1.8, label="held-out text")
    for (name, value), style in zip(baselines.items(), ("--", "-.", ":", (0, (5, 1)), (0, (1, 2))), strict=False):
        axes.axhline(value, color="#D55E00", linestyle=style, linewidth=1.1, label=f"{name}: {value:.2f}")
    if measured:
        low = min([*measured, *baselines.values()])
        axes.set_ylim(max(0, low - 0.5), max(low + 2.5, measured[-1] + 0.5))
    axes.set_ylabel("bits per byte (lower is better)")
    if experts:
        _draw_experts(below[0], entries)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    _save(figure, path)
    return True


def plot_exact_match(entries: Sequence[Mapping[str, Any]], path: str | Path) -> bool:
    """Plot the loss of each batch, exact match on held-out numbers, and the load of experts (if any) against updates.

    Args:
        entries: the lines of a run's log.
        path: file of the PNG.

    Returns:
        False if matplotlib is not installed.
    """
    experts = _with_experts(entries)
    try:
        figure, (above, below, *lowest) = _panels(2.75, 2.75, 1.8) if experts else _panels(2.75, 2.75)
    except ImportError:
        return False
    above.plot(*_series(entries, "loss"), color="#999999", linewidth=0.8)
    above.set_yscale("log")
    above.set_ylabel("loss of each batch\n(nats per token)")
    below.plot(*_series(entries, "exact_match", 100), color="#0072B2", marker="o", linewidth=1.8)
    below.set_ylim(-3, 103)
    below.set_ylabel("held-out numbers\ntranslated without a mistake (%)")
    if experts:
        _draw_experts(lowest[0], entries)
    _save(figure, path)
    return True


SCORES = {
    "right_share": "held-out problems\nanswered right (%)",
    "preferred": "held-out pairs whose better\nanswer gained more (%)",
    "held_out_loss": "held-out answers\n(nats per token)",
}
"""Axis labels of the scores of fine-tuning runs."""


def plot_tuning(entries: Sequence[Mapping[str, Any]], path: str | Path) -> bool:
    """Plot the loss of each batch (or the reward, if answers are checked) and, below it, the scores of evaluations.

    Args:
        entries: the lines of a run's log.
        path: file of the PNG.

    Returns:
        False if matplotlib is not installed.
    """
    try:
        figure, (above, below) = _panels(2.75, 2.75)
    except ImportError:
        return False
    drawn = "reward" if any("reward" in entry for entry in entries) else "loss"
    above.plot(*_series(entries, drawn), color="#999999")
    above.set_ylabel("mean reward\nof sampled answers" if drawn == "reward" else "loss of each batch")
    name = next((name for name in SCORES if any(name in entry for entry in entries)), "held_out_loss")
    scale = 1 if name == "held_out_loss" else 100
    below.plot(*_series(entries, name, scale), color="#0072B2", marker="o", linewidth=1.8)
    below.set_ylabel(SCORES[name])
    if scale == 100:
        below.set_ylim(-3, 103)
    _save(figure, path)
    return True


def _panels(*heights: float) -> tuple[Figure, list[Axes]]:
    """Make a figure of stacked panels that have these heights in inches and share the axis of updates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, sum(heights)), dpi=100, layout="constrained")
    column = list(figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    column[-1].set_xlabel("updates")
    return figure, column


def _with_experts(entries: Sequence[Mapping[str, Any]]) -> bool:
    return any("effective_experts" in entry for entry in entries)


def _draw_experts(axes: Axes, entries: Sequence[Mapping[str, Any]]) -> None:
    updates, used = _series(entries, "effective_experts")
    axes.plot(updates, used, color="#009E73", linewidth=1)
    axes.set_ylim(0, 1.1 * max(used))
    axes.set_ylabel("experts in use\n(least even layer)", color="#009E73")
    dropped = [entry for entry in entries if entry.get("dropped")]
    if dropped:
        beside = axes.twinx()
        beside.plot(*_series(dropped, "dropped", 100), color="#CC79A7", linewidth=1)
        beside.set_ylim(0, None)
        beside.set_ylabel("visits dropped (%)", color="#CC79A7")


def _save(figure: Figure, path: str | Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(path, picture.getvalue())


def _series(entries: Sequence[Mapping[str, Any]], name: str, scale: float = 1) -> tuple[list[float], list[float]]:
    """Return the updates for which the log has this value, and the scaled values."""
    there = [entry for entry in entries if name in entry]
    return [entry["update"] for entry in there], [scale * entry[name] for entry in there]
