"""Text generation with a decoder or an encoder-decoder, one token per row and step (lesson 10).

Tokens are drawn from a single transformed distribution: `Sampling` composes the functions of
`companion.generation.sampling`. `generate` streams, `complete` returns the finished texts, and `generate_long`
continues past the context. `companion.generation.beam` searches for the most probable text instead of drawing one,
`companion.generation.speculative` writes several tokens per pass, and in a `companion.generation.serving.Server` texts
can join and leave at any step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from companion.generation.logit_rules import Rules
from companion.generation.next_token import NOTHING, draw_tokens, raise_nothing
from companion.generation.prefill_decode import BUCKET, compiled_decode, decode, evaluating, prefill, stretched_after
from companion.generation.request import LongRequest, Options, Request, Rows, Text
from companion.generation.serving import serve
from companion.generation.speculative import speculate
from companion.layers.cache import KVCache
from companion.quantization.weights import fast_form, writer_of
from companion.transformer import Memory, Transformer

__all__ = ["Rules", "complete", "generate", "generate_long"]


def generate(
    model: Transformer, prompts: Rows | None = None, *, max_new_tokens: int | None = None, **options: Unpack[Options]
) -> Iterator[list[int | None]]:
    """Continue every prompt, yielding one token per row and step as soon as it is known.

    All arguments after the prompts are passed by name. A `companion.generation.request.Request` checks them before this
    function returns.

    The model runs in evaluation mode and without gradients; between two steps and at the end, the caller's settings are
    restored.

    Cost: one forward pass over the sources and one over the prompts, then one single-token pass per step;
    `companion.costs.account` counts them.

    Args:
        model: a decoder or an encoder-decoder.
        prompts: token ids of each row; rows may differ in length. They are read in one batch, padded on the right.
        source: for an encoder-decoder, the token ids of each row's source; sources may differ in length too. They are
            encoded once, in one batch; each row depends only on its own source.
        start: for an encoder-decoder, the id that begins every target, in place of `prompts`.
        max_new_tokens: maximum number of steps. `None` means to continue until the longest row fills
        `model.config.context`.
        sampling: how to choose the next token. `None` means `Sampling()`, the model's own distribution.
        stop: ids that end a row. The stop id itself is still yielded; after that the row yields `None`.
        rules: which tokens are forbidden or forced. `None` means that all tokens are allowed.
        until: a stopping criterion. It receives a row's number and its new tokens so far and returns whether they
            end the row, as a stop id would.
        seed: seed of the random numbers (default: 0).
        generators: one entry per row, a number or a NumPy generator. Row r draws from a generator that depends only on
            `seed` and the number `generators[r]` (`None`: r). So the row's continuation depends neither on the other
            rows nor on the model's device (although the last digits of the logits may). A NumPy generator continues
            from its current state.
        compile: whether to compile the decode step. Attention then reads the cache in multiples of 64 slots, so that
            there are few different shapes, and one or two compilations suffice for a text of any length. With experts,
            unless they are computed by the `"grouped"` implementation, there is one compilation for each new routing,
            up to PyTorch's limit. Compilation takes anywhere from a few seconds to a minute. Unless
            `companion.generation.compiled_steps` stores the programs, compilation is only worthwhile for long
            continuations or for many of them.
        weights: the format of the weights that decode steps read (`companion.quantization.weights`): fp32, fp16, bf16,
            int8, int4, or auto, the fastest on this machine. `"fast"` (default): the format of the weights' own dtype,
            which gives the same results up to rounding. It is used only where it saves time: with at least a million
            weights, at least 16 steps and at most six tokens per step, on a processor where it is faster. `None` leaves
            the weights unchanged. The weights are converted when the second token is requested. Prompts are always read
            with the original weights, so the first new token is the same as with `None`.
        draft: the source of proposed tokens, several of which the model verifies at a time. It is `"ngram"`, `"medusa"`
            for the model's own multi-token-prediction heads, a smaller model with the same vocabulary, or a `Draft`,
            which also sets the number of draft tokens and counts how many were accepted. A draft does not change the
            text, with one exception: if a model samples the proposals, the text may differ, but its distribution stays
            the same.

    Yields:
        At each step, a list with one entry per prompt, until every row has stopped.

    Raises:
        NotFinite: while running, if the model's logits are not finite.
        ValueError: before anything runs, for a call without prompts, an empty prompt or source, an id outside the
            vocabulary, a prompt that does not fit in the context together with `max_new_tokens`, a source for a model
            without an encoder or a missing source for a model with one, a model that cannot generate text, a weight
            format that this processor cannot compute, a draft with another vocabulary or too short a context, or a
            draft combined with `compile`.
    """
    request = Request(model, prompts, max_new_tokens, **options)
    return _generate(request, request.texts())


def complete(
    model: Transformer,
    prompts: Rows | None = None,
    *,
    max_new_tokens: int | None = None,
    batch_size: int | None = None,
    **options: Unpack[Options],
) -> list[list[int]]:
    """Run `generate` to the end and return the new tokens for each prompt, including the stop token if there is one.

    Args:
        batch_size: batch size for many prompts of a decoder. When one text ends, the next takes its slot in a
            `companion.generation.serving.Server`. `None` means all prompts in one batch, which runs until the longest
            text has ended.

    The other arguments are the same as for `generate`.

    Raises:
        ValueError: in the same cases as `generate`; if `batch_size` is combined with a source, a start, a draft or
            `compile`; and if one of the texts cannot be continued, as soon as this is known.
    """
    if batch_size is None:
        steps = generate(model, prompts, max_new_tokens=max_new_tokens, **options)
        return [[token for token in row if token is not None] for row in zip(*steps, strict=True)]
    for name in ("source", "start", "draft", "compile"):
        if (value := options.get(name)) is not None and value is not False:
            raise ValueError(f"batch_size={batch_size!r} cannot be used together with {name}")
    return serve(Request(model, prompts, max_new_tokens, **options), batch_size)


def generate_long(
    model: Transformer, prompts: Rows, *, max_new_tokens: int, **options: Unpack[Options]
) -> Iterator[list[int | None]]:
    """Run `generate` for a decoder, continuing past the end of its context.

    A row that fills the context is cut to its second half and continues from there. So each token is conditioned on at
    least half a context of earlier tokens, once that many exist. Rows fill the context at different times, but a row's
    tokens do not depend on the other rows: it is cut only when it is full itself, and its random stream continues.

    The arguments are those of `generate`, except for the source.

    Cost: the same as `generate`, plus one pass over the remaining tokens of all rows whenever a row is full.

    Raises:
        ValueError: before anything runs, in the same cases as `generate`, and for a prompt longer than the context.
    """
    request = LongRequest(model, prompts, max_new_tokens, **options)
    return _generate_long(request, request.texts())


def _generate_long(request: Request, texts: Sequence[Text]) -> Iterator[list[int | None]]:
    """Extend `texts`, one per prompt, which also contain the tokens that no longer fit in the context."""
    context, rules, most = request.model.config.context, request.rules, request.max_new_tokens
    if request.weights == "fast":  # decided once for the whole text, no matter how often it is cut
        tokens = len(texts) * (1 if request.draft is None else 1 + request.draft.num_draft_tokens)
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
        kept, generators = list(going.values()), [request.generators[row] for row in going]
        part = replace(request, prompts=kept, max_new_tokens=steps, rules=now, generators=generators)
        for step in _generate(part, [texts[row] for row in going]):
            line: list[int | None] = [None] * len(texts)
            for (row, ids), token in zip(going.items(), step, strict=True):
                if token is not None:
                    line[row] = token
                    ids.append(token)
            yield line
        written += steps
        going = {row: ids for row, ids in going.items() if not request.ends(texts[row])}


def _generate(request: Request, texts: Sequence[Text]) -> Iterator[list[int | None]]:
    """Extend `texts`, one per prompt."""
    if request.draft is not None:
        yield from speculate(request, texts, request.draft)
        return
    model, prompts, steps = request.model, request.prompts, request.max_new_tokens
    bucket = BUCKET if request.compile else 1
    # A compiled step never reads all slots, because a view of all slots is contiguous, unlike a view of some of them,
    # and the compiler would need a second program for it.
    slots = -(-(max(map(len, prompts)) + steps - 1) // bucket) * bucket + (bucket if request.compile else 0)
    stopped = [False] * len(prompts)
    cache: KVCache | None = None
    memory: Memory | None = None
    next_logits: Callable[..., tuple[Tensor, KVCache]] | None = None
    tokens = torch.empty(0, dtype=torch.long)
    modules = list(model.modules())  # list them once, because the walk takes as long as a layer's arithmetic
    anew = stretched_after(model)
    for i in range(steps):
        # Both contexts are entered again for each step, because a suspended generator must not leave its caller without
        # gradients.
        with torch.inference_mode(), evaluating(modules):
            if cache is None:
                logits, cache, memory = prefill(model, prompts, request.source, slots, bucket)
            elif any(len(prompt) + i - 1 == anew for prompt in prompts):  # cached keys were rotated for a shorter text
                so_far = [[*prompt, *text.ids[-i:]] for prompt, text in zip(prompts, texts, strict=True)]
                logits, cache, memory = prefill(model, so_far, request.source, slots, bucket)
            else:
                if next_logits is None:
                    writer = writer_of(model, request.weights, steps - 1, len(prompts), compile=request.compile)
                    next_logits = compiled_decode(writer) if request.compile else decode
                logits, cache = next_logits(writer, tokens, cache, memory)
            allowed = request.allowed(logits, i, [text.ids for text in texts])
            tokens = draw_tokens(allowed, request.sampling, request.generators)
        drawn = tokens.tolist()
        if NOTHING in drawn:
            raise_nothing(logits[drawn.index(NOTHING)], drawn.index(NOTHING), i)
        step = [None if done else token for done, token in zip(stopped, drawn, strict=True)]
        for text, token in zip(texts, step, strict=True):
            text.ids += [] if token is None else [token]
        stopped = [done or request.ends(text) for done, text in zip(stopped, texts, strict=True)]
        yield step
        if all(stopped):
            return
