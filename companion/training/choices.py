"""Log-likelihood scoring: measure how probable several answers to a prompt are under a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from companion.generation.prefill_decode import read_rows
from companion.layers.cache import KVCache
from companion.transformer import Transformer

Ids = Sequence[int]


@torch.no_grad()
def log_likelihoods(
    model: Transformer,
    prompts: Sequence[Ids],
    choices: Sequence[Sequence[Ids]],
    *,
    read: KVCache | None = None,
    batch: int = 16,
) -> list[list[float]]:
    """Return the log-likelihood, in nats, of each choice as a continuation of its prompt.

    The log-likelihood is the sum of the log-probabilities of the choice's tokens, each given the prompt and the tokens
    before it. If one choice is a prefix of another, the longer one therefore never has the higher log-likelihood. To
    compare choices of different lengths, divide by their number of tokens or bytes, or subtract their log-likelihoods
    after a prompt that lacks the question.

    Each prompt is read once, followed by all of its choices.

    Args:
        model: A decoder, in evaluation mode.
        prompts: Token ids of each prompt.
        choices: For each prompt, the token ids of its choices. If the tokenizer joins a space to the following word,
            encode the space between prompt and choice as part of the choice.
        read: A one-row cache that already holds the text preceding every prompt (such as few-shot examples), with room
            for the longest prompt and choice. The cache is not changed.
        batch: Number of prompts that are read together.

    Raises:
        ValueError: If the model is not a decoder, the numbers of prompts and lists of choices differ, a prompt, a list
            of choices or a choice is empty, `read` has more than one row or too little room, or `batch` is below 1.
    """
    _check(model, prompts, choices, read, batch)
    found: list[list[float]] = []
    for start in range(0, len(prompts), batch):
        some = slice(start, start + batch)
        found += _scored(model, prompts[some], choices[some], read)
    return found


def _check(
    model: Transformer, prompts: Sequence[Ids], choices: Sequence[Sequence[Ids]], read: KVCache | None, batch: int
) -> None:
    if model.config.stack != "decoder":
        raise ValueError(f"model: expected a decoder, got one with stack={model.config.stack!r}")
    if len(prompts) != len(choices):
        raise ValueError(f"choices: expected a list for each of {len(prompts)} prompts, got {len(choices)} lists")
    for at, (prompt, several) in enumerate(zip(prompts, choices, strict=True)):
        if not len(prompt):
            raise ValueError(f"prompts[{at}]: expected at least one token, got none")
        if not len(several) or not all(map(len, several)):
            raise ValueError(f"choices[{at}]: expected at least one choice, each of at least one token, got {several}")
    if batch < 1:
        raise ValueError(f"batch: expected at least 1, got {batch}")
    if read is None:
        return
    room = read.slots - read.filled
    needed = max((len(p) + max(map(len, several)) for p, several in zip(prompts, choices, strict=True)), default=0)
    if read.batch != 1 or room < needed:
        raise ValueError(f"read: expected one row with room for {needed} tokens, got {read.batch} with room for {room}")


def _scored(
    model: Transformer, prompts: Sequence[Ids], choices: Sequence[Sequence[Ids]], read: KVCache | None
) -> list[list[float]]:
    weight = model.embedding.weight
    if read is None:
        longest = max(map(len, prompts)) + max(len(choice) for several in choices for choice in several)
        cache = KVCache.create(model.config, len(prompts), longest, dtype=weight.dtype, device=weight.device)
    else:
        cache = read.select(torch.zeros(len(prompts), dtype=torch.long, device=weight.device))
    stream, cache, lengths = read_rows(model, prompts, cache)
    ends = stream[torch.arange(len(prompts), device=weight.device), lengths - 1]
    first = model.head(ends).float().log_softmax(-1)
    found = [[first[row, choice[0]].item() for choice in several] for row, several in enumerate(choices)]
    # the last token of a choice is predicted but not read, so one-token choices are finished
    longer = [(row, at) for row, several in enumerate(choices) for at, one in enumerate(several) if len(one) > 1]
    if longer:
        sums = _later(model, cache, [row for row, _ in longer], [choices[row][at] for row, at in longer])
        for (row, at), nats in zip(longer, sums, strict=True):
            found[row][at] += nats
    return found


def _later(model: Transformer, cache: KVCache, rows: list[int], choices: Sequence[Ids]) -> list[float]:
    """Return the log-likelihood of each choice, without its first token, given the text in its row of the cache."""
    device = model.embedding.weight.device
    stream, _, _ = read_rows(
        model, [choice[:-1] for choice in choices], cache.select(torch.tensor(rows, device=device))
    )
    sums = []
    for row, choice in enumerate(choices):
        logs = model.head(stream[row, : len(choice) - 1]).float().log_softmax(-1)
        sums.append(logs.gather(1, torch.tensor(choice[1:], device=device)[:, None]).sum().item())
    return sums
