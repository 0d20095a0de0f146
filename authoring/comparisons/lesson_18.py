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
                stay = lesson["chance_to_stay"](small.eval(), lesson["starts"], 8, dice).mean(0).tolist()
            predicted, measured = (1 - stay[0] ** 9) / (1 - stay[0]), 1 + sum(stay)
            found.setdefault(("at the first place", updates), []).append(stay[0])
            found.setdefault(("predicted", updates), []).append(predicted)
            found.setdefault(("measured", updates), []).append(measured)
            found.setdefault(("at the second place", updates), []).append(stay[1] / stay[0])
            found.setdefault(("at the eighth place", updates), []).append(stay[7] / stay[6])
        for (what, of), values in found.items():
            if of == updates:
                print(row(what, f"{updates} updates", "tokens a pass, or a share", values), flush=True)
    return found


def heads() -> Found:
    """Loss of the next token on unseen stories, without heads for later ones and with them: the runs of the record."""
    run, found = Runs(Path("build/records/heads")), Found()
    for updates in BUDGETS:
        for count in (0, AHEAD):
            found[f"{count} heads", updates] = [run(count, start, updates)["loss"] for start in STARTS]
            print(row(f"{count} heads", f"{updates} updates", "nats a token", found[f"{count} heads", updates]))
    return found
