"""The cells of a lesson, run for a comparison: what is compared is what a reader reads, and not a copy of it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from authoring.lesson import SOURCES
from authoring.source import read_source


def names_of(lesson: str, *cells: str, **given: Any) -> dict[str, Any]:
    """Run the named code cells of a lesson in this order, without showing what they print, and return what they define.

    `given` names are there before the first cell.

    Like the lesson they may set PyTorch's seed, its number of threads and its dtype, which stay as they are left.

    Raises `ValueError` for a cell that is not there.
    """
    [path] = SOURCES.glob(f"{lesson}_*.md")
    code = {cell.metadata["name"]: cell.source for cell in read_source(path).cells if "name" in cell.metadata}
    missing = [cell for cell in cells if cell not in code]
    if missing:
        raise ValueError(f"cells: {path.name} has none named {missing[0]!r}; expected one of {', '.join(code)}")
    names: dict[str, Any] = dict(given)
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in cells:
            exec(compile(code[cell], f"{path.name}: {cell}", "exec"), names)
    return names


def row(setting: str, budget: str, measure: str, values: list[float]) -> str:
    """A line of what came of one setting: its name, the budget, what is measured, the mean, and each start."""
    mean, each = sum(values) / len(values), " ".join(f"{value:.4g}" for value in values)
    return f"{setting:<24} {budget:<14} {measure:<24} mean {mean:7.4g}, each start: {each}"
