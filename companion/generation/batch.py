"""Sequences that come and go while others are being written, over one cache: continuous batching (lesson 10).

A step reads every weight whether it serves one sequence or many, so as many as are there are written together; and none
waits for the longest, as in a batch that begins and ends together: a sequence joins at the next step (Yu et al. 2022,
"Orca", section 3.1, iteration-level scheduling) and leaves when it ends.

    batch = Batch(model, rows=8, slots=256)
    first = batch.add(prompt, max_new_tokens=40)
    while batch.running:
        for written in batch.step():
            print(written.number, written.token)

What a sequence is, its text depends on alone: it is what `generate` writes for its prompt and its stream, whoever is
there with it (but the last digits of the logits may differ).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from companion.config.model import require, require_whole
from companion.generation.constraints import Rules, Until
from companion.generation.next_token import NOTHING, draw_tokens
from companion.generation.passes import NotFinite, decode, evaluating
from companion.generation.request import Request, Stream, Text, check_model, check_prompts, checked
from companion.generation.sampling import Sampling
from companion.generation.weights import Weights, check_weights, writer_of
from companion.ground.arguments import described
from companion.layers.cache import KVCache
from companion.layers.rolling import Local
from companion.transformer import Transformer


class Written(NamedTuple):
    """A token that a step has written. number: of its sequence, as `add` gave it. last: whether that has ended."""

    number: int
    token: int
    last: bool


@dataclass
class _Sequence:
    """One that is running: what is asked of it, and its text so far. `held`: tokens of it in the cache."""

    number: int
    text: Text
    request: Request
    held: int = 0

    @property
    def written(self) -> int:
        return len(self.text.ids) - self.text.given

    def allowed(self, logits: Float[Tensor, "vocab"]) -> Float[Tensor, "1 vocab"]:
        """What its rules leave."""
        asked = self.request
        return asked.rules.apply(logits[None], self.written, asked.steps, asked.ends.stop, [self.text.ids])


class Batch:
    """At most `rows` sequences of a decoder, each of at most `slots` tokens, prompt and new ones.

    weights:  the form in which steps read the weights, as in `generate`: of those that the model has when a first
              sequence comes, for as long as any is there.

    The cache is made once, for `rows` x `slots` tokens; layers that look through a window have a slot for each of them
    too. A step costs a pass of one token for each sequence that is there; those that come at the same step have their
    prompts read together, in one more.

    Raises `ValueError` for a model that is no decoder, a size below 1, more slots than its context, and where memory
    has no room.
    """

    def __init__(self, model: Transformer, *, rows: int, slots: int | None = None, weights: Weights | None = None):
        check_model(model)
        config = model.config
        if config.stack != "decoder":
            raise ValueError(f"model has stack={config.stack!r}: expected 'decoder', whose sequences share no source")
        require(config.memory is None, "linear", config.memory, "None: rows of a batch share no matrices")
        slots = config.context if slots is None else slots
        for name, value in (("rows", rows), ("slots", slots)):
            require_whole(name, value)
        if slots > config.context:
            raise ValueError(f"slots={slots}: expected at most context={config.context}, as the model has")
        self.model, self.rows, self.slots = model, rows, slots
        check_weights(model, weights)
        self._weights = weights
        self._writer: Transformer | None = None
        self._modules = list(model.modules())
        self._cache = _whole_cache(model, rows, slots)
        self._there: list[_Sequence] = []  # in the cache's rows, from the first on
        self._waiting: list[_Sequence] = []
        self._next = 0

    @property
    def running(self) -> list[int]:
        """The numbers of the sequences that have not ended, in the order in which they came."""
        return sorted(sequence.number for sequence in (*self._there, *self._waiting))

    @property
    def free(self) -> int:
        """How many sequences more there is room for."""
        return self.rows - len(self._there) - len(self._waiting)

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Collection[int] = (),
        rules: Rules | None = None,
        until: Until | None = None,
        seed: int = 0,
        stream: Stream = 0,
    ) -> int:
        """Let a sequence join at the next step; its number, counted from 0.

        max_new_tokens:  how many at most. `None`: until it fills its slots.
        seed, stream:    of its own random numbers: it writes what row `stream` of `generate(..., seed=seed)` would.
        until:           gets the sequence's number and its new tokens so far.

        The others are as in `generate`. Raises `ValueError` for what `generate` refuses, for a sequence that has more
        tokens than a row has slots, and if no row is free.
        """
        if max_new_tokens is None and isinstance(prompt, Sequence):
            max_new_tokens = max(1, self.slots - len(prompt))
        (prompt,), steps = check_prompts(self.model, [prompt], None, None, max_new_tokens)
        asked = checked(
            self.model,
            [prompt],
            steps,
            reach=len(prompt) + steps,
            sampling=sampling,
            stop=stop,
            rules=rules,
            until=until,
            seed=seed,
            streams=[stream],
        )
        if len(prompt) + steps > self.slots:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and max_new_tokens={steps} make {len(prompt) + steps}: expected at "
                f"most slots={self.slots}"
            )
        if not self.free:
            raise ValueError(f"rows={self.rows}: expected one to be free, but all are running; a step may end one")
        number, self._next = self._next, self._next + 1
        self._waiting.append(_Sequence(number, Text(list(prompt), len(prompt), number), asked))
        return number

    def remove(self, number: int) -> list[int]:
        """Let a sequence leave at once; its new tokens so far. Raises `ValueError` for one that is not running."""
        for sequence in (*self._there, *self._waiting):
            if sequence.number == number:
                self._leave(sequence)
                return sequence.text.ids[sequence.text.given :]
        raise ValueError(f"number={described(number)}: expected one of those that are running, {self.running}")

    def step(self) -> list[Written]:
        """One more token of every sequence, in the order in which they came; those that have ended are gone.

        Raises `NotFinite` where the logits of a sequence are not numbers, and `ValueError` where its rules leave no
        token; that sequence is gone then, and no other has been touched: the next step goes on with them.
        """
        if not self.running:
            return []
        with torch.inference_mode(), evaluating(self._modules):
            logits = self._logits()
            going = [*self._there, *self._waiting]
            allowed = torch.cat([s.allowed(row) for s, row in zip(going, logits, strict=True)])
            for sequence, row, fit in zip(going, logits, allowed.amax(-1).isfinite().tolist(), strict=True):
                if not fit:  # before anybody has taken a random number
                    self._dismiss(sequence, row)
            drawn = self._drawn(going, allowed)
        for sequence in self._there:
            sequence.held += 1
        for sequence in self._waiting:
            sequence.held = sequence.text.given
        self._there, self._waiting = going, []
        written = []
        for sequence, token in zip(going, drawn, strict=True):
            assert token != NOTHING
            sequence.text.ids.append(token)
            last = sequence.written == sequence.request.steps or sequence.request.ends.after(sequence.text)
            written.append(Written(sequence.number, token, last))
        for one in written:
            if one.last:
                self.remove(one.number)
        return sorted(written)

    def _logits(self) -> Float[Tensor, "sequence vocab"]:
        """What follows each text; its cache is filled, and `held` does not say so yet."""
        found, device = [], self.model.embedding.weight.device
        if self._there:
            last = torch.tensor([sequence.text.ids[-1] for sequence in self._there], device=device)
            held = [sequence.held for sequence in self._there]
            if self._writer is None:
                self._writer = writer_of(self.model, self._weights, self.slots, self.rows)
            found.append(decode(self._writer, last, self._rows(0, held), None)[0])
        else:
            self._writer = None
        if self._waiting:
            texts = [sequence.text.ids for sequence in self._waiting]
            longest = max(map(len, texts))
            # Padding sits to the right, where no real token can see it; `held` leaves it out.
            prompts = torch.tensor([ids + [0] * (longest - len(ids)) for ids in texts], device=device)
            stream = self.model.features(prompts, cache=self._rows(len(self._there), [0] * len(texts))).stream
            found.append(self.model.head(stream[range(len(texts)), [len(ids) - 1 for ids in texts]]))
        return torch.cat(found)

    def _drawn(self, going: Sequence[_Sequence], allowed: Float[Tensor, "sequence vocab"]) -> list[int]:
        """A token of each sequence; those that draw in one manner together."""
        tokens = [NOTHING] * len(going)
        for sampling in dict.fromkeys(sequence.request.sampling for sequence in going):
            rows = [i for i, sequence in enumerate(going) if sequence.request.sampling == sampling]
            streams = [going[i].request.streams[0] for i in rows]
            for row, token in zip(rows, draw_tokens(allowed[rows], sampling, streams).tolist(), strict=True):
                tokens[row] = token
        return tokens

    def _leave(self, sequence: _Sequence) -> None:
        """Give its row back: the last one that is in use takes its place, so that those in use stay together."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return
        row, moved = self._there.index(sequence), self._there.pop()
        if moved is not sequence:
            self._there[row] = moved
            for store in (*self._cache.keys, *self._cache.values):
                store[row, :, : moved.held] = store[len(self._there), :, : moved.held]

    def _dismiss(self, sequence: _Sequence, logits: Float[Tensor, "vocab"]) -> NoReturn:
        """Let a sequence leave that no token can follow, and say why."""
        self._leave(sequence)
        # A masked slot has weight zero, and zero times what it may have left behind could be NaN.
        for store in (*self._cache.keys, *self._cache.values):
            store[len(self._there) :] = 0
            for row, other in enumerate(self._there):
                store[row, :, other.held :] = 0
        if bool(logits.isfinite().all()):
            raise ValueError(f"rules: no token is left for sequence {sequence.number}: expected rules that leave one")
        raise NotFinite(f"logits of sequence {sequence.number}: expected finite numbers, got others")

    def _rows(self, first: int, held: Sequence[int]) -> KVCache:
        """The cache of the rows from `first` on, which hold so many tokens; what is written goes into the one cache."""
        cache, rows, filled = self._cache, slice(first, first + len(held)), max(held)
        local = None if cache.local is None else replace(cache.local, columns=filled)
        return replace(
            cache,
            keys=tuple(store[rows] for store in cache.keys),
            values=tuple(store[rows] for store in cache.values),
            lengths=torch.tensor(held, device=cache.lengths.device),
            filled=filled,
            uniform=min(held) == filled,
            local=local,
        )


def _whole_cache(model: Transformer, rows: int, slots: int) -> KVCache:
    """An empty cache whose local layers have a column for every slot, so that none of them rolls: rows are moved."""
    config, weight = model.config, model.embedding.weight
    everywhere = config.with_(attention=replace(config.attention, window=None))
    cache = KVCache.create(everywhere, rows, slots, dtype=weight.dtype, device=weight.device)
    return replace(cache, local=Local.of(config, slots))
