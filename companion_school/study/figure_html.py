"""HTML for figures: alternative text, caption, and a collapsible section with the data behind the figure.

Both still figures and moving figures (`companion_school.study.live`) use this HTML. It works in JupyterLab and on pages
opened from a folder, in light and dark themes, and even without its style sheet, which JupyterLab removes from
untrusted notebooks.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence

from companion_school.study.palette import DARK, DARK_PAGE, LIGHT_PAGE, PALETTE

WIDEST = 760  # pixels; the width of JupyterLab's text column on a small laptop

Numbers = Mapping[str, Sequence[object]]  # columns of a table, by name
Tables = Numbers | Sequence[tuple[str, Numbers]]  # one table, or several keyed by title

CAPTION_NUMBER = re.compile(r"Figure D?\d+\.\d+\. ")


def _variables(colors: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{color};" for name, color in colors.items() if name != "black")


# In JupyterLab, the theme decides between light and dark; elsewhere, the system setting does.
# A figure sets its own background, because the page around it may stay light in a dark theme.
# On a dark page, the lightness of a picture is inverted (but not its hues), and white becomes the background color.
_DARK = f"{_variables(DARK | DARK_PAGE)}color-scheme:dark"
_DARK_PICTURE = "filter:invert(1) hue-rotate(180deg);mix-blend-mode:screen"
_SYSTEM, _LAB = "body:not([data-jp-theme-light]) .ext-figure", "[data-jp-theme-light=false] .ext-figure"
STYLE = (
    f".ext-figure{{{_variables(PALETTE | LIGHT_PAGE)}max-width:{WIDEST}px;margin:.6em 0 1.2em;"
    "color:var(--ink);background:var(--page)}"
    ".ext-figure img{max-width:100%;height:auto}"
    ".ext-figure figcaption{font-size:13px;color:var(--ink);max-width:44em}"
    ".ext-figure details{font-size:13px;margin-top:.3em}.ext-figure summary{cursor:pointer;color:var(--quiet)}"
    ".ext-figure td,.ext-figure th{padding:.1em .8em;text-align:right;font-variant-numeric:tabular-nums}"
    f"@media(prefers-color-scheme:dark){{{_SYSTEM}{{{_DARK}}}{_SYSTEM} img{{{_DARK_PICTURE}}}}}"
    f"{_LAB}{{{_DARK}}}{_LAB} img{{{_DARK_PICTURE}}}"
)


def frame(
    png: bytes,
    *,
    alt: str,
    width: int,
    caption: str = "",
    numbers: Tables | None = None,
    live: str = "",
    more: str = "",
    style: str = "",
) -> str:
    """Return the HTML of a figure, on one line.

    Args:
        png: The still picture, which has twice as many pixels as its width on the page.
        alt: Description of the picture for readers who cannot see it.
        width: Width of the picture on the page in pixels.
        caption: Caption of the figure, including its number: "Figure 2.1. ..."
        numbers: The data behind the figure: columns by name, or several such tables keyed by title.
        live: Name of the script that animates the figure; empty for a still figure.
        more: HTML that holds the data and script of a moving figure.
        style: Additional style sheets.
    """
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    picture = f'<img alt="{html.escape(alt)}" width="{width}" src="{source}">'
    moving = f' data-live="{live}" role="group" aria-label="{html.escape(alt)}"' if live else ""
    parts = [
        f"<style>{STYLE}{style}</style>",
        f'<figure class="ext-figure"{moving}>',
        f'<div class="ext-box">{picture}</div>' if live else picture,
        f"<figcaption>{_caption(caption)}</figcaption>" if caption else "",
        fold(numbers) if numbers else "",
        more,
        "</figure>",
    ]
    return "".join(parts)


def _caption(text: str) -> str:
    text = html.escape(" ".join(text.split()))
    return CAPTION_NUMBER.sub(lambda found: f"<b>{found[0].strip()}</b> ", text, count=1)


def fold(numbers: Tables, title: str = "The numbers behind it") -> str:
    """Return the HTML of tables in a collapsible section, on one line.

    Args:
        numbers: Columns by name, or several such tables keyed by title.
        title: Title of the section.

    Raises:
        ValueError: The columns of a table have different lengths.
    """
    tables = [("", numbers)] if isinstance(numbers, Mapping) else numbers
    content = "".join(_table(*titled) for titled in tables)
    return f'<details class="ext-numbers"><summary>{html.escape(title)}</summary>{content}</details>'


def _table(title: str, numbers: Numbers) -> str:
    lengths = {name: len(column) for name, column in numbers.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"numbers: expected columns of equal length, got {lengths}")
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in numbers)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(written(entry))}</td>' for entry in row)}</tr>"
        for row in zip(*numbers.values(), strict=True)
    )
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def written(entry: object) -> str:
    """Format a table entry. Floats get at most four significant digits, and negative numbers get a true minus sign."""
    if isinstance(entry, float):
        return f"{entry:.4g}".replace("-", "−")
    return str(entry).replace("-", "−") if isinstance(entry, int) else str(entry)
