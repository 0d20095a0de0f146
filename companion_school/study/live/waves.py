"""Moving figure of sinusoidal positions: the clocks of each position, the waves that their hands draw, and the base."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Circle

from companion_school.study import figures
from companion_school.study.live import moving

BASES = (2, 10, 100, 1_000, 10_000, 1_000_000)


def clocks(
    pairs: int = 6,
    *,
    base: int = 10_000,
    bases: Sequence[int] = BASES,
    places: int = 201,
    start: int = 0,
    caption: str = "",
) -> None:
    """Show a position as clock hands, one per pair of columns, and the wave that each hand draws along a text.

    Args:
        pairs: Number of clocks (half the width of the vectors), 2 to 8. Clock c rotates by base**(-c / pairs) radians
            per position, clockwise from the top (Vaswani et al. 2017, section 3.5).
        base: Initial base, one of `bases`.
        bases: Bases on the second slider, above 1.
        places: Number of positions on the first slider, 2 to 1,000.
        start: Initial position.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range, or `base` is not one of `bases`.
    """
    if not 2 <= pairs <= 8:
        raise ValueError(f"pairs: expected 2 to 8, got {pairs}")
    if min(bases) <= 1 or base not in bases:
        raise ValueError(f"base, bases: expected numbers above 1, with the base among them; got {base}, {list(bases)}")
    if not (2 <= places <= 1000 and 0 <= start < places):
        raise ValueError(f"places, start: expected 2 to 1,000 places and a start among them, got {places} and {start}")
    speeds = float(base) ** (-np.arange(pairs) / pairs)
    fig, axes = figures.subplots(1, pairs, width=7.6, height=1.9)
    for c, ax in enumerate(axes):
        angle = start * speeds[c]
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor="#7A7A7A"))
        arrow = {"arrowstyle": "-|>", "color": figures.PALETTE["blue"], "linewidth": 2.4, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (0.92 * math.sin(angle), 0.92 * math.cos(angle)), (0, 0), arrowprops=arrow)
        ax.set(xlim=(-1.1, 1.1), ylim=(-1.5, 1.1), aspect="equal")
        ax.set_title(f"pair {c}", fontsize=10.5)
        turn = 2 * math.pi / speeds[c]
        ax.text(0, -1.4, f"a turn: {turn:,.{1 if turn < 100 else 0}f}", ha="center", fontsize=9)
        ax.axis("off")
    moving.show(
        "clocks",
        {"pairs": pairs, "base": base, "bases": list(bases), "places": places, "start": start},
        fig,
        alt="A row of clocks, from a fast one to slow ones, and under them the wave that each hand draws along a text. "
        "Another place turns the hands; a larger base slows all but the first, a smaller one lets them all turn fast.",
        caption=caption,
        numbers={
            "pair": list(range(pairs)),
            "radians per position": [float(f"{speed:.4g}") for speed in speeds],
            "positions per turn": [float(f"{2 * math.pi / speed:.4g}") for speed in speeds],
        },
    )
