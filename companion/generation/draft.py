"""Sources of proposed tokens for speculative decoding (lessons 10 and 18; see `companion.generation.speculative`).

n-gram   the tokens that followed an earlier occurrence of the last few tokens (Saxena 2023, "prompt lookup
         decoding"; Yang et al. 2023, "Inference with reference"). It needs no second model.
a model  a smaller one with the same vocabulary, which writes the proposal (Leviathan et al. 2023; Chen et al. 2023).
medusa   the model's own multi-token-prediction heads, `companion.layers.medusa_heads` (Cai et al. 2024, "Medusa").
yours    any function of the text so far and a number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from companion.config.model import require_whole
from companion.ground import display
from companion.ground.arguments import described
from companion.layers import recurrent_cache
from companion.layers.rolling_cache import BACK
from companion.transformer import Transformer

Propose = Callable[[Sequence[int], int], Sequence[int]]
"""A function of a text's tokens so far and the number of tokens wanted. It returns a guess at the next tokens, which
may be shorter than wanted or empty.
"""
Proposer = Transformer | Propose | Literal["ngram", "medusa"]
NUM_DRAFT_TOKENS = 4
"""Default number of draft tokens. It gets most of the possible gain when some of the proposals are rejected."""


class Lookup:
    """Prompt lookup: propose the tokens that followed an earlier occurrence of the text's last tokens.

    It finds the longest run of tokens at the end of the text, up to `longest`, that also occurs earlier in the text,
    and proposes what followed its latest earlier occurrence. If fewer tokens than requested follow that occurrence, the
    proposal repeats them in a cycle.

    An instance remembers where runs occur, so calls do not slow down as the text grows. Use one instance per growing
    text.
    """

    def __init__(self, longest: int = 3) -> None:
        self.longest = longest
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 1

    def __call__(self, ids: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens that may follow `ids`, or an empty list."""
        for place in range(self._seen, len(ids)):
            for n in range(1, min(self.longest, place) + 1):
                self._after[tuple(ids[place - n : place])] = place
        self._seen = max(self._seen, len(ids))
        for n in range(min(self.longest, len(ids)), 0, -1):
            place = self._after.get(tuple(ids[-n:]), len(ids))
            if place < len(ids):
                return [ids[place + i % (len(ids) - place)] for i in range(count)]
        return []


@dataclass
class Draft:
    """Settings and statistics of speculative decoding, to be passed as `generate(..., draft=...)`.

    Args:
        proposer: `"ngram"`, `"medusa"`, a smaller `Transformer`, or a function of a text's ids and a number of tokens.
        num_draft_tokens: maximum number of draft tokens per pass, from 1 to 64. Heads propose at most one token each.

    Attributes:
        proposed: number of proposed tokens that the model verified, excluding tokens after the end of a text.
        accepted: number of proposed tokens that became part of a text.
        passes: number of passes of the large model, counted once for each unfinished row, excluding the passes over
            prompts.

    The counts cover all texts generated with this object.

    Raises:
        ValueError: if the proposer is unknown or `num_draft_tokens` is out of range.
    """

    proposer: Proposer
    num_draft_tokens: int = NUM_DRAFT_TOKENS
    proposed: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        known = isinstance(self.proposer, str) and self.proposer in ("ngram", "medusa")
        if not known and not callable(self.proposer):
            expected = "'ngram', 'medusa', a Transformer or a function"
            raise ValueError(f"draft={described(self.proposer)}: expected {expected}")
        # If layers cache only a window of the last tokens, a cache cannot be rolled back further than this.
        require_whole("num_draft_tokens", self.num_draft_tokens)
        if self.num_draft_tokens > BACK:
            raise ValueError(
                f"num_draft_tokens={self.num_draft_tokens}: expected at most {BACK}, the number of tokens that a cache "
                "can remove"
            )

    def function(self) -> Propose:
        """Return the function that proposes tokens for one text.

        With `"ngram"`, this is a new `Lookup` for each call. A function that was passed as the proposer is returned
        itself, so all texts share it. If a model or its heads propose the tokens, the result is not used.
        """
        return Lookup() if isinstance(self.proposer, (str, Transformer)) else self.proposer

    @property
    def rate(self) -> float:
        """Acceptance rate: accepted / proposed, or 0 if nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def per_pass(self) -> float:
        """Mean number of tokens that a row gains per pass of the large model, from 1 to `num_draft_tokens` + 1."""
        return 1 + self.accepted / self.passes if self.passes else 1.0

    def report(self) -> str:
        """Summarize the acceptance counts in one line."""
        judged = display.count(self.proposed, "proposed token")
        return f"draft: {self.accepted:,} of {judged} accepted ({self.rate:.0%}), {self.per_pass:.1f} tokens per pass"

    def check(self, model: Transformer, reach: int) -> None:
        """Check that this draft can propose tokens for `model`.

        Args:
            model: the large model.
            reach: length of the longest text, in tokens.

        Raises:
            ValueError: if the draft cannot propose tokens for `model`; the message names the mismatch.
        """
        models = [model, self.proposer] if isinstance(self.proposer, Transformer) else [model]
        back = recurrent_cache.BACK
        if any(one.config.linear_config is not None for one in models) and self.num_draft_tokens > back:
            raise ValueError(
                f"num_draft_tokens={self.num_draft_tokens}: expected at most {back}, the number of tokens that a cache "
                "with linear layers can remove"
            )
        if self.proposer == "medusa" and model.medusa is None:
            raise ValueError("draft='medusa': expected a model with medusa_heads")
        if not isinstance(self.proposer, Transformer):
            return
        ours, theirs = model.config, self.proposer.config
        if theirs.vocab != ours.vocab:
            raise ValueError(
                f"draft has vocab={theirs.vocab}: expected {ours.vocab}, with the same ids as the model's vocabulary"
            )
        if theirs.stack != ours.stack:
            raise ValueError(f"draft has stack={theirs.stack!r}: expected {ours.stack!r}, like the model")
        if theirs.context < reach:
            raise ValueError(
                f"draft has context={theirs.context}: expected at least {reach}, so that its cache has room for the "
                "text and its proposals"
            )
        here, there = model.embedding.weight.device, self.proposer.embedding.weight.device
        if here != there:
            raise ValueError(f"draft is on {there}: expected {here}, the device of the model")


def draft_of(draft: Draft | Proposer | None) -> Draft | None:
    """Return `draft` as a `Draft`, or `None`. Raises `ValueError` for an invalid proposer."""
    return draft if draft is None or isinstance(draft, Draft) else Draft(draft)
