"""Comparisons for lesson 26: four workers that average gradients at every update, or weights from time to time."""

from __future__ import annotations

from authoring.comparisons.cells import names_of, row

CELLS = ("setup", "sets-up-local", "local")


def less_often() -> dict[tuple[int, str], list[float]]:
    """Compare the nats per held-out byte of three ways of averaging, using cells from the deeper notebook."""
    names = names_of("deeper/26", *CELLS, __name__="__main__")
    names["workers"].close()  # in this comparison, all workers run in one process
    found = {}
    for updates in (80, 160):
        for every in (1, 10, updates):
            ends = [names["local"](every, updates, start) for start in range(3)]
            found[every, f"{updates} updates"] = ends
            print(row(f"every {every}", f"{updates} updates", "nats a byte", ends), flush=True)
    return found
