"""Writing text with a decoder (lesson 10): the prompts in one pass (prefill), then a token per row and step (decode).

What is drawn from is one distribution, transformed: `temperature`, `top_k` and `top_p` are functions on logits that
compose, and `Sampling` composes them. `generate` streams; `complete` waits for the whole; `beam_search` looks for the
most probable continuation instead of drawing one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from companion.layers.cache import KVCache
from companion.transformer import Transformer


def temperature(logits: Float[Tensor, "*batch vocab"], t: float) -> Float[Tensor, "*batch vocab"]:
    """logits / t: p_i becomes proportional to p_i^(1/t). Flatter for t > 1, sharper for t < 1, unchanged for t = 1.

    t = 0 is the limit: all but the largest logit become -inf (of equal largest ones the first stays), which makes
    drawing the same as greedy decoding. Raises `ValueError` unless t is a finite number >= 0.
    """
    if not (math.isfinite(t) and t >= 0):
        raise ValueError(f"temperature={t!r}: expected a finite number >= 0; 0 takes the most probable token")
    return top_k(logits, 1) if t == 0 else logits / t


def top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Keep the k largest logits, all others become -inf (Fan et al. 2018).

    Exactly k stay, also among equal ones; a k beyond the vocabulary keeps all. Raises `ValueError` unless k >= 1.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"top_k={k!r}: expected a whole number >= 1")
    if k == 1:
        kept = logits.argmax(-1, keepdim=True)  # the first of equal ones, as in greedy decoding
    else:
        kept = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return torch.full_like(logits, -math.inf).scatter(-1, kept, logits.gather(-1, kept))


def top_p(logits: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Keep the fewest most probable tokens whose probabilities sum to at least p (Holtzman et al. 2020, section 3.1).

    The token that carries the sum across p is kept, so at least one always stays; all others become -inf.
    Raises `ValueError` unless 0 < p <= 1.
    """
    if not 0 < p <= 1:
        raise ValueError(f"top_p={p!r}: expected a probability in (0, 1]")
    if p == 1:
        return logits  # rounding in the running sum could cut the tail
    descending, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = descending.softmax(-1, dtype=_wide(logits))
    before = probabilities.cumsum(-1) - probabilities  # what the more probable tokens already add up to
    return torch.full_like(logits, -math.inf).scatter(-1, order, descending.masked_fill(before >= p, -math.inf))


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the logits through `temperature`, then `top_k`, then `top_p`, then softmax.

    temperature:  0 is greedy decoding.
    top_k, top_p: `None` leaves the step out.

    Raises `ValueError` for a value that its function would refuse.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        self.probabilities(torch.zeros(1, 1))  # the functions themselves are the judges

    def probabilities(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """What is drawn from; each row sums to one. Half-precision logits are taken to float32 first."""
        logits = temperature(logits.to(_wide(logits)), self.temperature)
        if self.top_k is not None:
            logits = top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = top_p(logits, self.top_p)
        return logits.softmax(-1)


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
    seed: int = 0,
    compile: bool = False,
) -> Iterator[list[int | None]]:
    """Continue every prompt, one token per row and step, as soon as it is known.

    prompts:         token ids, rows of unequal lengths. They are read together, padded on the right.
    max_new_tokens:  how many steps at most. `None`: until the longest row fills `model.config.context`.
    sampling:        how to choose among the tokens. `None`: `Sampling()`, the model's own distribution.
    stop:            ids that end a row. The id itself is still given; after it the row gives `None`.
    seed:            row r draws from a random stream that (seed, r) alone decides: its continuation does not depend on
                     the other rows, nor on the device the model is on (but the last digits of the logits may).
    compile:         compile the decode step. Attention then reads the cache in multiples of 64 slots, so that few
                     different shapes occur and two or three compilations serve a text of any length. They take from
                     seconds to a minute: it pays for long continuations, or many.

    Yields a list with one entry per prompt; ends when every row has stopped. The model runs in evaluation mode and
    without gradients inside; between two steps and afterwards the caller finds both as they were.

    Cost: one forward pass over the prompts, then per step one token's pass; `companion.account` counts both.

    Raises `ValueError`, before anything runs, for no prompt, an empty prompt, an id outside the vocabulary, a prompt
    that with `max_new_tokens` would not fit the context, or a model that is not a decoder.
    """
    sampling = Sampling() if sampling is None else sampling
    steps = _check(model, prompts, max_new_tokens)
    _check_ids("stop", stop, model.config.vocab)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r}: expected a whole number >= 0")
    return _generate(model, prompts, steps, sampling, frozenset(stop), seed, compile)


def complete(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Collection[int] = (),
    seed: int = 0,
    compile: bool = False,
) -> list[list[int]]:
    """`generate`, waited for: the new tokens of each prompt, a stop token (where one came) last."""
    rows: list[list[int]] = [[] for _ in prompts]
    for step in generate(
        model, prompts, max_new_tokens=max_new_tokens, sampling=sampling, stop=stop, seed=seed, compile=compile
    ):
        for row, token in zip(rows, step, strict=True):
            if token is not None:
                row.append(token)
    return rows


@dataclass(frozen=True)
class Beam:
    """A continuation and ln p of it: the sum over its tokens, a stop token included, of ln p(token | what precedes)."""

    tokens: tuple[int, ...]
    log_probability: float


@torch.no_grad()
def beam_search(
    model: Transformer,
    prompt: Sequence[int],
    *,
    width: int,
    max_new_tokens: int,
    stop: Collection[int] = (),
    length_penalty: float = 0.0,
) -> list[Beam]:
    """The most probable continuations of `prompt` that keeping `width` candidates at every step finds, best first.

    A candidate is worth log_probability / length^length_penalty: 0 compares the probabilities themselves, which favours
    short continuations; 1 the mean per token. Candidates that end in a `stop` id keep their place in the beam until
    better ones push them out. `width=1` is greedy decoding; a width that holds every continuation finds the best one
    for certain; in between, a prefix that falls out early is lost, however good its continuation.

    Cost: one pass over the prompt, then per step the pass of one token for each unfinished candidate.

    Raises `ValueError` for a width or max_new_tokens below 1, and as `generate` does.
    """
    steps = _check(model, [prompt], max_new_tokens)
    _check_ids("stop", stop, model.config.vocab)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"width={width!r}: expected a whole number >= 1")
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty={length_penalty!r}: expected a finite number")

    def worth(beam: Beam) -> float:
        return beam.log_probability / len(beam.tokens) ** length_penalty

    with _evaluating(model):
        logits, cache = _prefill(model, [prompt], len(prompt) + steps - 1)
        alive: list[Beam] = [Beam((), 0.0)]
        finished: list[Beam] = []
        for step in range(steps):
            scores = _double(logits).log_softmax(-1)
            scores += scores.new_tensor([beam.log_probability for beam in alive])[:, None]
            best = scores.flatten().topk(min(width, scores.numel()))
            pool = [(beam, -1) for beam in finished]  # a beam, and the row of the cache that it continues
            for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                row, token = divmod(place, scores.shape[1])
                pool.append((Beam((*alive[row].tokens, token), score), row))
            pool = sorted(pool, key=lambda entry: worth(entry[0]), reverse=True)[:width]
            finished = [beam for beam, row in pool if row < 0 or beam.tokens[-1] in stop]
            going = [(beam, row) for beam, row in pool if row >= 0 and beam.tokens[-1] not in stop]
            alive, parents = [beam for beam, _ in going], [row for _, row in going]
            if not alive or step == steps - 1:
                break
            if parents != list(range(cache.batch)):
                cache = cache.select(torch.tensor(parents, device=logits.device))
            last = torch.tensor([beam.tokens[-1] for beam in alive], device=logits.device)
            logits, cache = _decode(model, last, cache)
    return sorted([*finished, *alive], key=worth, reverse=True)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _double(x: Tensor) -> Tensor:
    """In float64, on the CPU if the device has none (Apple's)."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _check_ids(name: str, ids: Collection[int], vocab: int) -> None:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise ValueError(f"{name}: token id {token!r}: expected a whole number from 0 to {vocab - 1}")


def _check(model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int | None) -> int:
    """Everything that can be wrong with what is to be continued; gives back how many steps to take."""
    config = model.config
    if config.stack != "decoder":
        raise ValueError(f"model has stack={config.stack!r}: expected 'decoder', the one that continues a text")
    if len(prompts) == 0:
        raise ValueError("prompts is empty: expected at least one prompt")
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompts[{row}] is empty: expected at least one token to continue from")
        _check_ids(f"prompts[{row}]", prompt, config.vocab)
    longest = max(map(len, prompts))
    room = config.context - longest
    if room < 1:
        raise ValueError(
            f"a prompt of {longest} tokens leaves no room: expected at most {config.context - 1}, because "
            f"context={config.context}"
        )
    if max_new_tokens is None:
        max_new_tokens = room
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens!r}: expected a whole number >= 1")
    if max_new_tokens > room:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} make {longest + max_new_tokens}: "
            f"expected at most context={config.context}"
        )
    return max_new_tokens


@contextmanager
def _evaluating(model: Transformer) -> Iterator[None]:
    """Every module in evaluation mode inside; afterwards each as it was, also if they differed."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _prefill(
    model: Transformer, prompts: Sequence[Sequence[int]], slots: int, bucket: int = 1
) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
    """All prompts in one pass: the logits after each one's last token, and a cache without the padding."""
    weight = model.embedding.weight
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=weight.device)
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.as_tensor(prompt)
    empty = KVCache.create(model.config, len(prompts), slots, dtype=weight.dtype, device=weight.device, bucket=bucket)
    stream, _, cache = model.features(tokens.to(weight.device), cache=empty)
    assert cache is not None
    # Padding sits to the right, where no real token can see it; its keys are given back, to be overwritten.
    last = stream[torch.arange(len(prompts), device=weight.device), lengths - 1]
    return model.head(last), cache.rewind(lengths)


def _decode(
    model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache
) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
    """One more token per row."""
    logits, _, grown = model(tokens[:, None], cache=cache)
    return logits[:, -1], grown


BUCKET = 64
"""Slots by which a compiled decode step sees the cache grow."""


def _generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    steps: int,
    sampling: Sampling,
    stop: frozenset[int],
    seed: int,
    compile: bool,
) -> Iterator[list[int | None]]:
    # NumPy's generators take (seed, row) as one seed, and draw the same numbers wherever the model runs.
    streams = [np.random.default_rng((seed, row)) for row in range(len(prompts))]
    bucket = BUCKET if compile else 1
    slots = -(-(max(map(len, prompts)) + steps - 1) // bucket) * bucket
    decode: Callable[..., tuple[Tensor, KVCache]] = _compiled_decode if compile else _decode
    stopped = [False] * len(prompts)
    cache: KVCache | None = None
    tokens = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        # Both are entered anew for each step: a generator that is waiting must not leave its caller without gradients.
        with torch.no_grad(), _evaluating(model):
            if cache is None:
                logits, cache = _prefill(model, prompts, slots, bucket)
            else:
                logits, cache = decode(model, tokens, cache)
            tokens = _draw(logits, sampling, streams)
        step = [None if done else token for done, token in zip(stopped, tokens.tolist(), strict=True)]
        stopped = [done or token in stop for done, token in zip(stopped, step, strict=True)]
        yield step
        if all(stopped):
            return


def _draw(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, streams: Sequence[np.random.Generator]
) -> Int[Tensor, "batch"]:
    """One token per row: the first whose cumulative probability exceeds a uniform number u in [0, 1)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    cumulative = _double(sampling.probabilities(logits)).cumsum(-1)
    u = torch.tensor([stream.random() for stream in streams], dtype=torch.float64, device=cumulative.device)
    # The sum may differ from 1 in its last digits; u times the sum stays below it, and `right=True` steps over tokens
    # of probability zero, also if u = 0.
    tokens = torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True)
    return tokens.squeeze(-1).to(logits.device)


def _compiled_decode(
    model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache
) -> tuple[Float[Tensor, "batch vocab"], KVCache]:
    """`_decode`, compiled: shapes and Python numbers change only where the cache enters its next bucket."""
    # `filled` is only an upper bound on the lengths, so it may be given as the bucket's last slot.
    last = min(-(-(cache.filled + 1) // cache.bucket) * cache.bucket, model.config.context) - 1
    logits, grown = _compiled()(model, tokens, replace(cache, filled=last, uniform=False))
    return logits, replace(grown, filled=cache.filled + 1)


@lru_cache
def _compiled() -> Callable[..., tuple[Tensor, KVCache]]:
    return torch.compile(_decode)
