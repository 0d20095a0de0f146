"""Comparisons for lesson 18: extra heads, MTP modules with and without the sampled token, and a full server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from authoring.comparisons.cells import names_of, row
from authoring.records.heads import AHEAD, BUDGETS, STARTS, Runs
from companion.transformer import Transformer

Found = dict[tuple[str, int], list[float]]


def heads() -> Found:
    """Read the next-token loss on unseen stories, with and without extra heads, from the recorded runs."""
    run, found = Runs(Path("build/records/heads")), Found()
    for updates in BUDGETS:
        for count in (0, AHEAD):
            found[f"{count} heads", updates] = [run(count, start, updates)["loss"] for start in STARTS]
            print(row(f"{count} heads", f"{updates} updates", "nats a token", found[f"{count} heads", updates]))
    return found


def modules() -> Found:
    """Measure how often the guesses of modules trained on the frozen model are accepted.

    An MTP module reads either the sampled token or the token before it. One of the lesson's own heads reads only the
    residual stream.
    """
    lesson, found = names_of("18", "setup", "sets-up-text", "rung-heads", "module", "teach"), Found()
    config = lesson["writer"].config
    kinds: dict[str, Callable[[], nn.Module]] = {
        "row only": lambda: _RowOnly(lesson["OwnHeads"](config.d_model, 1)),
        "previous token": lambda: lesson["NextModule"](config, drawn=False),
        "drawn token": lambda: lesson["NextModule"](config, drawn=True),
    }
    for updates in (100, 250):
        for setting, kind in kinds.items():
            found[setting, updates] = []
            for start in STARTS:
                torch.manual_seed(start)
                found[setting, updates].append(lesson["teach"](kind(), updates, start))
            print(row(setting, f"{updates} updates", "accepted", found[setting, updates]), flush=True)
    return found


class _RowOnly(nn.Module):
    """The first of the lesson's own heads, with the call signature of the lesson's MTP module."""

    def __init__(self, heads: nn.Module) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, stream: torch.Tensor, ids: torch.Tensor, model: Transformer) -> torch.Tensor:
        logits: torch.Tensor = self.heads(stream[:, :-1], model.head)[0]
        return logits


def full_server() -> Found:
    """Compute the speedup from four guesses for a server that writes 1,024 texts, by length and acceptance rate.

    The draft model reads its whole cache, as in the lesson, or only the last 512 tokens. Nothing is drawn at random.
    The three values in a row belong to acceptance rates of 0.6, 0.7 and 0.8, not to seeds.
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
