"""The code of a lesson, to run a comparison of its with other starts and budgets: the very cells, not a copy."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

LESSONS = Path(__file__).parents[1] / "lessons"
CELL = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)(.*?)^```$", re.M | re.S)


def run(lesson: str, *names: str) -> SimpleNamespace:
    """What the named cells of a lesson's source bind, run in the order given.

    lesson:  its number, "06".

    Raises ValueError for a lesson or a cell that is not there.
    """
    sources = list(LESSONS.glob(f"{lesson}_*.md"))
    if len(sources) != 1:
        raise ValueError(f"lesson={lesson!r}: expected the number of a lesson, found {len(sources)} sources")
    cells = {}
    for options, code in CELL.findall(sources[0].read_text(encoding="utf-8")):
        named = re.search(r"^:name: (\S+)$", options, re.M)
        if named:
            cells[named[1]] = code
    missing = [name for name in names if name not in cells]
    if missing:
        raise ValueError(f"names={missing}: expected names of cells of {sources[0].name}")
    space: dict[str, object] = {}
    for name in names:
        exec(compile(cells[name], f"{sources[0].name}, cell {name}", "exec"), space)
    return SimpleNamespace(**{name: value for name, value in space.items() if not name.startswith("__")})
