"""What lesson 04 compares: who learns to name the word before, and what becomes of it counted from elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from authoring.comparisons.cells import names_of, row


def race_and_origin() -> dict[tuple[str, int], list[float]]:
    """Right answers of 100 after 60 updates and at the end, by positions and updates; of waves also counted from 8."""
    lesson = SimpleNamespace(**names_of("04", "setup", "training"))
    test = torch.randint(lesson.WORDS, (500, lesson.LENGTH), generator=torch.Generator().manual_seed(99))
    elsewhere = lesson.sinusoidal(torch.arange(8, 8 + lesson.LENGTH), lesson.WIDTH)
    found = {}
    for kind in ("none", "waves", "learned 0.02", "learned 0.7"):
        for steps in (240, 480):
            runs = [lesson.trained(kind, seed, steps) for seed in range(5)]
            scores = {
                "right after 60": [100 * right[2].item() for _, right in runs],
                "right at the end": [100 * right[-1].item() for _, right in runs],
            }
            if kind == "waves":
                said = [lesson.answers(weights, test, elsewhere).argmax(-1) for weights, _ in runs]
                scores["counted from 8"] = [100 * (one == test[:, :-1]).double().mean().item() for one in said]
            for measure, values in scores.items():
                print(row(kind, f"{steps} updates", measure, values), flush=True)
                found[f"{kind}, {measure}", steps] = values
    return found
