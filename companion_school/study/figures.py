"""Figures for the lessons: a common style, two common plots, and `show`, which checks and displays a figure.

    fig, ax = figures.subplots()
    ax.plot(widths, variances, label="measured")
    ax.set(xlabel="head width d_k", ylabel="variance of q . k")
    ax.legend()
    figures.show(fig, alt="The variance of q . k grows in proportion to d_k.")

A figure that some readers cannot read is an error, not a matter of taste. `show` therefore rejects axes without labels,
lines that differ only in color, small text, and pictures without alternative text.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from cycler import cycler
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.text import Annotation, Text
from PIL import Image

from companion_school.study.figure_html import Tables, frame
from companion_school.study.palette import LINE_CONTRAST, PALETTE, TEXT_CONTRAST, contrast, on_dark_page
from companion_school.study.plotted_numbers import read_off

DPI = 100  # pixels per inch on the page
SHARPNESS = 2  # number of pixels in the picture per pixel on the page, for high-resolution screens
COLORS = 128  # number of colors in a stored picture
SMALLEST_PRINT = 8.0  # points; the size of a footnote at 100 dpi

# Each color comes with its own dash pattern and marker, so that figures also work in black and white.
_CYCLE = cycler(
    color=list(PALETTE.values()),
    linestyle=["-", "--", "-.", ":", "-", "--", "-."],
    marker=["o", "s", "^", "D", "v", "P", "X"],
)

STYLE: dict[str, Any] = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # this font ships with Matplotlib, so letters look the same on every machine
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.labelsize": 11.0,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "legend.fontsize": 10.0,
    "legend.frameon": False,
    "axes.prop_cycle": _CYCLE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.0,
    "image.cmap": "Blues",
    "hatch.linewidth": 0.6,
}

Matrix = torch.Tensor | np.ndarray | Sequence[Sequence[float]]


def use_style() -> None:
    """Use the course's Matplotlib style for everything drawn from now on. `subplots` calls this for you."""
    plt.rcParams.update(STYLE)  # type: ignore[arg-type]


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 3.8, **options: Any
) -> tuple[Figure, Any]:
    """Call `plt.subplots` in the course's style.

    Args:
        rows: Number of rows of axes.
        columns: Number of columns of axes.
        width: Width of the whole figure in inches of 100 pixels; at most 10 inches fit in a notebook.
        height: Height of the whole figure in inches.
        options: Other options of `plt.subplots` (`sharex`, `squeeze`, `width_ratios`, ...).

    Returns:
        The figure and an `Axes` or an array of them.
    """
    use_style()
    return plt.subplots(rows, columns, figsize=(width, height), **options)


class _Picture:
    """A finished figure that Jupyter shows as HTML, or as its alternative text where only plain text is possible."""

    def __init__(self, html: str, alt: str, size: str):
        self.html, self.alt, self.size = html, alt, size

    def __repr__(self) -> str:
        return f"Figure ({self.size}): {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


def show(fig: Figure, *, alt: str, caption: str = "", numbers: Tables | None = None) -> None:
    """Check a figure, show it below the cell with its alternative text, caption and data, and then close it.

    Args:
        fig: The figure. It is closed afterwards.
        alt: One or two sentences that describe the figure to someone who cannot see it: what is on the axes and what
            the eye would notice, not "a plot of ...". The text must be the same on all machines, so it must not contain
            measured numbers.
        caption: Caption of the figure, including its number: "Figure 2.3. What to see here."
        numbers: The data behind the figure, as columns by name. By default, it is read from the labeled curves, bars
            and maps, unless there are too many values.

    Raises:
        ValueError: An axis has no label, labeled curves have no legend or differ only in color, a curve has a
            contrast below 3 to 1, a text has a contrast below 4.5 to 1 with its background (also on the dark page) or
            is smaller than 8 points, or `alt` has fewer than four words. Axes that are switched off for diagrams
            (`ax.axis("off")`) need no labels.
    """
    size = f"{_pixels(fig)[0]} x {_pixels(fig)[1]} pixels, {len(fig.axes)} {'axis' if len(fig.axes) == 1 else 'axes'}"
    found = read_off(fig) if numbers is None else numbers
    png, width = finished(fig, alt)
    alt = " ".join(alt.split())
    display(_Picture(frame(png, alt=alt, width=width, caption=caption, numbers=found), alt, size))


def finished(fig: Figure, alt: str, colors: int = COLORS) -> tuple[bytes, int]:
    """Check a figure as `show` does, then render and close it.

    Args:
        fig: The figure.
        alt: Its alternative text.
        colors: Number of colors in the stored picture.

    Returns:
        The PNG, and its width on the page in pixels.

    Raises:
        ValueError: As in `show`.
    """
    faults = _faults(fig, alt)
    if faults:
        raise ValueError("this figure is not finished:\n  " + "\n  ".join(faults))
    png = _small_png(fig, colors)
    plt.close(fig)
    return png, _pixels(fig)[0]


def _pixels(fig: Figure) -> tuple[int, int]:
    width, height = (round(inches * DPI) for inches in fig.get_size_inches())
    return width, height


def _small_png(fig: Figure, colors: int) -> bytes:
    """Render a figure as a small PNG with few colors, because notebooks are stored with all their figures.

    Software metadata is omitted, so the bytes depend only on the picture.
    """
    drawn, stored = io.BytesIO(), io.BytesIO()
    fig.savefig(drawn, format="png", dpi=SHARPNESS * DPI, pil_kwargs={"compress_level": 0})
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(colors, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        stored, format="png", optimize=True
    )
    return stored.getvalue()


def _faults(fig: Figure, alt: str) -> list[str]:
    faults = []
    if len(alt.split()) < 4:
        faults.append(f"alt: expected a sentence that says what the figure shows, got {alt!r}")
    if not fig.axes:
        faults.append("the figure has no axes")
    for number, ax in enumerate(fig.axes, 1):
        name = f"axes {number}" + (f" ({ax.get_title()!r})" if ax.get_title() else "")
        if ax.axison and ax.get_visible():
            faults += [f"{name}: {fault}" for fault in _axis_faults(fig, ax)]
    for text in fig.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip() and float(text.get_fontsize()) < SMALLEST_PRINT:
            points = f"{text.get_fontsize():g} points"
            faults.append(f"text {text.get_text()!r} is {points}; {SMALLEST_PRINT:g} is the smallest that can be read")
        faults += _pale_print(text)
    return faults


def _pale_print(text: Text) -> list[str]:
    """Report any text whose contrast with its background is too low on the light or the dark page.

    White text without a patch under it is accepted, because such text occurs only in the dark cells of maps.
    """
    color, ground = text.get_color(), _ground(text)
    if not text.get_visible() or not text.get_text().strip() or (ground is None and contrast(color, "white") == 1):
        return []
    under: object = "white" if ground is None else ground
    pages = {"": (color, under), " on the dark page": (on_dark_page(color), on_dark_page(under))}
    contrasts = {page: contrast(*colors) for page, colors in pages.items()}
    page = min(contrasts, key=lambda page: contrasts[page])
    if contrasts[page] >= TEXT_CONTRAST:
        return []
    what = f"text {text.get_text()!r} in {color!r}{page} has a contrast of {contrasts[page]:.1f}"
    return [f"{what}; print needs {TEXT_CONTRAST:g}"]


def _ground(text: Text) -> np.ndarray | None:
    """Return the background color of a text: that of its box or of the patches under it, or None if it has neither."""
    patches: list[Patch] = []
    if box := text.get_bbox_patch():
        patches = [box]
    elif text.axes is not None and not isinstance(text, Annotation):
        text.axes.viewLim  # noqa: B018  updates the positions in the axes
        x, y = text.get_transform().transform(text.get_position())
        below = [patch for patch in text.axes.patches if patch.get_zorder() <= text.get_zorder()]
        below = [patch for patch in below if not isinstance(patch, FancyArrowPatch) and patch.contains_point((x, y))]
        patches = sorted(below, key=lambda patch: patch.get_zorder())
    seen = [to_rgba(patch.get_facecolor()) for patch in patches if patch.get_visible()]
    ground = np.ones(3)
    for *color, alpha in seen:
        ground = alpha * np.array(color) + (1 - alpha) * ground
    return ground if any(alpha for *_, alpha in seen) else None


def _axis_faults(fig: Figure, ax: Axes) -> list[str]:
    faults = []
    # A color bar has only one axis to label. Other plots have two axes, and panels that share an axis need only one
    # label for it.
    named = {
        "x": bool(fig.get_supxlabel()) or any(a.get_xlabel() for a in ax.get_shared_x_axes().get_siblings(ax)),
        "y": bool(fig.get_supylabel()) or any(a.get_ylabel() for a in ax.get_shared_y_axes().get_siblings(ax)),
    }
    if hasattr(ax, "_colorbar"):
        if not any(named.values()):
            faults.append("the colour bar has no label: colorbar(..., label=...)")
        return faults
    for letter, found in named.items():
        if not found:
            faults.append(f"no label on the {letter} axis: ax.set_{letter}label(...), with the unit if there is one")
    lines = [line for line in ax.get_lines() if line.get_visible() and not str(line.get_label()).startswith("_")]
    if len(lines) > 1 and ax.get_legend() is None and not fig.legends:
        faults.append("several labelled curves and no legend: ax.legend()")
    for line in lines:
        if (ratio := contrast(line.get_color(), "white")) < LINE_CONTRAST:
            what = f"curve {line.get_label()!r} in {line.get_color()!r} has a contrast of {ratio:.1f}"
            faults.append(f"{what}; a line needs {LINE_CONTRAST:g}")
    for line, other in combinations(lines, 2):
        if (line.get_linestyle(), str(line.get_marker())) == (other.get_linestyle(), str(other.get_marker())):
            faults.append(
                f"curves {line.get_label()!r} and {other.get_label()!r} differ by colour alone: "
                "give one another linestyle or marker"
            )
    return faults


def heatmap(
    ax: Axes,
    matrix: Matrix,
    *,
    rows: Sequence[object] | None = None,
    columns: Sequence[object] | None = None,
    row_label: str,
    column_label: str,
    title: str = "",
    bar_label: str = "",
    limits: tuple[float, float] | None = None,
    values: bool | None = None,
    digits: int = 2,
) -> AxesImage:
    """Draw a matrix as colored cells, with the first row at the top, as `print` shows it.

    Args:
        ax: Axes to draw in.
        matrix: Matrix (row, column), whose infinite (masked) and NaN entries are hatched instead of colored.
        rows: Name of each row, such as the text of a token; default: numbers from 0.
        columns: Name of each column, as for `rows`.
        row_label: Label of the vertical axis, such as "query (the token that looks)".
        column_label: Label of the horizontal axis.
        title: Title of the axes.
        bar_label: Label of the color bar, which says what the color means, with its unit; without a label, there is no
            color bar.
        limits: (lowest, highest) value of the color scale. Use the same limits for maps that readers are meant to
            compare.
            By default, the scale covers the data: it starts at 0 if no entry is negative, and is otherwise symmetric
            about 0.
        values: Whether to write the value into each cell (default: only if there are at most 12 rows and 12 columns).
        digits: Number of decimals in these values.

    Returns:
        The image, to which you can add your own color bar.

    Raises:
        ValueError: The matrix is not two-dimensional, or the number of names does not match it.
    """
    array = _as_array(matrix)
    if array.ndim != 2:
        raise ValueError(f"matrix: expected two axes (row, column), got shape {array.shape}")
    for name, given, count in (("rows", rows, array.shape[0]), ("columns", columns, array.shape[1])):
        if given is not None and len(given) != count:
            raise ValueError(f"{name}: expected {count} names, got {len(given)}: {list(given)}")
    finite = array[np.isfinite(array)]
    lowest, highest = limits or _limits(finite)
    # PuOr and Blues are both readable in grayscale and with all common forms of color blindness.
    image = ax.imshow(
        np.where(np.isfinite(array), array, np.nan),
        cmap="PuOr_r" if lowest < 0 else "Blues",
        vmin=lowest,
        vmax=highest,
        aspect="equal" if max(array.shape) <= 4 * min(array.shape) else "auto",
        interpolation="nearest",
    )
    ax.grid(False)
    ax.set(xlabel=column_label, ylabel=row_label, title=title)
    _name_ticks(ax, "y", rows, array.shape[0])
    _name_ticks(ax, "x", columns, array.shape[1])
    show_values = max(array.shape) <= 12 if values is None else values
    for (row, column), value in np.ndenumerate(array):
        if not np.isfinite(value):
            ax.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="#EEEEEE", edgecolor="#999999", hatch="//")
            )
        if show_values:
            shade = image.cmap(image.norm(value)) if np.isfinite(value) else "white"
            ink = max("black", "white", key=lambda name: contrast(name, shade))
            ax.text(
                column, row, _number(float(value), digits),
                ha="center", va="center", fontsize=10, color=ink,
            )  # fmt: skip
    if bar_label:
        bar = ax.get_figure().colorbar(image, ax=ax, label=bar_label, shrink=0.85)  # type: ignore[union-attr]
        bar.outline.set_visible(False)
    return image


def attention_map(
    ax: Axes,
    weights: Matrix,
    *,
    queries: Sequence[object],
    keys: Sequence[object],
    title: str = "",
    bar_label: str = "",
    values: bool | None = None,
) -> AxesImage:
    """Draw attention weights, with one row per query and one column per key.

    The color scale always runs from 0 to 1, so you can compare the maps of different heads.

    Args:
        ax: Axes to draw in.
        weights: Matrix (query, key) in which each row is a distribution, or all zeros for a query that cannot see any
            key.
        queries: Tokens of the queries, as text, in order.
        keys: Tokens of the keys, as text, in order; the same as `queries` in self-attention.
        title: Title of the axes.
        bar_label: Label of the color bar, as in `heatmap`.
        values: Whether to write the value into each cell, as in `heatmap`.

    Returns:
        The image, as in `heatmap`.

    Raises:
        ValueError: The weights are not a matrix, a row is not a distribution (often because the axes are swapped), or
            the number of tokens does not match the matrix.
    """
    array = _as_array(weights)
    if array.ndim != 2:
        raise ValueError(f"weights: expected the axes (query, key) of one head, got shape {array.shape}")
    if array.shape != (len(queries), len(keys)):
        raise ValueError(f"weights: expected shape (queries, keys) = ({len(queries)}, {len(keys)}), got {array.shape}")
    totals = array.sum(axis=1)
    if (array < 0).any() or not np.all(np.isclose(totals, 1, atol=1e-2) | (totals == 0)):
        raise ValueError(
            "weights: each row must be a distribution over the keys (these may be scores, or transposed); "
            f"the rows sum to {[round(float(total), 3) for total in totals]}, the smallest entry is {array.min():.3g}"
        )
    return heatmap(
        ax, array, rows=queries, columns=keys, limits=(0.0, 1.0), title=title, bar_label=bar_label, values=values,
        row_label="query (the token that looks)", column_label="key (the token looked at)",
    )  # fmt: skip


def _as_array(matrix: Matrix) -> np.ndarray:
    if isinstance(matrix, torch.Tensor):
        matrix = matrix.detach().cpu().double().numpy()
    return np.asarray(matrix, dtype=float)


def _limits(finite: np.ndarray) -> tuple[float, float]:
    if finite.size == 0:
        return 0.0, 1.0
    if finite.min() >= 0:
        return 0.0, float(finite.max()) or 1.0
    reach = float(np.abs(finite).max())
    return -reach, reach


def _name_ticks(ax: Axes, letter: str, names: Sequence[object] | None, count: int) -> None:
    axis = ax.xaxis if letter == "x" else ax.yaxis
    if names is None:
        if count <= 16:  # if there are more entries, let Matplotlib choose fewer ticks
            axis.set_ticks(range(count))
        return
    texts = [str(name).replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") for name in names]
    # `parse_math` is False because a token may be a dollar sign
    axis.set_ticks(range(count), texts, parse_math=False)
    if letter == "x" and sum(map(len, texts)) > 5 * count and count > 2:
        axis.set_tick_params(rotation=45)
        for label in axis.get_ticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _number(value: float, digits: int) -> str:
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")  # no "-0.00"
