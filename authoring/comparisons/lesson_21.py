"""Comparisons for lesson 21: heads and streams of story models from three starts, and how readers' heads form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from authoring.comparisons.cells import names_of, row
from authoring.records.inside import BUDGETS, READERS, STARTS, Measures

Found = dict[tuple[str, int], list[float]]


def _measures() -> Measures:
    return Measures(Path("build/records/inside"))


def carried() -> Found:
    """Read the shares of heads in carrying the hero.

    They are the share of the best head, the smaller of its two directions, and the largest share of another head.
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
    """Read how often a probe finds the hero, and the purity of features by the current and the next word.

    0 updates means an untrained model.
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
    """Find the first measurement where a reader's best induction score exceeds one half."""
    of, found = _measures(), Found()
    for updates in READERS:
        rows = [of.reader(start, updates)["rows"] for start in STARTS]
        found["formed", updates] = [next(done for done, *_, score in run if score > 0.5) for run in rows]
        print(row("readers", f"{updates} updates", "updates to a score of 0.5", found["formed", updates]))
    return found


def penalties() -> Found:
    """Compare autoencoders that keep the 8 largest features with ones that have an L1 penalty of a similar sparsity.

    For each: the share explained, the features active for a vector, the features that no vector activates (of 384),
    and the factor by which the rebuilt vectors would have to be stretched to fit best.
    """
    cells = "setup", "watched", "modules", "sets-up-streams", "sets-up-states", "sets-up-largest"
    lesson, found = names_of("21", *cells), Found()
    u = lesson["states"][2][lesson["tokens"] > 0]
    u = u - u.mean(0)
    u = u / u.square().mean().sqrt()
    for updates in (300, 900):
        for name, weight in (("8 largest", 0.0), ("L1 penalty", 3.0)):
            runs = [_sparse(u, weight, updates, start, lesson["largest"]) for start in STARTS]
            for measure, values in zip(
                ("explained", "active", "dead", "stretch"), zip(*runs, strict=True), strict=True
            ):
                found[f"{name}, {measure}", updates] = list(values)
                print(row(name, f"{updates} updates", measure, list(values)), flush=True)
    return found


def _sparse(u: torch.Tensor, weight: float, updates: int, start: int, largest: Any) -> tuple[float, ...]:
    """Train an autoencoder of 384 features as the lesson does, or with an L1 penalty in place of the 8 largest."""
    dice = torch.Generator().manual_seed(start)
    out = F.normalize(torch.randn(384, u.shape[1], generator=dice), dim=1)
    into, bias = out.clone().requires_grad_(), torch.zeros(384, requires_grad=True)
    optimizer = torch.optim.Adam([into, bias, out.requires_grad_()], lr=0.01)

    def features(some: torch.Tensor) -> torch.Tensor:
        positive = F.relu(some @ into.T + bias)
        return positive if weight else largest(positive, 8)

    for _ in range(updates):
        with torch.enable_grad():
            some = u[torch.randint(len(u), (256,), generator=dice)]
            active = features(some)
            loss = (active @ out - some).square().sum(1).mean() + weight * active.sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        out.data = F.normalize(out.data, dim=1)
    active = features(u)
    rebuilt = active @ out
    explained = 1 - (rebuilt - u).square().sum() / u.square().sum()
    stretch = (rebuilt * u).sum() / rebuilt.square().sum()
    fired = active > 0
    return explained.item(), fired.sum(1).float().mean().item(), float((~fired.any(0)).sum()), stretch.item()
