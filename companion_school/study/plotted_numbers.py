"""Read the data behind a figure from its curves, bars and maps, for readers who want values or cannot see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, ScalarFormatter

from companion_school.study.figure_html import Numbers

MOST_ROWS = 24  # maximum number of rows in a table; longer curves are thinned out evenly, keeping both ends
MOST_CELLS = 16  # maximum number of cells in each direction of a map


def read_off(fig: Figure) -> list[tuple[str, Numbers]]:
    """Return tables of the data in a figure.

    The labeled curves in an `Axes` (or its first curve if none is labeled) yield one table per set of x values. Each
    group of at most 24 bars and each map of at most 16 by 16 cells yields another table. Axes that are switched off
    (diagrams) yield none.

    Returns:
        For each table, its title and its columns by name.
    """
    return [found for ax in fig.axes if ax.axison and not hasattr(ax, "_colorbar") for found in _of_axes(ax)]


def _of_axes(ax: Axes) -> Iterator[tuple[str, Numbers]]:
    title, x = ax.get_title().replace("\n", " "), ax.get_xlabel() or "x"
    lines = [line for line in ax.get_lines() if line.get_visible() and _is_data(line, ax) and len(_points(line)[0]) > 1]
    named = [line for line in lines if not str(line.get_label()).startswith("_")] or lines[:1]
    groups: list[list[Line2D]] = []
    for line in named:
        same = next((g for g in groups if np.array_equal(_points(g[0])[0], _points(line)[0])), None)
        groups.append([line]) if same is None else same.append(line)
    for group in groups:
        at, step = _thinned(len(_points(group[0])[0]))
        columns: dict[str, Sequence[object]] = {x: _places(ax, _points(group[0])[0], at)}
        columns |= {_name(line, ax): _column(_points(line)[1][at]) for line in group}
        yield ", ".join(filter(None, [title, f"every {step}th point" if step > 1 else ""])), columns
    for bars in ax.containers:
        if isinstance(bars, BarContainer) and 0 < len(bars) <= MOST_ROWS:
            yield title, _bars(ax, bars)
    for image in ax.images:
        cells: np.ndarray = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
        if cells.ndim == 2 and max(cells.shape) <= MOST_CELLS:
            yield title, _map(ax, cells)


def _is_data(line: Line2D, ax: Axes) -> bool:
    """Return False for lines across the axes, such as those from `axhline`, which have coordinates in axes units."""
    return all(line.get_transform().contains_branch_seperately(ax.transData))


def _points(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    try:
        return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    except (TypeError, ValueError):  # the tick labels are names, not numbers
        return np.empty(0), np.empty(0)


def _thinned(count: int) -> tuple[np.ndarray, int]:
    step = -(-(count - 1) // (MOST_ROWS - 1)) if count > MOST_ROWS else 1
    return np.unique(np.append(np.arange(0, count, step), count - 1)), step


def _places(ax: Axes, x: np.ndarray, at: np.ndarray) -> list[Any]:
    """Return the x values at these indices, or the labels of the ticks if the values only number these from 0."""
    if np.array_equal(x, np.arange(len(x))):
        ticks = _ticks(ax.xaxis)
        names = [ticks.get(float(value), "") for value in x]
        if all(names):
            return [names[index] for index in at]
    return _column(x[at])


def _ticks(axis: Any) -> dict[float, str]:
    """Return the text of each tick label by the tick's position, if the labels were chosen for this figure."""
    if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
        return {}
    labels = [label.get_text() for label in axis.get_ticklabels()]
    return {round(float(place), 6): label for place, label in zip(axis.get_ticklocs(), labels, strict=False)}


def _column(values: np.ndarray) -> list[object]:
    return [int(v) if float(v).is_integer() and abs(v) < 1e6 else float(v) for v in values]


def _name(line: Line2D, ax: Axes) -> str:
    label = str(line.get_label())
    return (ax.get_ylabel() or "y") if label.startswith("_") else label


def _bars(ax: Axes, bars: BarContainer) -> Numbers:
    upright = bars.orientation != "horizontal"
    axis, letter = (ax.xaxis, _shared_label(ax)) if upright else (ax.yaxis, ax.get_xlabel())
    centers = [bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2 for bar in bars]
    ticks = _ticks(axis)
    places = _column(np.array(centers, dtype=float))
    names: list[Any] = [ticks.get(round(float(c), 6)) or place for c, place in zip(centers, places, strict=True)]
    heights = np.array([bar.get_height() if upright else bar.get_width() for bar in bars], dtype=float)
    label = str(bars.get_label())
    return {
        axis.get_label_text() or "bar": names,
        (letter or "height") if label.startswith("_") else label: _column(heights),
    }


def _shared_label(ax: Axes) -> str:
    """Return the label of the vertical axis, which may be on another panel that shares the axis."""
    together = ax.get_shared_y_axes().get_siblings(ax)
    return next(filter(None, [ax.get_ylabel(), *(other.get_ylabel() for other in together)]), "")


def _map(ax: Axes, cells: np.ndarray) -> Numbers:
    def names(axis: Any, count: int) -> list[str]:
        texts = [label.get_text() for label in axis.get_ticklabels()]
        return texts if len(texts) == count and all(texts) else [str(index) for index in range(count)]

    rows, columns = names(ax.yaxis, cells.shape[0]), names(ax.xaxis, cells.shape[1])
    found: dict[str, Sequence[object]] = {f"{ax.get_ylabel()} \\ {ax.get_xlabel()}": rows}
    for index, name in enumerate(columns):  # two columns may have the same name
        key = name if name not in found else f"{name} ({index})"
        found[key] = ["masked" if np.isnan(v) else float(v) for v in cells[:, index]]
    return found
