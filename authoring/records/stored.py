"""Store the results of long runs in files so that no run has to be repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from authoring.comparisons.cells import names_of


class LessonRuns:
    """Runs of a lesson's own cells, whose results are stored in a folder.

    Attributes:
        number: The lesson's number, such as "04".
        cells: Names of the cells that define what the runs use.
        folder: Folder for the results.
    """

    number: ClassVar[str]
    cells: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def lesson(self) -> dict[str, Any]:
        """The names that the cells define."""
        return names_of(self.number, *self.cells)


def stored(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result stored in a JSON file. If there is no file, compute, store and print the result first."""
    if not file.exists():
        began = time.perf_counter()
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found), encoding="utf-8")
        print(found, f"{time.perf_counter() - began:.0f} s", flush=True)
    read: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return read
