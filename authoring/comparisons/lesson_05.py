"""Comparisons for lesson 05, with three seeds. Each function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from authoring.comparisons.cells import names_of
from companion.config.model import AttentionConfig, PositionConfig
from companion.layers.attention import Attention
from companion_school.study.rounds import CONTEXT, HEADS, KINDS, WIDTH, Reader, right

STARTS, BUDGETS = (0, 1, 2), (260, 1000)
PRACTISE = ("setup", "practise-start", "model-and-measure", "practise")
SHIFTS, PERIODS = (0, 8, 32, 400), (12, 20, 40, 62)


def shares_of(model: Reader) -> dict[str, float]:
    """Measure the accuracy of predictions on shifted texts and in longer rounds."""
    where = torch.arange(CONTEXT)
    shares = {f"moved by {by}": right(model, (8, 16), CONTEXT, positions=where + by) for by in SHIFTS}
    shares |= {f"rounds of {p}": right(model, (p, p), 2 * p, batch=32) for p in PERIODS}
    return {name: 100 * share for name, share in shares.items()}


def said(kind: str, updates: int, start: int, shares: dict[str, float]) -> str:
    values = ", ".join(f"{name} {share:.1f}" for name, share in shares.items())
    return f"{kind:22} {updates:5} updates, start {start}: {values}"


def shifted_and_longer() -> dict[tuple[str, int, int], dict[str, float]]:
    """Measure the accuracy of the lesson's four models, by kind of positions, number of updates and seed."""
    lesson, found = SimpleNamespace(**names_of("05", *PRACTISE)), {}
    for updates in BUDGETS:
        for kind in KINDS:
            for start in STARTS:
                model = lesson.practise(Reader(kind, start=start), start, updates)
                found[kind, updates, start] = shares_of(model)
                print(said(kind, updates, start, found[kind, updates, start]), flush=True)
    return found


def from_anywhere(
    runs: tuple[tuple[str, int], ...] = (("learned", 260), ("learned", 780), ("sinusoidal", 780)),
) -> dict[tuple[str, int, int], dict[str, float]]:
    """Measure the accuracy of models whose training texts begin anywhere from position 0 to 400."""
    lesson, found = SimpleNamespace(**names_of("05", *PRACTISE)), {}
    for kind, updates in runs:
        for start in STARTS:
            model = lesson.practise(Reader(kind, start=start), start, updates, furthest=400)
            found[kind, updates, start] = shares_of(model)
            print(said(kind, updates, start, found[kind, updates, start]), flush=True)
    return found


def from_anywhere_longer() -> dict[tuple[str, int, int], dict[str, float]]:
    """Measure the accuracy of learned vectors in `from_anywhere` after ten times as many updates."""
    return from_anywhere((("learned", 2600),))


def failing_head() -> dict[tuple[int, int], list[float]]:
    """Measure the accuracy of rotary models in rounds of 62 symbols, unchanged and with two interventions."""
    cells = (*PRACTISE, "intervene")
    untrained = {"rotary": Reader("rotary", start=0)}  # this cell prints results for its own models
    lesson, found = SimpleNamespace(**names_of("05", *cells, models=untrained)), {}
    for updates in BUDGETS:
        for start in STARTS:
            model = lesson.practise(Reader("rotary", start=start), start, updates)
            shares = {name: 100 * lesson.right_with(model, 62, **how) for name, how in lesson.ways.items()}
            found[updates, start] = list(shares.values())
            print(said("rotary, rounds of 62", updates, start, shares), flush=True)
    return found


def other_bases() -> dict[tuple[float, int], list[float]]:
    """Measure the accuracy of rotary models in rounds of 28, 40, 52 and 62 symbols, by base and seed."""
    lesson, found = SimpleNamespace(**names_of("05", *PRACTISE)), {}
    for base in (1e3, 1e4, 1e5, 1e6):
        for start in STARTS:
            model = Reader("rotary", start=start)
            rotary = PositionConfig("rotary", base=base)
            layers = nn.ModuleList(Attention(WIDTH, AttentionConfig(HEADS), positions=rotary) for _ in range(2))
            layers.load_state_dict(model.layers.state_dict())
            model.layers = layers
            lesson.practise(model, start, BUDGETS[0])
            shares = [100 * right(model, (p, p), 2 * p, batch=16) for p in (28, 40, 52, 62)]
            found[base, start] = shares
            print(f"base {base:9,.0f}, start {start}:", *(f"{share:.1f}" for share in shares), flush=True)
    return found
