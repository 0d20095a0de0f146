"""Comparisons for lesson 06, with three seeds and several budgets. Each function prints and returns its results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from authoring.comparisons.cells import names_of

STARTS, GUESSING = (0, 1, 2), 3.47
CELLS = ("setup", "sets-up-experiment", "forward", "train", "unmixed", "changed-home")
WAYS = ("post-norm", "pre-norm", "post-norm, small writes")
Losses = dict[tuple[str, float, int, int], dict[int, float]]


def _measure(cases: Sequence[tuple[str, str, float, int]], budgets: Sequence[int]) -> Losses:
    """Train models with sixteen blocks, and measure the mean loss over the last five steps within each budget.

    Args:
        cases: Tuples (kind of block, change to the residual path, learning rate, number of warm-up steps).
        budgets: Numbers of steps.

    Returns:
        The loss after each budget, by kind of block and residual path, learning rate, warm-up and seed.
    """
    lesson, found = SimpleNamespace(**names_of("06", *CELLS)), {}
    for way, home, rate, warmup in cases:
        code = lesson.forward if home == "as it is" else lesson.changed_home
        for start in STARTS:
            losses = lesson.train(way, 16, start, rate, max(budgets), warmup, code)
            shown = {steps: sum(losses[steps - 5 : steps]) / 5 for steps in budgets}
            found[f"{way}, {home}", rate, warmup, start] = shown
            said = ", ".join(f"{loss:.2f} after {steps}" for steps, loss in shown.items())
            print(f"{way} ({home}), rate {rate:g}, warm-up {warmup}, start {start}: {said}", flush=True)
    return found


def rates() -> Losses:
    """Compare the losses of the three kinds of block at four learning rates, after 50 and 100 steps."""
    cases = [(way, "as it is", rate, 1) for rate in (3e-4, 1e-3, 3e-3, 1e-2) for way in WAYS]
    return _measure(cases, (50, 100))


def slow_and_warm() -> Losses:
    """Compare post-norm models at lower learning rates for up to 600 steps, with and without 100 steps of warm-up."""
    cases = [
        ("post-norm", "as it is", rate, warmup) for rate, warmup in ((3e-4, 1), (1e-3, 100), (1e-3, 1), (3e-3, 100))
    ]
    return _measure(cases, (50, 200, 400, 600))


def surgery() -> Losses:
    """Train pre-norm blocks with the identity path cut for gradients, and post-norm blocks with it opened."""
    return _measure([("pre-norm", "cut", 3e-3, 1), ("post-norm", "open", 3e-3, 1)], (50, 150))


def small_writes() -> Losses:
    """Train post-norm blocks with each sub-layer's write divided by the square root of the number of writes."""
    return _measure([("post-norm, small writes", "as it is", 3e-3, 1)], (50, 100, 150))


def mixing() -> dict[tuple[str, int], dict[int, float]]:
    """Train sixteen post-norm blocks that do not mix words, or in which one kind of sub-layer has small writes."""
    lesson = SimpleNamespace(**names_of("06", *CELLS))
    trials = {
        "as it is": ("post-norm", lesson.forward),
        "each word sees only itself": ("post-norm", lesson.unmixed),
        "small attention writes": ("post-norm, small attention", lesson.forward),
        "small network writes": ("post-norm, small network", lesson.forward),
    }
    return {(name, start): _after(lesson, name, way, 16, start, run)
            for name, (way, run) in trials.items() for start in STARTS}  # fmt: skip


def alike() -> dict[tuple[str, int], list[float]]:
    """Measure the mean cosine between a text's words after 4, 8 and 16 untrained blocks, by kind of block and seed."""
    lesson, found = SimpleNamespace(**names_of("06", *CELLS)), {}
    for way in WAYS:
        for start in STARTS:
            model, after = lesson.model_of(way, 16, start), []  # the residual stream after each block
            blocks = model.decoder.blocks
            if way == "pre-norm":
                for norm in (*(block.attention_norm for block in blocks[1:]), model.decoder.norm):
                    norm.register_forward_pre_hook(lambda norm, inputs, after=after: after.append(inputs[0]))
            else:
                for block in blocks:
                    block.feed_forward_norm.register_forward_hook(lambda norm, x, X, after=after: after.append(X))
            lesson.forward(model, lesson.symbols, way == "pre-norm")
            rows = F.normalize(torch.stack([after[count - 1] for count in (4, 8, 16)]).detach(), dim=-1)
            off_diagonal = (rows @ rows.mT).sum((-2, -1)) - 24
            found[way, start] = (off_diagonal / (24 * 23)).mean(dim=1).tolist()
            print(f"{way}, start {start}:", *(f"{cosine:.2f}" for cosine in found[way, start]), flush=True)
    return found


def depths() -> dict[tuple[str, int], dict[int, float]]:
    """Train stacks of post-norm blocks at six depths, with writes of full size."""
    lesson = SimpleNamespace(**names_of("06", *CELLS))
    return {(f"{layers} blocks", start): _after(lesson, f"{layers} blocks", "post-norm", layers, start, lesson.forward)
            for layers in (4, 6, 8, 10, 12, 16) for start in STARTS}  # fmt: skip


def norms_without_attention() -> dict[tuple[str, int], dict[int, float]]:
    """Train feed-forward networks only: 16 with the usual initial weights, and 32 with writes scaled to size 1."""
    lesson, found = SimpleNamespace(**names_of("06", *CELLS)), {}

    def networks_only(model: Any, tokens: Any, pre: bool, write: float) -> Any:
        X = model.embedding(tokens)
        for block in model.decoder.blocks:
            X = block.feed_forward_norm(X + write * block.feed_forward(X))
        return model.head(model.decoder.norm(X))

    # with their initial weights, the networks write vectors of size 0.57
    for layers, write in ((16, 1.0), (32, 1 / 0.57)):
        for start in STARTS:
            name = f"{layers} networks, writes times {write:.2f}"
            run = partial(networks_only, write=write)
            found[name, start] = _after(lesson, name, "post-norm", layers, start, run)
    return found


def _after(lesson: Any, name: str, way: str, layers: int, start: int, run: Any) -> dict[int, float]:
    """Print and return the mean loss over the last five of 50 and of 100 steps."""
    losses = lesson.train(way, layers, start, 3e-3, 100, 1, run)
    found = {steps: sum(losses[steps - 5 : steps]) / 5 for steps in (50, 100)}
    print(f"{name}, start {start}: " + ", ".join(f"{loss:.2f} after {n}" for n, loss in found.items()), flush=True)
    return found
