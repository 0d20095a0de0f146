"""The HTML around a figure: the picture with its alternative text, its caption, and the numbers behind it in a fold.

A still figure and a moving one (`companion_school.study.live`) have the same frame. It works in JupyterLab and in a
page opened from a folder, in a light theme and in a dark one, and without its style, which JupyterLab takes from a
notebook that is not trusted.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence

from companion_school.study.palette import DARK, DARK_PAGE, LIGHT_PAGE, PALETTE

WIDEST = 760  # pixels: JupyterLab's column of text on a small laptop

Numbers = Mapping[str, Sequence[object]]  # a table: its columns by name
Tables = Numbers | Sequence[tuple[str, Numbers]]  # or several, each with a title

CAPTION_NUMBER = re.compile(r"Figure D?\d+\.\d+\. ")


def _variables(colors: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{color};" for name, color in colors.items() if name != "black")


# In JupyterLab its theme decides, elsewhere the system; and a figure brings its own page along, since not every
# page around it turns dark. A picture of pixels is turned: its lightness, not its hues, and white becomes the page.
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
    """The HTML of a figure, on one line.

    png:      the still picture, with twice the pixels of its width on the page.
    alt:      what the picture shows, for those who cannot see it.
    width:    of the picture on the page, in pixels.
    caption:  the sentence under it: "Figure 2.1. ..."
    numbers:  the numbers behind it: a column for each name, or several such tables with a title each.
    live:     the name of the script that moves it; empty for a figure that stands still.
    more:     what a moving figure carries along: data and script.
    style:    further style sheets.
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
    """Tables in a fold, on one line.

    numbers:  a column for each name, or several such tables with a title each.
    title:    of the fold.

    Raises `ValueError` if the columns of a table are not equally long.
    """
    tables = [("", numbers)] if isinstance(numbers, Mapping) else numbers
    content = "".join(_table(*titled) for titled in tables)
    return f'<details class="ext-numbers"><summary>{html.escape(title)}</summary>{content}</details>'


def _table(title: str, numbers: Numbers) -> str:
    lengths = {name: len(column) for name, column in numbers.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"numbers: expected columns of one length, got {lengths}")
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in numbers)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(written(entry))}</td>' for entry in row)}</tr>"
        for row in zip(*numbers.values(), strict=True)
    )
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def written(entry: object) -> str:
    """A number as a reader expects it: at most four significant digits, a true minus sign."""
    if isinstance(entry, float):
        return f"{entry:.4g}".replace("-", "−")
    return str(entry).replace("-", "−") if isinstance(entry, int) else str(entry)
