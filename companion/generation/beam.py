"""Beam search (lesson 10): the most probable text found by keeping a few candidates at every step.

The search follows the rules of `transformers`' `generate(num_beams=...)`, so the same settings give the same sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from companion.costs.account import cache_bytes
from companion.generation.logit_rules import Rules, StoppingCriterion
from companion.generation.prefill_decode import NotFinite, decode, evaluating, prefill, stretched_after
from companion.generation.request import Options, Request
from companion.ground.fields import require_number, require_whole, shown
from companion.ground.memory import check_room
from companion.ground.precision import wide
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer


@dataclass(frozen=True)
class Beam:
    """A continuation and its log-probability, the sum of ln p(token | preceding tokens) over its tokens.

    The sum includes a stop token; a token forced by `Rules.last` adds nothing to it. If other rules forbid tokens, p is
    still the model's own probability, and the probability of the forbidden tokens is not redistributed.
    """

    tokens: tuple[int, ...]
    log_probability: float


@dataclass(frozen=True)
class Search:
    """Settings of `beam_search`, one field for each argument. A width of 1 means that no search takes place."""

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@torch.no_grad()
def beam_search(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    width: int,
    source: Sequence[Sequence[int]] | None = None,
    start: int | None = None,
    max_new_tokens: int | None = None,
    stop: Collection[int] = (),
    rules: Rules | None = None,
    until: StoppingCriterion | None = None,
    length_penalty: float = 0.0,
    early_stopping: bool | Literal["never"] = False,
) -> list[list[Beam]]:
    """Return the best continuations of every prompt, at most `width` each, found with a beam of size `width`.

    The continuations of a prompt are sorted, with the best one first.

    At every step, each live candidate is extended by every possible token. The `width` most probable extensions that
    have not ended stay alive. A candidate that ends (with a `stop` id, or because this was the last step) is stored if
    it is among the `width` most probable of its step and among the `width` best that have ended so far. The score of an
    ended candidate is log_probability / length^length_penalty, where the length is the number of new tokens, including
    the stop id.

    The cost is one pass over the sources, one over the prompts, and then, at each step, a one-token pass for each live
    candidate.

    Args:
        prompts, source, start, max_new_tokens, stop, rules, until: as in `companion.generation.generate.generate`.
        width: number of candidates. 1 is greedy decoding (for length_penalty = 0). A width large enough to hold every
            possible continuation always finds the best one; with smaller widths, a prefix that drops out early is lost,
            even if it has the best continuation.
        length_penalty: 0 compares the probabilities themselves, which favors short texts; 1 compares the mean
            log-probabilities per token. (Wu et al. 2016, eq. 14 divide by ((5 + length) / 6)^alpha instead;
            `transformers` and this function do not.)
        early_stopping: when a prompt's search may end before the last step; it never ends before `width` candidates
            have ended.
            `True`: as soon as `width` candidates have ended. `False`: when the best live candidate, at its current
            length, does not score higher than the worst ended one. `"never"`: when that candidate could not score
            higher at any length; for length_penalty > 0, this is judged at max_new_tokens. For length_penalty <= 0, the
            last two settings are equivalent.

    Raises:
        ValueError: if the width is below 1 or too large for memory, the length_penalty is not finite or overflows,
            early_stopping is unknown, or `generate` would reject the other arguments.
    """
    choices: Options = {"source": source, "start": start, "stop": stop, "rules": rules, "until": until}
    request = Request(model, prompts, max_new_tokens, **choices)
    prompts, steps, ends = request.prompts, request.max_new_tokens, request.stop
    require_whole("width", width)
    require_number("length_penalty", length_penalty)
    if abs(length_penalty) * math.log(steps) > 300:
        raise ValueError(
            f"length_penalty={length_penalty!r}: expected an exponent such that {steps} ** length_penalty is finite"
        )
    if not isinstance(early_stopping, bool) and early_stopping != "never":
        raise ValueError(f"early_stopping={shown(early_stopping)}: expected True, False or 'never'")
    slots = max(map(len, prompts)) + steps - 1
    # There cannot be more live candidates than continuations, so the cache's size is known in advance.
    rows = len(prompts) * min(width, model.config.vocab ** min(steps, 64))
    check_room(f"width={width}", "the cache of its beams", cache_bytes(model.config, slots, batch=rows))

    # With k stop ids, at most k * width of the best (1 + k) * width candidates end, which leaves `width` to stay alive.
    considered = max(2, 1 + len(ends)) * width
    searches = [
        _Search(width, steps, ends, length_penalty, early_stopping, None if until is None else partial(until, row))
        for row in range(len(prompts))
    ]
    with evaluating(model.modules()):
        logits, cache, memory = prefill(model, prompts, source, slots)
        everyone, owners = memory, list(range(len(prompts)))  # owners: the prompt of each row of the cache
        trails = [_Trail(len(prompt), [-1 - row]) for row, prompt in enumerate(prompts)]
        for step in range(steps):
            texts: list[Sequence[int]] = []
            if request.rules.looks_back:
                texts = [[*p, *b.tokens] for p, s in zip(prompts, searches, strict=True) for b in s.live]
            scores = request.allowed(wide(logits).log_softmax(-1), step, texts)
            # Each of a prompt's best `considered` candidates is among the best of its own row.
            best = scores.topk(min(considered, scores.shape[1]), dim=-1)
            values, ids = best.values.tolist(), best.indices.tolist()
            if any(math.isnan(row[0]) for row in values):  # topk puts NaN first
                raise NotFinite(
                    f"logits at step {step}: expected finite values, but some weights of the model are not finite"
                )
            parents: list[int] = []
            first = 0  # row of the prompt's most probable candidate; the prompt's other candidates follow
            for search in searches:
                candidates = [
                    (beam.log_probability + score, place, token)
                    for place, beam in enumerate(search.live)
                    for score, token in zip(values[first + place], ids[first + place], strict=True)
                    if score > -math.inf
                ]
                alive = len(search.live)
                parents += [first + place for place in search.advance(candidates, considered)]
                first += alive
            if not parents:
                break
            now = [i for i, search in enumerate(searches) for _ in search.live]
            cache = _reordered(cache, parents, trails)
            trails = [_Trail(trails[p].given, [*trails[p].steps, step * rows + i]) for i, p in enumerate(parents)]
            if everyone is not None and now != owners:
                memory = everyone.select(torch.tensor(now, device=logits.device))
            owners = now
            if any(len(prompts[i]) + step == stretched_after(model) for i in now):
                logits, cache, memory, trails = _read_anew(model, prompts, searches, source, slots)
                continue
            last = torch.tensor([beam.tokens[-1] for s in searches for beam in s.live], device=logits.device)
            logits, cache = decode(model, last, cache, memory)
    return [search.ended for search in searches]


class _Trail(NamedTuple):
    """Origin of a cache row's contents.

    A row is described by `given`, the number of its prompt tokens, and by one number for the prompt and one for each
    later token. Each number identifies the row and the step that computed the contents. Two rows contain the same bits
    up to the point where their numbers differ.
    """

    given: int
    steps: list[int]

    def shared(self, other: _Trail) -> int:
        """Return the number of slots whose contents are the same as in `other`."""
        agree = min(len(self.steps), len(other.steps))
        while agree and self.steps[agree - 1] != other.steps[agree - 1]:  # if two numbers agree, so do all before them
            agree -= 1
        return self.given + agree - 1 if agree else 0


def _read_anew(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    searches: Sequence[_Search],
    source: Sequence[Sequence[int]] | None,
    slots: int,
) -> tuple[Tensor, KVCache, Memory | None, list[_Trail]]:
    """Read every live candidate again from the beginning, because its cached keys were rotated for a shorter text."""
    texts = [[*prompts[i], *beam.tokens] for i, search in enumerate(searches) for beam in search.live]
    sources = None if source is None else [source[i] for i, search in enumerate(searches) for _ in search.live]
    trails = [_Trail(len(text), [-1 - row]) for row, text in enumerate(texts)]
    return *prefill(model, texts, sources, slots), trails


def _reordered(cache: KVCache, parents: Sequence[int], trails: Sequence[_Trail]) -> KVCache:
    """Compute `cache.select(parents)`, in place and without copying shared slots if the number of rows stays the same.

    Candidates of one prompt differ only in their last tokens, so only those are copied.
    """
    moved = [(row, parent) for row, parent in enumerate(parents) if row != parent]
    # Rolling layers number their columns differently, and linear layers store more than columns.
    apart = cache.local is not None or cache.states is not None
    if len(parents) != cache.batch or (moved and apart):
        return cache.select(torch.tensor(parents, device=cache.lengths.device))
    if not moved:
        return cache
    rows, sources = torch.tensor(moved, device=cache.lengths.device).T
    first = min(trails[row].shared(trails[parent]) for row, parent in moved)
    for store in (*cache.keys, *cache.values):
        store[rows, :, first : cache.filled] = store[sources, :, first : cache.filled]
    lengths = cache.lengths.index_copy(0, rows, cache.lengths[sources])
    return replace(cache, lengths=lengths)


@dataclass
class _Search:
    """The search for one prompt, which keeps the live candidates and the best ended ones, both in descending order.

    When the search is over, no candidate is live.
    """

    width: int
    steps: int
    stop: frozenset[int]
    length_penalty: float
    early_stopping: bool | Literal["never"]
    until: Callable[[Sequence[int]], bool] | None = None
    live: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    ended: list[Beam] = field(default_factory=list)

    def advance(self, candidates: Iterable[tuple[float, int, int]], considered: int) -> list[int]:
        """Take one step, and return for each live beam the index of the beam it continues.

        Args:
            candidates: each candidate's ln p, its parent's index in `live`, and its token.
            considered: number of best candidates to look at.
        """
        if not self.live:
            return []
        length = len(self.live[0].tokens) + 1
        going: list[tuple[Beam, int]] = []
        ranked = sorted(candidates, key=lambda candidate: -candidate[0])[:considered]
        for rank, (score, place, token) in enumerate(ranked):
            beam = Beam((*self.live[place].tokens, token), score)
            ends = token in self.stop or length == self.steps or (self.until is not None and self.until(beam.tokens))
            if (ends and rank < self.width) or (not ends and len(going) < self.width):
                if ends:
                    self.ended.append(beam)
                else:
                    going.append((beam, place))
        self.ended = sorted(self.ended, key=lambda beam: -self._worth(beam, len(beam.tokens)))[: self.width]
        if not going or self._over(going[0][0]):
            going = []
        self.live = [beam for beam, _ in going]
        return [place for _, place in going]

    def _over(self, best: Beam) -> bool:
        """Return whether to stop the search while `best` is the most probable live candidate."""
        if len(self.ended) < self.width:
            return False
        if self.early_stopping is True:
            return True
        # The sum of log-probabilities only falls. Dividing the sum by a power of the length gives the best score where
        # that power is largest, which is the last step if the penalty is positive.
        hopes = self.early_stopping == "never" and self.length_penalty > 0
        worst = self.ended[-1]
        return self._worth(best, self.steps if hopes else len(best.tokens)) <= self._worth(worst, len(worst.tokens))

    def _worth(self, beam: Beam, length: int) -> float:
        return beam.log_probability / length**self.length_penalty
