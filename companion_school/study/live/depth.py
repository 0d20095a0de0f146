"""Moving figure of depth: how much of a gradient flows back along the residual stream through one or many norms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from companion_school.study import figures
from companion_school.study.live import moving

DEPTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WRITES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def home(
    *, depths: Sequence[int] = DEPTHS, writes: Sequence[float] = WRITES, start: int = 2, write: float = 1.0,
    caption: str = "",
) -> None:  # fmt: skip
    """Show how a gradient shrinks on its way back along the residual stream, with post-norm and with pre-norm.

    The stream starts as a vector of norm 1, and every sub-layer adds a random vector of norm `write` to it. Post-norm
    rescales every sum to norm 1, which divides the gradient by sqrt(1 + write**2) each time. Pre-norm has only one norm
    on the stream, at the end, which divides the gradient by sqrt(1 + depth * write**2). Gradients through the
    sub-layers themselves are ignored.

    Args:
        depths: Numbers of sub-layers on the slider, in increasing order, from 1 to 64.
        writes: Norms of the added vectors on the slider, above 0.
        start: Initial depth, one of `depths`.
        write: Initial norm, one of `writes`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range.
    """
    counts, sizes = list(depths), [float(size) for size in writes]
    rising = all(a < b for a, b in pairwise(counts))
    if not counts or not rising or counts[0] < 1 or counts[-1] > 64:
        raise ValueError(f"depths: expected increasing numbers from 1 to 64, got {counts}")
    if not sizes or min(sizes) <= 0:
        raise ValueError(f"writes: expected sizes above 0, got {sizes}")
    if start not in counts or float(write) not in sizes:
        raise ValueError(f"start, write: expected one of {counts} and one of {sizes}, got {start} and {write}")
    passed = np.arange(start)
    on_the_way = {
        "post-norm": (1 + write**2) ** (-(start - passed) / 2),
        "pre-norm": np.full(start, (1 + start * write**2) ** -0.5),
    }
    fig, axes = figures.subplots(1, 2, width=7.6, height=2.6)
    for ax, (name, heights), color in zip(axes, on_the_way.items(), ("red", "green"), strict=True):
        ax.bar(passed, heights, color=figures.PALETTE[color], width=0.7)
        ticks = passed[:: max(1, start // 8)]
        ax.set(xlabel="writes below", ylabel="size of the gradient", title=name, ylim=(0, 1.05), xticks=ticks)
        share = f"home: {heights[0]:.3f}" if heights[0] >= 0.001 else f"home: 1 of {1 / heights[0]:,.0f}"
        ax.text(0.03, 0.9, share, transform=ax.transAxes)
        ax.grid(False)
    every = np.array(counts)
    moving.show(
        "home",
        {"depths": counts, "writes": sizes, "start": start, "write": float(write)},
        fig,
        alt="Two lanes of bars, the size of a gradient on its way back along the stream. With more writes the bars of "
        "post-norm, which meet a norm at each write, fall to nothing; those of pre-norm, which meet one norm, stay "
        "level and sink slowly.",
        caption=caption,
        numbers={
            "writes": counts,
            "post-norm": [float(f"{x:.3g}") for x in (1 + write**2) ** (-every / 2)],
            "pre-norm": [float(f"{x:.3g}") for x in (1 + every * write**2) ** -0.5],
        },
    )
