"""What a page costs to open: its bytes, the files it asks for, and what holds up the first paint."""

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
    """A page: its own bytes, the files it asks for to be shown, itself among them, their bytes as they lie in the
    folder and as a server packs them, how many sheets and scripts the first paint waits for, and its milliseconds."""

    page: int
    files: int
    bytes: int
    packed: int
    sheets: int
    scripts: int
    paint: float = 0.0

    @classmethod
    def of(cls, urls: list[str], sheets: int, scripts: int, paint: float = 0.0) -> Weight:
        """Of the addresses that a page, the first of them, asks for from its folder."""
        parts = dict.fromkeys(urlsplit(url).path for url in urls if url.startswith("file:"))
        paths = [path for path in (Path(unquote(part)) for part in parts) if path.is_file()]
        sizes = [path.stat().st_size for path in paths]
        packed = [
            len(gzip.compress(path.read_bytes(), 6)) if path.suffix in PACKED else size
            for path, size in zip(paths, sizes, strict=True)
        ]
        return cls(sizes[0], len(paths), sum(sizes), sum(packed), sheets, scripts, paint)


def summary(weights: dict[str, Weight]) -> str:
    """The middle page and the heaviest one in each respect, as a table."""
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
