"""Moving figures of rotary positions: two clocks that rotate together, and a whole head drawn as dials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Wedge

from companion_school.study import figures
from companion_school.study.live import moving
from companion_school.study.live.attention import vector


def together(
    query: Sequence[float] | torch.Tensor,
    key: Sequence[float] | torch.Tensor,
    *,
    words: tuple[str, str],
    step: float = math.pi / 6,
    places: int = 41,
    distances: int = 11,
    start: int = 14,
    apart: int = 3,
    caption: str = "",
) -> None:
    """Show a query and a key as hands of two clocks that rotate by one step per position in the text.

    Args:
        query: The query before rotation (2,).
        key: The key before rotation (2,).
        words: The word of the query and the word of the key.
        step: Counter-clockwise rotation per position in radians; default: one hour on a clock face.
        places: Number of positions, of which those from `distances` - 1 on are possible for the query's word.
        distances: Number of possible distances from the key's word to the query's word, starting at 0.
        start: Initial position of the query's word.
        apart: Initial distance.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: Query and key do not have two components each, one of them is zero, or a position or distance is out
            of range.
    """
    q, k = vector("query", query), vector("key", key)
    if q.shape != (2,) or k.shape != (2,) or not q.any() or not k.any():
        raise ValueError(f"query, key: expected two components each, not both zero, got {q.tolist()} and {k.tolist()}")
    _on_the_way(places, distances, start, apart)
    fig, axes = figures.subplots(1, 3, width=7.6, height=2.6)
    angles = [math.atan2(q[1], q[0]) + start * step, math.atan2(k[1], k[0]) + (start - apart) * step]
    sizes = np.array([np.hypot(*q), np.hypot(*k)])
    scaled = (sizes / sizes.max()).tolist()
    # Angles start from the angle at distance 0 and, as in (5.4), are not reduced modulo a full turn.
    unturned = math.remainder(math.atan2(q[1], q[0]) - math.atan2(k[1], k[0]), 2 * math.pi)
    gaps = [unturned + d * step for d in range(distances)]
    scores = [float(sizes.prod() * math.cos(gap)) for gap in gaps]
    both = f"{math.degrees(gaps[apart]):.0f}° between: score {scores[apart]:.2f}".replace("-", "−")
    _dial(axes[0], angles[:1], scaled[:1], ["blue"], f"query of “{words[0]}”, at {start}", ticks=12)
    _dial(axes[1], angles[1:], scaled[1:], ["red"], f"key of “{words[1]}”, at {start - apart}", ticks=12)
    _dial(axes[2], angles, scaled, ["blue", "red"], both, gaps[apart], ticks=12)
    moving.show(
        "together",
        {"query": q, "key": k, "words": list(words), "step": step, "places": places, "distances": distances}
        | {"start": start, "apart": apart},
        fig,
        alt="Three dials: the hand of a query, the hand of a key, and both laid on each other with the angle between "
        "them. Walked along the text together, both hands turn and the angle stays; brought nearer to each other, it "
        "changes.",
        caption=caption,
        numbers={
            "distance": list(range(distances)),
            "angle between, degrees": [round(math.degrees(gap)) for gap in gaps],
            "score": [float(f"{score:.3f}") for score in scores],
        },
    )


def dials(
    query: Sequence[float] | torch.Tensor,
    key: Sequence[float] | torch.Tensor,
    *,
    base: float = 100.0,
    places: int = 61,
    distances: int = 21,
    start: int = 30,
    apart: int = 5,
    caption: str = "",
) -> None:
    """Draw a head with one dial per pair of components, and plot its score against the distance of query and key.

    Args:
        query: The query before rotation, two to four interleaved pairs of components (d_head,).
        key: The key before rotation, with the same layout.
        base: Base of the frequencies; dial c rotates by base**(-2 c / d_head) radians per position.
        places: Number of positions, as in `together`.
        distances: Number of distances, as in `together`.
        start: Initial position of the query's word.
        apart: Initial distance.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: Query and key differ in width or do not have two to four pairs, the base is not above 1, or a
            position or distance is out of range.
    """
    q, k = vector("query", query), vector("key", key)
    if q.shape != k.shape or len(q) not in (4, 6, 8):
        raise ValueError(
            f"query, key: expected the same even width from 4 to 8 for both, got {len(q)} and {len(k)} components"
        )
    if not base > 1:
        raise ValueError(f"base: expected a number above 1, got {base}")
    _on_the_way(places, distances, start, apart)
    pairs = len(q) // 2
    speeds = base ** (-np.arange(pairs) / pairs)
    hands = [v[0::2] + 1j * v[1::2] for v in (q, k)]
    longest = max(abs(hand).max() for hand in hands)
    fig, axes = figures.subplots(2, pairs, width=5.0, height=2.7, height_ratios=[3, 2])
    for j, ax in enumerate(axes[0]):
        angles = [
            float(np.angle(hand[j])) + m * speeds[j] for hand, m in zip(hands, (start, start - apart), strict=True)
        ]
        between = math.remainder(angles[0] - angles[1], 2 * math.pi)
        sizes = [float(abs(hand[j]) / longest) for hand in hands]
        _dial(ax, angles, sizes, ["blue", "red"], f"clock {j}\n{speeds[j]:.2f} rad", between)
    every, finely = np.arange(distances), np.linspace(0, distances - 1, 8 * (distances - 1) + 1)
    parts, curve = ((hands[0] * hands[1].conj() * np.exp(1j * np.outer(at, speeds))).real for at in (every, finely))
    columns = {f"clock {j} adds": [float(f"{x:.3f}") for x in parts[:, j]] for j in range(pairs)}
    for ax in axes[1]:
        ax.remove()
    below = fig.add_subplot(axes[1, 0].get_gridspec()[1, :])
    below.plot(finely, curve.sum(axis=1), color=figures.PALETTE["green"], marker="")
    here = float(parts[apart].sum())
    below.plot([apart], [here], color=figures.PALETTE["green"], marker="o", markersize=8)
    label = f"D = {apart}: {here:.2f}".replace("-", "−")
    below.annotate(label, (apart, here), xytext=(6, 10), textcoords="offset points")
    below.set(
        xlabel="distance D from the query back to the key",
        ylabel="score",
        xticks=every[::5],
        yticks=[-round(top), 0, round(top)] if (top := float(abs(curve.sum(axis=1)).max())) >= 0.5 else [0],
    )
    below.grid(False)
    looks = [Line2D([], [], label=name, **_look(color)) for name, color in (("query", "blue"), ("key", "red"))]
    fig.legend(handles=looks, loc="outside upper center", ncols=2)
    moving.show(
        "dials",
        {
            "query": q,
            "key": k,
            "speeds": speeds,
            "places": places,
            "distances": distances,
            "start": start,
            "apart": apart,
        },
        fig,
        alt="A row of dials, each with a query's hand and a key's hand and the angle between them, and a curve of the "
        "score against the distance. Moved along the text, all hands turn and no angle changes; another distance moves "
        "along the curve.",
        caption=caption,
        numbers={"distance D": every.tolist()} | columns | {"score": [float(f"{x:.3f}") for x in parts.sum(axis=1)]},
    )


def _look(color: str) -> dict[str, Any]:
    """Return the line style for the hand of a query (blue) or a key. The two styles differ in more than color."""
    return {"color": figures.PALETTE[color], "linestyle": "-" if color == "blue" else "--", "linewidth": 2.4}


def _on_the_way(places: int, distances: int, start: int, apart: int) -> None:
    if not 2 <= distances < places:
        raise ValueError(f"places, distances: expected 2 <= distances < places, got {places} and {distances}")
    if not (distances - 1 <= start < places and 0 <= apart < distances):
        what = f"start: expected {distances - 1} to {places - 1}, and apart: 0 to {distances - 1}"
        raise ValueError(f"{what}; got {start} and {apart}")


def _dial(
    ax: Axes,
    angles: Sequence[float],
    sizes: Sequence[float],
    colors: Sequence[str],
    title: str,
    between: float | None = None,
    ticks: int = 0,
) -> None:
    ax.add_patch(Circle((0, 0), 1.06, fill=False, edgecolor="#7A7A7A"))
    for tick in range(ticks):
        x, y = math.cos(2 * math.pi * tick / ticks), math.sin(2 * math.pi * tick / ticks)
        ax.plot([0.98 * x, 1.06 * x], [0.98 * y, 1.06 * y], color="#7A7A7A", linestyle="-", marker="", linewidth=1)
    if between is not None:
        low, high = sorted((math.degrees(angles[1]), math.degrees(angles[1] + math.fmod(between, 2 * math.pi))))
        ax.add_patch(Wedge((0, 0), 0.5, low, high, facecolor=figures.PALETTE["green"], alpha=0.35))
    for angle, size, color in zip(angles, sizes, colors, strict=True):
        arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0} | _look(color)
        ax.annotate("", (size * math.cos(angle), size * math.sin(angle)), (0, 0), arrowprops=arrow)
    ax.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    ax.set_title(title, fontsize=10.5)
    ax.axis("off")
