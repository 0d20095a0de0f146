"""How a token is drawn (lesson 10): temperature, top-k, top-p, min-p as functions on logits, composed by `Sampling`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from companion.ground.fields import require_number, require_whole
from companion.layers.wide import wide, wide_dtype


def temperature(logits: Float[Tensor, "*batch vocab"], t: float) -> Float[Tensor, "*batch vocab"]:
    """logits / t: p_i becomes proportional to p_i^(1/t). Flatter for t > 1, sharper for t < 1, unchanged for t = 1.

    t = 0 is the limit: all but the largest logit become -inf (of equal largest ones the first stays), which makes
    drawing the same as greedy decoding. Raises `ValueError` unless t is a finite number >= 0.
    """
    expected = "a finite number >= 0; 0 takes the most probable token"
    if require_number("temperature", t, expected) < 0:
        raise ValueError(f"temperature={t!r}: expected {expected}")
    if t == 0:
        return top_k(logits, 1)
    if t < 1e-6:  # the quotients could be infinite, all but those of the largest logit
        logits, t = logits - logits.amax(-1, keepdim=True), max(t, torch.finfo(logits.dtype).tiny)
    return logits / min(
        float(t), torch.finfo(logits.dtype).max
    )  # beyond it t would be infinite, and -inf / t no number


def top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Keep the k largest logits, all others become -inf (Fan et al. 2018).

    Exactly k stay, also among equal ones; a k beyond the vocabulary keeps all. Raises `ValueError` unless k >= 1.
    """
    require_whole("top_k", k)
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
    if not 0 < require_number("top_p", p, "a probability in (0, 1]") <= 1:
        raise ValueError(f"top_p={p!r}: expected a probability in (0, 1]")
    if p == 1:
        return logits  # rounding in the running sum could cut the tail
    descending, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = descending.softmax(-1, dtype=wide_dtype(logits.dtype))
    before = probabilities.cumsum(-1) - probabilities  # what the more probable tokens already add up to
    return torch.full_like(logits, -math.inf).scatter(-1, order, descending.masked_fill(before >= p, -math.inf))


def min_p(logits: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Keep the tokens that are at least p times as probable as the most probable one (Nguyen et al. 2024, section 3).

    That one always stays; all others become -inf. Raises `ValueError` unless 0 <= p <= 1.
    """
    if not 0 <= require_number("min_p", p, "a number from 0 to 1") <= 1:
        raise ValueError(f"min_p={p!r}: expected a number from 0 to 1")
    if p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: logits through `temperature`, then `top_k`, `top_p` and `min_p`, then softmax.

    temperature:  0 is greedy decoding.
    top_k, top_p, min_p: `None` leaves the step out.

    Raises `ValueError` for a value that its function would refuse.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        self.probabilities(torch.zeros(1, 1))  # the functions themselves are the judges

    def probabilities(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """What is drawn from; each row sums to one. Half-precision logits are taken to float32 first."""
        logits = temperature(wide(logits), self.temperature)
        if self.top_k is not None:
            logits = top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = min_p(logits, self.min_p)
        return logits.softmax(-1)
