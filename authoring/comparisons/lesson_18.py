"""What lesson 18 compares: models that learn with heads for later tokens, and without."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import row
from authoring.records.heads import AHEAD, BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def heads() -> Found:
    """Loss of the next token on unseen stories, without heads for later ones and with them: the runs of the record."""
    run, found = Runs(Path("build/records/heads")), Found()
    for updates in BUDGETS:
        for count in (0, AHEAD):
            found[f"{count} heads", updates] = [run(count, start, updates)["loss"] for start in STARTS]
            print(row(f"{count} heads", f"{updates} updates", "nats a token", found[f"{count} heads", updates]))
    return found
