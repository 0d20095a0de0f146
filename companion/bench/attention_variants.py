"""What a step costs by what is kept of a token: every head's own keys and values, those that heads share, latents
(lesson 15); and a matrix in place of all of them (lesson 17)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.models import drawn
from companion.bench.sizes import Size
from companion.config.model import AttentionConfig, LatentConfig, LinearConfig, ModelConfig
from companion.costs.account import cache_bytes, decode_bytes, forward_flops
from companion.generation.prefill_decode import decode, evaluating
from companion.ground.display import readable_bytes
from companion.layers.cache import KVCache
from companion.layers.recurrent_cache import BACK

HEADS = 16
WAYS = (OURS, "ours, GQA", "ours, MQA", "ours, MLA", "ours, GDN")
"""Every head its own keys and values, which all ratios are relative to; one for each four heads; one for all; and
latents in DeepSeek's proportions; and gated delta layers, which keep no token."""


def kinds(size: Size) -> dict[str, ModelConfig]:
    """A decoder of that size with `HEADS` heads, by what it keeps of a token, for `size.kept` tokens and one more."""
    width = size.config.sizes.d_head
    every = AttentionConfig(HEADS, d_head=width)
    latents = replace(every, latent=LatentConfig(rank=4 * width, d_rope=width // 2))
    fewer = (replace(every, kv_heads=HEADS // 4), replace(every, kv_heads=1))
    attentions = (every, *fewer, latents, replace(every, linear=LinearConfig()))
    config = size.config.with_(context=size.kept + 1)
    return {way: config.with_(attention=one) for way, one in zip(WAYS, attentions, strict=True)}


def decode_kept(size: Size, setting: Setting) -> Comparison:
    """A step of one row beside `size.kept` tokens, for each of `kinds`. They are different functions: what is compared
    is what they read and calculate, beside what the account says of it."""
    configs = kinds(size)
    bound = partial(decode_bytes, cached=size.kept, dtype=setting.dtype)
    moved = {way: bound(config) for way, config in configs.items()}
    flops = {way: forward_flops(config, 1, cached=size.kept).total for way, config in configs.items()}
    comparison = Comparison(
        part="kept",
        title=f"a step beside {size.kept:,} kept tokens, one row ({HEADS} heads of {size.config.sizes.d_head})",
        size=size.name,
        items=1,
        flops=flops[OURS],
        least=moved[OURS] / setting.chip.bandwidth,
        bound="memory",
    )
    for way, config in configs.items():
        comparison.remarks.append(_formula(way, config, size.kept, moved[way], flops[way], setting))
    runs = {way: _step(config, size.kept, setting) for way, config in configs.items()}
    return comparison.time(runs, setting, moved=moved)


def _formula(way: str, config: ModelConfig, kept: int, moved: int, flops: int, setting: Setting) -> str:
    """What the account says of a step."""
    token = config.sizes.kept_numbers * setting.dtype.itemsize
    said = f"{config.sizes.kept_numbers:,} numbers, {token:,} bytes a token and layer"
    if config.memory is not None:
        said = f"{cache_bytes(config, kept, dtype=setting.dtype) // config.layers:,} bytes a layer for any length"
    cache = cache_bytes(config, kept, dtype=setting.dtype)
    name = way.removeprefix("ours, ") if way != OURS else "ours is MHA"
    return (
        f"{name}: {said}, {readable_bytes(cache)} of cache; a step reads {readable_bytes(moved)} and has "
        f"{flops / moved:.3g} FLOPs a byte; by the ceiling at most "
        f"{1 / setting.chip.seconds(flops, moved):,.0f} tokens/s"
    )


def _step(config: ModelConfig, kept: int, setting: Setting) -> Callable[[], Any]:
    """One more token beside a cache of numbers that were drawn: what they are does not matter to the time."""
    model = drawn(config).to(setting.device, setting.dtype)
    cache = KVCache.create(config, 1, kept + 1, dtype=setting.dtype, device=setting.device)
    for store in (*cache.keys, *cache.values):
        store.normal_()
    full = cache.advance(kept)
    if full.states is not None:  # as it is right after its log was folded
        full = replace(full, states=replace(full.states, gone=full.lengths - BACK, columns=BACK))
    last = torch.zeros(1, dtype=torch.long, device=setting.device)

    def step() -> None:
        with torch.inference_mode(), evaluating(list(model.modules())):
            decode(model, last, full, None)

    return step
