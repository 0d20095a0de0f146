"""The next token of each text (lesson 10): drawn from its distribution, or the most probable one."""

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
"""In place of a token, where none can be drawn."""


def draw_tokens(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, streams: Sequence[np.random.Generator]
) -> Int[Tensor, "batch"]:
    """One token per row, each with the next number of its own stream; greedy decoding takes none. `NOTHING` where the
    probabilities are not numbers."""
    if sampling.temperature == 0:
        return most_probable(logits)
    return pick(sampling.probabilities(logits), [stream.random() for stream in streams])


def most_probable(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, "batch"]:
    """The largest logit of each row, of equal ones the first; `NOTHING` where they are not numbers."""
    best, tokens = logits.max(-1)  # of numbers and NaN the NaN
    return tokens.masked_fill_(~best.isfinite(), NOTHING)


def pick(weights: Float[Tensor, "batch vocab"], uniform: Sequence[float]) -> Int[Tensor, "batch"]:
    """Of each row the first token whose cumulative weight exceeds a uniform number u in [0, 1) times their sum.
    `NOTHING` where they are not numbers."""
    cumulative = exactly(weights).cumsum(-1)
    u = torch.tensor(uniform, dtype=torch.float64, device=cumulative.device)
    # The sum may differ from 1 in its last digits; u times the sum stays below it, and `right=True` steps over tokens
    # of probability zero, also if u = 0.
    total = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, u[:, None] * total, right=True).masked_fill_(~total.isfinite(), NOTHING)
    return tokens.squeeze(-1).to(weights.device)


def exactly(weights: Float[Tensor, "*axes"]) -> Float64[Tensor, "*axes"]:
    """In float64, on the CPU if the device has none (Apple's)."""
    return (weights.cpu() if weights.device.type == "mps" else weights).double()


def raise_nothing(logits: Float[Tensor, "vocab"], row: int, step: int) -> NoReturn:
    """Raises `NotFinite`, or where the logits are numbers `ValueError`: the rules have left no token."""
    if bool(logits.isfinite().all()):
        raise ValueError(f"rules: no token is left at step {step} of row {row}: expected rules that leave one")
    raise NotFinite(
        f"logits of row {row} at step {step}: expected finite numbers, got others; a weight of this model, or what "
        "became of it on the way, is not a number"
    )
