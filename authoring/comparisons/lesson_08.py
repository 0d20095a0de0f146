"""Comparisons for lesson 08, with three seeds and several budgets. Each function prints and returns its results."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from authoring.comparisons.cells import names_of
from authoring.comparisons.translators import learning
from companion import Transformer
from companion.data import number_words
from companion.training.settings import NumberWordsSettings
from companion.training.tasks.number_words import exact_match

STARTS = (0, 1, 2)
CASES = {"right": (1, 0), "mask too wide": (1, 1), "not shifted": (0, 0), "shifted twice": (2, 0)}


@dataclass(frozen=True)
class Express:
    """A model that learns the lesson's journeys, and the settings of its training."""

    kind: str
    layers: int = 1
    encoder: bool = True
    causal: bool = False
    rate: float = 3e-3
    budgets: tuple[int, ...] = (350, 1050)


EXPRESSES = (
    Express("one decoder layer", encoder=False, budgets=(350, 3000)),
    Express("two decoder layers", layers=2, encoder=False),
    Express("an encoder layer and a decoder layer"),
    Express("an encoder layer that looks back only, and a decoder layer", causal=True),
    Express("an encoder layer and a decoder layer", rate=1e-3, budgets=(1050,)),
)
WRITERS = ("setup", "sets-up-writers", "train", "four-ways", "writes-habit")
"""Cells of the lesson that define the dice and habits, their models, and the texts that these write."""
TRAVELLERS = ("setup", "sets-up-model", "sets-up-journeys", "sets-up-traveller", "says", "practise")
"""Cells of the lesson that define the journeys and their models."""


def leaks() -> dict[tuple[str, str, int, int], tuple[float, float]]:
    """Measure the loss and how many of 100 generated tokens follow the habit, by text, mistake, steps and seed."""
    lesson, found = SimpleNamespace(**names_of("08", *WRITERS)), {}
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


def express() -> dict[tuple[str, float, int, int], float]:
    """Measure the accuracy for the two stops before the last, by layers, learning rate, steps and seed."""
    lesson, found = SimpleNamespace(**names_of("08", *TRAVELLERS)), {}
    for model in EXPRESSES:
        for steps in model.budgets:
            for start in STARTS:
                traveller = lesson.Traveller(model.encoder, start, model.layers)
                traveller.model.encoder.blocks[0].attention.causal = model.causal
                lesson.practise(traveller, steps, 2, model.rate, start)
                with torch.no_grad():
                    rows = traveller.remember(lesson.leaves, lesson.goes)
                _, stops = lesson.look_inside(traveller, rows, lesson.way[:, 1::2])
                right = 100 * (stops == lesson.way[:, 1::2])[:, :2].double().mean().item()
                found[model.kind, model.rate, steps, start] = right
                print(f"{model.kind}, rate {model.rate}, {steps} steps, start {start}: {right:.0f} of 100", flush=True)
    return found


def one_layer() -> dict[tuple[int, int, str], float]:
    """Measure how a single decoder layer answers at the two stops before the last, by steps and seed, in percent.

    "its train" is the weight of cross-attention on the train that leaves from where the traveller is. Two changes test
    what the answer depends on: only this train's value is added, or the feed-forward network is switched off. The last
    measure is how often a small network reads the stop before each letter from the weighted sum; the letter's most
    frequent answer is right in 12 to 14 % of the timetables.
    """
    lesson, found = SimpleNamespace(**names_of("08", *TRAVELLERS)), {}
    for steps in (1050, 3000):
        for start in STARTS:
            traveller = lesson.practise(lesson.Traveller(seed=start), steps, 2, 3e-3, start)
            for kind, share in _one_sum(lesson, traveller).items():
                found[steps, start, kind] = 100 * share
                print(f"one layer, {steps} steps, start {start}: {kind} {100 * share:.0f} %", flush=True)
    return found


@torch.no_grad()
def _one_sum(lesson: SimpleNamespace, traveller: nn.Module) -> dict[str, float]:
    """Return the measures of `one_layer` for one model, as fractions."""
    leaves, goes, way = lesson.journeys(torch.Generator().manual_seed(5), batch=6000)
    express = way[:, 1::2]
    reads = lesson.shift_in(express, lesson.BEGIN)
    [layer] = traveller.model.decoder.blocks
    rows = traveller.remember(leaves, goes)
    weights, best = lesson.look_inside(traveller, rows, express)
    values = layer.cross.project_source(rows).values[:, 0]
    on_its_train = weights * (leaves[:, None, :] == reads[:, :, None])

    def right(stops: Tensor) -> float:
        return (stops == express)[:, :2].double().mean().item()

    def answers(module: nn.Module, replacement: Tensor) -> Tensor:
        with module.register_forward_hook(lambda _, x, out: replacement):
            return lesson.says(traveller, rows, express).argmax(-1)

    sums = weights @ values
    return {
        "right": right(best),
        "right with its train alone": right(answers(layer.cross.output, layer.cross.output(on_its_train @ values))),
        "right without feed-forward": right(answers(layer.feed_forward, torch.zeros(()))),
        "weight on its train": on_its_train.sum(-1)[:, :2].mean().item(),
        "stops read from the sum": sum(_read(sums[:, i], reads[:, i], leaves, goes) for i in (0, 1)) / 2,
    }


@torch.enable_grad()
def _read(sums: Tensor, reads: Tensor, leaves: Tensor, goes: Tensor, known: int = 5000) -> float:
    """Return how often a small network, trained on `known` sums, names the stop before a letter for the other sums."""
    x = torch.cat([(sums - sums.mean(0)) / sums.std(0), F.one_hot(reads, 10)], -1).float()
    right = []
    for letter in range(8):
        here = goes == letter
        before = torch.where(here.any(-1), (leaves * here).sum(-1), 10)  # 10: no train goes there
        torch.manual_seed(0)
        probe = nn.Sequential(nn.Linear(x.shape[-1], 128), nn.ReLU(), nn.Linear(128, 11))
        optimizer = torch.optim.Adam(probe.parameters(), lr=3e-3)
        for _ in range(300):
            optimizer.zero_grad()
            F.cross_entropy(probe(x[:known]), before[:known]).backward()
            optimizer.step()
        right.append((probe(x[known:]).argmax(-1) == before[known:]).double().mean().item())
    return sum(right) / len(right)


def one_way() -> dict[tuple[bool, int, int], int]:
    """Measure how many of 500 held-out number names are right, with or without a causal encoder, by updates and seed.

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
