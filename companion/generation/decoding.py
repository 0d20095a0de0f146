"""What every way of generating shares (lesson 10): the prompts in one pass (prefill), then a token per row and step.

An encoder-decoder reads its sources once before that; what the decoder's layers need of them is kept as a `Memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.generation.programs import programs_of
from companion.generation.rules import check_ids
from companion.ground.boundary import described
from companion.ground.fields import require_whole
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer


class NotFinite(ValueError):
    """What a model says of the next token is not a number."""


def check_model(model: object) -> None:
    """Raises `ValueError` for what is no model."""
    if not isinstance(getattr(model, "config", None), ModelConfig):
        raise ValueError(f"model={described(model)}: expected a Transformer")


def check_request(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | None,
    source: Sequence[Sequence[int]] | None,
    start: int | None,
    max_new_tokens: int | None,
) -> tuple[Sequence[Sequence[int]], int]:
    """Everything that can be wrong with what is to be continued; the prompts, and how many steps to take.

    Raises `ValueError` naming the argument, what it was and what was expected.
    """
    check_model(model)
    config = model.config
    if config.stack == "encoder":
        raise ValueError("model has stack='encoder': expected 'decoder' or 'encoder_decoder', which write a text")
    if (source is None) == (config.stack == "encoder_decoder"):
        got = "none" if source is None else "one"
        raise ValueError(f"source: stack={config.stack!r} got {got}; it belongs to an encoder_decoder, always")
    if source is not None:
        check_rows("source", source, config.vocab)
        longest = max(map(len, source))
        if longest > config.context:
            raise ValueError(f"a source of {longest} tokens: expected at most context={config.context}")
    if prompts is None:
        if source is None:
            raise ValueError("prompts=None: expected the texts to continue; only a source can do without")
        if start is None:
            raise ValueError("start=None without prompts: expected the token id that begins every target")
        check_ids("start", [start], config.vocab)
        prompts = [[start] for _ in source]
    elif start is not None:
        raise ValueError(f"start={start!r}: expected it only without prompts, which say themselves how a target begins")
    check_rows("prompts", prompts, config.vocab)
    if source is not None and len(source) != len(prompts):
        raise ValueError(f"source has {len(source)} rows: expected {len(prompts)}, one for each prompt")
    longest = max(map(len, prompts))
    room = config.context - longest
    if room < 1:
        raise ValueError(
            f"a prompt of {longest} tokens leaves no room: expected at most {config.context - 1}, because "
            f"context={config.context}"
        )
    if max_new_tokens is None:
        max_new_tokens = room
    require_whole("max_new_tokens", max_new_tokens)
    if max_new_tokens > room:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} make {longest + max_new_tokens}: "
            f"expected at most context={config.context}"
        )
    return prompts, max_new_tokens


def check_rows(name: str, rows: Sequence[Sequence[int]], vocab: int) -> None:
    """Raises `ValueError` for no row, an empty row or an id outside the vocabulary."""
    if isinstance(rows, (str, bytes, Tensor)) or not isinstance(rows, Sequence):
        hint = f"; {name}.tolist() makes them of a tensor" if isinstance(rows, Tensor) else ""
        raise ValueError(f"{name}={described(rows)}: expected a list of rows, each a list of token ids{hint}")
    if len(rows) == 0:
        raise ValueError(f"{name} is empty: expected at least one {name.removesuffix('s')}")
    for row, ids in enumerate(rows):
        if isinstance(ids, (str, bytes, Tensor)) or not isinstance(ids, Sequence):
            hint = f"; {name}=[[...]] is one row" if isinstance(ids, int) else ""
            raise ValueError(f"{name}[{row}]={described(ids)}: expected a list of token ids{hint}")
        if len(ids) == 0:
            what = "token to continue from" if name == "prompts" else "token"
            raise ValueError(f"{name}[{row}] is empty: expected at least one {what}")
        check_ids(f"{name}[{row}]", ids, vocab)


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
    weight = model.embedding.weight
    memory = None
    if source is not None:
        ids, lengths = _padded(source, weight.device)
        ragged = len(set(map(len, source))) > 1
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None] if ragged else None
        memory = model.encode(ids, real=real)
    tokens, lengths = _padded(prompts, weight.device)
    empty = KVCache.create(model.config, len(prompts), slots, dtype=weight.dtype, device=weight.device, bucket=bucket)
    stream, _, cache = model.features(tokens, source=memory, cache=empty)
    assert cache is not None
    # Padding sits to the right, where no real token can see it; its keys are given back, to be overwritten.
    last = stream[torch.arange(len(prompts), device=weight.device), lengths - 1]
    return model.head(last), cache.rewind(lengths), memory


def _padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "batch token"], Int[Tensor, "batch"]]:
    lengths = torch.tensor([len(ids) for ids in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = torch.as_tensor(ids)
    return tokens.to(device), lengths.to(device)


def decode(
    model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
    """One more token per row."""
    logits, _, grown = model(tokens[:, None], source=memory, cache=cache)
    return logits[:, -1], grown


BUCKET = 64
"""Slots by which a compiled decode step sees the cache grow."""


def compiled_decode(model: Transformer) -> Callable[..., tuple[Float[Tensor, "batch vocab"], KVCache]]:
    """`decode`, compiled, for steps of this model: shapes and Python numbers change only where the cache enters its
    next bucket. By programs that are kept, where `companion.generation.programs` keeps any and one can be made; else
    they are compiled for this process."""
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
        return logits, replace(cache.advance(1, grown.writer), lengths=grown.lengths)

    return step


@lru_cache
def _compiled() -> Callable[..., tuple[Tensor, KVCache]]:
    step = torch.compile(decode)

    def run(*given: Any) -> tuple[Tensor, KVCache]:
        # A number is traced as itself, and once more as a variable when it changes: this one is sure to.
        with torch.compiler.config.patch(dynamic_sources=r"L\['cache'\]\.filled"):  # type: ignore[attr-defined]
            return step(*given)

    return run
