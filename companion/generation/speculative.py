"""Speculative decoding (lessons 10 and 18): a fast draft proposes the next tokens, which the model verifies in one
pass.

A step of one row reads every weight to write a single token. A pass over five tokens also reads the weights only once,
and takes hardly any longer. Therefore all proposed tokens are read in one pass, and the tokens that the model would
have written are accepted. The choice of draft affects only the speed.

Deterministic proposals (from prompt lookup or greedy decoding) are accepted as long as they equal the tokens that the
model itself draws at their positions. The text is then the same as without a draft, token by token, for every seed. A
token that a draft model has drawn from its distribution q is accepted with probability min(1, p / q), where p is the
large model's distribution. The first rejected token is redrawn from max(0, p - q) (Leviathan et al. 2023, algorithm 1;
Chen et al. 2023). The same seed then gives a different text, but from the same distribution. `Sampling` and the rules
apply to both p and q. All of this is true up to the last digits of the logits, which may depend on the number of tokens
in a pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from companion.config.model import RotaryScaling
from companion.generation.draft import Draft, Propose
from companion.generation.logit_rules import Rules, check_ids
from companion.generation.next_token import NOTHING, exactly, most_probable, pick, raise_nothing
from companion.generation.prefill_decode import NotFinite, evaluating, prefill, prefill_stream, stretched_after
from companion.generation.request import Request, Text
from companion.layers.cache import KVCache
from companion.quantization.weights import writer_of
from companion.transformer import Memory, Transformer


@dataclass
class _Row:
    """A text being written. `ids` are the tokens that the model sees; the first `given` of them are the prompt."""

    ids: list[int]
    given: int
    text: Text
    generator: np.random.Generator
    done: bool = False

    @property
    def written(self) -> int:
        return len(self.ids) - self.given

    def ahead(self, count: int) -> list[float]:
        """Return the next random numbers without consuming them."""
        before = self.generator.bit_generator.state
        numbers: list[float] = self.generator.random(count).tolist()
        self.generator.bit_generator.state = before
        return numbers


def _allowed(
    request: Request, logits: Float[Tensor, "place vocab"], places: Sequence[tuple[_Row, Sequence[int]]]
) -> Float[Tensor, "place vocab"]:
    """Apply the rules to the logits that follow each row and its proposed tokens."""
    rules = request.rules
    if rules == Rules():
        return logits
    texts = [[[*row.text.ids, *proposed]] if rules.looks_back else [()] for row, proposed in places]
    steps = [row.written + len(proposed) for row, proposed in places]
    return torch.cat([request.allowed(logits[i : i + 1], steps[i], text) for i, text in enumerate(texts)])


def speculate(request: Request, texts: Sequence[Text], draft: Draft) -> Iterator[list[int | None]]:
    """Yield the same steps as `generate`, computed in passes over the tokens that `draft` proposes.

    Each row advances by as many tokens as are accepted for it. A row that is ahead of the others keeps writing, and its
    tokens are yielded when the others have caught up. `texts` are extended in place.
    """
    model, prompts, source, steps = request.model, request.prompts, request.source, request.max_new_tokens
    rows = [_Row(list(ids), len(ids), text, s) for ids, text, s in zip(prompts, texts, request.generators, strict=True)]
    slots = max(map(len, prompts)) + steps  # a finished row still reads its last token with the others
    modules = list(model.modules())
    with torch.inference_mode(), evaluating(modules):
        stream, cache, memory = prefill_stream(model, prompts, source, slots)
        last = _keep(model.head(stream), rows, [[] for _ in rows], None, request, draft)
    yield from (given := _Given(rows)).ready()
    if all(row.done for row in rows):
        return
    small = draft.proposer if isinstance(draft.proposer, Transformer) else None
    writer = writer_of(model, request.weights, steps - 1, len(prompts) * (1 + draft.num_draft_tokens))
    reader, drafter = _Reader(writer, cache, memory), None  # type: _Reader, _Drafter | None
    drafting = modules
    if small is not None:
        drafting = list(small.modules())
        with torch.inference_mode(), evaluating(drafting):
            _, cache, memory = prefill(small, prompts, source, slots)
        writer = writer_of(small, request.weights, steps - 1, len(prompts))
        drafter = _SmallModel(_Reader(writer, cache, memory), request)
    elif draft.proposer == "medusa":
        reader.stream, reader.last = stream, last
        drafter = _OwnHeads(reader, request)
    functions = [draft.function() for _ in rows]
    while not all(row.done for row in rows):
        counts = _counts(request, rows, draft)
        _read_anew(reader, request, rows, slots, modules)
        chances = None
        if drafter is not None:
            with torch.inference_mode(), evaluating(drafting):
                proposals, chances = drafter.propose(rows, counts)
        else:
            proposals = [
                _called(function, row, count, model.config.vocab)
                for function, row, count in zip(functions, rows, counts, strict=True)
            ]
        with torch.inference_mode(), evaluating(modules):
            logits = reader.judge(rows, proposals)
            reader.last = _keep(logits, rows, proposals, chances, request, draft)
        yield from given.ready()


def _called(propose: Propose, row: _Row, count: int, vocab: int) -> list[int]:
    if count == 0:
        return []
    proposed = list(propose(row.text.ids, count))[:count]
    check_ids("draft", proposed, vocab)
    return proposed


def _counts(request: Request, rows: Sequence[_Row], draft: Draft) -> list[int]:
    """Return how many tokens may be proposed for each row."""
    # Proposals may reach the second-to-last token, because the pass itself adds one more.
    counts = [0 if row.done else min(draft.num_draft_tokens, request.max_new_tokens - row.written - 1) for row in rows]
    scaling = request.model.config.positions.scaling
    return counts if scaling is None or not scaling.by_length else _within(rows, counts, scaling)


def _read_anew(
    reader: _Reader, request: Request, rows: Sequence[_Row], slots: int, modules: Sequence[nn.Module]
) -> None:
    """Read all rows again if one grows past longrope's C, because its cached keys were rotated for a shorter text."""
    anew = stretched_after(request.model)
    if any(not row.done and len(row.ids) - 1 == anew for row in rows):
        with torch.inference_mode(), evaluating(modules):
            reader.anew(prefill(request.model, [row.ids for row in rows], request.source, slots)[1])


def _within(rows: Sequence[_Row], counts: Sequence[int], scaling: RotaryScaling) -> list[int]:
    """Limit `counts` so that verifying the tokens in one pass gives the same results as reading them one by one.

    If rotary frequencies depend on the length of a text, a pass uses the frequencies for its largest position. Up to C
    tokens, all lengths have the same frequencies. Beyond C, longrope again has a single set of frequencies, but dynamic
    scaling has a different one for every length, so no tokens are proposed beyond C.
    """
    assert scaling.original is not None
    room = [scaling.original - len(row.ids) for row in rows]
    beyond = [not row.done and left < 0 for row, left in zip(rows, room, strict=True)]
    if scaling.kind == "longrope":
        return [n if past else max(0, min(n, left)) for n, past, left in zip(counts, beyond, room, strict=True)]
    return [0 if any(beyond) else max(0, min(n, left)) for n, left in zip(counts, room, strict=True)]


class _Given:
    """Tracks which steps have been yielded, because rows grow at different speeds."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows, self.steps = rows, 0

    def ready(self) -> Iterator[list[int | None]]:
        """Yield the next steps for which every row's token is known. A row that has already ended gets `None`."""
        end = max(row.written for row in self.rows)
        for row in self.rows:
            end = end if row.done else min(end, row.written)
        for step in range(self.steps, end):
            yield [row.ids[row.given + step] if step < row.written else None for row in self.rows]
        self.steps = max(self.steps, end)


class _Reader:
    """A model with a cache for all rows; each row can be rolled back separately.

    Attributes:
        stream: the residual stream at the positions that were verified last.
        last: for each row, the index in `stream` of the state that its last token was drawn from.
    """

    stream: Float[Tensor, "place d_model"]
    last: dict[int, int]

    def __init__(self, model: Transformer, cache: KVCache, memory: Memory | None) -> None:
        self.model, self.cache, self.memory = model, cache, memory
        self._held: list[int] | None = None

    def anew(self, cache: KVCache) -> None:
        """Replace the cache with another one for the same rows."""
        self.cache, self._held = cache, None

    def read(self, tokens: Sequence[Sequence[int]], starts: list[int]) -> Float[Tensor, "batch token d_model"]:
        """Return the stream for `tokens`, which begin at position `starts[r]` in row r.

        Cached tokens from these positions on are dropped first.
        """
        if starts != self._held:
            self.cache = self.cache.rewind(torch.tensor(starts))
        table = self.model.embedding.weight
        ids = torch.tensor(tokens, device=table.device)
        stream, _, cache = self.model.features(ids, source=self.memory, cache=self.cache)
        assert cache is not None
        self.cache, self._held = cache, [start + len(tokens[0]) for start in starts]
        return stream

    def judge(self, rows: Sequence[_Row], proposals: Sequence[Sequence[int]]) -> Float[Tensor, "place vocab"]:
        """Return the logits after each unfinished row's last token and after each of its proposals, row by row."""
        most = max(map(len, proposals))
        tokens, starts, at = [], [], ([], [])  # type: tuple[list, list, tuple[list[int], list[int]]]
        for i, (row, proposed) in enumerate(zip(rows, proposals, strict=True)):
            last = len(row.ids) - 1
            # A row with fewer proposals reads some of its text again, because padding could extend beyond the end of
            # the cache. Only a text too short to be near that end is padded.
            start = max(0, last + len(proposed) - most)
            read = [*row.ids[start:], *proposed]
            tokens.append(read + [0] * (most + 1 - len(read)))
            starts.append(start)
            if not row.done:
                at[0].extend([i] * (len(proposed) + 1))
                at[1].extend(range(last - start, last - start + len(proposed) + 1))
        self.stream = self.read(tokens, starts)[at]
        return self.model.head(self.stream)


class _Drafter(ABC):
    """A draft that chooses its proposals from logits, one token per row and step."""

    def __init__(self, reader: _Reader, request: Request) -> None:
        self.reader, self.request = reader, request

    @abstractmethod
    def logits(
        self, i: int, rows: Sequence[_Row], proposals: Sequence[list[int]], counts: Sequence[int], going: list[int]
    ) -> Float[Tensor, "going vocab"]:
        """Return the logits for proposal number i, counted from 0, of the rows in `going`."""

    def possible(self, rows: Sequence[_Row], counts: Sequence[int]) -> list[int]:
        """Return how many tokens the draft can propose for each row, at most `counts`."""
        return list(counts)

    def propose(
        self, rows: Sequence[_Row], counts: Sequence[int]
    ) -> tuple[list[list[int]], list[list[Float64[Tensor, "vocab"]]] | None]:
        """Propose up to `counts` tokens for each row.

        Returns:
            The proposals, and for each proposed token the distribution it was drawn from, or `None` in greedy decoding.
        """
        sampling, counts = self.request.sampling, self.possible(rows, counts)
        proposals: list[list[int]] = [[] for _ in rows]
        chances: list[list[Tensor]] = [[] for _ in rows]
        for i in range(max(counts)):
            going = [r for r, count in enumerate(counts) if count > i]
            logits = self.logits(i, rows, proposals, counts, going)
            allowed = _allowed(self.request, logits, [(rows[r], proposals[r]) for r in going])
            if sampling.temperature == 0:
                drawn = most_probable(allowed).tolist()
            else:
                probabilities = sampling.probabilities(allowed)
                drawn = pick(probabilities, [rows[r].generator.random() for r in going]).tolist()
                for r, chance in zip(going, exactly(probabilities), strict=True):
                    chances[r].append(chance)
            for place, (r, token) in enumerate(zip(going, drawn, strict=True)):
                if token != NOTHING:
                    proposals[r].append(token)
                elif bool(logits[place].isfinite().all()):
                    counts[r] = i  # the rules leave no token; if the text gets this far, the model will raise
                else:
                    raise NotFinite(
                        f"draft: logits of row {rows[r].text.row}: expected finite numbers, got NaN or infinity"
                    )
        return proposals, None if sampling.temperature == 0 else chances


class _SmallModel(_Drafter):
    """A separate draft model, which reads its own proposals."""

    def propose(
        self, rows: Sequence[_Row], counts: Sequence[int]
    ) -> tuple[list[list[int]], list[list[Float64[Tensor, "vocab"]]] | None]:
        """Propose tokens; if none may be proposed now, still read the tokens written since the last call."""
        if not any(counts) and any(not row.done and row.written + 1 < self.request.max_new_tokens for row in rows):
            self.logits(0, rows, [[] for _ in rows], counts, [])
        return super().propose(rows, counts)

    def logits(
        self, i: int, rows: Sequence[_Row], proposals: Sequence[list[int]], counts: Sequence[int], going: list[int]
    ) -> Float[Tensor, "going vocab"]:
        """Return the logits after each row and its proposals so far."""
        # First the small model reads the last two tokens, because it has not read its own last proposal, which may have
        # been accepted. After that it reads only the newest token. In a row that has enough proposals, it reads the
        # last one again.
        starts = [len(row.ids) - 2 if i == 0 else len(row.ids) - 1 + min(i, max(count - 1, 0))
                  for row, count in zip(rows, counts, strict=True)]  # fmt: skip
        read = [
            [*row.ids[start:], *proposed][: 2 if i == 0 else 1]
            if start < len(row.ids)
            else [proposed[start - len(row.ids)]]
            for row, proposed, start in zip(rows, proposals, starts, strict=True)
        ]
        return self.reader.model.head(self.reader.read(read, starts)[going, -1])


class _OwnHeads(_Drafter):
    """Multi-token-prediction heads of the model itself.

    The heads predict later tokens from the stream that the last token was drawn from.
    """

    def possible(self, rows: Sequence[_Row], counts: Sequence[int]) -> list[int]:
        """Limit `counts` to the number of heads."""
        assert self.reader.model.medusa is not None
        self.states = list(self.reader.model.medusa(self.reader.stream))
        return [min(count, len(self.states)) for count in counts]

    def logits(
        self, i: int, rows: Sequence[_Row], proposals: Sequence[list[int]], counts: Sequence[int], going: list[int]
    ) -> Float[Tensor, "going vocab"]:
        """Return the logits of head i + 1, which do not depend on the other proposals."""
        return self.reader.model.head(self.states[i][[self.reader.last[r] for r in going]])


def _keep(
    logits: Float[Tensor, "place vocab"],
    rows: Sequence[_Row],
    proposals: Sequence[list[int]],
    chances: Sequence[list[Float64[Tensor, "vocab"]]] | None,
    request: Request,
    draft: Draft,
) -> dict[int, int]:
    """Append to each row its accepted proposals and the token that follows them.

    Returns:
        For each row, the index in `logits` that the token after the accepted ones was drawn from.
    """
    going = [(r, row) for r, row in enumerate(rows) if not row.done]
    places = [(row, proposals[r][:n]) for r, row in going for n in range(len(proposals[r]) + 1)]
    allowed = _allowed(request, logits, places)
    sampling, drawn = request.sampling, [0]
    if sampling.temperature == 0:
        drawn = most_probable(allowed).tolist()
    else:
        probabilities = sampling.probabilities(allowed)
        if chances is None:
            numbers = [u for r, row in going for u in row.ahead(len(proposals[r]) + 1)]
            drawn = pick(probabilities, numbers).tolist()
    at, last_places = 0, {}
    for r, row in going:
        proposed, end = proposals[r], at + len(proposals[r]) + 1
        if chances is None:
            accepted, last = _as_drawn(drawn[at:end], proposed)
        else:
            numbers = row.generator.random(len(proposed) + 1).tolist()
            accepted, last = verdict(exactly(probabilities[at:end]), chances[r][: len(proposed)], proposed, numbers)
        first = row.written
        for place, token in enumerate([*proposed[:accepted], last]):
            if token == NOTHING:
                raise_nothing(logits[at + place], row.text.row, row.written)
            row.ids.append(token)
            row.text.ids.append(token)
            if request.ends(row.text) or row.written == request.max_new_tokens:
                row.done = True
                break
        added = row.written - first
        if chances is None and sampling.temperature != 0:
            row.generator.random(added)  # now consume the random numbers that were used
        if first:
            draft.passes += 1
            draft.proposed += added if added <= accepted else len(proposed)  # tokens after the end are not verified
            draft.accepted += min(added, accepted)
        last_places[r] = at + accepted
        at = end
    return last_places


def _as_drawn(drawn: Sequence[int], proposed: Sequence[int]) -> tuple[int, int]:
    """Return how many proposed tokens equal the tokens drawn at their positions, and the token drawn after them."""
    accepted = 0
    while accepted < len(proposed) and proposed[accepted] == drawn[accepted]:
        accepted += 1
    return accepted, drawn[accepted]


def verdict(
    p: Float64[Tensor, "place vocab"],
    q: Sequence[Float64[Tensor, "vocab"]],
    proposed: Sequence[int],
    uniform: Sequence[float],
) -> tuple[int, int]:
    """Return how many proposed tokens are accepted, and the token that follows (Leviathan et al. 2023, algorithm 1).

    Token x is accepted if u q(x) < p(x), that is, with probability min(1, p(x) / q(x)). At the first rejection, the
    token is drawn from max(0, p - q); if all are accepted, it is drawn from p. The result has distribution p, because
    q(x) min(1, p(x) / q(x)) = min(p, q), and the rest of p, max(0, p - q), has the probability of a rejection.

    Args:
        p: the model's distributions at the position of each proposed token, and after the last one.
        q: the distributions that the proposed tokens were drawn from.
        proposed: the proposed tokens.
        uniform: random numbers in [0, 1), one for each row of p. The last number draws the token that follows; each of
            the others decides whether a token is accepted.
    """
    for place, token in enumerate(proposed):
        if not uniform[place] * float(q[place][token]) < float(p[place, token]):
            left = (p[place] - q[place]).clamp(min=0)
            # If nothing is left after rounding, p and q are the same.
            return place, int(pick(left[None] if float(left.sum()) > 0 else p[place : place + 1], uniform[-1:]))
    return len(proposed), int(pick(p[-1:], uniform[-1:]))
