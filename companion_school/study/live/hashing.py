"""Moving figure of MinHash with bands: how similar two texts must be to be linked (lesson 24)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from companion_school.study import figures
from companion_school.study.live import moving

BANDS = (1, 2, 5, 9, 14, 20, 50)
ROWS = (1, 2, 4, 8, 13, 20)


def bands(pairs: Sequence[int], *, start: tuple[int, int] = (14, 8), caption: str = "") -> None:
    """Show the probability that MinHash links a pair of texts, 1 - (1 - similarity^rows)^bands.

    Args:
        pairs: Number of pairs in each similarity bin, with bins of equal width from 0 to 1.
        start: Initial numbers of bands and rows, from `BANDS` and `ROWS`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are fewer than two bins, a number of pairs is negative, there are no pairs at all, or `start`
            is not on the sliders.
    """
    if len(pairs) < 2 or min(pairs) < 0 or sum(pairs) == 0:
        raise ValueError(f"pairs: expected two or more non-negative numbers, not all of them 0, got {list(pairs)}")
    if start[0] not in BANDS or start[1] not in ROWS:
        raise ValueError(f"start: expected a number of bands from {BANDS} and one of rows from {ROWS}, got {start}")
    count, rows = start
    similarity = np.linspace(0, 1, 201)
    middles = (np.arange(len(pairs)) + 0.5) / len(pairs)
    fig, ax = figures.subplots(width=5.6, height=3.4)
    shares = np.array(pairs) / max(pairs)
    look = {"edgecolor": figures.PALETTE["blue"], "color": figures.PALETTE["sky"], "alpha": 0.5}
    ax.bar(middles, shares, 0.9 / len(pairs), label="pairs of the crawl", **look)
    linked = 1 - (1 - similarity**rows) ** count
    ax.plot(similarity, linked, color="black", marker="", label=f"{count} bands of {rows} rows")
    half = (1 - 0.5 ** (1 / count)) ** (1 / rows)
    ax.plot(half, 0.5, "o", color=figures.PALETTE["red"], markersize=9, linestyle="none", label="half are linked")
    ax.set(xlabel="Jaccard similarity of a pair", ylabel="probability of a link")
    ax.legend()
    moving.show(
        "bands",
        {"pairs": [int(one) for one in pairs], "bands": BANDS, "rows": ROWS, "start": start},
        fig,
        alt="An S-curve: the probability that a pair of texts is linked, against its similarity, over bars that count "
        "the pairs of a crawl. A red dot marks where half are linked. More rows move the curve right and make it "
        "steeper, more bands move it left.",
        caption=caption,
        numbers={"similarity": [round(float(one), 3) for one in middles], "pairs": [int(one) for one in pairs]},
    )
