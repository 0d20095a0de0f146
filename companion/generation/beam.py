"""Beam search: the most probable text that keeping a few candidates at every step finds (lesson 10).

It follows the rules of `transformers`' `generate(num_beams=...)`, so that the same settings give the same sequences.
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
from companion.generation.logit_rules import Rules, Until
from companion.generation.prefill_decode import NotFinite, decode, evaluating, prefill, stretched_after
from companion.generation.request import check_prompts
from companion.ground.arguments import check_kind
from companion.ground.fields import require_number, require_whole, shown
from companion.ground.memory import check_room
from companion.ground.precision import wide
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer


@dataclass(frozen=True)
class Beam:
    """A continuation and ln p of it: the sum over its tokens, a stop token included, of ln p(token | what precedes).

    A token that `Rules.last` forced adds nothing. Where other rules forbid tokens, p is the model's own still: what
    they take away is not shared out among the rest.
    """

    tokens: tuple[int, ...]
    log_probability: float


@dataclass(frozen=True)
class Search:
    """What `beam_search` is to be told of a search, and calls by the same names; a width of 1 is none."""

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
    until: Until | None = None,
    length_penalty: float = 0.0,
    early_stopping: bool | Literal["never"] = False,
) -> list[list[Beam]]:
    """For every prompt, the best continuations that a beam of `width` candidates finds: at most `width`, best first.

    At every step each live candidate is continued by every token. Of all these, the `width` most probable that have not
    ended live on. One that ends (in a `stop` id, or because it was the last step) is kept if it is among the `width`
    most probable of its step and among the `width` best that have ended so far. What has ended is worth
    log_probability / length^length_penalty, its length counting the new tokens, the stop id among them.

    prompts, source, start, max_new_tokens, stop, rules, until: as in `companion.generation.generate.generate`.
    width:           1 is greedy decoding (for length_penalty = 0). A width that holds every continuation finds the best
                     for certain; in between, a prefix that falls out early is lost, however good its continuation.
    length_penalty:  0 compares the probabilities themselves, which favours short texts; 1 the means per token. (Wu et
                     al. 2016, eq. 14 divide by ((5 + length) / 6)^alpha instead; `transformers` and we do not.)
    early_stopping:  when a prompt's search ends before the last step; in every case only once `width` candidates have
                     ended. `True`: then. `False`: when the best live candidate, at its present length, is worth no more
                     than the worst that ended. `"never"`: when it could be worth more at no length, which for
                     length_penalty > 0 is judged at max_new_tokens. For length_penalty <= 0 the last two are the same.

    Cost: the passes over sources and prompts, then per step the pass of one token for each live candidate.

    Raises `ValueError` for a width below 1 or too large for memory, a length_penalty that is not finite or overflows,
    an unknown early_stopping, and as `generate` does.
    """
    rules = Rules() if rules is None else rules
    check_kind("rules", rules, Rules, "Rules, such as Rules(never=[0])")
    prompts, steps = check_prompts(model, prompts, source, start, max_new_tokens)
    rules.check(model.config.vocab, stop)
    require_whole("width", width)
    require_number("length_penalty", length_penalty)
    if abs(length_penalty) * math.log(steps) > 300:
        raise ValueError(f"length_penalty={length_penalty!r}: expected a number of which {steps} can be taken to it")
    if not isinstance(early_stopping, bool) and early_stopping != "never":
        raise ValueError(f"early_stopping={shown(early_stopping)}: expected True, False or 'never'")
    slots = max(map(len, prompts)) + steps - 1
    # More than there are continuations cannot live; what the cache of those that can would take is known before.
    rows = len(prompts) * min(width, model.config.vocab ** min(steps, 64))
    check_room(f"width={width}", "the cache of its beams", cache_bytes(model.config, slots, batch=rows))

    ends = frozenset(stop)
    # With k stop ids, at most k * width of the best (1 + k) * width candidates end: `width` are left to live on.
    considered = max(2, 1 + len(ends)) * width
    searches = [
        _Search(width, steps, ends, length_penalty, early_stopping, None if until is None else partial(until, row))
        for row in range(len(prompts))
    ]
    with evaluating(model.modules()):
        logits, cache, memory = prefill(model, prompts, source, slots)
        everyone, owners = memory, list(range(len(prompts)))  # owners: whose candidate each row of the cache is
        trails = [_Trail(len(prompt), [-1 - row]) for row, prompt in enumerate(prompts)]
        for step in range(steps):
            texts: list[Sequence[int]] = []
            if rules.looks_back:
                texts = [[*p, *b.tokens] for p, s in zip(prompts, searches, strict=True) for b in s.live]
            scores = rules.apply(wide(logits).log_softmax(-1), step, steps, ends, texts)
            # A row's share of its prompt's best `considered` is among its own best.
            best = scores.topk(min(considered, scores.shape[1]), dim=-1)
            values, ids = best.values.tolist(), best.indices.tolist()
            if any(math.isnan(row[0]) for row in values):  # a NaN is the first of the best
                raise NotFinite(
                    f"logits at step {step}: expected finite numbers, got others; so is a weight of the model"
                )
            parents: list[int] = []
            first = 0  # the row of the prompt's most probable candidate; the others follow
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
    """Where what a row of the cache holds comes from: `given` tokens of a prompt, and for the prompt and each later
    token a number of the row and step that computed it. Two rows hold the same bits as far as their numbers agree."""

    given: int
    steps: list[int]

    def shared(self, other: _Trail) -> int:
        """Slots that hold the same as those of `other`."""
        agree = min(len(self.steps), len(other.steps))
        while agree and self.steps[agree - 1] != other.steps[agree - 1]:  # from there on back they all agree
            agree -= 1
        return self.given + agree - 1 if agree else 0


def _read_anew(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    searches: Sequence[_Search],
    source: Sequence[Sequence[int]] | None,
    slots: int,
) -> tuple[Tensor, KVCache, Memory | None, list[_Trail]]:
    """Every live candidate read from its beginning, where the keys kept were turned for shorter texts."""
    texts = [[*prompts[i], *beam.tokens] for i, search in enumerate(searches) for beam in search.live]
    sources = None if source is None else [source[i] for i, search in enumerate(searches) for _ in search.live]
    trails = [_Trail(len(text), [-1 - row]) for row, text in enumerate(texts)]
    return *prefill(model, texts, sources, slots), trails


def _reordered(cache: KVCache, parents: Sequence[int], trails: Sequence[_Trail]) -> KVCache:
    """`cache.select(parents)`; in place, and without copying what rows share, where as many rows live on as before.

    Candidates of one prompt differ in their last tokens: those alone are copied.
    """
    moved = [(row, parent) for row, parent in enumerate(parents) if row != parent]
    # Rolling layers number columns otherwise, and linear ones keep more than columns.
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
    """One prompt's search: the candidates that live, most probable first, and those kept that have ended, best first.

    When it is over nothing lives.
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
        """Take one step, given each candidate's ln p, its parent's place in `live` and its token; for each live beam,
        the index of the beam it continues."""
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
        """Whether to stop looking while `best` is the most probable live candidate."""
        if len(self.ended) < self.width:
            return False
        if self.early_stopping is True:
            return True
        # The sum of log-probabilities only falls. Divided by a power of the length it is worth most where that power is
        # largest: at the last step for a positive penalty.
        hopes = self.early_stopping == "never" and self.length_penalty > 0
        worst = self.ended[-1]
        return self._worth(best, self.steps if hopes else len(best.tokens)) <= self._worth(worst, len(worst.tokens))

    def _worth(self, beam: Beam, length: int) -> float:
        return beam.log_probability / length**self.length_penalty
