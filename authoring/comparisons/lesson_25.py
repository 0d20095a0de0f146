"""Comparisons for lesson 25: prompts, quantized weights and a judge, evaluated on subsets of recorded questions."""

from __future__ import annotations

from typing import Any

from authoring.comparisons.cells import names_of, row
from companion_school.records import record

Found = dict[tuple[str, str], list[float]]


def _lesson() -> dict[str, Any]:
    return names_of("25", "setup", "suites", "suite-names", "suite-others", "hits")


def _print(found: Found, measure: str) -> Found:
    for (setting, budget), values in found.items():
        print(row(setting, budget, measure, values), flush=True)
    return found


def prompts() -> Found:
    """Compare six prompts on all 30 names and on three disjoint subsets of them."""
    lesson, found = _lesson(), {}
    names = lesson["number_names"]()[:30]
    for prompt, nats in record("scores")["prompts"].items():
        right = lesson["hits"](nats, names)
        found[prompt, "10 names"] = [sum(right[at : at + 10]) / 10 for at in range(0, 30, 10)]
        found[prompt, "30 names"] = [sum(right) / 30]
    return _print(found, "share right")


def rounding() -> Found:
    """Compare SmolLM2 with its quantized copies on all agreement sentences and on three disjoint subsets."""
    lesson, found = _lesson(), {}
    items = lesson["agreement"]()
    for model, nats in record("scores")["agreement"].items():
        right = lesson["hits"](nats, items)
        found[model, "80 sentences"] = [sum(right[at : at + 80]) / 80 for at in range(0, 240, 80)]
        found[model, "240 sentences"] = [sum(right) / 240]
    return _print(found, "share right")


def judge() -> Found:
    """Measure how often the judge is right, averaged over both orders, on 12 pairs and on three subsets of them."""
    found: Found = {}
    for kind, rows in record("scores")["judge"].items():
        gain = [one - other for one, other in rows]  # lead of A over B; the right answer is alternately A and B
        right = [first > second for first, second in zip(gain[0::2], gain[1::2], strict=True)]
        found[kind, "4 pairs"] = [sum(right[at : at + 4]) / 4 for at in range(0, 12, 4)]
        found[kind, "12 pairs"] = [sum(right) / 12]
    return _print(found, "share right")
