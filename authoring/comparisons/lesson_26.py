"""Comparisons for lesson 26: four workers that average gradients in every update, or weights now and then."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from authoring.comparisons.cells import row
from authoring.lesson import SOURCES
from authoring.source import read_source

CELLS = ("setup", "sets-up-local", "local")


def less_often() -> dict[tuple[int, str], list[float]]:
    """Compare the nats per held-out byte of three ways of averaging, using cells from the deeper notebook."""
    [path] = (SOURCES.parent / "deeper").glob("26_*.md")
    code = {cell.metadata.get("name"): cell.source for cell in read_source(path).cells}
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in CELLS:
            exec(compile(code[cell], f"{path.name}: {cell}", "exec"), names)
    names["workers"].close()  # in this comparison, all workers run in one process
    found = {}
    for updates in (80, 160):
        for every in (1, 10, updates):
            ends = [names["local"](every, updates, start) for start in range(3)]
            found[every, f"{updates} updates"] = ends
            print(row(f"every {every}", f"{updates} updates", "nats a byte", ends), flush=True)
    return found
