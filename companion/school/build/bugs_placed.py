"""Every bug of `bugs` tried: what is said of it, and whether the tensor and the line are right.

python -m companion.school.build.bugs_placed
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from companion.school.build.bugs import BUGS, Bug, is_named
from companion.school.build.first_difference import first_difference, sentence
from companion.school.build.stages import STAGES
from companion.school.build.streams.training import trained


def table(bugs: Sequence[Bug] = BUGS, *, told: bool = True) -> list[tuple[str, str, str, bool, bool]]:
    """Of each bug: where it stands, what it is, what is said, whether the tensor is right, and whether the line is.

    told:  with what is said, for which other bugs are tried, too; otherwise nothing stands there.
    """
    rows = []
    for bug in bugs:
        found = first_difference(bug.stage, bug.sources)
        stands = f"{STAGES[bug.file].file}:{bug.lines[0]} {bug.function}"
        if found is None:
            rows.append((stands, bug.name, "nothing", False, False))
            continue
        tensor = found.node is not None and is_named(bug, found.node.key)
        line = bug.is_placed(found.origin)
        said = sentence(bug.stage, found, bug.sources) if told else ""
        rows.append((stands, bug.name, said, tensor, line))
    return rows


def trainings(*, told: bool = True) -> list[tuple[str, str, bool]]:
    """Of each bug that shows in a whole training, and nowhere else as far as that is looked at: what is said there.

    told:  as in `table`.
    """
    rows = []
    for bug in BUGS:
        if bug.training:
            found = first_difference(bug.stage, bug.sources, only=(trained,))
            right = found is not None and found.node is not None and found.node.key.startswith(bug.training)
            said = "nothing" if found is None else sentence(bug.stage, found, bug.sources) if told else ""
            rows.append((bug.name, said, right))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where more than one in ten is not placed."""
    parser = argparse.ArgumentParser(prog="python -m companion.school.build.bugs_placed", description=__doc__)
    parser.parse_args(argv)
    rows = table()
    for number, (stands, name, said, tensor, line) in enumerate(rows, 1):
        marks = f"tensor {'right' if tensor else 'WRONG'}, line {'right' if line else 'WRONG'}"
        print(f"{number:2d}. {name} ({stands}): {marks}\n    {said}\n")
    for name, said, right in trainings():
        print(f"in a training: {name}: {'right' if right else 'WRONG'}\n    {said}\n")
    placed = sum(tensor and line for *_, tensor, line in rows)
    print(f"{placed} of {len(rows)} placed at the right tensor and line")
    return 0 if placed >= 0.9 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
