"""Pictures for the pages: SVG from Matplotlib on white, with letters as outlines so that they look the same everywhere.

Each picture contains a digest of its inputs, and the picture is up to date if the digest is. The bytes of pictures are
not compared, because another version of Matplotlib may draw a line at a slightly different position.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from companion_school.study.figures import PALETTE, STYLE

INK, PALE = "#222222", "#8a8a8a"
TINTS = {"blue": "#d6e9f5", "orange": "#fbe8c3", "green": "#cdebe2", "grey": "#eeeeee"}
EDGES = {"blue": PALETTE["blue"], "orange": "#b87d00", "green": "#00795a", "grey": PALE}


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of the given size, with coordinates in inches from its lower left corner."""
    with mpl.rc_context({**STYLE, "figure.constrained_layout.use": False}):
        fig = Figure(figsize=(width, height), facecolor="white")
        ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    return fig, ax


def box(ax: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    """Draw a rounded box in one of the `TINTS`, with its lower left corner at (x, y)."""
    style = "round,pad=0,rounding_size=0.07"
    ax.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle=style, facecolor=TINTS[color], edgecolor=EDGES[color], linewidth=1.1
        )
    )


def digest(*parts: Any) -> str:
    """Return a digest of a picture's inputs: data as JSON, and modules as the text of their files."""
    texts = [part.read_text(encoding="utf-8") if isinstance(part, Path) else json.dumps(part) for part in parts]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def svg(fig: Figure, drawn_from: str) -> bytes:
    """Return the figure as SVG, with the digest of its inputs but without a date."""
    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "pages", "font.family": STYLE["font.family"]}):
        fig.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Description": f"from {drawn_from}"})
    # nothing is outside these clipping paths
    text = re.sub(r' clip-path="url\(#\w+\)"', "", stream.getvalue().decode())
    text = re.sub(r' id="(?:text_\d+|patch_\d\d+)"', "", text)  # these ids are not used
    # Round the position of a letter to a thousandth of a pixel
    text = re.sub(r"translate\((\d+\.\d)\d+ 0\)", r"translate(\1 0)", text)
    text = re.sub(r'(?<= style=")[^"]*', lambda found: found[0].replace(": ", ":").replace("; ", ";"), text)
    outlines = dict.fromkeys(re.findall(r'<path id="([\w-]+-[0-9a-f]+)"', text))
    for number, name in enumerate(outlines):  # every letter refers to its outline, so short ids save space
        text = re.sub(rf'(?<=["#]){name}(?=")', f"g{number}", text)
    return ("\n".join(map(str.strip, text.splitlines())) + "\n").encode()  # indentation only makes the file larger


def digest_in(picture: bytes) -> str | None:
    """Return the digest that is stored in a picture (SVG or PNG)."""
    found = re.search(rb"from ([0-9a-f]{16})", picture)
    return found[1].decode() if found else None
