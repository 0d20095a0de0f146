"""Measure the loss over a whole text, without gradients: nats, tokens, perplexity and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from companion.training.losses import IGNORE, Batch, Loss, bits_per_byte, next_token_loss
from companion.training.precision import autocast


@dataclass(frozen=True)
class Evaluation:
    """A model's loss on a text.

    An evaluation consists of the total loss in nats, the number of scored tokens, and the number of bytes that these
    tokens encode.
    """

    nats: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        """Loss in bits per byte of text (see `losses.bits_per_byte`), which can be compared across tokenizers."""
        return bits_per_byte(self.nats, self.bytes)

    @property
    def perplexity(self) -> float:
        """Exponential of the mean nats per token, which can be compared only between models with the same tokenizer."""
        return math.exp(self.nats / self.tokens)

    @property
    def scores(self) -> dict[str, float]:
        """Scores for the run's log."""
        return {"bits_per_byte": self.bits_per_byte}

    @property
    def error(self) -> float:
        """Score that selects the best checkpoint; smaller is better."""
        return self.bits_per_byte

    def result(self) -> dict[str, Any]:
        """Return the scores to store with a finished run."""
        return {**self.scores, "perplexity": self.perplexity, "tokens": self.tokens, "bytes": self.bytes}

    def __str__(self) -> str:
        return f"{self.bits_per_byte:.3f} bits per byte"


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], bytes: int, *, loss: Loss = next_token_loss, precision: str = "fp32"
) -> Evaluation:
    """Return a model's loss over all of `batches`, without dropout. The model's mode is restored afterwards.

    Args:
        model: the model to evaluate.
        batches: tensors for `loss`, targets last.
        bytes: number of bytes of text that the targets encode.
        loss: (model, *batch) -> `Scored`.
        precision: as in `Trainer`.

    Raises:
        ValueError: if there is nothing to score.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    nats = torch.zeros((), device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)
    tokens = 0
    try:
        for batch in batches:
            with autocast(device, precision):
                nats += loss(model, *(tensor.to(device, non_blocking=True) for tensor in batch)).nats
            tokens += int((batch[-1] != IGNORE).sum())
    finally:
        model.train(was_training)
    if tokens == 0:
        raise ValueError("batches: expected at least one target to score, got none")
    return Evaluation(float(nats), tokens, bytes)
