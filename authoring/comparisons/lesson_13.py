"""Comparison for lesson 13: small models from GPT-2 to Mixtral and beyond, each differing from the last by one edit."""

from __future__ import annotations

from authoring.comparisons.cells import names_of, row

BUDGETS = (150, 450)


def edits() -> dict[tuple[str, int], list[float]]:
    """Measure the bits per held-out byte, by setting and number of updates, with three seeds.

    The settings are a control without position information, eight models from GPT-2 to Mixtral, and five newer edits.
    """
    lesson, found = names_of("13", "setup", "sets-up-walk", "sets-up-learned", "learned"), {}
    for setting, config in (lesson["control"] | lesson["little_walk"] | lesson["newer"]).items():
        scores = [lesson["learned"](config, start, BUDGETS) for start in range(3)]
        for budget, values in zip(BUDGETS, zip(*scores, strict=True), strict=True):
            found[setting, budget] = list(values)
            print(row(setting, f"{budget} updates", "bits a held-out byte", list(values)), flush=True)
    return found
