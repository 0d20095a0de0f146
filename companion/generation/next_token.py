"""Choose the next token of each text: draw it from its distribution or take the most probable one (lesson 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from companion.generation.prefill_decode import NotFinite
from companion.generation.sampling import Sampling

NOTHING = -1
"""Placeholder where no token can be drawn."""


def draw_tokens(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, generators: Sequence[np.random.Generator]
) -> Int[Tensor, "batch"]:
    """Draw one token per row, using the next random number of each row's own generator.

    Greedy decoding uses no random numbers. Rows whose probabilities are not finite get `NOTHING`.
    """
    if sampling.temperature == 0:
        return most_probable(logits)
    return pick(sampling.probabilities(logits), [generator.random() for generator in generators])


def most_probable(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, "batch"]:
    """Return the index of each row's (first) largest logit, and `NOTHING` for rows that are not finite."""
    best, tokens = logits.max(-1)  # a NaN counts as the maximum
    return tokens.masked_fill_(~best.isfinite(), NOTHING)


def pick(weights: Float[Tensor, "batch vocab"], uniform: Sequence[float]) -> Int[Tensor, "batch"]:
    """Draw a token per row: the first one whose cumulative weight exceeds u times the sum of the weights.

    Here u is a uniform random number in [0, 1). Rows whose weights are not finite get `NOTHING`.
    """
    cumulative = exactly(weights).cumsum(-1)
    u = torch.tensor(uniform, dtype=torch.float64, device=cumulative.device)
    # The sum may differ from 1 in its last digits. But u times the sum stays below the sum, and `right=True` skips
    # tokens of probability zero even if u = 0.
    total = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, u[:, None] * total, right=True).masked_fill_(~total.isfinite(), NOTHING)
    return tokens.squeeze(-1).to(weights.device)


def exactly(weights: Float[Tensor, "*axes"]) -> Float64[Tensor, "*axes"]:
    """Convert to float64, on the CPU if the device, such as an Apple GPU, does not support it."""
    return (weights.cpu() if weights.device.type == "mps" else weights).double()


def raise_nothing(logits: Float[Tensor, "vocab"], row: int, step: int) -> NoReturn:
    """Raise the error that explains why no token could be drawn.

    Raises:
        NotFinite: if the logits are not finite.
        ValueError: if the logits are finite, which means that the rules excluded every token.
    """
    if bool(logits.isfinite().all()):
        raise ValueError(f"rules: every token is excluded at step {step} of row {row}")
    raise NotFinite(
        f"logits of row {row} at step {step}: expected finite values; a weight or an activation of this model "
        "is not finite"
    )
