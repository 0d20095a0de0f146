"""The comparisons that lessons report, to be run again: at least three starts, and two budgets.

`authoring/comparisons.toml` lists them; each names a function of `lesson_NN.py` here, which prints what it measures for
each start and budget as it has it, and returns it. A lesson shows one run or a few; what its sentences rest on is here.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "comparisons.toml"


@dataclass(frozen=True)
class Comparison:
    """A sentence of a lesson that says what helps, costs, wins or breaks, and what it stands on.

    lesson:     "04", of the path or of its deeper notebook.
    statement:  what the lesson says.
    cell:       the name of the code cell that shows it, or the target of the paragraph that says it.
    starts:     how many starts were run.
    budgets:    how long: "600 updates".
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
    def function(self) -> Callable[[], object]:
        """What runs it again. Raises `AttributeError` or `ModuleNotFoundError` if it is not there."""
        module = importlib.import_module(f"{__name__}.lesson_{self.lesson}")
        function: Callable[[], object] = getattr(module, self.run)
        return function


def comparisons(lesson: str = "") -> list[Comparison]:
    """Those of a lesson, or all, in the order of the file. Raises `TypeError` for an entry with another key."""
    entries = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["comparison"]
    found = [Comparison(**{**entry, "budgets": tuple(map(str, entry["budgets"]))}) for entry in entries]
    return [one for one in found if one.lesson.startswith(lesson)]
