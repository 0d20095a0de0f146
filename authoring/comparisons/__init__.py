"""Repeatable comparisons that support statements in lessons, with at least three seeds and two training budgets.

`authoring/comparisons.toml` lists the comparisons. Each entry names a function in `lesson_NN.py` in this folder. The
function prints the results for each seed and budget as they are measured, and returns all results. The lesson itself
shows only a few of the runs.
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
    """A statement in a lesson that something helps, costs, wins or breaks, with the evidence for it.

    Attributes:
        lesson: Lesson number, such as "04", for a statement in the lesson or in its deeper notebook.
        statement: The statement.
        cell: Name of the code cell that shows the evidence, or the target of the paragraph that makes the statement.
        starts: Number of seeds.
        budgets: Lengths of the runs, for example "600 updates".
        found: The measured range of results.
        run: Name of the function in `lesson_NN.py` that repeats the measurement.
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
        """Function that repeats the measurement.

        Raises:
            AttributeError: If the module has no such function.
            ModuleNotFoundError: If there is no module for the lesson.
        """
        module = importlib.import_module(f"{__name__}.lesson_{self.lesson}")
        function: Callable[[], object] = getattr(module, self.run)
        return function


def comparisons(lesson: str = "") -> list[Comparison]:
    """Return the comparisons for a lesson, or all of them, in the order of the file.

    Raises:
        TypeError: If an entry has an unknown key or lacks a key.
    """
    entries = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["comparison"]
    found = [Comparison(**{**entry, "budgets": tuple(map(str, entry["budgets"]))}) for entry in entries]
    return [one for one in found if one.lesson.startswith(lesson)]
