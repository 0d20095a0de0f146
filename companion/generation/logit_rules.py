"""Logits processors, which determine the tokens allowed at each step, regardless of probability (lesson 10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from companion.ground.arguments import described
from companion.ground.fields import require_number, require_whole, shown

StoppingCriterion = Callable[[int, Sequence[int]], bool]
"""A stopping criterion: a function of a row's number and its new tokens so far that returns whether they end the row.
"""


def check_ids(name: str, ids: Collection[int], vocab: int) -> None:
    """Check a collection of token ids.

    Raises:
        ValueError: if it is not a collection of ids, or if an id is outside the vocabulary.
    """
    if isinstance(ids, (str, bytes, Tensor)) or not isinstance(ids, Collection):
        raise ValueError(f"{name}={described(ids)}: expected a list of token ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise ValueError(f"{name}: token id {shown(token)}: expected a whole number from 0 to {vocab - 1}")


@dataclass(frozen=True)
class Rules:
    """Rules that determine which tokens are allowed at each step, regardless of their probability.

    Args:
        never: ids that are never chosen (in `transformers`: `bad_words_ids` of one token each, `suppress_tokens`).
            Marian's models need this for their padding id, which also begins every target.
        min_new_tokens: number of tokens that must be written before a stop id is allowed (same name in `transformers`).
        last: the id that the last permitted step writes if the text has not stopped by then (`forced_eos_token_id`). It
            takes precedence over all other rules.
        repetition_penalty: positive scores of tokens that are already in the text or its prompt are divided by this
            number, and negative ones are multiplied by it (Keskar et al. 2019, section 4.1); 1 has no effect.
        no_repeat: no n-gram of this length that is already in the text, prompt included, is written again
            (`no_repeat_ngram_size`; Paulus et al. 2018, section 2.5); 0 has no effect.
        renormalised: whether the probabilities of the remaining tokens are renormalized to sum to one
            (`renormalize_logits`), which only affects beam search.

    Raises:
        ValueError: if an id, a count or the penalty is invalid.
    """

    never: Collection[int] = ()
    min_new_tokens: int = 0
    last: int | None = None
    repetition_penalty: float = 1.0
    no_repeat: int = 0
    renormalised: bool = False

    def __post_init__(self) -> None:
        never, last = self.never, self.last
        for name, ids in (("never", never), ("last", () if last is None else [last])):
            whole = isinstance(ids, Collection) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
            if not whole:
                raise ValueError(f"{name}={shown(ids)}: expected token ids (whole numbers)")
        object.__setattr__(self, "never", tuple(sorted(set(never))))
        require_whole("min_new_tokens", self.min_new_tokens, 0)
        require_whole("no_repeat", self.no_repeat, 0)
        expected = "a number from 0.001 to 1000"
        if not 0.001 <= require_number("repetition_penalty", self.repetition_penalty, expected) <= 1000:
            raise ValueError(f"repetition_penalty={self.repetition_penalty!r}: expected {expected}")
        if not isinstance(self.renormalised, bool):
            raise ValueError(f"renormalised={shown(self.renormalised)}: expected True or False")

    @property
    def looks_back(self) -> bool:
        """True if the allowed tokens depend on the text so far."""
        return self.repetition_penalty != 1 or self.no_repeat > 0

    def apply(
        self,
        scores: Float[Tensor, "batch vocab"],
        step: int,
        steps: int,
        stop: Collection[int],
        texts: Sequence[Sequence[int]] = (),
    ) -> Float[Tensor, "batch vocab"]:
        """Return the scores of the tokens at one step, with -inf for those that are not allowed.

        A forced token has score 0, so that it adds nothing to a sum of log-probabilities; all others have -inf. If the
        scores are not finite, the forced token's score is NaN, so that the caller notices this at forced steps too.

        Args:
            scores: logits or log-probabilities.
            step: the step, counted from 0.
            steps: number of steps.
            stop: ids that end a row.
            texts: each row's tokens so far, including its prompt, for rules that depend on them.
        """
        if self.last is not None and step == steps - 1:
            forced = torch.full_like(scores, -math.inf)
            forced[:, self.last] = 0 * scores.amax(-1)
            return forced
        if self.looks_back:
            scores = torch.stack([self._looking_back(row, text) for row, text in zip(scores, texts, strict=True)])
        banned = [*self.never, *(stop if step < self.min_new_tokens else ())]
        if banned:
            scores = scores.index_fill(-1, torch.tensor(banned, device=scores.device), -math.inf)
        return scores.log_softmax(-1) if self.renormalised else scores

    def _looking_back(self, scores: Float[Tensor, "vocab"], text: Sequence[int]) -> Float[Tensor, "vocab"]:
        """Apply the rules that depend on earlier tokens to the scores of one row."""
        if self.repetition_penalty != 1:
            there = torch.tensor(sorted(set(text)), device=scores.device)
            now = scores[there]
            penalty = self.repetition_penalty
            scores = scores.index_copy(0, there, torch.where(now < 0, now * penalty, now / penalty))
        if 0 < self.no_repeat <= len(text):
            before = self.no_repeat - 1
            end = tuple(text[len(text) - before :])
            followers = {text[at + before] for at in range(len(text) - before) if tuple(text[at : at + before]) == end}
            scores = scores.index_fill(
                0, torch.tensor(sorted(followers), dtype=torch.long, device=scores.device), -math.inf
            )
        return scores

    def check(self, vocab: int, stop: Collection[int]) -> None:
        """Raise `ValueError` if an id is outside the vocabulary, or if the rules exclude every token."""
        check_ids("stop", stop, vocab)
        check_ids("never", self.never, vocab)
        if self.last is not None:
            check_ids("last", [self.last], vocab)
        if len({*self.never, *(stop if self.min_new_tokens else ())}) == vocab:
            raise ValueError(
                f"never={self.never!r} with min_new_tokens={self.min_new_tokens} and stop={sorted(stop)!r}: "
                f"these rules exclude all {vocab} token ids"
            )
