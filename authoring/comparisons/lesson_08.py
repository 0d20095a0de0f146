"""Comparisons for lesson 08, with three starts and several budgets. Each function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from authoring.comparisons.cells import names_of
from authoring.comparisons.translators import learning
from companion import Transformer
from companion.data import number_words
from companion.training.settings import NumberWordsSettings
from companion.training.tasks.number_words import exact_match

STARTS = (0, 1, 2)
CASES = {"right": (1, 0), "mask too wide": (1, 1), "not shifted": (0, 0), "shifted twice": (2, 0)}
ONE_WAY = "an encoder layer that looks back only, and a decoder layer"
SLOW = "an encoder layer and a decoder layer, at a rate of 0.001"
TRAVELLERS = ("setup", "sets-up-model", "sets-up-journeys", "sets-up-traveller", "says", "practise", "sets-up-look")
"""Cells of the lesson with the journeys and their models."""


def leaks() -> dict[tuple[str, str, int, int], tuple[float, float]]:
    """Measure the loss and how many of 100 written tokens follow the habit, by text, mistake, steps and start."""
    lesson, found = SimpleNamespace(**names_of("08", "setup", "sets-up-writers", "train", "sets-up-writing")), {}
    for kind in ("dice", "habit"):
        for case, (shift, wide) in CASES.items():
            for steps in (160, 320):
                for start in STARTS:
                    loss, net = lesson.train(kind, shift, wide, steps, start)
                    written = 100 * lesson.follows(lesson.write(net, wide))
                    found[kind, case, steps, start] = loss, written
                    print(f"{kind}, {case}, {steps} steps, start {start}: loss {loss:.2f}, follows the habit in "
                          f"{written:.0f} of 100", flush=True)  # fmt: skip
    return found


def express() -> dict[tuple[str, int, int], float]:
    """Measure right answers (%) for the two stops before the last, by kinds of layers, steps and start."""
    lesson, found = SimpleNamespace(**names_of("08", *TRAVELLERS)), {}
    plans: list[tuple[str, bool, int, tuple[int, ...]]] = [("one decoder layer", False, 1, (350, 3000))]
    plans += [("two decoder layers", False, 2, (350, 1050))]
    behind = "an encoder layer and a decoder layer"
    plans += [(kind, True, 1, (350, 1050)) for kind in (behind, ONE_WAY)] + [(SLOW, True, 1, (1050,))]
    for kind, encoder, layers, budgets in plans:
        for steps in budgets:
            for start in STARTS:
                traveller = lesson.Traveller(encoder, start, layers)
                traveller.model.encoder.blocks[0].attention.causal = kind == ONE_WAY
                lesson.practise(traveller, steps, 2, 1e-3 if kind == SLOW else 3e-3, start)
                with torch.no_grad():
                    rows = traveller.remember(lesson.leaves, lesson.goes)
                _, stops = lesson.look_inside(traveller, rows, lesson.way[:, 1::2])
                right = (stops == lesson.way[:, 1::2])[:, :2].double().mean().item()
                found[kind, steps, start] = 100 * right
                print(f"{kind}, {steps} steps, start {start}: {100 * right:.0f} of 100", flush=True)
    return found


def one_way() -> dict[tuple[bool, int, int], int]:
    """Measure how many of 500 held-out number names are right, by whether the encoder is causal, updates and start.

    The model and its training are those of lesson 09.
    """
    words, held, found = number_words.task("de", "en"), number_words.held_out(500), {}
    config = NumberWordsSettings().model_config(words.vocab)
    for causal in (False, True):
        for updates in (200, 400):
            for start in STARTS:
                torch.manual_seed(start)
                model = Transformer(config)
                for block in model.encoder.blocks:
                    block.attention.causal = causal
                for _ in learning(model, words, start, updates):
                    pass
                right = exact_match(model.eval(), words, held).right
                found[causal, updates, start] = right
                print(f"causal encoder: {causal}, {updates} updates, start {start}: {right} of 500", flush=True)
    return found
