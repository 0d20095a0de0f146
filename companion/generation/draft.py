"""Who proposes tokens in speculative decoding (lessons 10 and 18), `companion.generation.speculative`.

n-gram   what followed the last few tokens when they stood in the text before (Saxena 2023, "prompt lookup
         decoding"; Yang et al. 2023, "Inference with reference"). Nothing to load, no second model.
a model  a smaller one of the same vocabulary, which writes the proposal (Leviathan et al. 2023; Chen et al. 2023).
own      the model's own heads for later tokens, `companion.layers.medusa_heads` (Cai et al. 2024, "Medusa").
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
"""Given a text's tokens so far, and how many more are wanted: what may come next; fewer, or none, are welcome."""
Proposer = Transformer | Propose | Literal["ngram", "own"]
AHEAD = 4
"""Tokens proposed at a time: most of what is gained, where a part of them is refused."""


class Lookup:
    """What followed the last tokens of a text where they stood in it before: of up to `longest` of them, the longest
    run that did, where it did last. What follows a run that is still going on goes on in circles.

    It remembers where runs stand, and takes no longer for a longer text; so it is for one text that grows.
    """

    def __init__(self, longest: int = 3) -> None:
        self.longest = longest
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 1

    def __call__(self, ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow `ids`: as many, or none."""
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
    """Who proposes tokens, how many at a time, and what became of them: a value for `generate(..., draft=...)`.

    proposer:  `"ngram"`, `"own"`, a smaller `Transformer`, or a function of a text's ids and a number of tokens.
    ahead:     how many tokens it proposes at a time at most, from 1 to 64; heads never more than there are of them.

    Counted, over all that was written with it:

    proposed:  tokens that it proposed and the model judged, which are all but those behind the end of a text.
    accepted:  those of them that are in the text.
    passes:    of the large model, counted for each row that was not finished; the prompts' are left out.

    Raises `ValueError` for another proposer, or another number.
    """

    proposer: Proposer
    ahead: int = AHEAD
    proposed: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not callable(self.proposer) and not (isinstance(self.proposer, str) and self.proposer in ("ngram", "own")):
            raise ValueError(f"draft={described(self.proposer)}: expected 'ngram', 'own', a Transformer or a function")
        # A cache can take back so many tokens for sure, where layers keep a window of the last ones.
        require_whole("ahead", self.ahead)
        if self.ahead > BACK:
            raise ValueError(f"ahead={self.ahead}: expected at most {BACK}, as many as a cache takes back")

    def function(self) -> Propose:
        """What proposes for one text; of no use where a model or its heads do."""
        return Lookup() if isinstance(self.proposer, (str, Transformer)) else self.proposer

    @property
    def rate(self) -> float:
        """The acceptance rate: accepted / proposed; 0 where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def per_pass(self) -> float:
        """Tokens that a pass of the large model gave a row, from 1 to `ahead` + 1."""
        return 1 + self.accepted / self.passes if self.passes else 1.0

    def report(self) -> str:
        """What became of what it proposed, in a line."""
        judged = display.count(self.proposed, "proposed token")
        return f"draft: {self.accepted:,} of {judged} accepted ({self.rate:.0%}), {self.per_pass:.1f} tokens a pass"

    def check(self, model: Transformer, reach: int) -> None:
        """Raises `ValueError` unless it can propose for `model` in texts of up to `reach` tokens."""
        models = [model, self.proposer] if isinstance(self.proposer, Transformer) else [model]
        back = recurrent_cache.BACK
        if any(one.config.memory is not None for one in models) and self.ahead > back:
            raise ValueError(
                f"ahead={self.ahead}: expected at most {back}, as many as a cache with linear layers takes back"
            )
        if self.proposer == "own" and model.later is None:
            raise ValueError("draft='own': expected a model with later_heads, got one that has none")
        if not isinstance(self.proposer, Transformer):
            return
        ours, theirs = model.config, self.proposer.config
        if theirs.vocab != ours.vocab:
            raise ValueError(
                f"draft has vocab={theirs.vocab}: expected {ours.vocab}, the model's own vocabulary, id by id"
            )
        if theirs.stack != ours.stack:
            raise ValueError(f"draft has stack={theirs.stack!r}: expected {ours.stack!r}, as the model has")
        if theirs.context < reach:
            raise ValueError(
                f"draft has context={theirs.context}: expected at least {reach}, so that its cache has room for the "
                "text and for what it looks ahead"
            )
        here, there = model.embedding.weight.device, self.proposer.embedding.weight.device
        if here != there:
            raise ValueError(f"draft is on {there}: expected it on {here}, where the model is")


def draft_of(draft: Draft | Proposer | None) -> Draft | None:
    """A `Draft`, of what may stand for one. Raises `ValueError` for anything else."""
    return draft if draft is None or isinstance(draft, Draft) else Draft(draft)
