"""Writing text with a decoder or an encoder-decoder, a token per row and step (lesson 10).

What is drawn from is one distribution, transformed: the functions of `companion.generation.sampling` compose, and
`Sampling` composes them. `generate` streams; `complete` waits for the whole; `generate_long` goes on
past the context. `companion.generation.beam` looks for the most probable text instead of drawing one,
`companion.generation.speculative` writes several tokens a pass, and in a `companion.generation.serving.Server` texts
come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from companion.generation.draft import Draft, Proposer
from companion.generation.logit_rules import Rules, Until
from companion.generation.next_token import NOTHING, draw_tokens, raise_nothing
from companion.generation.prefill_decode import BUCKET, compiled_decode, decode, evaluating, prefill, stretched_after
from companion.generation.request import Request, Stream, Text, check_model, check_prompts, check_rows, checked
from companion.generation.sampling import Sampling
from companion.generation.serving import serve
from companion.generation.speculative import speculate
from companion.generation.weights import Weights, fast_form, writer_of
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
    weights: Weights | None = "fast",
    draft: Draft | Proposer | None = None,
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
                     `companion.generation.compiled_steps` keeps them.
    weights:         the form in which steps read the weights, `companion.generation.weights`: fp32, fp16, bf16, int8,
                     int4, or auto, the fastest here. `"fast"`: the form of their own dtype, which computes the same up
                     to rounding, where it pays: from a million weights and 16 steps on, for up to six tokens a step, on
                     a processor that is quicker so. `None`: as they are. A form is of the weights that the model has
                     when the second token is asked for. The prompts are read with the model itself, in every form: the
                     first new token is that of `None`.
    draft:           who proposes tokens that the model judges several at a time: `"ngram"`, `"own"` for the model's own
                     heads for later tokens, a smaller model of the same vocabulary, or a `Draft`, which also says how
                     many and counts how many were accepted. The same text, or where a model draws proposals the same
                     distribution.

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
    prompts, steps = check_prompts(model, prompts, source, start, max_new_tokens)
    request = checked(
        model,
        prompts,
        steps,
        reach=max(map(len, prompts)) + steps,
        source=source,
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
    return _generate(request, request.texts())


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
    weights: Weights | None = "fast",
    draft: Draft | Proposer | None = None,
    at_once: int | None = None,
) -> list[list[int]]:
    """`generate`, waited for: the new tokens of each prompt, a stop token (where one came) last.

    at_once:  for many prompts of a decoder: so many are written at a time, and the next takes the place of one that has
              ended, in a `companion.generation.serving.Server`. `None`: all together, until the longest has ended.

    The other arguments, and the errors, are those of `generate`. Raises `ValueError` also for `at_once` beside a
    source, a start, a draft or `compile`, and where one of the texts cannot go on, as soon as that is known.
    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "sampling": sampling, "stop": stop}
    options |= {"rules": rules, "until": until, "seed": seed}
    if at_once is not None:
        beside = {"source": source, "start": start, "draft": draft, "compile": compile or None}
        for name in (name for name, value in beside.items() if value is not None):
            raise ValueError(f"at_once={at_once!r}: expected no {name} beside it")
        return serve(model, prompts, at_once=at_once, streams=streams, weights=weights, **options)
    options |= {"source": source, "start": start, "streams": streams, "compile": compile, "draft": draft}
    steps = generate(model, prompts, weights=weights, **options)
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
    weights: Weights | None = "fast",
    draft: Draft | Proposer | None = None,
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
    request = checked(
        model,
        prompts,
        max_new_tokens,
        reach=min(config.context, max(map(len, prompts)) + max_new_tokens),
        sampling=sampling,
        stop=stop,
        rules=rules,
        until=until,
        seed=seed,
        compile=compile,
        weights=weights,
        draft=draft,
    )
    return _generate_long(request, request.texts())


def _generate_long(request: Request, texts: Sequence[Text]) -> Iterator[list[int | None]]:
    """`texts`, one for each prompt, grow, and keep what falls out of the context."""
    context, rules, most = request.model.config.context, request.rules, request.steps
    if request.weights == "fast":  # decided once for the whole text, however it is cut
        tokens = len(texts) * (1 if request.draft is None else 1 + request.draft.ahead)
        form = fast_form(request.model, most - 1, tokens, compile=request.compile)
        request = replace(request, weights=form)
    going = {row: list(prompt) for row, prompt in enumerate(request.prompts)}
    written = 0
    while written < most and going:
        for ids in going.values():
            if len(ids) == context:
                del ids[: context - context // 2]
        steps = min(most - written, context - max(map(len, going.values())))
        now = replace(
            rules,
            min_new_tokens=max(0, rules.min_new_tokens - written),
            last=rules.last if written + steps == most else None,
        )
        kept, streams = list(going.values()), [request.streams[row] for row in going]
        part = replace(request, prompts=kept, steps=steps, rules=now, streams=streams)
        for step in _generate(part, [texts[row] for row in going]):
            line: list[int | None] = [None] * len(texts)
            for (row, ids), token in zip(going.items(), step, strict=True):
                if token is not None:
                    line[row] = token
                    ids.append(token)
            yield line
        written += steps
        going = {row: ids for row, ids in going.items() if not request.ends.after(texts[row])}


def _generate(request: Request, texts: Sequence[Text]) -> Iterator[list[int | None]]:
    """`texts`, one for each prompt, grow."""
    if request.draft is not None:
        yield from speculate(request, texts, request.draft)
        return
    model, prompts, steps = request.model, request.prompts, request.steps
    bucket = BUCKET if request.compile else 1
    # A compiled step never reads all slots: a view of all of them is contiguous, as others are not, and for a compiler
    # that is another program.
    slots = -(-(max(map(len, prompts)) + steps - 1) // bucket) * bucket + (bucket if request.compile else 0)
    stopped = [False] * len(prompts)
    cache: KVCache | None = None
    memory: Memory | None = None
    next_logits: Callable[..., tuple[Tensor, KVCache]] | None = None
    tokens = torch.empty(0, dtype=torch.long)
    modules = list(model.modules())  # found once: the walk costs as much as a layer's arithmetic
    anew = stretched_after(model)
    for i in range(steps):
        # Both are entered anew for each step: a generator that is waiting must not leave its caller without gradients.
        with torch.inference_mode(), evaluating(modules):
            if cache is None:
                logits, cache, memory = prefill(model, prompts, request.source, slots, bucket)
            elif any(len(prompt) + i - 1 == anew for prompt in prompts):  # kept keys were turned for a shorter text
                so_far = [[*prompt, *text.ids[-i:]] for prompt, text in zip(prompts, texts, strict=True)]
                logits, cache, memory = prefill(model, so_far, request.source, slots, bucket)
            else:
                if next_logits is None:
                    writer = writer_of(model, request.weights, steps - 1, len(prompts), compile=request.compile)
                    next_logits = compiled_decode(writer) if request.compile else decode
                logits, cache = next_logits(writer, tokens, cache, memory)
            allowed = request.rules.apply(logits, i, steps, request.ends.stop, [text.ids for text in texts])
            tokens = draw_tokens(allowed, request.sampling, request.streams)
        drawn = tokens.tolist()
        if NOTHING in drawn:
            raise_nothing(logits[drawn.index(NOTHING)], drawn.index(NOTHING), i)
        step = [None if done else token for done, token in zip(stopped, drawn, strict=True)]
        for text, token in zip(texts, step, strict=True):
            text.ids += [] if token is None else [token]
        stopped = [done or request.ends.after(text) for done, text in zip(stopped, texts, strict=True)]
        yield step
        if all(stopped):
            return
