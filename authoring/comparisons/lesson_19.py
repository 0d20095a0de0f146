"""Comparisons for lesson 19: ways of rounding weights after training and during training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records import rounding as rounded

Found = dict[tuple[str, int], list[float]]


def rounding() -> Found:
    """Read the percentage by which 3-bit weights raise the bits per byte, with and without outlier channels."""
    run, found = rounded.Runs(Path("build/records/rounding")), Found()
    for updates in rounded.BUDGETS:
        for title in ("plain model", "loud channels"):
            for way in rounded.WAYS:
                setting = f"{title}, {way}"
                found[setting, updates] = [run(start, updates)["more"][title][way] for start in rounded.STARTS]
                print(row(setting, f"{updates} updates", "percent more bits", found[setting, updates]), flush=True)
    return found


def aware() -> Found:
    """Measure bits per byte with 2-bit weights, rounded after or during training, using the lesson's own cells."""
    cells = ("setup", "rung-rounding", "measure", "small-model", "learn", "take-step", "through", "aware-training")
    after, found = names_of("19", *cells)["after"], Found()
    for updates in dict.fromkeys(updates for updates, _ in after):
        runs = [bits for (budget, _), bits in after.items() if budget == updates]
        for way, values in zip(("32 bits", "rounded", "aware"), map(list, zip(*runs, strict=True)), strict=True):
            found[way, updates] = values
            print(row(way, f"{updates} updates", "bits per byte", values), flush=True)
    return found


def chosen_steps() -> Found:
    """Train as `aware` does, but with the step for each group that changes its weights least, instead of absmax."""
    cells, found = ("setup", "rung-rounding", "measure", "small-model", "learn", "take-step", "through"), Found()
    lesson = names_of("19", *cells)
    for updates in (50, 100):
        runs = []
        for start in range(3):
            plain = lesson["small_model"](start)
            lesson["learn"](plain, start, updates)
            aware = copy.deepcopy(plain)
            lesson["round_weights"](aware, _changed_least)
            for model in (plain, aware):
                lesson["learn"](model, start + 10, updates // 2, rate=0.004, other=0.01)
            rounded_after = lesson["with_weights"](plain, lambda name, W: _changed_least(W))
            runs.append([lesson["bits_of"](model) for model in (plain, rounded_after, aware)])
        for way, values in zip(("32 bits", "rounded", "aware"), map(list, zip(*runs, strict=True)), strict=True):
            found[way, updates] = values
            print(row(f"chosen steps, {way}", f"{updates} updates", "bits per byte", values), flush=True)
    return found


def _changed_least(W: torch.Tensor) -> torch.Tensor:
    """Round to 2 bits in groups of 32.

    Out of 40 steps up to absmax, each group uses the one that changes its weights least.
    """
    parts = W.reshape(-1, 1, 32)
    steps = parts.abs().amax(-1, keepdim=True) * torch.linspace(0.025, 1, 40)[:, None]
    near = (parts / steps).round().clamp(-1, 1) * steps  # (group, step, weight)
    least = (near - parts).square().sum(-1).argmin(1)
    return near[torch.arange(len(near)), least].view_as(W)


def formats() -> Found:
    """Compute the relative error of 4-bit formats on random numbers from distributions with short and long tails."""
    lesson, found = names_of("19", "setup", "rung-rounding", "in-blocks"), Found()
    e2m1, e4m3 = lesson["e2m1"], lesson["e4m3"]

    def nvfp4(x: torch.Tensor) -> torch.Tensor:
        whole, parts = x.abs().max() / (448 * 6), x.reshape(-1, 16)
        scale = e4m3(parts.abs().amax(dim=1, keepdim=True) / 6 / whole) * whole
        return (e2m1((parts / scale).clamp(-6, 6)) * scale).view_as(x)

    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "MX fp4": lambda x: lesson["in_blocks"](x, e2m1),
        "NVFP4": nvfp4,
        "int4, groups of 32": lambda x: lesson["to_levels"](x, 4, 32),
    }
    for at, tails in enumerate(("normal", "Student's t of 4")):
        for name, rounded_by in ways.items():
            found[name, at] = []
            for start in range(3):
                torch.manual_seed(start)
                sizes = torch.randn(512, 512), torch.distributions.StudentT(4.0).sample((512, 512))
                found[name, at].append(((rounded_by(sizes[at]) - sizes[at]).norm() / sizes[at].norm()).item())
            print(row(name, tails, "off by", found[name, at]), flush=True)
    return found
