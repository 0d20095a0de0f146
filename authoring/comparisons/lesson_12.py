"""Comparison for lesson 12: SmolLM2 with sliding windows, with and without the first token of the text."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from authoring.comparisons.cells import row
from companion.data.corpora import first_edition, split
from companion.layers import masks
from companion_school.study.real import real_model

TOKENS, SCORED = 800, 300


def windows() -> dict[tuple[str, str], list[float]]:
    """Measure the perplexity of three texts, by mask and window. Only tokens after token 300 are scored.

    Raises:
        ValueError: If SmolLM2 is not on this machine.
    """
    if (opened := real_model("smollm2")) is None:
        raise ValueError("smollm2 is not on this machine; `companion get smollm2` downloads it")
    model, tokenizer = opened
    ids = torch.tensor([tokenizer.encode("\n".join(part.text for part in split(first_edition()).held_out))])
    found = {}
    for width in (64, 128):
        rules = {
            "the full text": masks.causal,
            "a window": masks.window(width),
            "one less and the first": masks.either(masks.window(width - 1), _shown(0, 0)),
            "and four of the middle": masks.either(masks.window(width), _shown(100, 103)),
        }
        for name, rule in rules.items():
            mask = masks.materialize(rule, 1, TOKENS, TOKENS)
            values = [_perplexity(model, ids[:, start : start + TOKENS], mask) for start in (0, TOKENS, 2 * TOKENS)]
            found[name, f"window of {width}"] = values
            print(row(name, f"window of {width}", "perplexity", values), flush=True)
    return found


def _shown(first: int, last: int) -> masks.Predicate:
    """Let each query attend to all keys from `first` to `last` that do not come after the query."""
    return lambda batch, head, query, key: (key <= query) & (first <= key) & (key <= last)


@torch.no_grad()
def _perplexity(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> float:
    logits = model(ids, mask=mask).logits[0, SCORED:-1]
    return F.cross_entropy(logits, ids[0, SCORED + 1 :]).exp().item()
