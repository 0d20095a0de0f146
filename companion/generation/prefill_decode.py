"""The passes of a model that writes (lesson 10): the prompts in one (prefill), then a token per row and step (decode).

An encoder-decoder reads its sources once before that; what the decoder's layers need of them is kept as a `Memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.generation.compiled_steps import programs_of
from companion.ground.padding import padded
from companion.ground.replaced import replaced
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer


class NotFinite(ValueError):
    """What a model says of the next token is not a number."""


_entering = Lock()
_inside: dict[nn.Module, tuple[int, list[nn.Module]]] = {}
"""How many are inside `evaluating` with a model, and which of its modules were in training mode before."""


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Every one of `modules` in evaluation mode inside; afterwards each as it was, also if they differed.

    Several threads may be inside with one model, whose module comes first: the last to leave puts things back.
    """
    root, *rest = modules
    with _entering:
        users, training = _inside.get(root) or (0, [module for module in (root, *rest) if module.training])
        for module in training:
            module.training = False
        _inside[root] = users + 1, training
    try:
        yield
    finally:
        with _entering:
            users, training = _inside.pop(root)
            if users > 1:
                _inside[root] = users - 1, training
            else:
                for module in training:
                    module.training = True


def prefill(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    source: Sequence[Sequence[int]] | None,
    slots: int,
    bucket: int = 1,
) -> tuple[Float[Tensor, "batch vocab"], KVCache, Memory | None]:
    """All sources in one pass, all prompts in another: the logits after each prompt, and caches without the padding."""
    stream, cache, memory = prefill_stream(model, prompts, source, slots, bucket)
    return model.head(stream), cache, memory


def prefill_stream(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    source: Sequence[Sequence[int]] | None,
    slots: int,
    bucket: int = 1,
) -> tuple[Float[Tensor, "batch d_model"], KVCache, Memory | None]:
    """`prefill` before the head."""
    weight = model.embedding.weight
    memory = None
    if source is not None:
        ids, lengths = padded(source).to(weight.device), _lengths(source, weight.device)
        ragged = len(set(map(len, source))) > 1
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None] if ragged else None
        memory = model.encode(ids, real=real)
    tokens, lengths = padded(prompts).to(weight.device), _lengths(prompts, weight.device)
    empty = KVCache.create(model.config, len(prompts), slots, dtype=weight.dtype, device=weight.device, bucket=bucket)
    positions, scaling = None, model.config.positions.scaling
    if scaling is not None and scaling.by_length:  # a row goes by its own length, not by the padding behind it
        positions = torch.arange(tokens.shape[1], device=tokens.device).minimum(lengths[:, None] - 1)
    counted = None
    if empty.states is not None and len(set(map(len, prompts))) > 1:  # a matrix that has seen padding is no use
        counted = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    stream, _, cache = model.features(tokens, source=memory, cache=empty, positions=positions, counted=counted)
    assert cache is not None
    # Padding sits to the right, where no real token can see it; its keys are given back, to be overwritten.
    last = stream[torch.arange(len(prompts), device=weight.device), lengths - 1]
    return last, cache.rewind(lengths), memory


def stretched_after(model: Transformer) -> int | None:
    """Return how many tokens a text may have before keys of a cache are turned too little for it: C of longrope
    (`companion.config.model.RotaryScaling`). A text that passes it is read anew. `None`: never."""
    scaling = model.config.positions.scaling
    return scaling.original if scaling is not None and scaling.kind == "longrope" else None


def _lengths(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch"]:
    return torch.tensor([len(ids) for ids in rows], device=device)


def decode(
    model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
    """One more token per row."""
    logits, _, grown = model(tokens[:, None], source=memory, cache=cache)
    assert grown is not None  # one went in
    return logits[:, -1], grown


BUCKET = 64
"""Slots by which a compiled decode step sees the cache grow."""


def compiled_decode(model: Transformer) -> Callable[..., tuple[Float[Tensor, "batch vocab"], KVCache]]:
    """`decode`, compiled, for steps of this model: shapes and Python numbers change only where the cache enters its
    next bucket. By programs that are kept, where `companion.generation.compiled_steps` keeps any and one can be made;
    else they are compiled for this process."""
    programs = programs_of(model)

    def step(
        model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
    ) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
        cache = cache.ready(1)
        rounded = cache.rounded(model.config.context)
        logits = None if programs is None else programs.logits(tokens, rounded, memory)
        if logits is not None:
            return logits, cache.advance(1, cache.writer)
        logits, grown = _compiled()(model, tokens, rounded, memory)
        return logits, replaced(cache.advance(1, grown.writer), lengths=grown.lengths)

    return step


@lru_cache
def _compiled() -> Callable[..., tuple[Tensor, KVCache]]:
    step = torch.compile(decode)

    def run(*given: Any) -> tuple[Tensor, KVCache]:
        # A number is traced as itself, and once more as a variable when it changes: this one is sure to.
        with torch.compiler.config.patch(dynamic_sources=r"L\['cache'\]\.filled"):  # type: ignore[attr-defined]
            return step(*given)

    return run
