"""The score of a race: bits per byte on held-out texts.

This module scores a learner's own race, and runs in the learner's process. In the races of a class, scoring takes place
outside that process (`course.grading.race_board`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch


def bits_per_byte(code: Any, runner: Any, texts: Sequence[str]) -> float:
    """Return the bits per byte of a race's model on these texts.

    Args:
        code: The learner's files.
        runner: The object returned by `race`, with the attributes `model`, `merges` and `context`.
        texts: The held-out texts.

    Raises:
        ValueError: If the runner lacks an attribute, the tokens do not decode to the text, or the logits have the wrong
            shape, are not finite, or depend on later tokens.
    """
    for name in ("model", "merges", "context"):
        if not hasattr(runner, name):
            raise ValueError(f"race: expected a Runner with model, merges and context; {name} is missing")
    tokenizer, model, context = code["tokenizer"], runner.model, int(runner.context)
    if context < 1:
        raise ValueError(f"race: expected a context of at least one token, got {context}")
    bits = 0.0
    for text in texts:
        ids = list(tokenizer.encode(text, runner.merges))
        if tokenizer.decode(ids, runner.merges) != text:
            raise ValueError(f"race: the tokens of the text {text[:30]!r} do not decode to the same text")
        vocab = 256 + len(runner.merges)
        bits += math.log2(vocab)
        bits += _nats(model, torch.tensor(ids), context, vocab) / math.log(2)
    return bits / sum(len(text.encode()) for text in texts)


@torch.no_grad()
def _nats(model: Any, ids: torch.Tensor, context: int, vocab: int) -> float:
    """Return the sum of -ln p over all tokens except the first, computed in windows of `context` tokens."""
    nats = 0.0
    for start in range(0, len(ids) - 1, context):
        window = ids[None, start : start + context + 1]
        logits = model(window[:, :-1])
        if not isinstance(logits, torch.Tensor) or logits.shape[:2] != window[:, 1:].shape or logits.shape[2] < vocab:
            told = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            expected = f"(1, token, {vocab}) for {window.shape[1] - 1} tokens"
            raise ValueError(f"race: expected logits of shape {expected}, got {told}")
        # The score is valid only if the logits do not depend on later tokens, which is checked below.
        logs = logits.double().log_softmax(-1).gather(-1, window[:, 1:, None])
        nats -= logs.sum().item()
    if not math.isfinite(nats):
        raise ValueError("race: the model assigns some of the text a probability of zero or NaN")
    _refuse_looking_ahead(model, ids[None, : min(len(ids), context)], vocab)
    return nats


def _refuse_looking_ahead(model: Any, window: torch.Tensor, vocab: int) -> None:
    """Raise `ValueError` if the model's logits change when later tokens change."""
    middle = window.shape[1] // 2
    other = window.clone()
    other[:, middle:] = (other[:, middle:] + 1) % vocab
    before, after = model(window)[:, :middle], model(other)[:, :middle]
    if middle and not torch.allclose(before.float(), after.float(), rtol=1e-2, atol=1e-2):
        raise ValueError(
            "race: the logits of a token change with the tokens that come after it; a model must not see later tokens"
        )
