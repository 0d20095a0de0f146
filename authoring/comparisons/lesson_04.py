"""Comparisons for lesson 04: kinds of position information.

The tasks are to name the previous word, to generalize to other positions, and to translate without sinusoidal
positions.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import torch

from authoring.comparisons.cells import names_of, row

STARTS = range(3)
RATES = (0.003, 0.006, 0.02)
KINDS = ("none", "waves", "waves, centred", "learned, small", "learned, large", "fixed at random")


def race() -> dict[tuple[str, float], list[float]]:
    """Measure the accuracy after 60 and after all 240 updates, by kind of positions and learning rate."""
    lesson = SimpleNamespace(**names_of("04", "setup", "answers", "training-start", "training"))
    found = {}
    for rate in RATES:
        for kind in KINDS:
            curves = [lesson.trained(kind, seed, rate=rate)[1] for seed in STARTS]
            for measure, at in (("right after 60", 2), ("right at the end", -1)):
                values = [100 * curve[at].item() for curve in curves]
                print(row(kind, f"rate {rate}", measure, values), flush=True)
                found[f"{kind}, {measure}", rate] = values
    return found


def elsewhere() -> dict[tuple[str, int, int], list[float]]:
    """Measure the accuracy on texts that begin at unseen positions, also after training at all positions."""
    lesson = SimpleNamespace(**names_of("04", "setup", "answers", "training-start", "training"))
    test = torch.randint(lesson.WORDS, (500, lesson.LENGTH), generator=torch.Generator().manual_seed(99))
    found = {}
    for kind in ("waves", "waves, started anywhere"):
        for steps, rate in product((240, 480), (0.006, 0.02)):
            weights = [lesson.trained(kind, seed, steps, rate)[0] for seed in STARTS]
            for first in (0, 1, 8, 200, 1000):
                P = lesson.sinusoidal(torch.arange(first, first + lesson.LENGTH), lesson.WIDTH)
                said = [lesson.answers(each, test, P).argmax(-1) for each in weights]
                values = [100 * (one == test[:, :-1]).double().mean().item() for one in said]
                print(row(kind, f"{steps} at {rate}", f"right, begins at {first}", values), flush=True)
                found[kind, steps, rate, first] = values
    return found


def translators() -> dict[tuple[str, int], list[float]]:
    """Measure the accuracy on held-out names by number of updates and by the stacks that use sinusoidal positions."""
    lesson = SimpleNamespace(**names_of("04", "setup", "translator-start"))
    names = [lesson.words.target.name(number) for number in lesson.held]
    found = {}
    for updates in (300, 600):
        for waves in ("in both", "in the encoder", "nowhere"):
            models = [lesson.translator(waves, seed, updates) for seed in STARTS]
            said = [lesson.names_of(model, waves, lesson.held) for model in models]
            values = [100 * sum(map(str.__eq__, each, names)) / len(names) for each in said]
            print(row(f"waves {waves}", f"{updates} updates", "names right", values), flush=True)
            found[waves, updates] = values
    return found
