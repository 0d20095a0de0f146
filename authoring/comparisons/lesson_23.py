"""Comparisons for lesson 23: models of five sizes at the same compute, and repeated passes over parts of the text."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import names_of, row
from authoring.records.law import ADVISED, EQUAL, FITTED, LOOKS, PARTS, STARTS, Trials, eighths

FOLDER = Path(__file__).parents[2] / "build" / "records" / "law"
HIGHER = {8: 0.03, 16: 0.02}
"""Learning rates at which the two narrowest fitted models reach a lower loss than at 0.01, the rate of all others."""


def valley() -> dict[tuple[int, str], list[float]]:
    """Compare the held-out bits per byte of five widths after a quarter, a half and all of the same compute budget."""
    trial, found = Trials(FOLDER), {}
    for width, updates in EQUAL.items():
        runs = [trial(width, updates, at=eighths(updates), start=start) for start in STARTS]
        for budget, eighth in (("a quarter", 2), ("half", 4), ("all", 8)):
            ends = [list(run["scores"].values())[eighth - 1] for run in runs]
            found[width, budget] = ends
            print(row(f"width {width}", budget, "bits per byte", ends), flush=True)
    return found


def parts() -> dict[tuple[int, str], list[float]]:
    """Compare the recommended run on all, a quarter and an eighth of the documents, after half and all updates."""
    trial, found, updates = Trials(FOLDER), {}, EQUAL[ADVISED]
    for part in (1, *PARTS):
        more = {"part": part} if part > 1 else {}
        runs = [trial(ADVISED, updates, at=eighths(updates), start=start, **more) for start in STARTS]
        for budget, eighth in (("half", 4), ("all", 8)):
            ends = [list(run["scores"].values())[eighth - 1] for run in runs]
            found[part, budget] = ends
            print(row(f"1/{part} of the text", budget, "bits per byte", ends), flush=True)
    return found


def higher() -> dict[tuple[int, float, int], list[float]]:
    """Compare the two narrowest models at a learning rate of 0.01 and a higher one, and the laws fitted to both.

    Each law is fitted to the runs with seed 0. The recommended run ends at 2.58 bits per byte on average.
    """
    trial, found = Trials(FOLDER), {}
    laws = names_of("23", *Trials.cells, "fit")
    runs = {
        (width, rate): [trial(width, 240, at=LOOKS, rate=rate, start=start) for start in STARTS]
        for width, own in HIGHER.items()
        for rate in (0.01, own)
    }
    for (width, rate), three in runs.items():
        for updates in (120, 240):
            found[width, rate, updates] = [run["scores"][str(updates)] for run in three]
            print(row(f"width {width} at {rate}", f"{updates} updates", "bits per byte", found[width, rate, updates]))
    wide = [trial(width, 240, at=LOOKS) for width in FITTED[2:4]]
    for name, narrow in (("0.01", {8: 0.01, 16: 0.01}), ("higher", HIGHER)):
        some = [runs[width, rate][0] for width, rate in narrow.items()] + wide
        points = [(run["parameters"], 512 * int(at), bits) for run in some for at, bits in run["scores"].items()]
        for floor in (1, 1.75, 2):
            law = laws["fitted"](points, floor)
            night = 6 * 106_816 * 512 * 240
            best = min(range(5000, 120_000, 200), key=lambda size: laws["says"](law, size, night / 6 / size))
            promised = laws["says"](law, 22_776, 512 * EQUAL[ADVISED])
            print(f"narrow models at {name}, floor {floor}: best size {best:,}, advised run {promised:.2f}", flush=True)
    return found
