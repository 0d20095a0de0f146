"""Comparison for lesson 09, with three starts and two budgets. The function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from authoring.comparisons.cells import names_of

STARTS, BUDGETS = (0, 1, 2), (200, 400)
CELLS = ("setup", "one-pass", "task", "both-lanes")


def curve() -> dict[tuple[int, int], dict[int, tuple[float, float, float]]]:
    """Measure the training loss, the share of right tokens with teacher forcing, and of right names in free running.

    Returns:
        The three values by update, for each total number of updates and start.
    """
    lesson, found = SimpleNamespace(**names_of("09", *CELLS)), {}
    held, pad = lesson.held, lesson.PAD
    filler = held.targets == lesson.IGNORE
    for updates in BUDGETS:
        for start in STARTS:
            batches = lesson.number_words.PairBatches(lesson.words, batch=48, seed=start)
            torch.manual_seed(start)
            model = lesson.Transformer(lesson.config)
            given = {"betas": (0.9, 0.98), "weight_decay": 0.1, "fused": True}
            optimizer = torch.optim.AdamW(model.parameters(), **given)
            found[updates, start] = {}
            for update in range(1, updates + 1):
                source, inputs, targets = batches(update)
                logits = model(inputs, source=model.encode(source, real=source != pad)).logits
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.param_groups[0]["lr"] = 0.003 * min(update / 50, (updates + 1 - update) / (updates - 50))
                optimizer.step()
                if update in (60, 80, 100, 120, updates):
                    lanes = lesson.forced(model, held), lesson.free(model, held)
                    right = [(says == held.targets) | filler for says in lanes]
                    tokens = right[0][~filler].double().mean().item()
                    names = right[1].all(dim=1).double().mean().item()
                    found[updates, start][update] = loss.item(), tokens, names
                    print(f"{updates} updates, start {start}, update {update}: loss {loss.item():.3f}, tokens "
                          f"{tokens:.3f}, to the power 10 {tokens**10:.3f}, names {names:.3f}", flush=True)  # fmt: skip
    return found
