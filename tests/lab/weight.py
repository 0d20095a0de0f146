"""The cost of opening a page: its bytes, the files that it requests, and what delays the first paint."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

from companion.ground.display import table

SLOWEST = 3_000
"""Milliseconds to the first paint of a page that lies in a folder."""
PACKED = (".html", ".css", ".js", ".svg")
"""What servers send packed; pictures and fonts are so already."""


@dataclass(frozen=True)
class Weight:
    """The cost of a page.

    It consists of the page's own bytes, the files requested to show it (including itself), their bytes in the folder
    and as compressed by a server, the numbers of style sheets and scripts that delay the first paint, and the time of
    that paint in milliseconds.
    """

    page: int
    files: int
    bytes: int
    packed: int
    sheets: int
    scripts: int
    paint: float = 0.0

    @classmethod
    def of(cls, urls: list[str], sheets: int, scripts: int, paint: float = 0.0) -> Weight:
        """Build it from the addresses that a page, the first of them, requests from its folder."""
        parts = dict.fromkeys(urlsplit(url).path for url in urls if url.startswith("file:"))
        paths = [path for path in (Path(unquote(part)) for part in parts) if path.is_file()]
        sizes = [path.stat().st_size for path in paths]
        packed = [
            len(gzip.compress(path.read_bytes(), 6)) if path.suffix in PACKED else size
            for path, size in zip(paths, sizes, strict=True)
        ]
        return cls(sizes[0], len(paths), sum(sizes), sum(packed), sheets, scripts, paint)


def summary(weights: dict[str, Weight]) -> str:
    """Return a table with the median and the largest value of each quantity."""
    rows = []
    for name, what, unit in (
        ("page", "kB of its own", 1000),
        ("files", "files to show it", 1),
        ("bytes", "kB of all of them", 1000),
        ("packed", "kB as a server packs them", 1000),
        ("sheets", "sheets before the first paint", 1),
        ("scripts", "scripts before the first paint", 1),
        ("paint", "ms to the first paint", 1),
    ):
        values = {page: getattr(weight, name) / unit for page, weight in weights.items()}
        most = max(values, key=lambda page: values[page])
        rows.append([what, f"{median(values.values()):.0f}", f"{values[most]:.0f}", most if values[most] else ""])
    return table(rows, ("a page", "middle", "most", "which"), left=(0, 3))
