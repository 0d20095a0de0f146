"""Moving figure of quantized weights: levels of integer and floating-point formats on number lines (lesson 19)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from companion_school.study import figures
from companion_school.study.live import moving

FLOATS = {"fp8 e4m3": (torch.float8_e4m3fn, 8), "fp8 e5m2": (torch.float8_e5m2, 15)}
"""One-byte formats, each with the exponent of its largest number (448 and 57,344)."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Non-negative numbers of e2m1 (Open Compute Project, Microscaling Formats, 2023, section 5.3.3)."""


def number_lines(weights: Sequence[float], *, group: int, sizes: Sequence[int], caption: str = "") -> None:
    """Show how the levels of a format and the quantized weights change as the last weight grows.

    Integer levels are scaled so that the largest level equals the largest weight. Floating-point levels are scaled by a
    power of two, as in a block of a microscaling format.

    Args:
        weights: Two or three groups of weights from -1 to 1, none of them 0, the last of which grows.
        group: Number of weights in a group, which can have a scale of its own.
        sizes: Factors on the slider by which the last weight is multiplied, beginning with 1.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The weights are not two or three groups, a weight is out of range, or the sizes do not begin with 1.
    """
    if group < 2 or len(weights) not in (2 * group, 3 * group):
        raise ValueError(
            f"weights: expected two or three groups of group={group} weights, group >= 2; got {len(weights)} weights"
        )
    if any(not 0 < abs(w) <= 1 for w in weights):
        raise ValueError(f"weights: expected numbers from -1 to 1, none of them 0; got {list(weights)}")
    if len(sizes) < 2 or sizes[0] != 1:
        raise ValueError(f"sizes: expected 1 and then at least one larger number, got {list(sizes)}")
    formats = [{"name": name, "levels": levels, "power": power} for name, (levels, power) in _formats().items()]
    grown = [*weights[:-1], weights[-1] * sizes[-1]]
    shared = {"one scale": len(grown), "one for each group": group}
    lost = {f"{name}, {way}": _off(grown, name, shared[way]) for name in _formats() for way in shared}
    moving.show(
        "number_lines",
        {"weights": list(weights), "formats": formats, "group": group, "sizes": list(sizes), "start": sizes[0]},
        _still(weights, grown, group, sizes[-1]),
        alt="Number lines with ticks at the levels of a format, weights as discs above them, and squares below where "
        "each is rounded to. With one weight that is many times as large the levels of whole numbers lie far apart and "
        "nearly all other weights become 0; with a scale for each group only its own group suffers.",
        caption=caption,
        numbers={
            "format": list(lost),
            f"off, the last {sizes[-1]} times as large": [f"{x:.3f}" for x in lost.values()],
        },
        colors=5,
    )


def _formats() -> dict[str, tuple[list[float], int | None]]:
    """Return each format's non-negative levels and the exponent of its largest level (None for integer formats)."""
    made: dict[str, tuple[list[float], int | None]] = {
        "int8": ([float(x) for x in range(128)], None),
        "int4": ([float(x) for x in range(8)], None),
    }
    for name, (dtype, power) in FLOATS.items():
        every = torch.arange(128, dtype=torch.uint8).view(dtype).float()
        made[name] = (every[every.isfinite()].tolist(), power)
    made["fp4 e2m1"] = (list(FP4), 2)
    return made


def _kept(weights: Sequence[float], name: str, group: int) -> tuple[np.ndarray, list[np.ndarray]]:
    levels, power = _formats()[name]
    both, kept, lines = np.unique([-x for x in levels] + levels), [], []
    for at in range(0, len(weights), group):
        own = np.array(weights[at : at + group])
        most = np.abs(own).max()
        scale = most / levels[-1] if power is None else 2.0 ** (math.floor(math.log2(most)) - power)
        lines.append(both * scale)
        kept.append(lines[-1][np.abs(own[:, None] - lines[-1]).argmin(-1)])
    return np.concatenate(kept), lines


def _off(weights: Sequence[float], name: str, group: int) -> float:
    kept, _ = _kept(weights, name, group)
    return float(np.sqrt(np.square(kept - np.array(weights))[:-1].mean()))


def _still(weights: Sequence[float], grown: Sequence[float], group: int, times: int) -> figures.Figure:
    """Draw the initial weights in int4, and the larger ones in int4 (with a single scale or one per group) and fp4."""
    shown = (
        ("int4", weights, len(weights), "int4"),
        ("int4", grown, len(grown), f"int4, the last weight {times} times as large"),
        ("int4", grown, group, "the same with a scale for each group: the first group"),
        ("fp4 e2m1", grown, group, "fp4 with a scale for each group: the first group"),
    )
    fig, axes = figures.subplots(4, 1, width=6.4, height=3.7, sharex=True)
    for ax, (name, values, size, title) in zip(axes, shown, strict=True):
        kept, lines = _kept(values, name, size)
        first = slice(0, group)
        seen = lines[0][np.abs(lines[0]) <= 1.15]
        ax.vlines(seen, -0.25, 0.25, color="black", linewidth=1)
        for w, to in zip(np.array(values)[first], kept[first], strict=True):
            ax.plot([w, to], [0.9, -0.9], color=figures.PALETTE["blue"], linestyle="-", marker="", linewidth=1)
        ax.plot(np.array(values)[first], [0.9] * group, "o", color=figures.PALETTE["blue"])
        ax.plot(kept[first], [-0.9] * group, "s", color="white", markeredgecolor="black")
        ax.set(yticks=[], ylim=(-1.5, 1.5), xlim=(-1.15, 1.15), ylabel="levels")
        ax.set_title(title, fontsize=9)
        ax.grid(False)
    axes[-1].set_xlabel("weight (disc) and its rounded value (square)")
    return fig
