"""Run cells from lessons, so that comparisons use the same code that readers see."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from authoring.lesson import SOURCES
from authoring.source import read_source


def names_of(lesson: str, *cells: str, **given: Any) -> dict[str, Any]:
    """Run the named code cells of a lesson in the given order, hide their output, and return the names they define.

    As in the lesson, the cells may change PyTorch's seed, its number of threads and its default dtype. These are not
    restored.

    Args:
        lesson: The lesson's number, such as "04"; "deeper/04" means its deeper notebook.
        cells: Names of the cells.
        given: Values of names to define before the first cell runs.

    Raises:
        ValueError: If the lesson has no cell with one of the given names.
    """
    folder, _, number = lesson.rpartition("/")
    [path] = (SOURCES.parent / (folder or SOURCES.name)).glob(f"{number}_*.md")
    code = {cell.metadata["name"]: cell.source for cell in read_source(path).cells if "name" in cell.metadata}
    missing = [cell for cell in cells if cell not in code]
    if missing:
        raise ValueError(f"cells: {path.name} has no cell named {missing[0]!r}; expected one of {', '.join(code)}")
    names: dict[str, Any] = dict(given)
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in cells:
            exec(compile(code[cell], f"{path.name}: {cell}", "exec"), names)
    return names


def row(setting: str, budget: str, measure: str, values: list[float]) -> str:
    """Format a line with the setting, the budget, the measure, its mean over all seeds, and its value for each seed."""
    mean, each = sum(values) / len(values), " ".join(f"{value:.4g}" for value in values)
    return f"{setting:<24} {budget:<14} {measure:<24} mean {mean:7.4g}, each start: {each}"
