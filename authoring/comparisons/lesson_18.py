"""Comparisons for lesson 18: extra heads, MTP modules with or without the sampled token, speedup of a full server."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.heads import AHEAD, BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def heads() -> Found:
    """Read the next-token loss on unseen stories from the record's runs, without and with extra heads."""
    run, found = Runs(Path("build/records/heads")), Found()
    for updates in BUDGETS:
        for count in (0, AHEAD):
            found[f"{count} heads", updates] = [run(count, start, updates)["loss"] for start in STARTS]
            print(row(f"{count} heads", f"{updates} updates", "nats a token", found[f"{count} heads", updates]))
    return found


def modules() -> Found:
    """Train MTP modules on the frozen model, reading the sampled token or the one before it, and measure acceptance."""
    lesson, found = names_of("18", "setup", "sets-up-text", "module", "teach"), Found()
    for updates in (100, 250):
        for drawn in (False, True):
            setting = f"{'drawn' if drawn else 'previous'} token"
            found[setting, updates] = []
            for start in STARTS:
                torch.manual_seed(start)
                module = lesson["NextModule"](lesson["writer"].config, drawn)
                found[setting, updates].append(lesson["teach"](module, updates, start))
            print(row(setting, f"{updates} updates", "accepted", found[setting, updates]), flush=True)
    return found


def full_server() -> Found:
    """Compute how many times as fast 1,024 texts are written with four guesses, by length and acceptance rate.

    The draft reads its whole cache, as in the lesson, or only its last 512 tokens. This is arithmetic, so the three
    values of a row belong to acceptance rates of 0.6, 0.7 and 0.8, not to starts.
    """
    lesson, found = names_of("18", "setup", "roofs"), Found()
    seconds, big, draft, texts, guesses = lesson["seconds"], lesson["big"], lesson["guesser"], 1024, 4
    for cached in (1000, 2000, 4000, 8000, 32000):
        for setting, seen in (("whole cache", cached), ("last 512 tokens", min(cached, 512))):
            spent = seconds(big, texts, guesses + 1, cached) + guesses * seconds(draft, texts, 1, seen)
            gain = seconds(big, texts, 1, cached) / spent
            per_pass = [(1 - rate ** (guesses + 1)) / (1 - rate) for rate in (0.6, 0.7, 0.8)]
            found[setting, cached] = [tokens * gain for tokens in per_pass]
            print(row(f"draft sees its {setting}", f"{cached:,} tokens", "times as fast", found[setting, cached]))
    return found
