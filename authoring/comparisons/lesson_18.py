"""What lesson 18 compares: tokens a pass, predicted from the first guess and measured; heads for later tokens."""

from __future__ import annotations

from pathlib import Path

import torch

from authoring.comparisons.cells import names_of, row
from authoring.records.heads import AHEAD, BUDGETS, STARTS, Runs

Found = dict[tuple[str, int], list[float]]


def lengths() -> Found:
    """Tokens of a pass over eight guesses of the small model: by the rate at the first place, and measured."""
    lesson, found = names_of("18", "setup", "sets-up-text", "rung-heads", "sets-up-learn", "sets-up-chances"), Found()
    for updates in (250, 750):
        for start in STARTS:
            small = lesson["small_model"](start)
            lesson["learn"](small, None, start, updates)
            with torch.no_grad():
                dice = torch.Generator().manual_seed(start)
                of = lesson["chance_to_stay"]
                stay = {kind: of(small.eval(), texts, 8, dice) for kind, texts in lesson["starts"].items()}
            for kind, chances in {**stay, "both": torch.cat(list(stay.values()))}.items():
                rate = chances[:, 0].mean().item()
                measured = 1 + chances.mean(0).sum().item()
                found.setdefault((f"{kind}, predicted", updates), []).append((1 - rate**9) / (1 - rate))
                found.setdefault((f"{kind}, measured", updates), []).append(measured)
        for (what, of_updates), values in found.items():
            if of_updates == updates:
                print(row(what, f"{updates} updates", "tokens a pass", values), flush=True)
    return found


def heads() -> Found:
    """Loss of the next token on unseen stories, without heads for later ones and with them: the runs of the record."""
    run, found = Runs(Path("build/records/heads")), Found()
    for updates in BUDGETS:
        for count in (0, AHEAD):
            found[f"{count} heads", updates] = [run(count, start, updates)["loss"] for start in STARTS]
            print(row(f"{count} heads", f"{updates} updates", "nats a token", found[f"{count} heads", updates]))
    return found
