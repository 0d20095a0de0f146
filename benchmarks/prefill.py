"""Prefill: read a prompt of half the context and compute the logits of its last token. It is usually limited by
arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.compare import OURS, Comparison, Setting, differs
from benchmarks.peers import PEERS, Peer, built, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.ground.display import many
from companion.layers.cache import KVCache


def compare(size: Size, setting: Setting, beside: Sequence[str] = PEERS) -> Comparison:
    """Compare prefill, where each library uses its own forward pass.

    A library whose last logits differ from ours is not timed.
    """
    config, device, dtype = size.config, setting.device, setting.dtype
    ours = drawn(config).to(device)
    prompt = torch.randint(config.vocab, (1, config.context // 2), device=device)
    tokens = prompt.shape[1]
    flops = account.forward_flops(config, tokens, cached=0, logits="last").total
    moved = account.forward_bytes(config, tokens, cached=0, dtype=dtype)
    comparison = Comparison(
        part="prefill",
        title=f"prefill, {tokens:,} tokens, one row ({many(account.parameters(config).total)} parameters)",
        size=size.name,
        items=tokens,
        flops=flops,
        least=setting.chip.seconds(flops, moved),
        bound=setting.chip.bound(flops / moved),
    )

    @torch.inference_mode()
    def read() -> torch.Tensor:
        cache = KVCache.create(config, 1, tokens, dtype=ours.embedding.weight.dtype, device=device)
        return ours.head(ours.features(prompt, cache=cache).stream[:, -1])

    runs: dict[str, Callable[[], Any]] = {OURS: read}
    contenders = {name: peer for name, peer in built(ours, comparison, names=beside) if peer.prefill is not None}
    for kind in setting.dtypes:
        ours.to(kind)
        expected = read()

        def check(peer: Peer, expected: torch.Tensor = expected, kind: torch.dtype = kind) -> str | None:
            peer.model.to(device, kind).eval()
            assert peer.prefill is not None
            return differs([expected], [peer.prefill(prompt)], ["logits"], kind)

        for name, peer in [*contenders.items()]:
            if not comparison.admits(name, partial(check, peer)):
                del contenders[name]
    runs |= {name: partial(peer.prefill, prompt) for name, peer in contenders.items() if peer.prefill}
    return comparison.time(runs, setting)
