"""Still pictures for narrow screens, in which the diagrams of a wide picture are stacked on top of each other.

A picture of two or three diagrams is at least 760 pixels wide, so its text is too small on a phone. Diagrams that are
side by side are recognized by their bases: two or three long lines or surfaces in the same row of pixels. The picture
can be cut only if there are also gaps between them that run from top to bottom. Formulas that consist of boxes, and
boxes with words beside them, have no such row.
"""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
from PIL import Image

FITS = 440
"""Width in points up to which a picture fits on a phone without making its text too small."""
BASE = 0.2
"""Minimum length of a diagram's base, as a share of the picture's width."""
GAP = 0.002
"""Minimum width of a gap, as a share of the picture's width."""
NEAR = 0.03
"""Maximum distance from a cut of text that belongs to both sides, as a share of the picture's width."""
LABELS = 0.1
"""Maximum distance of axis labels below a diagram's base, as a share of the picture's height."""
PRINT, SCREEN = 0.8, 344
"""Minimum scale of a picture on a phone, and the width in points of a narrow phone's screen. Wider ones scroll."""
_BETWEEN, _MARGIN = 24, 8  # number of pixels between pieces and around each piece
Pixels = np.ndarray


def stacked(png: bytes, width: int) -> bytes | None:
    """Return the picture with its diagrams stacked, or `None` if it already fits or cannot be cut.

    Args:
        png: The picture.
        width: Its width in points, which is half of its width in pixels.
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
    """Return the width in points at which a phone shows a picture, where 0 means as wide as the screen."""
    return 0 if width * PRINT <= SCREEN else round(width * PRINT)


def _cuts(pixels: Pixels) -> list[int]:
    """Return the columns of the cuts, in the first gap after each diagram but the last, or none if there are no
    gaps."""
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
        cuts.append(end + sum(gaps[0]) // 2)  # the next diagram's axis label may follow the first gap
    return cuts


def _below_the_first_line(pixels: Pixels) -> int:
    """Return the pixel row in which the first line of text ends if this is in the picture's upper quarter, else 0."""
    blank = _runs((pixels == pixels[0, 0]).all(axis=(1, 2)))
    inner = [(start + end) // 2 for start, end in blank if start > 0 and end < pixels.shape[0] / 4]
    return inner[0] if inner else 0


def _is_over(line: Pixels, cuts: list[int]) -> bool:
    """Return whether part of a line of text is near a cut, so that it belongs to all diagrams, as a legend does."""
    near = round(NEAR * line.shape[1])
    return any(bool((line[:, cut - near : cut + near] != line[:1, :1]).any()) for cut in cuts)


def _runs(line: Pixels) -> list[tuple[int, int]]:
    """Return the start and end of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _trimmed(pixels: Pixels) -> Pixels:
    """Return a piece with its empty margins cropped to a few pixels."""
    ink = (pixels != pixels[0, 0]).any(axis=2)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not len(rows):
        return pixels[:1]
    top, left = max(0, rows[0] - _MARGIN), max(0, columns[0] - _MARGIN)
    return pixels[top : rows[-1] + 1 + _MARGIN, left : columns[-1] + 1 + _MARGIN]
