"""The passes of text generation (lesson 10): one over all prompts (prefill), then one token per row and step (decode).

An encoder-decoder first reads its sources once; the keys and values that the decoder's layers need from them are stored
in a `Memory`.
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
    """Raised when a model's logits for the next token are not finite."""


_entering = Lock()
_inside: dict[nn.Module, tuple[int, list[nn.Module]]] = {}
"""For each model, how many threads are inside `evaluating` and which of its modules were in training mode before."""


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put all `modules` in evaluation mode, and restore each one's own mode on exit.

    Several threads may use this with the same model, which must be the first of `modules`: the last thread to leave
    restores the modes.
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
    """Read all sources in one pass and all prompts in another.

    Return the logits after each prompt, the cache without the padding, and the encoder output, if any.
    """
    stream, cache, memory = prefill_stream(model, prompts, source, slots, bucket)
    return model.head(stream), cache, memory


def prefill_stream(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    source: Sequence[Sequence[int]] | None,
    slots: int,
    bucket: int = 1,
) -> tuple[Float[Tensor, "batch d_model"], KVCache, Memory | None]:
    """Run `prefill` without the head: return the stream after each prompt in place of the logits."""
    weight = model.embedding.weight
    memory = None
    if source is not None:
        ids, lengths = padded(source).to(weight.device), _lengths(source, weight.device)
        ragged = len(set(map(len, source))) > 1
        attention_mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None] if ragged else None
        memory = model.encode(ids, attention_mask=attention_mask)
    empty = KVCache.create(model.config, len(prompts), slots, dtype=weight.dtype, device=weight.device, bucket=bucket)
    stream, cache, lengths = read_rows(model, prompts, empty, memory)
    last = stream[torch.arange(len(prompts), device=weight.device), lengths - 1]
    return last, cache, memory


def read_rows(
    model: Transformer, rows: Sequence[Sequence[int]], cache: KVCache, memory: Memory | None = None
) -> tuple[Float[Tensor, "batch token d_model"], KVCache, Int[Tensor, "batch"]]:
    """Read rows of unequal lengths that continue the texts in a cache, in one pass.

    Returns:
        The stream, padded on the right; the cache without the padding; and the length of each row.
    """
    device = model.embedding.weight.device
    tokens, lengths = padded(rows).to(device), _lengths(rows, device)
    positions, scaling = None, model.config.positions.scaling
    if scaling is not None and scaling.by_length:  # the scaling of a row depends on its own length, not on its padding
        places = torch.arange(tokens.shape[1], device=device).minimum(lengths[:, None] - 1)
        positions = cache.lengths[:, None] + places
    token_mask = None
    if cache.states is not None and len(set(map(len, rows))) > 1:  # a recurrent state must not see padding
        token_mask = torch.arange(tokens.shape[1], device=device) < lengths[:, None]
    before = cache.lengths
    stream, _, grown = model.features(tokens, source=memory, cache=cache, positions=positions, token_mask=token_mask)
    assert grown is not None
    # Padding is on the right, where no real token can see it. The rewind frees its slots, so that its keys are
    # overwritten.
    return stream, grown.rewind(before + lengths), lengths


def stretched_after(model: Transformer) -> int | None:
    """Return the length in tokens beyond which cached keys have the wrong rotation, or `None` if there is no limit.

    With longrope this length is C (`companion.config.model.RotaryScaling`): a text that grows beyond C has to be read
    again.
    """
    scaling = model.config.positions.scaling
    return scaling.original if scaling is not None and scaling.kind == "longrope" else None


def _lengths(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch"]:
    return torch.tensor([len(ids) for ids in rows], device=device)


def decode(
    model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
    """Read one more token per row, and return the logits that follow it and the extended cache."""
    logits, _, grown = model(tokens[:, None], source=memory, cache=cache)
    assert grown is not None  # a cache was passed in
    return logits[:, -1], grown


BUCKET = 64
"""Number of slots by which the cache grows for a compiled decode step."""


def compiled_decode(model: Transformer) -> Callable[..., tuple[Float[Tensor, "batch vocab"], KVCache]]:
    """Return `decode`, compiled for this model.

    Shapes and Python numbers change only when the cache enters its next bucket. If
    `companion.generation.compiled_steps` stores programs and can make one for this step, that program is used;
    otherwise the step is compiled for this process only.
    """
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
        # A Python number is first traced as a constant, and traced again as a variable when it changes. This number is
        # sure to change.
        with torch.compiler.config.patch(dynamic_sources=r"L\['cache'\]\.filled"):  # type: ignore[attr-defined]
            return step(*given)

    return run
