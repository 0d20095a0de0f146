"""The comparisons that lessons report, to be run again: at least three starts, and two budgets.

`authoring/comparisons.toml` lists them; each names a function of `lesson_NN.py` here, which yields `Outcome`s as it has
them. A lesson shows one run or a few; what its sentences rest on is here, and takes longer. `names_of` runs cells of
the lesson, so that what is compared is what a reader reads.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from authoring.lesson import SOURCES
from authoring.source import read_source

SOURCE = Path(__file__).parents[1] / "comparisons.toml"


@dataclass(frozen=True)
class Outcome:
    """What came of one of the things that are compared, with one budget.

    setting:  which of them: "with the turn".
    budget:   how long it was trained: "600 updates".
    measure:  what is measured: "new texts right, of 4".
    values:   of each start.
    """

    setting: str
    budget: str
    measure: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        each = " ".join(f"{value:.4g}" for value in self.values)
        mean = sum(self.values) / len(self.values)
        return f"{self.setting:<28} {self.budget:<14} {self.measure:<26} {mean:8.4g}   {each}"


@dataclass(frozen=True)
class Comparison:
    """A sentence of a lesson that says what helps, costs, wins or breaks, and what it stands on.

    lesson:     "04", of the path or of its deeper notebook.
    statement:  what the lesson says.
    cell:       the name of the code cell that shows it, or the target of the paragraph that says it.
    starts:     how many starts were run.
    budgets:    the budgets, as the outcomes name them.
    found:      the spread that was measured.
    run:        the function of `lesson_NN.py` that runs it again.
    """

    lesson: str
    statement: str
    cell: str
    starts: int
    budgets: tuple[str, ...]
    found: str
    run: str

    @property
    def function(self) -> Callable[[], Iterator[Outcome]]:
        """What runs it again. Raises `AttributeError` or `ModuleNotFoundError` if it is not there."""
        module = importlib.import_module(f"{__name__}.lesson_{self.lesson}")
        function: Callable[[], Iterator[Outcome]] = getattr(module, self.run)
        return function


def comparisons(lesson: str = "") -> list[Comparison]:
    """Those of a lesson, or all, in the order of the file. Raises `TypeError` for an entry with another key."""
    entries = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["comparison"]
    found = [Comparison(**{**entry, "budgets": tuple(entry["budgets"])}) for entry in entries]
    return [one for one in found if one.lesson.startswith(lesson)]


def names_of(lesson: str, *cells: str, deeper: bool = False) -> dict[str, Any]:
    """What the named code cells of a lesson, or of its deeper notebook, define: run in order, what they print unseen.

    Like the lesson they may set PyTorch's seed, its number of threads and its dtype, which stay as they are left.

    Raises `KeyError` for a cell that is not there.
    """
    folder = SOURCES.with_name("deeper") if deeper else SOURCES
    [path] = folder.glob(f"{lesson}_*.md")
    code = {cell.metadata["name"]: cell.source for cell in read_source(path).cells if "name" in cell.metadata}
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in cells:
            exec(compile(code[cell], f"{path.stem}: {cell}", "exec"), names)
    return names
