"""Many texts at once, which come and go: continuous batching over a pool of blocks (lesson 18).

A step reads every weight whether it serves one text or many, so as many as are there are written together; and none
waits for the longest, as in a batch that begins and ends together: a text joins at the next step (Yu et al. 2022,
"Orca", section 3.1, iteration-level scheduling) and leaves when it ends.

    server = Server(model, rows=8, tokens=4096)
    first = server.submit(prompt, max_new_tokens=40, sampling=Sampling(0.7), stop=[end])
    other = server.submit(another, max_new_tokens=99)
    for token in first:  # takes the steps that it needs, and the others get theirs
        print(token)
    print(other.result())

Each step has a budget of tokens. Texts that are being written get one each; what is left goes to prompts in the order
in which they came, a long one in chunks of several steps, so that nobody's next token waits for all of it (Agrawal et
al. 2024, "Sarathi-Serve", section 4). Keys and values lie in blocks, which a text takes as it grows; those of equal
beginnings are there once (`companion.generation.block_manager`). Linear layers keep a state for each text in place of
blocks, and one text can begin with another's only as it was at the end of a block: where the blocks of a text's
beginning are found and no state is, its reading stops there once, and the state is kept for those that come after.

Where the pool is full, the text that came last gives its blocks back, waits, and is read again later, what it has
written included: preemption by recomputation. The oldest always goes on, so all end. A text that alone has more tokens
than the pool is refused at once.

Whoever is there with it, a text depends on what was asked for it alone: it is what `generate` writes for its prompt and
its stream (but the last digits of the logits may differ).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from companion.generation.block_manager import BEGINNING, Blocks, Places
from companion.generation.logit_rules import Rules, Until
from companion.generation.next_token import NOTHING, draw_tokens
from companion.generation.prefill_decode import NotFinite, evaluating
from companion.generation.request import Request, Stream, Text, check_model, check_prompts, checked, streams_of
from companion.generation.sampling import Sampling
from companion.generation.weights import Weights, check_weights, writer_of
from companion.ground.arguments import described
from companion.ground.fields import require_whole
from companion.layers.paged_cache import PagedCache
from companion.transformer import Transformer

State = Literal["waiting", "running", "done", "cancelled", "failed"]
BLOCK = 16
"""Tokens of a block: half a block is what a text wastes on average, and a table has an entry for each."""
BUDGET = 512
"""Tokens of a step at most: enough for the weights to be read for many, few enough for steps to stay short."""


class Written(NamedTuple):
    """A token that a step has written. number: of its text. last: whether that has ended."""

    number: int
    token: int
    last: bool


class Handle:
    """A text that a `Server` was asked for.

    number:  counted from 0, in the order in which they came.
    state:   `"waiting"`, `"running"`, and in the end `"done"`, `"cancelled"` or `"failed"`.
    error:   why it failed: `NotFinite` where the logits were not numbers, `ValueError` where its rules left no token,
             or what its `until` raised.
    """

    def __init__(self, server: Server, number: int, prompt: Sequence[int], request: Request) -> None:
        self.number, self.state, self.error = number, "waiting", None  # type: int, State, Exception | None
        self._server, self._request = server, request
        self._text = Text(list(prompt), len(prompt), number)
        self._settled = True  # whether it is known that its last token does not end it
        self._held = 0  # tokens of it in the pool
        self._blocks: list[int] = []
        self._numbers: list[int] = []  # of what ends with each of its full blocks
        self._place = 0  # of its state
        self._border = 0  # tokens after which its state is to be kept for others; 0: nowhere

    @property
    def prompt(self) -> list[int]:
        """The tokens that it goes on from."""
        return self._text.ids[: self._text.given]

    @property
    def tokens(self) -> list[int]:
        """The new tokens so far."""
        return self._text.ids[self._text.given :]

    @property
    def ended(self) -> bool:
        """Whether no more will come."""
        return self.state not in ("waiting", "running")

    def cancel(self) -> list[int]:
        """Let it end at once; its new tokens so far. One that has ended stays as it is."""
        if not self.ended:
            self._server._end(self, "cancelled")
        return self.tokens

    def result(self) -> list[int]:
        """Its new tokens, waited for; what had been written of one that was cancelled. Raises its `error`, where it has
        failed."""
        return list(self)

    def __iter__(self) -> Iterator[int]:
        """Its new tokens, each as soon as it is there. Raises as `result` does."""
        given = 0
        while True:
            yield from (new := self.tokens[given:])
            given += len(new)
            if self.ended and given == len(self._text.ids) - self._text.given:
                break
            self._server.step()
        if self.error is not None:
            raise self.error

    def __repr__(self) -> str:
        return f"Handle(number={self.number}, state={self.state!r}, tokens={len(self.tokens)})"

    @property
    def _written(self) -> int:
        return len(self._text.ids) - self._text.given

    @property
    def _pending(self) -> int:
        """Tokens of it that are to be read before the next can be drawn."""
        return len(self._text.ids) - self._held

    def _allowed(self, logits: Float[Tensor, "vocab"]) -> Float[Tensor, "1 vocab"]:
        """What its rules leave."""
        asked = self._request
        return asked.rules.apply(logits[None], self._written, asked.steps, asked.ends.stop, [self._text.ids])


def serve(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | None,
    *,
    at_once: int,
    max_new_tokens: int | None,
    seed: int,
    streams: Sequence[Stream] | None,
    weights: Weights | None,
    **asked: Any,
) -> list[list[int]]:
    """`complete(..., at_once=...)`: the new tokens of each prompt, so many at a time. Raises as that does."""
    require_whole("at_once", at_once)
    prompts, steps = check_prompts(model, prompts, None, None, max_new_tokens)
    generators = streams_of(seed, streams, len(prompts))
    rows = min(at_once, len(prompts))
    room = sum(sorted(len(prompt) + steps + BLOCK for prompt in prompts)[-rows:])
    server = Server(model, rows=rows, tokens=room, budget=max(BUDGET, rows), weights=weights)
    handles = [
        server.submit(prompt, max_new_tokens=steps, stream=stream, **asked)
        for prompt, stream in zip(prompts, generators, strict=True)
    ]
    return [handle.result() for handle in handles]


class _Chunk(NamedTuple):
    """Tokens of a text that a step reads, from `start` to `end`. prompt: whether the model itself reads them."""

    handle: Handle
    start: int
    end: int
    prompt: bool

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Server:
    """Texts of a decoder that are written at once.

    rows:     how many at most; others wait until one has ended.
    tokens:   room of the pool, in tokens of all texts together. `None`: for `rows` texts as long as the context.
    block:    tokens of a block.
    budget:   tokens that a step reads at most, at least as many as there are rows.
    weights:  the form in which steps read the weights, as in `generate`: of those that the model has when a first text
              comes, for as long as any is there.

    shared:     tokens of texts that were found in the pool, and not read.
    read:       tokens that were read.
    preempted:  how often a text had to give its blocks back and wait.

    Memory: the pool is made once (`companion.layers.paged_cache`); texts take of it what they hold, rounded up to
    blocks. With linear layers it has two states a row, one for a text and one that is kept for others. Where positions
    are scaled by the length of a text, its prompt is read in one step, no beginning is shared, and it gets at once all
    the blocks that it may need. One thread at a time may use a server.

    Raises `ValueError` for a model that is no decoder, a size below 1, fewer tokens than a block or a budget that has
    not one for each row, and where memory has no room.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        rows: int = 32,
        tokens: int | None = None,
        block: int = BLOCK,
        budget: int = BUDGET,
        weights: Weights | None = None,
    ) -> None:
        check_model(model)
        config, table = model.config, model.embedding.weight
        if config.stack != "decoder":
            raise ValueError(f"model has stack={config.stack!r}: expected 'decoder', whose texts share no source")
        require_whole("rows", rows)
        tokens = rows * config.context if tokens is None else tokens
        for name, value in (("tokens", tokens), ("block", block), ("budget", budget)):
            require_whole(name, value)
        if tokens < block:
            raise ValueError(f"tokens={tokens}: expected at least block={block}")
        if budget < rows:
            raise ValueError(f"budget={budget}: expected at least rows={rows}, a token for each")
        check_weights(model, weights)
        self.model, self.rows, self.budget = model, rows, budget
        self.shared = self.read = self.preempted = 0
        count, self._places = tokens // block, None if config.memory is None else Places(rows)
        sizes = {"blocks": count, "size": block, "places": 1 if self._places is None else self._places.count}
        self._pool = PagedCache.pool(config, **sizes, dtype=table.dtype, device=table.device)
        self.blocks = Blocks(count, block)
        self._weights = weights
        self._writer: Transformer | None = None
        self._modules = list(model.modules())
        self._running: list[Handle] = []  # in the order in which they came, and all of them before all that wait
        self._waiting: list[Handle] = []
        self._next, self._seen = 0, [-1]
        scaling = config.positions.scaling
        self._by_length = scaling is not None and scaling.by_length
        self._anew = scaling.original if scaling is not None and scaling.kind == "longrope" else None

    @property
    def running(self) -> list[Handle]:
        """The texts that have blocks, in the order in which they came."""
        return self._running.copy()

    @property
    def waiting(self) -> list[Handle]:
        """Those that will be read when there is room, in the order in which they came."""
        return self._waiting.copy()

    @property
    def busy(self) -> bool:
        """Whether any has not ended."""
        return bool(self._running or self._waiting)

    def submit(
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
    ) -> Handle:
        """Ask for a text, which joins at the next step that has room for it.

        max_new_tokens:  how many at most. `None`: until it fills the context, or the pool.
        seed, stream:    of its own random numbers: it writes what row `stream` of `generate(..., seed=seed)` would.
        until:           gets the text's number and its new tokens so far.

        The others are as in `generate`. Raises `ValueError` for what `generate` refuses, and for a text that alone has
        more tokens than the pool; nobody else notices.
        """
        # The last token is written, and never read.
        room = self.blocks.count * self.blocks.size + 1
        if max_new_tokens is None and isinstance(prompt, Sequence):
            max_new_tokens = max(1, min(self.model.config.context, room) - len(prompt))
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
        if len(prompt) + steps > room:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and max_new_tokens={steps} make {len(prompt) + steps}: expected at "
                f"most {room}, for which the pool has room"
            )
        handle = Handle(self, self._next, prompt, asked)
        self._next += 1
        self._waiting.append(handle)
        return handle

    def cancel(self, handle: Handle) -> list[int]:
        """`Handle.cancel`. Raises `ValueError` for a text of another server."""
        if not isinstance(handle, Handle) or handle._server is not self:
            raise ValueError(f"handle={described(handle)}: expected what this server's submit gave back")
        return handle.cancel()

    def step(self) -> list[Written]:
        """One more token of every text whose prompt has been read, in the order in which they came.

        A text that cannot go on ends with an `error` of its own, and nothing is raised here: the others go on. What is
        raised all the same, as by Ctrl-C, leaves every text with its token of this step or as it was before.
        """
        for handle in self._running.copy():
            self._settle(handle)
        self._admit()
        streams = [handle._request.streams[0].bit_generator for handle in self._running]
        before = [(handle, stream.state) for handle, stream in zip(self._running, streams, strict=True)]
        try:
            with torch.inference_mode(), evaluating(self._modules):
                going: list[tuple[Handle, Tensor]] = []
                for group in _alike(self._plan()):
                    going += self._pass(group)
                going.sort(key=lambda one: one[0].number)
                drawn = self._drawn(going)
        except BaseException:
            for handle, state in reversed(before):  # read again, with what they have written, at the next step
                if handle.state == "running":
                    self._preempt(handle)
                handle._request.streams[0].bit_generator.state = state
            raise
        written, interrupted = [], None
        for handle, token in drawn:
            if handle.ended:  # another's `until` may have cancelled it
                continue
            handle._text.ids.append(token)
            handle._settled = False
            try:
                self._settle(handle)
            except BaseException as error:  # its `until` is asked again; the others get their tokens first
                interrupted = interrupted or error
            else:
                written.append(Written(handle.number, token, handle.ended))
        if interrupted is not None:
            raise interrupted
        return written

    def _admit(self) -> None:
        """Give blocks to those that wait, the first first, as long as there is room."""
        if not self._running and self._waiting:
            self._begin()
        while self._waiting and len(self._running) < self.rows and self._placed(self._waiting[0]):
            handle = self._waiting.pop(0)
            handle.state = "running"
            self._running.append(handle)

    def _begin(self) -> None:
        """Nobody is there: the weights may be others now, and what was kept for other ones is of no use."""
        self._writer = None
        seen = [_bits(weight) for weight in (*self.model.parameters(), *self.model.buffers())]
        if seen != self._seen:
            self.blocks.forget()
        self._seen = seen

    def _placed(self, handle: Handle) -> bool:
        """Whether there is room for a text; then it has its blocks, some perhaps with others."""
        ids, size = handle._text.ids, self.blocks.size
        blocks, numbers, state = self._found(handle)
        tokens = handle._text.given + handle._request.steps - 1 if self._by_length else len(ids)
        needed = -(-tokens // size) - len(blocks)
        # Each of the others may need a block soon; without one, whoever came last would have to leave again.
        spare = 0 if self._by_length else len(self._running)
        if self._running and needed + spare > self.blocks.free:
            self.blocks.leave(blocks)
            return False
        if len(blocks) * size == len(ids):  # its last token is read all the same, for what follows it
            numbers.pop()
        handle._held = min(len(blocks) * size, len(ids) - 1)
        handle._blocks, handle._numbers = blocks + self._taken(needed), numbers
        self.shared += handle._held
        if self._places is not None:
            handle._place = self._places.take()
            if state is not None:
                self._pool.copy_state(state, handle._place)
        return True

    def _found(self, handle: Handle) -> tuple[list[int], list[int], int | None]:
        """The blocks of a text's beginning that are there, of each the number of what ends with it, and with linear
        layers the place of the state after them: as far as there is one, and where the last token is still to be read.
        """
        ids = handle._text.ids
        if self._by_length:
            return [], [], None
        if self._places is None:
            return *self.blocks.find(ids), None
        blocks, numbers = self.blocks.find(ids[:-1])
        count, state = self._places.find(numbers)
        handle._border = len(blocks) * self.blocks.size if count < len(blocks) else 0
        self.blocks.leave(blocks[count:])
        return blocks[:count], numbers[:count], state

    def _taken(self, count: int) -> list[int]:
        """So many free blocks, all zero."""
        blocks = self.blocks.take(count)
        if blocks:
            self._pool.clear(blocks)
        return blocks

    def _plan(self) -> list[_Chunk]:
        """What this step reads: those that are being written first, then prompts, within the budget."""
        for handle in self._running.copy():
            if handle.state == "running":
                self._make_room(handle)
        chunks: list[_Chunk] = []
        left = self.budget
        for handle in sorted(self._running, key=lambda handle: handle._pending > 1):
            text, start = handle._text, handle._held
            if self._anew == start and handle._pending == 1 and handle._written:
                start = 0  # kept keys were turned for a shorter text
            # What it has written is read in the form of weights that it was, or would have been, read before.
            prompt = start < text.given
            end = min(text.given if prompt else len(text.ids), start + left)
            if self._by_length:
                end = len(text.ids)
            if start < handle._border < end:
                end = handle._border
            if end > start and left > 0:
                chunks.append(_Chunk(handle, start, end, prompt))
                left -= end - start
        return chunks

    def _make_room(self, handle: Handle) -> None:
        """A block of its own for the next token that is read of a text. Where none is free, whoever came last waits."""
        blocks, place = handle._blocks, handle._held // self.blocks.size
        if place < len(blocks) and not self.blocks.shared(blocks[place]):
            return
        while not self.blocks.free:
            self._preempt(last := self._running[-1])
            if last is handle:
                return
        (new,) = self._taken(1)
        if place == len(blocks):
            blocks.append(new)
        else:  # others read it: copied before it is written
            self._pool.copy(blocks[place], new)
            self.blocks.leave([blocks[place]])
            blocks[place] = new

    def _preempt(self, handle: Handle) -> None:
        """Take all blocks of a text, which is read again when there is room."""
        self._release(handle)
        handle.state = "waiting"
        self._waiting.insert(0, handle)
        self.preempted += 1

    def _pass(self, group: Sequence[_Chunk]) -> list[tuple[Handle, Float[Tensor, "vocab"]]]:
        """Read these chunks together; what follows those texts that have been read to their end."""
        if self._writer is None and not group[0].prompt:
            self._writer = writer_of(self.model, self._weights, self.model.config.context, self.rows)
        reader = self.model if group[0].prompt else self._writer
        assert reader is not None
        longest = max(chunk.tokens for chunk in group)
        rows = [[*chunk.handle._text.ids[chunk.start : chunk.end], *[0] * (longest - chunk.tokens)] for chunk in group]
        handles = [chunk.handle for chunk in group]
        cache = self._pool.rows(
            [handle._blocks for handle in handles],
            [chunk.start for chunk in group],
            [chunk.tokens for chunk in group],
            () if self._places is None else [handle._place for handle in handles],
        )
        stream = reader.features(torch.tensor(rows, device=cache.lengths.device), cache=cache).stream
        for chunk in group:
            chunk.handle._held = chunk.end
            self._share(chunk.handle)
            self.read += chunk.tokens
        whole = [row for row, handle in enumerate(handles) if not handle._pending]
        logits = reader.head(stream[whole, [group[row].tokens - 1 for row in whole]])
        return list(zip([handles[row] for row in whole], logits, strict=True))

    def _share(self, handle: Handle) -> None:
        """Let its full blocks be found by others; where the same is there already, use that."""
        if self._by_length:
            return
        size, ids = self.blocks.size, handle._text.ids
        # What a form of weights that computes otherwise has read is of no use to a prompt.
        exact = self._weights in (None, "fast")
        last = handle._held if exact else min(handle._held, handle._text.given)
        for place in range(len(handle._numbers), last // size):
            before = handle._numbers[-1] if handle._numbers else BEGINNING
            known = self.blocks.known(handle._blocks[place], before, ids[place * size : (place + 1) * size])
            handle._blocks[place] = known[0]
            handle._numbers.append(known[1])
        at_border = handle._held == handle._border == len(handle._numbers) * size
        if self._places is not None and at_border and not self._places.known(handle._numbers[-1]):
            self._pool.copy_state(handle._place, self._places.keep(handle._numbers[-1]))

    def _drawn(self, going: Sequence[tuple[Handle, Tensor]]) -> list[tuple[Handle, int]]:
        """A token of each text that has a next one; those that draw in one manner together."""
        if not going:
            return []
        allowed = torch.cat([handle._allowed(logits) for handle, logits in going])
        fit = allowed.amax(-1).isfinite().tolist()
        for (handle, logits), fits in zip(going, fit, strict=True):
            if not fits:  # before it has taken a random number
                self._end(handle, "failed", _why(handle, logits))
        tokens = [NOTHING] * len(going)
        for sampling in dict.fromkeys(handle._request.sampling for handle, _ in going):
            rows = [i for i, (one, _) in enumerate(going) if fit[i] and one._request.sampling == sampling]
            streams = [going[i][0]._request.streams[0] for i in rows]
            drawn = draw_tokens(allowed[rows], sampling, streams).tolist() if rows else []
            for row, token in zip(rows, drawn, strict=True):
                tokens[row] = token
        return [(handle, token) for (handle, _), token, fits in zip(going, tokens, fit, strict=True) if fits]

    def _settle(self, handle: Handle) -> None:
        """End a text if its last token ends it, unless that was asked before."""
        if handle._settled:
            return
        try:
            ended = handle._written == handle._request.steps or handle._request.ends.after(handle._text)
        except Exception as error:  # of its own `until`
            self._end(handle, "failed", error)
        else:
            handle._settled = True
            if ended:
                self._end(handle, "done")

    def _end(self, handle: Handle, state: State, error: Exception | None = None) -> None:
        """A text is no longer there."""
        if handle.ended:
            return
        if handle.state == "waiting":
            self._waiting.remove(handle)
        else:
            self._release(handle)
        handle.state, handle.error, handle._settled = state, error, True

    def _release(self, handle: Handle) -> None:
        """Give the blocks of a running text back."""
        self._running.remove(handle)
        self.blocks.leave(handle._blocks)
        if self._places is not None:
            self._places.leave(handle._place)
        handle._blocks, handle._numbers, handle._held = [], [], 0


def _why(handle: Handle, logits: Float[Tensor, "vocab"]) -> ValueError:
    """Why no token can follow a text."""
    if bool(logits.isfinite().all()):
        return ValueError(f"rules: no token is left for text {handle.number}: expected rules that leave one")
    return NotFinite(f"logits of text {handle.number}: expected finite numbers, got others")


def _alike(chunks: Sequence[_Chunk]) -> list[list[_Chunk]]:
    """Those that can be read together: by one reader, none more than half padding."""
    groups: list[list[_Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.prompt, chunk.tokens)):
        if groups and groups[-1][0].prompt == chunk.prompt and chunk.tokens < 2 * groups[-1][0].tokens:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _bits(weight: Tensor) -> int:
    """The sum of a tensor's numbers as whole ones, bit by bit: another for other numbers, but for rare chance."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(weight.element_size())
    numbers = weight.detach().contiguous()
    return int((numbers if whole is None else numbers.view(whole)).sum(dtype=torch.int64))
