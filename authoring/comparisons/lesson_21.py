"""Comparisons for lesson 21: heads and streams of story models from three seeds, and how heads form in readers."""

from __future__ import annotations

from pathlib import Path

from authoring.comparisons.cells import names_of, row
from authoring.records.inside import BUDGETS, READERS, STARTS, Measures

Found = dict[tuple[str, int], list[float]]


def _measures() -> Measures:
    return Measures(Path("build/records/inside"))


def carried() -> Found:
    """Read how much of the hero's name a single head carries.

    The results are the share of the best head (the smaller of its shares by noising and by denoising) and the largest
    share of any other head.
    """
    of, found = _measures(), Found()
    for updates in BUDGETS:
        runs = [of.story(start, updates) for start in STARTS]
        found["best", updates] = [min(run["denoising"], run["noising"]) for run in runs]
        found["next", updates] = [run["next"] for run in runs]
        for name in ("best", "next"):
            print(row("story models", f"{updates} updates", f"share of the {name} head", found[name, updates]))
    return found


def read_out() -> Found:
    """Read how often a probe finds the hero, and how purely features respond to the current and the next word.

    Zero updates means an untrained model.
    """
    of, found = _measures(), Found()
    for updates in (0, *BUDGETS):
        runs = [of.stream(start, updates) for start in STARTS]
        found["probe", updates] = [run["probe"] for run in runs]
        for at, name in enumerate(("word there", "next word")):
            found[name, updates] = [run["purity"][at] for run in runs]
        for name in ("probe", "word there", "next word"):
            print(row("streams", f"{updates} updates", name, found[name, updates]))
    return found


def formed() -> Found:
    """Find the first measurement at which a reader's best induction score exceeds one half."""
    of, found = _measures(), Found()
    for updates in READERS:
        rows = [of.reader(start, updates)["rows"] for start in STARTS]
        found["formed", updates] = [next(done for done, *_, score in run if score > 0.5) for run in rows]
        print(row("readers", f"{updates} updates", "updates to a score of 0.5", found["formed", updates]))
    return found


def penalties() -> Found:
    """Compare autoencoders that keep the 8 largest features with similarly sparse ones that use an L1 penalty.

    The measures are the share of variance explained, the number of active features per vector, the number of features
    (of 384) that no vector activates, and the factor by which the rebuilt vectors would have to be scaled for the best
    fit.
    """
    cells = "setup", "watched", "modules", "sets-up-streams", "sets-up-states", "sets-up-largest", "sparse"
    lesson, found = names_of("21", *cells), Found()
    u = lesson["states"][2][lesson["tokens"] > 0]
    centred = u - u.mean(0)
    centred = centred / centred.square().mean().sqrt()
    for updates in (300, 900):
        for name, keep, penalty in (("8 largest", 8, 0.0), ("L1 penalty", 384, 3.0)):
            runs = []
            for start in STARTS:
                features, rebuilt, explained = lesson["sparse"](u, 384, keep, updates, start, penalty)
                fired = features > 0
                stretch = (rebuilt * centred).sum() / rebuilt.square().sum()
                runs.append(
                    (explained, fired.sum(1).float().mean().item(), (~fired.any(0)).sum().item(), stretch.item())
                )
            for measure, values in zip(
                ("explained", "active", "dead", "stretch"), zip(*runs, strict=True), strict=True
            ):
                found[f"{name}, {measure}", updates] = list(values)
                print(row(name, f"{updates} updates", measure, list(values)), flush=True)
    return found
