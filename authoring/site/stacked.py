"""Still pictures for a narrow screen: diagrams that stand side by side in a wide picture, set below one another.

A picture of two or three diagrams is 760 pixels wide or more, and its print is too small on a phone. Diagrams side by
side are found by what they stand on: in one row of pixels two long lines or surfaces, one beside the other. Between
them, from top to bottom, must be a gap to cut at. A formula of boxes, or boxes with words beside them, has no such row.
"""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
from PIL import Image

FITS = 440
"""Points of a picture's width that a phone shows without making its print too small."""
BASE = 0.2
"""How long what a diagram stands on is at least, as a share of the picture's width."""
GAP = 0.002
"""How wide a gap is at least, as a share of that width."""
NEAR = 0.03
"""How near to a cut print is that belongs to both sides, as a share of that width."""
LABELS = 0.1
"""How far below its base a diagram has the labels of its axis, at most, as a share of the picture's height."""
PRINT, SCREEN = 0.8, 344
"""How large a picture is shown on a phone at least, beside its own size, and the points that a narrow phone has for it:
a wider one scrolls."""
_BETWEEN, _MARGIN = 24, 8  # pixels between two pieces, and around each
Pixels = np.ndarray


def stacked(png: bytes, width: int) -> bytes | None:
    """The picture with its diagrams below one another, or None if it fits as it is, or cannot be cut.

    width:  in points, of which a picture of twice as many pixels is drawn.
    """
    if width <= FITS:
        return None
    image = Image.open(io.BytesIO(png))
    pixels = np.asarray(image.convert("RGB"))
    top = _below_the_first_line(pixels)
    cuts = _cuts(pixels[top:])
    if not cuts:
        return None
    if not _is_over(pixels[:top], cuts):
        top = 0
    elif _trimmed(pixels[:top]).shape[1] > FITS * pixels.shape[1] / width:
        return None
    pieces = [pixels[top:, start:end] for start, end in pairwise([0, *cuts, pixels.shape[1]])]
    pieces = [_trimmed(piece) for piece in ([pixels[:top]] if top else []) + pieces]
    wide = max(piece.shape[1] for piece in pieces)
    high = sum(piece.shape[0] for piece in pieces) + _BETWEEN * (len(pieces) - 1)
    whole = np.empty((high, wide, 3), np.uint8)
    whole[:] = pixels[0, 0]
    y = 0
    for piece in pieces:
        x = (wide - piece.shape[1]) // 2
        whole[y : y + piece.shape[0], x : x + piece.shape[1]] = piece
        y += piece.shape[0] + _BETWEEN
    found, file = Image.fromarray(whole), io.BytesIO()
    if image.mode == "P":
        found = found.quantize(palette=image, dither=Image.Dither.NONE)
    found.save(file, "PNG", optimize=True)
    return file.getvalue()


def shown_width(width: int) -> int:
    """How wide a picture is shown on a phone, in points; 0 is as wide as the screen."""
    return 0 if width * PRINT <= SCREEN else round(width * PRINT)


def _cuts(pixels: Pixels) -> list[int]:
    """Where the picture is cut: in the first gap behind each diagram but the last, or nowhere."""
    ink, width = (pixels != pixels[0, 0]).any(axis=2), pixels.shape[1]
    rows = [[run for run in _runs(row) if run[1] - run[0] >= BASE * width] for row in ink]
    last = max(range(len(rows)), key=lambda y: (len(rows[y]), y))
    bases, below = rows[last], ink[last + 2 : last + 2 + round(LABELS * len(rows))]
    if not 2 <= len(bases) <= 3 or not all(below[:, start:end].any() for start, end in bases):
        return []
    blank, cuts = ~ink.any(axis=0), []
    for (_, end), (start, _) in pairwise(bases):
        gaps = [gap for gap in _runs(blank[end:start]) if gap[1] - gap[0] >= GAP * width]
        if not gaps:
            return []
        cuts.append(end + sum(gaps[0]) // 2)  # behind it may be the name of the next diagram's axis
    return cuts


def _below_the_first_line(pixels: Pixels) -> int:
    """Where the first line of print ends, if it ends in the upper quarter of the picture; else 0."""
    blank = _runs((pixels == pixels[0, 0]).all(axis=(1, 2)))
    inner = [(start + end) // 2 for start, end in blank if start > 0 and end < pixels.shape[0] / 4]
    return inner[0] if inner else 0


def _is_over(line: Pixels, cuts: list[int]) -> bool:
    """Whether a line of print belongs to all diagrams, as a legend does: it has something near a cut."""
    near = round(NEAR * line.shape[1])
    return any(bool((line[:, cut - near : cut + near] != line[:1, :1]).any()) for cut in cuts)


def _runs(line: Pixels) -> list[tuple[int, int]]:
    """Where each run of true values begins and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _trimmed(pixels: Pixels) -> Pixels:
    """The piece without its empty margins, but for a few pixels."""
    ink = (pixels != pixels[0, 0]).any(axis=2)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not len(rows):
        return pixels[:1]
    top, left = max(0, rows[0] - _MARGIN), max(0, columns[0] - _MARGIN)
    return pixels[top : rows[-1] + 1 + _MARGIN, left : columns[-1] + 1 + _MARGIN]
