"""The mechanism of a figure that moves: one small script without libraries, its data beside it, in one HTML output.

The output holds the still picture, which is all that remains where no script runs; the data, as JSON; and a module
script that puts controls and an SVG in the place of the still picture. It needs no kernel, no network and no global
name, and the same figure may stand on a page twice. The script of a figure is the file of its name in this folder: a
function of (box, data, kit), where `kit` is what kit.js offers to all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from IPython.display import display
from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.assets import asset
from companion_school.study.figure_html import Tables, frame

LARGEST = 42_000  # bytes of one output
STILL_COLORS = 16  # enough for bars, lines and print; half the bytes of a figure that only stands still

# JupyterLab's shortcuts listen further out on the page: a figure keeps its key presses to itself, or the arrow keys
# would move from cell to cell. Ctrl+S still saves. Where a script fails, the still picture comes back.
_START = """
for (const figure of document.querySelectorAll('figure[data-live="%s"]:not([data-alive])')) {
figure.dataset.alive = "yes";
figure.addEventListener("keydown", (event) => { if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); });
const box = figure.querySelector(".ext-box"), still = [...box.childNodes];
const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
box.replaceChildren();
try { move(box, data, makeKit(box)); } catch (error) { box.replaceChildren(...still); throw error; }
}"""


class Moving:
    """A figure that moves, as Jupyter shows it."""

    def __init__(self, name: str, alt: str, html: str):
        self.name, self.alt, self.html = name, alt, html

    def __repr__(self) -> str:
        return f"Moving figure {self.name}: {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


def show(
    name: str,
    data: Mapping[str, Any],
    still: Figure,
    *,
    alt: str,
    caption: str = "",
    numbers: Tables | None = None,
    colors: int = STILL_COLORS,
) -> None:
    """Show the figure that `name`.js moves, and close its still picture.

    name:     of a script in this folder.
    data:     what the script is given: numbers, words, lists and dictionaries of them; floats are rounded to four
              significant digits, so that the output is the same on another machine.
    still:    the figure at its start, in the course's style; it is checked as `figures.show` checks.
    alt:      what the figure shows and what moves in it, for those who cannot see it.
    caption:  the sentence under it, with its number: "Figure 2.1. ..."
    numbers:  the numbers behind it, a column for each name.
    colors:   of the still picture; fewer make it smaller.

    Raises `ValueError` for a name without a script, a still figure that is not finished (see `figures.show`), data that
    are not finite numbers and text, and an output above 42 kB.
    """
    png, width = figures.finished(still, alt, colors)
    alt = " ".join(alt.split())
    page = frame(
        png, alt=alt, width=width, caption=caption, numbers=numbers, live=name, style=style(),
        more=f'<script type="application/json">{_packed(name, data)}</script>{script(name)}',
    )  # fmt: skip
    size = len(page.encode())
    if size > LARGEST:
        raise ValueError(
            f"{name}: expected at most {LARGEST} bytes of HTML, got {size}: {len(png)} are the still picture"
        )
    display(Moving(name, alt, page))


def names() -> list[str]:
    """The names of all figures that have a script."""
    scripts = (path.name for path in files(__package__).iterdir() if path.name.endswith(".js"))
    return sorted(script.removesuffix(".js") for script in scripts if script != "kit.js")


def style() -> str:
    """The style of a moving figure as its output carries it."""
    return asset(__package__, "kit.css")


def script(name: str) -> str:
    """The script of a figure as its output carries it. Raises `ValueError` for a name without one."""
    if name not in names():
        raise ValueError(f"name: expected a figure that has a script, one of {', '.join(names())}; got {name!r}")
    body = f"{asset(__package__, 'kit.js')}\nconst move = {asset(__package__, f'{name}.js')};{_START % name}"
    return f'<script type="module">{body}</script>'


def _packed(name: str, data: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(_plain(data), separators=(",", ":"), sort_keys=True, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected finite numbers and text as data: {error}") from error
    return text.replace("</", "<\\/")


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        rounded = float(f"{value:.4g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value
