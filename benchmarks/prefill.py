"""Prefill: read a prompt of half the context, and compute the last token's logits. Arithmetic usually limits it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from benchmarks.compare import OURS, Comparison, Setting, cost_of_pass, differs
from benchmarks.peers import PEERS, built, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.ground.display import many
from companion.layers.cache import KVCache


def compare(size: Size, setting: Setting, beside: Collection[str] = PEERS) -> Comparison:
    """Compare prefill. Each library uses its own forward pass.

    A library whose last logits differ from ours is not timed.
    """
    config, tokens = size.config, size.config.context // 2
    ours = drawn(config).to(setting.device)
    prompt = torch.randint(config.vocab, (1, tokens), device=setting.device)
    flops, moved = cost_of_pass(config, tokens, cached=0, dtype=setting.dtype)
    comparison = Comparison(
        part="prefill",
        title=f"prefill, {tokens:,} tokens, one row ({many(account.parameters(config).total)} parameters)",
        size=size.name,
        items=tokens,
        least=setting.chip.seconds(flops, moved),
        bound=setting.chip.bound(flops / moved),
    )

    @torch.inference_mode()
    def read() -> torch.Tensor:
        cache = KVCache.create(config, 1, tokens, dtype=ours.embedding.weight.dtype, device=setting.device)
        return ours.head(ours.features(prompt, cache=cache).stream[:, -1])

    peers = dict(built(ours, beside, comparison))
    runs: dict[str, Callable[[], Any]] = {OURS: read}
    runs |= {name: partial(peer.prefill, prompt) for name, peer in peers.items()}
    models = [ours, *(peer.model for peer in peers.values())]
    return comparison.time_equal(
        runs, models, lambda expected, logits, dtype: differs(expected, logits, "logits", dtype), setting
    )
