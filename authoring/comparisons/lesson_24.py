"""Comparisons for lesson 24: the same compute on differently cleaned text, and models trained on generated text."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import names_of, row
from authoring.records.data import LOOKS, STARTS, TEXTS, UPDATES, Trials

FOLDER = Path(__file__).parents[2] / "build" / "records" / "data"


def cleaned() -> dict[tuple[str, int, str], list[float]]:
    """Compare held-out bits per byte of models trained on each of the cleaned texts."""
    trial, found = Trials(FOLDER), {}
    for name in TEXTS:
        runs = [trial(name, start)["scores"] for start in STARTS]
        for updates in (*LOOKS, UPDATES):
            for test in ("prose", "second prose", "stories"):
                found[name, updates, test] = [run[str(updates)][test] for run in runs]
                print(row(name, f"{updates} updates", test, found[name, updates, test]), flush=True)
    return found


def equal_prose() -> dict[tuple[str, int], list[float]]:
    """Compare raw text with clean text, which is read until the model has seen the same number of prose tokens.

    Copies count as prose. A run on clean text therefore makes fewer updates than the corresponding run on raw text.
    """
    names = names_of("24", *Trials.cells[: Trials.cells.index("trial") + 1])
    shares = []
    for name in ("raw", "both"):
        pages = names["texts"][name]
        tokens = [sum(map(len, names["encoded"](some))) for some in (pages, [p for p in pages if p.kind == "prose"])]
        shares.append(tokens[1] / tokens[0])
    raw, found = Trials(FOLDER), {}
    equal = {updates: round(updates * shares[0] / shares[1]) for updates in (*LOOKS, UPDATES)}
    clean = [
        names["trial"](names["texts"]["both"], max(equal.values()), at=(*equal.values(),), start=s) for s in STARTS
    ]
    for updates, fewer in equal.items():
        found["raw", updates] = [raw("raw", start)["scores"][str(updates)]["prose"] for start in STARTS]
        found["both", fewer] = [scores[fewer]["prose"] for scores in clean]
        for (name, made), scores in list(found.items())[-2:]:
            print(row(name, f"{made} updates", "bits per byte of prose", scores), flush=True)
    return found


def generations() -> dict[tuple[str, int], list[float]]:
    """Compare how many distinct words survive ten generations of models, by the kind of text that the models read."""
    names, found = names_of("24", "setup", "generations", "collapse", "lives"), {}
    for size in (8000, 32_000):
        for keep in names["lives"]:
            runs = [names["distinct"](keep, size, start) for start in STARTS]
            found[keep, size] = [run[-1] / run[0] for run in runs]
            print(row(keep, f"{size} words", "share of words left", found[keep, size]), flush=True)
    return found
