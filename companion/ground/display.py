"""Format figures, counts, tables and texts for a terminal: few digits, aligned columns, no control characters."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Collection, Sequence

WIDTH = 80
"""A line width, in columns, that fits any terminal."""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The headings of the columns, and the rows, each with a cell for each heading."""


def columns(most: int = WIDTH) -> int:
    """Return the number of columns for a line: the smaller of `most` and the terminal's width, but at least 30."""
    return max(min(shutil.get_terminal_size().columns, most), 30)


def table(
    rows: Sequence[Sequence[str]],
    head: Sequence[str] = (),
    *,
    left: Collection[int] = (0,),
    indent: int = 2,
    width: int | None = WIDTH,
) -> str:
    """Format rows of cells in columns as wide as their widest cell, two spaces apart.

    Args:
        rows: The cells of each row; a row may end early.
        head: The headings, if there are any.
        left: Indices of the columns that contain words and are aligned left. The others contain figures and are aligned
            right.
        indent: Spaces before each line.
        width: Maximum length of a line. Columns that do not fit are printed in another block below, which repeats the
            first column. `None` means no limit.
    """
    lines = [head, *rows] if head else list(rows)
    number = max(map(len, lines), default=0)
    widths = [max(len(line[i]) if i < len(line) else 0 for line in lines) for i in range(number)]
    blocks: list[list[int]] = []
    for i in range(1, number):
        if not blocks or (width is not None and indent + sum(widths[j] + 2 for j in blocks[-1]) + widths[i] > width):
            blocks.append([0])
        blocks[-1].append(i)

    def drawn(line: Sequence[str], block: Sequence[int]) -> str:
        cells = [line[i].ljust(widths[i]) if i in left else line[i].rjust(widths[i]) for i in block if i < len(line)]
        return (" " * indent + "  ".join(cells)).rstrip()

    return "\n\n".join("\n".join(drawn(line, block) for line in lines) for block in blocks or [[0][:number]])


def count(number: float, noun: str) -> str:
    """Format a number with its noun: `3 documents`, `1 point`."""
    return f"{number:,.15g} {noun}{'' if number == 1 else 's'}"


def readable_bytes(size: float) -> str:
    """Format bytes in decimal units: 1 kB is 1000 bytes."""
    if size >= 1e18:  # no machine has that much memory, so the order of magnitude is enough
        return f"1e{math.floor(math.log10(size))} B"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def figure(number: float) -> str:
    """Format a number with at most three digits; large numbers are rounded to three digits followed by zeros."""
    if number >= 100:
        digits = len(str(int(number))) - 3
        return f"{round(number, -digits):,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.1g}"


def many(number: float) -> str:
    """Format a count with at most three digits and a unit: 124 M, 46.7 B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{figure(number / size)} {unit}"
    return f"{number:.0f}"


def printable(text: str) -> str:
    r"""Replace control characters, except tabs and line ends, with escapes such as \x1b.

    Otherwise a text could control the terminal. Characters from \x80 to \x9f are replaced too, because some terminals
    obey them: \x9b is equivalent to an escape character and a bracket.
    """
    return _COMMANDS.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


_COMMANDS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")  # a bare \r returns to the line's start
