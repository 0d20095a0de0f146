"""Moving figures of tiled attention: a tile that sweeps over the scores, and tile sizes on a roofline chart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from companion.costs.chips import Chip
from companion_school.study import figures
from companion_school.study.live import moving

TILES = (8, 16, 32, 64, 128, 256, 512)
HEADS = (64, 128)
KEYS = 64  # number of keys in a tile of the roofline figure


def sweep(powers: Sequence[Sequence[int]], values: Sequence[float], *, tile: int = 2, caption: str = "") -> None:
    """Show the online softmax: a tile sweeps over the scores, and only three numbers are stored per row.

    Args:
        powers: e to the power of the scores (query, key) for 2 to 8 queries and 2 to 8 keys, as integers from 1 to 8,
            so that readers can calculate by hand.
        values: One number per key.
        tile: Number of queries in a tile, and also of keys, which must divide the total numbers of both.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: `powers` is not a valid table, there is not exactly one value per key, or `tile` does not divide
            both the number of queries and the number of keys.
    """
    rows = [list(row) for row in powers]
    whole = all(isinstance(power, int) and 1 <= power <= 8 for row in rows for power in row)
    if not whole or not 2 <= len(rows) <= 8 or len({len(row) for row in rows}) != 1 or not 2 <= len(rows[0]) <= 8:
        raise ValueError("powers: expected 2 to 8 rows of equal length, with two or more whole numbers from 1 to 8")
    table = np.array(rows)
    if len(values) != table.shape[1]:
        raise ValueError(f"values: expected {table.shape[1]} numbers, one for each key, got {len(values)}")
    if tile < 1 or table.shape[0] % tile or table.shape[1] % tile:
        raise ValueError(f"tile: expected a number that divides {table.shape[0]} and {table.shape[1]}, got {tile}")
    outputs = table @ np.array(values) / table.sum(axis=1)
    fig, ax = figures.subplots(width=6.6, height=4.2)
    seen = np.full(table.shape, np.nan)
    seen[:tile, :tile] = table[:tile, :tile]
    ax.imshow(seen, cmap="Blues", vmin=-2, vmax=12)
    for i, j in np.argwhere(~np.isnan(seen)):
        ax.text(j, i, str(table[i, j]), ha="center", va="center")
    beside = {"ha": "center", "va": "center", "fontsize": 10}
    for column, title in enumerate(("largest", "total", "mixture")):
        ax.text(table.shape[1] + 0.6 + 1.5 * column, -1, title, **beside)
    for i in range(tile):  # the three numbers of each row after the first tile, relative to the row's maximum
        powers_of = table[i, :tile] / table[i, :tile].max()
        kept = table[i, :tile].max(), powers_of.sum(), powers_of @ np.array(values[:tile])
        for column, number in enumerate(kept):
            ax.text(table.shape[1] + 0.6 + 1.5 * column, i, f"{number:g}", **beside)
    ax.set_xticks(range(table.shape[1]), [f"{value:g}" for value in values])
    ax.set_yticks(range(table.shape[0]))
    ax.set(
        xlabel="keys, with their values", ylabel="query", title=f"the first tile, {tile} by {tile}, of e to the score"
    )
    ax.set_xticks(np.arange(-0.5, table.shape[1]), minor=True)
    ax.set_yticks(np.arange(-0.5, table.shape[0]), minor=True)
    ax.grid(False)
    ax.grid(True, which="minor", alpha=0.6)
    ax.tick_params(which="minor", length=0)
    moving.show(
        "sweep",
        {"powers": table, "values": list(values), "tile": tile},
        fig,
        alt="A square of queries and keys. A small tile sweeps over it, row of tiles by row of tiles; only the scores "
        "in the tile exist. Beside each row stand three numbers, largest, total and mixture, and when a larger score "
        "arrives the old total and mixture shrink.",
        caption=caption,
        numbers={
            "query": list(range(len(table))),
            "largest power": table.max(axis=1).tolist(),
            "sum of powers": table.sum(axis=1).tolist(),
            "output": [float(f"{output:.4g}") for output in outputs],
        },
    )


def climb(
    chip: Chip, bench: int, *, tokens: int = 4096, tiles: Sequence[int] = TILES, start: int = 16, caption: str = ""
) -> None:
    """Plot attention on a roofline chart, with and without tiling, as the number of queries per tile grows.

    Every value takes two bytes, and a tile has `KEYS` keys. The on-chip memory must hold the queries and their outputs,
    the keys and values, and the tile of scores.

    Args:
        chip: Peak arithmetic and memory bandwidth.
        bench: On-chip memory in KiB.
        tokens: Number of tokens.
        tiles: Tile sizes (queries per tile) on the slider, in increasing order, between 1 and `tokens`.
        start: Initial tile size, one of `tiles`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The tile sizes are out of range or not in increasing order, or `start` is not one of them.
    """
    sizes = list(tiles)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > tokens:
        raise ValueError(f"tiles: expected increasing numbers from 1 to {tokens}, got {sizes}")
    if start not in sizes:
        raise ValueError(f"start: expected one of {sizes}, got {start}")
    width = HEADS[0]
    flops = 4 * tokens**2 * width
    formula = 2 * (4 * tokens**2 + 4 * tokens * width)
    moved = [2 * (2 * tokens * width + tokens / size * 2 * tokens * width) for size in sizes]
    at = [flops / bytes_ for bytes_ in moved]
    rising = np.array(sorted([4.0, 16, 64, chip.balance, 256, 1024]))
    fig, ax = figures.subplots(width=6.4, height=3.4)
    ax.plot(rising, [chip.attainable(i) / 1e12 for i in rising], color="black", marker="", label="roof")
    one = flops / formula
    red, blue = figures.PALETTE["red"], figures.PALETTE["blue"]
    ax.plot([one], [chip.attainable(one) / 1e12], "s", color=red, markersize=8, label="the formula")
    here = at[sizes.index(start)]
    ax.plot([here], [chip.attainable(here) / 1e12], "o", color=blue, markersize=9, label=f"tiles of {start} queries")
    ax.set(xscale="log", yscale="log", xlabel="operations for each byte moved", ylabel="10¹² operations per second")
    ax.legend(loc="lower right")
    moving.show(
        "climb",
        {
            "chip": {"flops": chip.flops / 1e12, "bandwidth": chip.bandwidth / 1e9, "bench": bench},
            "tokens": tokens, "widths": list(HEADS), "width": width, "tiles": sizes, "start": start, "keys": KEYS,
        },
        fig,
        alt="A roof, first a slope and then flat, with attention by the formula as a square on the slope. A dot, "
        "attention in tiles, climbs the slope as the tile of queries grows; a bar beside it fills, and overflows when "
        "the tile no longer fits on the chip.",
        caption=caption,
        numbers={
            "queries in a tile": sizes,
            "MB moved": [round(bytes_ / 1e6, 1) for bytes_ in moved],
            "operations per byte": [round(intensity, 1) for intensity in at],
        },
    )  # fmt: skip
