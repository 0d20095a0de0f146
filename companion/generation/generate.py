"""Writing text with a decoder or an encoder-decoder, a token per row and step (lesson 10).

What is drawn from is one distribution, transformed: `temperature`, `top_k`, `top_p` and `min_p` are functions on logits
that compose, and `Sampling` composes them. `generate` streams; `complete` waits for the whole; `generate_long` goes on
past the context. `companion.generation.beam` looks for the most probable text instead of drawing one,
`companion.generation.speculative` writes several tokens a pass, and in a `companion.generation.batch.Batch` sequences
come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from companion.generation.decoding import (
    BUCKET,
    check_model,
    check_request,
    check_rows,
    compiled_decode,
    decode,
    evaluating,
    prefill,
)
from companion.generation.draft import Draft, Propose, draft_of
from companion.generation.drawing import NOTHING, Ends, Stream, Text, draw_tokens, raise_nothing, streams_of
from companion.generation.rules import Rules, Until
from companion.generation.sampling import Sampling
from companion.generation.speculative import speculate
from companion.generation.weights import Weights, prepared
from companion.ground.boundary import check_kind
from companion.ground.fields import require_whole
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer

__all__ = ["Rules", "complete", "generate", "generate_long"]


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    source: Sequence[Sequence[int]] | None = None,
    start: int | None = None,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
    rules: Rules | None = None,
    until: Until | None = None,
    seed: int = 0,
    streams: Sequence[Stream] | None = None,
    compile: bool = False,
    weights: Weights | None = None,
    draft: Draft | Transformer | Propose | Literal["ngram"] | None = None,
) -> Iterator[list[int | None]]:
    """Continue every prompt, one token per row and step, as soon as it is known.

    prompts:         token ids, rows of unequal lengths. They are read together, padded on the right.
    source:          for an encoder-decoder: the token ids of each row's source, of unequal lengths too. They are
                     encoded once, together; what a row writes depends on its own source only.
    start:           for an encoder-decoder, in place of prompts: the id that begins every target.
    max_new_tokens:  how many steps at most. `None`: until the longest row fills `model.config.context`.
    sampling:        how to choose among the tokens. `None`: `Sampling()`, the model's own distribution.
    stop:            ids that end a row. The id itself is still given; after it the row gives `None`.
    rules:           which tokens may not come, or must. `None`: all may.
    until:           given a row's number and its new tokens so far, whether they end it, as a stop id does.
    seed, streams:   row r draws from the random stream that `seed` and the number `streams[r]` (`None`: r) alone
                     decide: its continuation does not depend on the other rows, nor on the device the model is on (but
                     the last digits of the logits may). `streams[r]` may also be a NumPy generator, which is then read
                     on from where it stands.
    compile:         compile the decode step. Attention then reads the cache in multiples of 64 slots, so that few
                     different shapes occur and one or two compilations serve a text of any length; with experts that
                     are not computed `"grouped"`, one for each new routing, up to PyTorch's limit. They take from
                     seconds to a minute: it pays for long continuations, or many, unless
                     `companion.generation.programs` keeps them.
    weights:         the form in which steps read the weights, `companion.generation.weights`: fp32, fp16, bf16, int8,
                     int4, or auto, the fastest here; from a copy that is made once. `None`: as they are. The prompts
                     are read with the model itself.
    draft:           who proposes tokens that the model judges several at a time: `"ngram"`, a smaller model of the same
                     vocabulary, or a `Draft`, which also says how many and counts how
                     many were accepted. The same text, or where a model draws proposals the same distribution.

    Yields a list with one entry per prompt; ends when every row has stopped. The model runs in evaluation mode and
    without gradients inside; between two steps and afterwards the caller finds both as they were.

    Cost: one forward pass over the sources and one over the prompts, then per step one token's pass;
    `companion.costs.account` counts them.

    Raises `NotFinite` while it runs where the model's logits are not numbers. Raises `ValueError`, before anything
    runs, for no prompt, an empty prompt or source, an id outside the vocabulary, a
    prompt that with `max_new_tokens` would not fit the context, a source with a model that has no encoder or none with
    one that has, a model that writes no text, a form of weights that this processor cannot do, a draft with another
    vocabulary or a context too short for the text, or one beside `compile`.
    """
    sampling, rules = _choices(sampling, rules)
    prompts, steps = check_request(model, prompts, source, start, max_new_tokens)
    rules.check(model.config.vocab, stop)
    draws = streams_of(seed, streams, len(prompts))
    helper = _draft(draft, compile, model, max(map(len, prompts)) + steps)
    writer = model if weights is None else prepared(model, weights)
    texts = [Text(list(ids), len(ids), row) for row, ids in enumerate(prompts)]
    ends = Ends(frozenset(stop), until)
    return _generate(model, writer, prompts, source, steps, sampling, ends, rules, texts, draws, compile, helper)


def complete(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    source: Sequence[Sequence[int]] | None = None,
    start: int | None = None,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
    rules: Rules | None = None,
    until: Until | None = None,
    seed: int = 0,
    streams: Sequence[Stream] | None = None,
    compile: bool = False,
    weights: Weights | None = None,
    draft: Draft | Transformer | Propose | Literal["ngram"] | None = None,
) -> list[list[int]]:
    """`generate`, waited for: the new tokens of each prompt, a stop token (where one came) last."""
    steps = generate(
        model,
        prompts,
        source=source,
        start=start,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=stop,
        rules=rules,
        until=until,
        seed=seed,
        streams=streams,
        compile=compile,
        weights=weights,
        draft=draft,
    )
    return [[token for token in row if token is not None] for row in zip(*steps, strict=True)]


def generate_long(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
    rules: Rules | None = None,
    until: Until | None = None,
    seed: int = 0,
    compile: bool = False,
    weights: Weights | None = None,
    draft: Draft | Transformer | Propose | Literal["ngram"] | None = None,
) -> Iterator[list[int | None]]:
    """`generate` for a decoder, also past the end of its context.

    A row that fills the context keeps its last half and goes on from there: each token is written from at least half of
    the context, where so much has been written. Rows fill it at different times; a row's tokens depend on no other row
    all the same, because it is cut only when it is full itself, and its random stream runs on.

    Cost: as `generate`, and one pass over what each row keeps whenever one of them is full.

    Raises `ValueError`, before anything runs, as `generate` does, and for a prompt longer than the context.
    """
    check_model(model)
    config = model.config
    if config.stack != "decoder" or config.context < 2:
        raise ValueError(
            f"model has stack={config.stack!r} and context={config.context}: expected a decoder with a context of at "
            "least 2, one token to read and one to write"
        )
    require_whole("max_new_tokens", max_new_tokens)
    check_rows("prompts", prompts, config.vocab)
    for row, prompt in enumerate(prompts):
        if len(prompt) > config.context:
            raise ValueError(f"prompts[{row}] has {len(prompt)} tokens: expected at most context={config.context}")
    sampling, rules = _choices(sampling, rules)
    rules.check(config.vocab, stop)
    draws = streams_of(seed, None, len(prompts))
    helper = _draft(draft, compile, model, min(config.context, max(map(len, prompts)) + max_new_tokens))
    writer = model if weights is None else prepared(model, weights)
    ends = Ends(frozenset(stop), until)
    return _generate_long(model, writer, prompts, max_new_tokens, sampling, ends, rules, draws, compile, helper)


def _generate_long(
    model: Transformer,
    writer: Transformer,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    ends: Ends,
    rules: Rules,
    streams: Sequence[np.random.Generator],
    compile: bool,
    draft: Draft | None = None,
) -> Iterator[list[int | None]]:
    context = model.config.context
    going = {row: list(prompt) for row, prompt in enumerate(prompts)}
    texts = [Text(list(prompt), len(prompt), row) for row, prompt in enumerate(prompts)]  # also what falls out
    written = 0
    while written < max_new_tokens and going:
        for ids in going.values():
            if len(ids) == context:
                del ids[: context - context // 2]
        steps = min(max_new_tokens - written, context - max(map(len, going.values())))
        now = replace(
            rules,
            min_new_tokens=max(0, rules.min_new_tokens - written),
            last=rules.last if written + steps == max_new_tokens else None,
        )
        rows, kept = [streams[row] for row in going], list(going.values())
        theirs = [texts[row] for row in going]
        for step in _generate(model, writer, kept, None, steps, sampling, ends, now, theirs, rows, compile, draft):
            line: list[int | None] = [None] * len(prompts)
            for (row, ids), token in zip(going.items(), step, strict=True):
                if token is not None:
                    line[row] = token
                    ids.append(token)
            yield line
        written += steps
        going = {row: ids for row, ids in going.items() if not ends.after(texts[row])}


def _choices(sampling: Sampling | None, rules: Rules | None) -> tuple[Sampling, Rules]:
    """Both, with their defaults filled in."""
    sampling, rules = Sampling() if sampling is None else sampling, Rules() if rules is None else rules
    check_kind("sampling", sampling, Sampling, "a Sampling, such as Sampling(temperature=0.7)")
    check_kind("rules", rules, Rules, "Rules, such as Rules(never=[0])")
    return sampling, rules


def _draft(
    draft: Draft | Transformer | Propose | Literal["ngram"] | None, compile: bool, model: Transformer, reach: int
) -> Draft | None:
    """Who proposes, checked together with `compile` for texts of up to `reach` tokens."""
    check_kind("compile", compile, bool, "True or False")
    helper = draft_of(draft)
    if helper is not None:
        if compile:
            raise ValueError("compile=True: expected no draft beside it; a pass over what it proposes is not compiled")
        helper.check(model, reach)
    return helper


def _generate(
    model: Transformer,
    writer: Transformer,
    prompts: Sequence[Sequence[int]],
    source: Sequence[Sequence[int]] | None,
    steps: int,
    sampling: Sampling,
    ends: Ends,
    rules: Rules,
    texts: Sequence[Text],
    streams: Sequence[np.random.Generator],
    compile: bool,
    draft: Draft | None = None,
) -> Iterator[list[int | None]]:
    """`texts`, one for each prompt, grow."""
    if draft is not None:
        yield from speculate(model, writer, prompts, source, steps, sampling, ends, rules, texts, streams, draft)
        return
    bucket = BUCKET if compile else 1
    # A compiled step never reads all slots: a view of all of them is contiguous, as others are not, and for a compiler
    # that is another program.
    slots = -(-(max(map(len, prompts)) + steps - 1) // bucket) * bucket + (bucket if compile else 0)
    next_logits: Callable[..., tuple[Tensor, KVCache]] = compiled_decode(writer) if compile else decode
    stopped = [False] * len(prompts)
    cache: KVCache | None = None
    memory: Memory | None = None
    tokens = torch.empty(0, dtype=torch.long)
    modules = list(model.modules())  # found once: the walk costs as much as a layer's arithmetic
    for i in range(steps):
        # Both are entered anew for each step: a generator that is waiting must not leave its caller without gradients.
        with torch.inference_mode(), evaluating(modules):
            if cache is None:
                logits, cache, memory = prefill(model, prompts, source, slots, bucket)
            else:
                logits, cache = next_logits(writer, tokens, cache, memory)
            allowed = rules.apply(logits, i, steps, ends.stop, [text.ids for text in texts])
            tokens = draw_tokens(allowed, sampling, streams)
        drawn = tokens.tolist()
        if NOTHING in drawn:
            raise_nothing(logits[drawn.index(NOTHING)], drawn.index(NOTHING), i)
        step = [None if done else token for done, token in zip(stopped, drawn, strict=True)]
        for text, token in zip(texts, step, strict=True):
            text.ids += [] if token is None else [token]
        stopped = [done or ends.after(text) for done, text in zip(stopped, texts, strict=True)]
        yield step
        if all(stopped):
            return
