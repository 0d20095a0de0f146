"""The course of a run as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from companion.checkpoints import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_loss(
    entries: Sequence[Mapping[str, Any]], path: str | Path, *, bytes_per_token: float, yardsticks: Mapping[str, float]
) -> bool:
    """Draw training and held-out bits per byte against updates, the yardsticks as lines. False without matplotlib.

    entries: the lines of a run's log.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    to_bits = 1 / (math.log(2) * bytes_per_token)
    trained = [(entry["update"], entry["loss"] * to_bits) for entry in entries if "loss" in entry]
    measured = [(entry["update"], entry["bits_per_byte"]) for entry in entries if "bits_per_byte" in entry]
    figure = Figure(figsize=(7, 5), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.plot(*_columns(trained), color="#999999", linewidth=0.8, label="training text, each batch")
    axes.plot(*_columns(measured), color="#0072B2", marker="o", linewidth=1.8, label="held-out text")
    for (name, value), style in zip(yardsticks.items(), ("--", "-.", ":", (0, (5, 1)), (0, (1, 2))), strict=False):
        axes.axhline(value, color="#D55E00", linestyle=style, linewidth=1.1, label=f"{name}: {value:.2f}")
    if measured:
        low = min([value for _, value in measured] + list(yardsticks.values()))
        axes.set_ylim(max(0, low - 0.5), low + 2.5)
    axes.set_xlabel("updates")
    axes.set_ylabel("bits per byte (lower is better)")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    _save(figure, path)
    return True


def plot_exact_match(entries: Sequence[Mapping[str, Any]], path: str | Path) -> bool:
    """Draw the loss of each batch, and below it exact match on held-out numbers, against updates. False without
    matplotlib.

    entries: the lines of a run's log.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    trained = [(entry["update"], entry["loss"]) for entry in entries if "loss" in entry]
    measured = [(entry["update"], 100 * entry["exact_match"]) for entry in entries if "exact_match" in entry]
    figure = Figure(figsize=(7, 5.5), dpi=100, layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot(*_columns(trained), color="#999999", linewidth=0.8)
    above.set_yscale("log")
    above.set_ylabel("loss of each batch\n(nats per token)")
    below.plot(*_columns(measured), color="#0072B2", marker="o", linewidth=1.8)
    below.set_ylim(-3, 103)
    below.set_ylabel("held-out numbers\ntranslated without a mistake (%)")
    below.set_xlabel("updates")
    _save(figure, path)
    return True


def _save(figure: Figure, path: str | Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(path, picture.getvalue())


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
