"""Generation with a draft, on a text that a model knows by heart: number names, counted up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.models import drawn, steps_alone
from companion.bench.sizes import Size
from companion.config.model import ModelConfig
from companion.costs import account
from companion.generation.draft import Draft
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.transformer import Transformer

UPDATES, SECONDS = 300, 120.0
"""At most, to learn the text by heart."""
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def number_names(tokens: int) -> list[int]:
    """The words of "one hundred and twenty one", "one hundred and twenty two", ..., each a token, and one that ends a
    name: a text that repeats itself as lists and code do, and never quite."""
    names = itertools.product(ONES, TENS, ONES)
    words = [word for a, b, c in names for word in (a, "hundred", "and", b, c, "\n")]
    known = {word: token for token, word in enumerate(dict.fromkeys(words))}
    return [known[word] for word in words[:tokens]]


def decode_drafts(size: Size, setting: Setting) -> Comparison:
    """Generation of one row alone, with look-up, and with a small model that has learned the same text; always the most
    probable token, so that all must write the same."""
    config, device = size.config, setting.device
    text = number_names(size.prompt + size.new)
    prompt = [text[: size.prompt]]
    cached = range(size.prompt, size.prompt + size.new - 1)
    title = f"generation with a draft, number names, {size.prompt:,} + {size.new:,} tokens, one row"
    comparison = steps_alone(title, size, setting, size.new, cached)
    small = config.with_(
        layers=1, d_model=config.d_model // 4, feed_forward=replace(config.feed_forward, d_ff=config.d_model // 2)
    )
    model, helper = (learned(one, text, device) for one in (config, small))
    weights: Any = "auto"  # the quickest form: what a draft gains comes on top of it

    def write(draft: Draft | None) -> list[list[int]]:
        greedy = Sampling(temperature=0.0)
        return complete(model, prompt, max_new_tokens=size.new, sampling=greedy, weights=weights, draft=draft)

    expected = write(None)
    right = sum(a == b for a, b in zip(expected[0], text[size.prompt :], strict=True))
    comparison.remarks.append(f"{right:,} of {size.new:,} tokens are those of the text that was learned")
    runs: dict[str, Callable[[], Any]] = {OURS: partial(write, None)}
    count = f"{account.parameters(small).total:,}"
    for name, draft in (("n-gram look-up", Draft("ngram")), (f"a model of {count}", Draft(helper))):
        if write(draft) != expected:
            comparison.omit(f"ours, {name}", "differs", "it does not write the tokens that ours writes alone")
            continue
        runs[f"ours, {name}"] = partial(write, draft)
        comparison.remarks.append(
            f"{name}: {draft.rate:.0%} of its proposals accepted, {draft.per_pass:.1f} tokens a pass"
        )
    return comparison.time(runs, setting)


def learned(config: ModelConfig, text: list[int], device: torch.device) -> Transformer:
    """A new model that has learned a text by heart, or as much of it as `UPDATES` updates and `SECONDS`
    seconds allow."""
    model = drawn(config).to(device)
    tokens = torch.tensor([text], device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.08 / config.d_model**0.5 / 2, weight_decay=0.0)
    model.train()
    until = time.perf_counter() + SECONDS
    for _ in range(UPDATES):
        logits = model(tokens[:, :-1]).logits
        if bool((logits.argmax(-1) == tokens[:, 1:]).all()) or time.perf_counter() > until:
            break
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()
