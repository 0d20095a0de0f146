"""Generation with the weights in each of their forms: how fast, how many bytes a second, and how far from the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.models import Writer, built_peers, drawn, right, steps_alone
from companion.bench.sizes import Size
from companion.costs import account
from companion.generation.generate import complete
from companion.generation.matmul_kernels import possible
from companion.generation.sampling import Sampling
from companion.generation.weights import FORMS, largest_change, prepared, step_bytes


def decode_forms(size: Size, setting: Setting) -> Comparison:
    """Generation of one row, a short prompt and many new tokens, with weights as they are and in every form that this
    processor has, beside the other libraries. Tokens a second times the bytes of a step would be the same for all of
    them if nothing but the memory counted."""
    config, device = size.config, setting.device
    model = drawn(config).to(device)
    torch.manual_seed(1)
    prompt = torch.randint(config.vocab, (1, size.prompt)).tolist()
    cached = range(size.prompt, size.prompt + size.new - 1)
    steps = len(cached)
    read = sum(account.decode_bytes(config, n) for n in cached)
    kept = sum(account.cache_bytes(config, n + 1) for n in cached)
    title = f"generation by form of weights, {size.prompt:,} + {size.new:,} tokens, one row"
    comparison = steps_alone(title, size, setting, size.new, cached)

    def write(weights: Any) -> list[list[int]]:
        return complete(model, prompt, max_new_tokens=size.new, sampling=Sampling(0.0), weights=weights)

    runs: dict[str, Callable[[], Any]] = {OURS: partial(write, None)}
    moved = {OURS: read}
    tokens = torch.randint(config.vocab, (2, config.context), device=device)
    with torch.inference_mode():
        logits = model(tokens).logits
    spread = float(logits.std())
    changes, costs = [], []
    for form in FORMS:
        name = f"ours, {form}"
        if not possible(form, device.type):
            comparison.omit(name, "refused", f"PyTorch has no such product for this processor ({device.type})")
            continue
        copy = prepared(model, form)
        runs[name] = partial(write, form)
        moved[name] = step_bytes(copy) * steps + kept
        changes.append(f"{form} {largest_change(model, form, tokens) / spread:.1g}")
        with torch.inference_mode():
            costs.append(f"{form} {own_text_cost(logits, copy(tokens).logits):+.2g} %")
    writers: dict[str, Writer] = {OURS: lambda prompt, new: write(None)[0]}
    for name, peer in built_peers(model, comparison):
        peer.model.to(device).eval()
        writers[name] = peer.generate
        if setting.compile:
            writers |= {f"{name}, {variant}": other for variant, other in peer.variants.items()}
    others = right(comparison, writers, torch.tensor(prompt, device=device), size.new)
    runs, moved = runs | others, dict.fromkeys(others, read) | moved
    comparison.remarks.append(f"largest change of a logit, as a share of their spread: {', '.join(changes)}")
    comparison.remarks.append(f"bits that the model's own text takes more, of what it takes: {', '.join(costs)}")
    return comparison.time(runs, setting, moved=moved)


def own_text_cost(logits: Float[Tensor, "batch token vocab"], others: Float[Tensor, "batch token vocab"]) -> float:
    """How many per cent more bits a text drawn by `logits` takes to write down by `others`, on average: the divergence
    of the second distribution from the first, over the entropy of the first."""
    own, other = logits.float().log_softmax(-1), others.float().log_softmax(-1)
    entropy = -(own.exp() * own).sum(-1).mean()
    return float(100 * (own.exp() * (own - other)).sum(-1).mean() / entropy)
