"""Choosing the next token (lesson 10).

Temperature, top-k, top-p and min-p are functions on logits, and `Sampling` composes them.

To add a method, write a function on logits, a field of `Sampling` and a line in `probabilities`. The flags of
`companion generate`, the settings read from a published folder and the report of `companion inspect` all follow from
the fields.
"""

# ruff: noqa: RUF009  (each default is a dataclasses.field, made by _rule)

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from companion.ground.number_limits import (
    Count,
    CountFromZero,
    NonNegative,
    PartOfOne,
    Probability,
    require_fields,
    require_limits,
)

if TYPE_CHECKING:  # the command line reads the flags without importing torch
    from jaxtyping import Float
    from torch import Tensor


def temperature(logits: Float[Tensor, "*batch vocab"], t: float) -> Float[Tensor, "*batch vocab"]:
    """Divide logits by t, which makes p_i proportional to p_i^(1/t).

    The distribution is flatter for t > 1, sharper for t < 1, and unchanged for t = 1.

    t = 0 is the limit: all logits except the largest become -inf (if several are equally large, the first one remains),
    so sampling is the same as greedy decoding.

    Raises:
        ValueError: if t is not a finite number >= 0.
    """
    from torch import finfo

    require_limits("temperature", t, NonNegative)
    if t == 0:
        return top_k(logits, 1)
    if t < 1e-6:  # every quotient except the largest logit's could be infinite
        logits, t = logits - logits.amax(-1, keepdim=True), max(t, finfo(logits.dtype).tiny)
    return logits / min(float(t), finfo(logits.dtype).max)  # a larger t would become infinite, and -inf / inf is NaN


def top_k(logits: Float[Tensor, "*batch vocab"], k: int) -> Float[Tensor, "*batch vocab"]:
    """Set all logits except the k largest to -inf (Fan et al. 2018).

    Exactly k logits remain, even if some are equal. If k exceeds the vocabulary, all remain.

    Raises:
        ValueError: if k < 1.
    """
    require_limits("top_k", k, Count)
    if k == 1:
        kept = logits.argmax(-1, keepdim=True)  # if several tie, the first one is kept, as in greedy decoding
    else:
        kept = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return logits.new_full(logits.shape, -math.inf).scatter(-1, kept, logits.gather(-1, kept))


def top_p(logits: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Keep the smallest set of most probable tokens whose total probability reaches p (nucleus sampling).

    The token that brings the sum to p is included, so at least one always remains; all others become -inf (Holtzman et
    al. 2020, section 3.1).

    Raises:
        ValueError: if p is not in (0, 1].
    """
    from companion.ground.precision import wide

    require_limits("top_p", p, PartOfOne)
    if p == 1:
        return logits  # rounding in the running sum could cut the tail
    descending, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = wide(descending).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # total probability of the more probable tokens
    dropped = before >= p
    dropped[..., :1] = False  # the best token stays, even if p underflows to 0 in this dtype
    return logits.new_full(logits.shape, -math.inf).scatter(-1, order, descending.masked_fill(dropped, -math.inf))


def min_p(logits: Float[Tensor, "*batch vocab"], p: float) -> Float[Tensor, "*batch vocab"]:
    """Restrict logits to tokens that are at least p times as probable as the most probable one.

    The most probable token always remains; all others become -inf (Nguyen et al. 2024, section 3).

    Raises:
        ValueError: if p is not from 0 to 1.
    """
    require_limits("min_p", p, Probability)
    if p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def _rule(default: Any, help: str, *, left_out: Any) -> Any:
    """Define a field, with the help text of its flag and the value to use if a published folder omits the field.

    That value is the default of the released code.
    """
    return field(default=default, metadata={"help": help, "left_out": left_out})


@dataclass(frozen=True)
class Sampling:
    """Settings for choosing the next token.

    `temperature`, `top_k`, `top_p` and `min_p` are applied to the logits in this order, followed by softmax.

    `None` skips a step, and so does a top_k of 0, as in published settings. A temperature of 0 is greedy decoding.

    Raises:
        ValueError: if the function with the same name as a field would reject the field's value.
    """

    temperature: NonNegative = _rule(1.0, "sampling temperature; 0: always the most probable token", left_out=1.0)
    top_k: CountFromZero | None = _rule(None, "sample from the k most probable tokens; 0: from all", left_out=50)
    top_p: PartOfOne | None = _rule(
        None, "sample from the smallest set of most probable tokens with this total probability", left_out=1.0
    )
    min_p: Probability | None = _rule(
        None, "sample from tokens with at least this fraction of the largest probability", left_out=None
    )

    def __post_init__(self) -> None:
        require_fields(self)
        if self.top_k == 0:
            object.__setattr__(self, "top_k", None)

    def probabilities(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """Return the distribution to draw from; each row sums to one.

        Half-precision logits are first converted to float32.
        """
        from companion.ground.precision import wide

        logits = temperature(wide(logits), self.temperature)
        if self.top_k is not None:
            logits = top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = min_p(logits, self.min_p)
        return logits.softmax(-1)

    def __str__(self) -> str:
        """Return the steps in words, such as "temperature 0.7, top-k 50"."""
        steps = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        return ", ".join(f"{name} {value:g}" for name, value in steps.items() if value is not None)


def released() -> Sampling:
    """Return the settings for a published folder that has none of its own: the defaults of `transformers`."""
    return Sampling(**{f.name: f.metadata["left_out"] for f in fields(Sampling)})
