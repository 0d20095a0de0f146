"""Record for lesson 14: tests of its scaling law with runs that are too long for the lesson.

The lesson's own `trial` is run for the size that the law advises at the compute of the lesson's largest run, and for a
model with eight times the weights. Each trial is stored in `build/records/law` and not repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from authoring.lesson import SOURCES
from authoring.source import read_source

STARTS = (0, 1, 2)
LOOKS = (50, 80, 120, 170, 240)
ON_THE_WAY = (60, 120, 240, 480, 760)
ADVISED, ADVISED_UPDATES = 24, 1093
"""The width and updates that the lesson's law advises for the compute of its largest run."""
LARGE = 208
"""Width of a model with 8.3 times the weights of the lesson's largest."""


class Trials:
    """The lesson's `trial`, with its results stored in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _names(self) -> dict[str, Any]:
        [path] = SOURCES.glob("14_*.md")
        code = {cell.metadata["name"]: cell.source for cell in read_source(path).cells if "name" in cell.metadata}
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()):
            for cell in ("setup", "sets-up-text", "sets-up-trials"):
                exec(compile(code[cell], f"{path.stem}: {cell}", "exec"), names)
        return names

    def __call__(self, width: int, updates: int, rate: float, **more: Any) -> dict[str, Any]:
        """Return one trial's record: its settings, the number of weights, and the score by update."""
        asked = {"width": width, "updates": updates, "rate": rate, **more}
        file = self.folder / f"{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]}.json"
        if not file.exists():
            weights, _, scores = self._names["trial"](**asked)
            found = asked | {"weights": weights, "scores": {u: round(s, 4) for u, s in scores.items()}}
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found), encoding="utf-8")
            print(found, flush=True)
        read: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return read


def law(folder: Path) -> dict[str, Any]:
    """Return the record: lists of trials at a constant rate, by their purpose."""
    trial = Trials(folder)
    steady = {"last_share": 1.0}
    return {
        "advised": [trial(ADVISED, ADVISED_UPDATES, 0.01, at=ON_THE_WAY, start=start, **steady) for start in STARTS],
        "large": [trial(LARGE, 240, rate, at=LOOKS, start=0, **steady) for rate in (0.003, 0.01)],
    }
