"""Record the measurements of lessons on real models: `python -m authoring.records.real 02` runs the code cells of
lesson 02 and its deeper notebook, and `build/10` those of a stage. Results go to `companion_school/records/real.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

from authoring.lesson import SOURCES, STAGES
from authoring.source import read_source
from companion.ground.atomic import write_atomic
from companion_school.study import real

PATH = Path(__file__).parents[2] / "companion_school" / "records" / "real.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring.records.real", description=__doc__)
    parser.add_argument("lessons", nargs="+", metavar="LESSON", help="lesson or stage, such as 02 or build/10")
    parser.add_argument("--from-cell", metavar="NAME", help="start at the cell with this :name:")
    given = parser.parse_args(arguments)
    mpl.use("Agg")
    for lesson in given.lessons:
        real.recording = {}
        folders = (STAGES,) if lesson.startswith("build/") else (SOURCES, SOURCES.parent / "deeper")
        for folder in folders:
            for path in folder.glob(f"{lesson.removeprefix('build/')}_*.md"):
                run(path, given.from_cell)
        found = {**json.loads(PATH.read_text("utf-8"))}
        if given.from_cell is None:
            found = {key: value for key, value in found.items() if not key.startswith(f"{lesson}/")}
        write_atomic(PATH, json.dumps(dict(sorted({**found, **real.recording}.items())), indent=1) + "\n")
        for key, value in real.recording.items():
            print(f"{key}: {value}")
    return 0


def run(path: Path, first: str | None) -> None:
    """Run the code cells of a source without showing their output.

    The last cell to run is the one after the cell that defines the last measurement, because that cell may call it.

    Args:
        path: The source.
        first: Name of the cell to begin with; `None` runs them from the beginning.
    """
    cells = [cell for cell in read_source(path).cells if cell.cell_type == "code"]
    last = max((at for at, cell in enumerate(cells) if "on_real_model(" in cell.source), default=-1)
    start = next((at for at, cell in enumerate(cells) if first and cell.metadata.get("name") == first), 0)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in cells[start : last + 2 if last >= 0 else 0]:
            exec(compile(cell.source, path.name, "exec"), names)


if __name__ == "__main__":
    sys.exit(main())
