"""The mechanism behind moving figures: a single HTML output with data and a small script that needs no libraries.

The output contains the data as JSON, a still picture, and a module script that replaces the picture with controls and
an SVG. If scripts do not run, the picture remains. The script needs neither a kernel nor the network. It does not set
global names, so a page can contain the same figure twice. The script of a figure is a file in this folder with the
figure's name. It defines a function of (box, data, kit), where `kit` holds the shared functions from kit.js.
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

LARGEST = 42_000  # maximum size of one output in bytes
STILL_COLORS = 16  # enough for bars, lines and text; takes half the bytes of an ordinary still figure

# Key presses must not reach JupyterLab, where the arrow keys would move between cells. Ctrl+S still saves.
# If a script fails, the still picture comes back.
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
    """A moving figure that Jupyter can display."""

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
    """Show the moving figure drawn by the script `name`.js, and close the still figure.

    Args:
        name: Name of a script in this folder.
        data: Data for the script: numbers, strings, and lists and dictionaries of these, with floats rounded to four
            significant digits so that the output is the same on every machine.
        still: The figure in its initial state, in the course's style, which is checked as in `figures.show`.
        alt: Description of the figure and of how it moves, for readers who cannot see it.
        caption: Caption of the figure, including its number: "Figure 2.1. ..."
        numbers: The data behind the figure, as columns by name.
        colors: Number of colors in the still picture; fewer colors make the file smaller.

    Raises:
        ValueError: There is no such script, the still figure is not finished (see `figures.show`), the data contains
            anything other than finite numbers and text, or the output is larger than 42 kB.
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
            f"{name}: expected at most {LARGEST} bytes of HTML, got {size}, including {len(png)} for the still picture"
        )
    display(Moving(name, alt, page))


def names() -> list[str]:
    """Return the names of all moving figures."""
    scripts = (path.name for path in files(__package__).iterdir() if path.name.endswith(".js"))
    return sorted(script.removesuffix(".js") for script in scripts if script != "kit.js")


def style() -> str:
    """Return the style sheet that the output of a moving figure contains."""
    return asset(__package__, "kit.css")


def script(name: str) -> str:
    """Return the script that the output of a figure contains.

    Raises:
        ValueError: There is no script with this name.
    """
    if name not in names():
        raise ValueError(f"name: expected a figure that has a script, one of {', '.join(names())}; got {name!r}")
    body = f"{asset(__package__, 'kit.js')}\nconst move = {asset(__package__, f'{name}.js')};{_START % name}"
    return f'<script type="module">{body}</script>'


def _packed(name: str, data: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(_plain(data), separators=(",", ":"), sort_keys=True, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected finite numbers and text as data ({error})") from error
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
