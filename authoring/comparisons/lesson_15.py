"""What lesson 15 compares: kinds of attention at equal bytes, a head with and without its mark, squeezed layers."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.cache import BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def kinds() -> Found:
    """Loss on unseen text, by kind of attention and updates: the runs of the record."""
    run, found = Runs(Path("build/records/cache")), Found()
    for updates, trained in BUDGETS.items():
        for kind in trained:
            found[kind, updates] = [run(kind, start, updates)["loss"] for start in STARTS]
            print(row(kind, f"{updates} updates", "nats a token", found[kind, updates]), flush=True)
    return found


def marks() -> Found:
    """Right answers in 100 to names that are not there: with the mark, without it, and with a learned sink instead."""
    lesson, found = names_of("15", "setup", "rung-sink", "sets-up-clerk", "sets-up-training"), Found()
    for updates in (200, 400):
        heads = [lesson["clerk"](start, updates) for start in STARTS]
        gated = [lesson["clerk"](start, updates, sink=True, mark=False) for start in STARTS]
        with torch.no_grad():
            of = lesson["right_of"]
            found["with the mark", updates] = [of(head)[1] for head in heads]
            found["without it", updates] = [of(head, mark=False)[1] for head in heads]
            found["a learned sink", updates] = [of(head, mark=False)[1] for head in gated]
        for setting in ("with the mark", "without it", "a learned sink"):
            print(row(setting, f"{updates} updates", "right in 100", found[setting, updates]), flush=True)
    return found


def squeezed() -> Found:
    """By how many nats the loss rises when a trained layer's keys and values are squeezed, by numbers kept."""
    lesson, found = names_of("15", "setup", "sets-up-text", "sets-up-squeezed"), Found()
    config = lesson["small_decoder"](lesson["AttentionConfig"](4))
    for updates in (400, 800):
        models = [lesson["trained"](config, start, updates) for start in STARTS]
        with torch.no_grad():
            before = [lesson["loss_of"](model) for model in models]
            for rank in (64, 32, 8):
                after = [lesson["loss_of"](lesson["squeezed"](model, rank)) for model in models]
                found[f"{rank} numbers", updates] = [b - a for a, b in zip(before, after, strict=True)]
                print(row(f"{rank} numbers", f"{updates} updates", "nats more", found[f"{rank} numbers", updates]))
    return found
