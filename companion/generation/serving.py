"""Continuous batching (lesson 18): many texts at once, which join and leave at any step and share a pool of blocks.

A step reads every weight, no matter how many texts it extends, so all texts are extended together. No text waits for
the longest, as it would in a fixed batch: a text joins at the next step (Yu et al. 2022, "Orca", section 3.1,
iteration-level scheduling) and leaves when it ends.

    server = Server(model, rows=8, tokens=4096)
    first = server.submit(prompt, max_new_tokens=40, sampling=Sampling(0.7), stop=[end])
    other = server.submit(another, max_new_tokens=99)
    for token in first:  # runs the steps that it needs; the other texts advance too print(token)
    print(other.result())

Each step has a budget of tokens. Each text that is being written uses one token of the budget. The rest of the budget
goes to prompts, in order of arrival. A long prompt is read in chunks over several steps, so that no other text's next
token waits for all of it (Agrawal et al. 2024, "Sarathi-Serve", section 4). Keys and values are stored in blocks, which
a text takes as it grows; blocks of equal prefixes are stored once (`companion.generation.block_manager`). Linear layers
have a recurrent state per text instead of blocks, and a text can reuse another text's state only as it was at the end
of a block. If the blocks of a text's prefix are found but no state is stored for them, reading pauses at the end of
this prefix, and the state is stored for later texts.

When the pool is full, the text that arrived last returns its blocks and waits. Later it is read again, including what
it has written (preemption by recomputation). The oldest text always continues, so every text ends eventually. A text
that is too long for the whole pool is rejected at submission.

The result for a text does not depend on the texts served with it: it is what `generate` returns for the same prompt and
random stream (although the last digits of the logits may differ).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from companion.generation.block_manager import BEGINNING, Blocks, StateSlots
from companion.generation.logit_rules import Rules, StoppingCriterion
from companion.generation.next_token import NOTHING, draw_tokens
from companion.generation.prefill_decode import NotFinite, evaluating
from companion.generation.request import Options, RandomSource, Request, check_model
from companion.generation.sampling import Sampling
from companion.ground.arguments import described
from companion.ground.fields import require_whole
from companion.layers.paged_cache import PagedCache
from companion.quantization.weights import Weights, check_weights, writer_of
from companion.transformer import Transformer

State = Literal["waiting", "running", "done", "cancelled", "failed"]
BLOCK = 16
"""Tokens per block. A text wastes half a block on average, and a block table has one entry per block."""
BUDGET = 512
"""Maximum tokens per step: enough for many to share one reading of the weights, but few enough to keep steps short."""


class Written(NamedTuple):
    """A token written by a step, with the number of its text and whether it is the last token of that text."""

    number: int
    token: int
    last: bool


class Handle:
    """A text requested from a `Server`.

    Attributes:
        number: number of the text, counted from 0 in order of arrival.
        state: `"waiting"`, `"running"`, and at the end `"done"`, `"cancelled"` or `"failed"`.
        error: the exception that made the text fail: `NotFinite` if the logits were not finite, `ValueError` if its
            rules left no token, or whatever its `until` raised.
    """

    def __init__(self, server: Server, number: int, request: Request) -> None:
        self.number, self.state, self.error = number, "waiting", None  # type: int, State, Exception | None
        self._server, self._request = server, request
        (self._text,) = request.texts()
        self._text.row = number
        self._settled = True  # whether its last token was checked and did not end the text
        self._held = 0  # number of the text's tokens that are in the pool
        self._blocks: list[int] = []
        self._numbers: list[int] = []  # for each full block of the text, the number of the prefix ending with it
        self._place = 0  # index of the recurrent state of the text
        self._border = 0  # length of the prefix whose state is stored for other texts; 0 for none

    @property
    def prompt(self) -> list[int]:
        """Token ids of the prompt."""
        return self._text.ids[: self._text.given]

    @property
    def tokens(self) -> list[int]:
        """New tokens so far."""
        return self._text.ids[self._text.given :]

    @property
    def ended(self) -> bool:
        """True if the text is complete."""
        return self.state not in ("waiting", "running")

    def cancel(self) -> list[int]:
        """End the text now and return its new tokens so far. Canceling has no effect on a text that has already
        ended."""
        if not self.ended:
            self._server._end(self, "cancelled")
        return self.tokens

    def result(self) -> list[int]:
        """Run the server until the text ends, and return its new tokens; for a cancelled text, those written so far.

        Raises:
            Exception: the text's `error`, if the text has failed.
        """
        return list(self)

    def __iter__(self) -> Iterator[int]:
        """Yield the new tokens, each as soon as it is written. Raise the same exceptions as `result`."""
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
        """Number of tokens to read before the next one can be drawn."""
        return len(self._text.ids) - self._held

    def _allowed(self, logits: Float[Tensor, "vocab"]) -> Float[Tensor, "1 vocab"]:
        return self._request.allowed(logits[None], self._written, [self._text.ids])


def serve(request: Request, batch_size: int) -> list[list[int]]:
    """Implement `complete(..., batch_size=...)`: return the new tokens for each prompt.

    Raises the same exceptions as `complete`.
    """
    require_whole("batch_size", batch_size)
    rows = min(batch_size, len(request.prompts))
    room = sum(sorted(len(prompt) + request.max_new_tokens + BLOCK for prompt in request.prompts)[-rows:])
    server = Server(request.model, rows=rows, tokens=room, budget=max(BUDGET, rows), weights=request.weights)
    handles = [
        server._add(replace(request, prompts=[prompt], generators=[generator]))
        for prompt, generator in zip(request.prompts, request.generators, strict=True)
    ]
    return [handle.result() for handle in handles]


class _Chunk(NamedTuple):
    """The tokens `start` to `end` of a text, to be read in one step. If `prompt` is true, they are read with the
    original weights."""

    handle: Handle
    start: int
    end: int
    prompt: bool

    @property
    def tokens(self) -> int:
        return self.end - self.start


class Server:
    """Continuous batching for a decoder.

    The pool is allocated once (`companion.layers.paged_cache`), and each text takes as much of it as it needs, rounded
    up to blocks. With linear layers the pool has two recurrent states per row, one for a text and one stored for later
    texts. If positions are scaled by the length of a text, each prompt is read in a single step, prefixes are not
    shared, and all blocks that a text may need are allocated in advance. Only one thread at a time may use a server.

    Args:
        model: a decoder.
        rows: maximum batch size; further texts wait until one has ended.
        tokens: capacity of the pool, in tokens of all texts together. `None` means enough for `rows` texts that are as
            long as the context.
        block: number of tokens per block.
        budget: maximum number of tokens that a step reads, at least `rows`.
        weights: the format of the weights that steps read, as in `generate`. Weights are converted when the first text
            arrives, and stay converted as long as there is any text.

    Attributes:
        shared: number of tokens that were found in the pool and therefore not read.
        read: number of tokens that were read.
        preempted: how often a text had to return its blocks and wait.

    Raises:
        ValueError: if the model is not a decoder, a size is below 1, the pool is smaller than a block, the budget is
            below `rows`, or the pool does not fit into memory.
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
            raise ValueError(f"model has stack={config.stack!r}: expected 'decoder'")
        require_whole("rows", rows)
        tokens = rows * config.context if tokens is None else tokens
        for name, value in (("tokens", tokens), ("block", block), ("budget", budget)):
            require_whole(name, value)
        if tokens < block:
            raise ValueError(f"tokens={tokens}: expected at least block={block}")
        if budget < rows:
            raise ValueError(f"budget={budget}: expected at least rows={rows}, one token per row")
        check_weights(model, weights)
        self.model, self.rows, self.budget = model, rows, budget
        self.shared = self.read = self.preempted = 0
        count, self._state_slots = tokens // block, None if config.linear_config is None else StateSlots(rows)
        sizes = {"blocks": count, "size": block, "places": 1 if self._state_slots is None else self._state_slots.count}
        self._pool = PagedCache.pool(config, **sizes, dtype=table.dtype, device=table.device)
        self.blocks = Blocks(count, block)
        self._weights = weights
        self._writer: Transformer | None = None
        self._modules = list(model.modules())
        self._running: list[Handle] = []  # in order of arrival; all of them arrived before those that wait
        self._waiting: list[Handle] = []
        self._next, self._seen = 0, [-1]
        scaling = config.positions.scaling
        self._by_length = scaling is not None and scaling.by_length
        self._anew = scaling.original if scaling is not None and scaling.kind == "longrope" else None

    @property
    def running(self) -> list[Handle]:
        """Texts that have blocks, in order of arrival."""
        return self._running.copy()

    @property
    def waiting(self) -> list[Handle]:
        """Texts that will be read when there is room, in order of arrival."""
        return self._waiting.copy()

    @property
    def busy(self) -> bool:
        """True if any text has not ended."""
        return bool(self._running or self._waiting)

    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Collection[int] = (),
        rules: Rules | None = None,
        until: StoppingCriterion | None = None,
        seed: int = 0,
        generator: RandomSource = 0,
    ) -> Handle:
        """Request a text, which joins at the next step that has room for it.

        Args:
            prompt: token ids.
            max_new_tokens: maximum number of new tokens. `None` means that the text may fill the context or the pool.
            sampling, stop, rules: as in `generate`.
            until: a stopping criterion that receives the text's number and its new tokens so far.
            seed, generator: `seed` and one entry of `generators`, as in `generate`. If `generator` is a number, the
                random numbers depend only on these two.

        Returns:
            The handle of the text, which yields its tokens and can cancel it.

        Raises:
            ValueError: in the same cases as `generate`, and if the prompt and `max_new_tokens` do not fit the whole
                pool, which needs no room for the last token. Other texts are not affected.
        """
        # The last token is written but never read.
        room = self.blocks.count * self.blocks.size + 1
        if max_new_tokens is None and isinstance(prompt, Sequence):
            max_new_tokens = max(1, min(self.model.config.context, room) - len(prompt))
        choices: Options = {"sampling": sampling, "stop": stop, "rules": rules, "until": until, "seed": seed}
        choices["generators"] = [generator]
        request = Request(self.model, [prompt], max_new_tokens, **choices)
        steps = request.max_new_tokens
        if len(prompt) + steps > room:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and max_new_tokens={steps} add up to {len(prompt) + steps}; "
                f"expected at most {room}, the capacity of the pool"
            )
        return self._add(request)

    def _add(self, request: Request) -> Handle:
        """Queue a request with one prompt that fits the pool."""
        handle = Handle(self, self._next, request)
        self._next += 1
        self._waiting.append(handle)
        return handle

    def cancel(self, handle: Handle) -> list[int]:
        """Cancel a text, as `Handle.cancel` does. Raises `ValueError` for a text of another server."""
        if not isinstance(handle, Handle) or handle._server is not self:
            raise ValueError(f"handle={described(handle)}: expected a handle returned by this server's submit")
        return handle.cancel()

    def step(self) -> list[Written]:
        """Write one more token for every text whose prompt has been read, and return the tokens in order of arrival.

        A text that cannot be continued ends with its own `error`. In that case nothing is raised, and the other texts
        continue.

        Raises:
            BaseException: whatever interrupts the step, such as Ctrl-C. Every text then either has its token for this
                step or is unchanged.
        """
        for handle in self._running.copy():
            self._settle(handle)
        self._admit()
        generators = [handle._request.generators[0].bit_generator for handle in self._running]
        before = [(handle, generator.state) for handle, generator in zip(self._running, generators, strict=True)]
        try:
            with torch.inference_mode(), evaluating(self._modules):
                going: list[tuple[Handle, Tensor]] = []
                for group in _alike(self._plan()):
                    going += self._pass(group)
                going.sort(key=lambda one: one[0].number)
                drawn = self._drawn(going)
        except BaseException:
            for handle, state in reversed(before):  # read again at the next step, with their new tokens
                if handle.state == "running":
                    self._preempt(handle)
                handle._request.generators[0].bit_generator.state = state
            raise
        written, interrupted = [], None
        for handle, token in drawn:
            if handle.ended:  # another text's `until` may have cancelled it
                continue
            handle._text.ids.append(token)
            handle._settled = False
            try:
                self._settle(handle)
            except BaseException as error:  # `until` is called again later; other texts get their tokens first
                interrupted = interrupted or error
            else:
                written.append(Written(handle.number, token, handle.ended))
        if interrupted is not None:
            raise interrupted
        return written

    def _admit(self) -> None:
        """Give blocks to the waiting texts, in order of arrival, as long as there is room."""
        if not self._running and self._waiting:
            self._begin()
        while self._waiting and len(self._running) < self.rows and self._placed(self._waiting[0]):
            handle = self._waiting.pop(0)
            handle.state = "running"
            self._running.append(handle)

    def _begin(self) -> None:
        """Prepare for the first text; if the weights have changed, forget what was stored for the old ones."""
        self._writer = None
        seen = [_bits(weight) for weight in (*self.model.parameters(), *self.model.buffers())]
        if seen != self._seen:
            self.blocks.forget()
        self._seen = seen

    def _placed(self, handle: Handle) -> bool:
        """If there is room, give a text its blocks, possibly including shared ones; return whether there was room."""
        ids, size = handle._text.ids, self.blocks.size
        blocks, numbers, state = self._found(handle)
        tokens = handle._text.given + handle._request.max_new_tokens - 1 if self._by_length else len(ids)
        needed = -(-tokens // size) - len(blocks)
        # Each running text may soon need a block; without a spare one, the text that came last would have to leave
        # again.
        spare = 0 if self._by_length else len(self._running)
        if self._running and needed + spare > self.blocks.free:
            self.blocks.leave(blocks)
            return False
        if len(blocks) * size == len(ids):  # its last token is still read, to get the logits after it
            numbers.pop()
        handle._held = min(len(blocks) * size, len(ids) - 1)
        handle._blocks, handle._numbers = blocks + self._taken(needed), numbers
        self.shared += handle._held
        if self._state_slots is not None:
            handle._place = self._state_slots.take()
            if state is not None:
                self._pool.copy_state(state, handle._place)
        return True

    def _found(self, handle: Handle) -> tuple[list[int], list[int], int | None]:
        """Find the stored blocks of a text's prefix.

        Returns:
            The blocks; for each block, the number of the prefix ending with it; and with linear layers, the index of
            the recurrent state after the blocks. With linear layers, the prefix ends where a state is stored, and
            always before the last token, which must still be read.
        """
        ids = handle._text.ids
        if self._by_length:
            return [], [], None
        if self._state_slots is None:
            return *self.blocks.find(ids), None
        blocks, numbers = self.blocks.find(ids[:-1])
        count, state = self._state_slots.find(numbers)
        handle._border = len(blocks) * self.blocks.size if count < len(blocks) else 0
        self.blocks.leave(blocks[count:])
        return blocks[:count], numbers[:count], state

    def _taken(self, count: int) -> list[int]:
        """Take `count` free blocks and set them to zero."""
        blocks = self.blocks.take(count)
        if blocks:
            self._pool.clear(blocks)
        return blocks

    def _plan(self) -> list[_Chunk]:
        """Choose what this step reads within the budget: first the texts being written, then prompts."""
        for handle in self._running.copy():
            if handle.state == "running":
                self._make_room(handle)
        chunks: list[_Chunk] = []
        left = self.budget
        for handle in sorted(self._running, key=lambda handle: handle._pending > 1):
            text, start = handle._text, handle._held
            if self._anew == start and handle._pending == 1 and handle._written:
                start = 0  # cached keys were rotated for a shorter text
            # Generated tokens are re-read with the same weight format as the first time, so that results do not change.
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
        """Ensure that a text has a block of its own for the next token that it reads.

        If no block is free, the text that arrived last is preempted.
        """
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
        else:  # other texts read it, so copy it before writing
            self._pool.copy(blocks[place], new)
            self.blocks.leave([blocks[place]])
            blocks[place] = new

    def _preempt(self, handle: Handle) -> None:
        """Take all blocks from a text, which is read again when there is room."""
        self._release(handle)
        handle.state = "waiting"
        self._waiting.insert(0, handle)
        self.preempted += 1

    def _pass(self, group: Sequence[_Chunk]) -> list[tuple[Handle, Float[Tensor, "vocab"]]]:
        """Read these chunks together, and return the logits after each text that has been read to its end."""
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
            () if self._state_slots is None else [handle._place for handle in handles],
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
        """Make the text's full blocks available to other texts; if equal blocks are already stored, use these
        instead."""
        if self._by_length:
            return
        size, ids = self.blocks.size, handle._text.ids
        # A prompt must not reuse blocks that were computed in a weight format that gives different results.
        exact = self._weights in (None, "fast")
        last = handle._held if exact else min(handle._held, handle._text.given)
        for place in range(len(handle._numbers), last // size):
            before = handle._numbers[-1] if handle._numbers else BEGINNING
            known = self.blocks.known(handle._blocks[place], before, ids[place * size : (place + 1) * size])
            handle._blocks[place] = known[0]
            handle._numbers.append(known[1])
        at_border = handle._held == handle._border == len(handle._numbers) * size
        if self._state_slots is not None and at_border and not self._state_slots.known(handle._numbers[-1]):
            self._pool.copy_state(handle._place, self._state_slots.keep(handle._numbers[-1]))

    def _drawn(self, going: Sequence[tuple[Handle, Tensor]]) -> list[tuple[Handle, int]]:
        """Draw a token for each text that is ready, in one operation for all texts with the same sampling settings."""
        if not going:
            return []
        allowed = torch.cat([handle._allowed(logits) for handle, logits in going])
        fit = allowed.amax(-1).isfinite().tolist()
        for (handle, logits), fits in zip(going, fit, strict=True):
            if not fits:  # before it consumes a random number
                self._end(handle, "failed", _why(handle, logits))
        tokens = [NOTHING] * len(going)
        for sampling in dict.fromkeys(handle._request.sampling for handle, _ in going):
            rows = [i for i, (one, _) in enumerate(going) if fit[i] and one._request.sampling == sampling]
            generators = [going[i][0]._request.generators[0] for i in rows]
            drawn = draw_tokens(allowed[rows], sampling, generators).tolist() if rows else []
            for row, token in zip(rows, drawn, strict=True):
                tokens[row] = token
        return [(handle, token) for (handle, _), token, fits in zip(going, tokens, fit, strict=True) if fits]

    def _settle(self, handle: Handle) -> None:
        """End a text if its last token ends it, unless that token was checked before."""
        if handle._settled:
            return
        try:
            ended = handle._written == handle._request.max_new_tokens or handle._request.ends(handle._text)
        except Exception as error:  # raised by its own `until`
            self._end(handle, "failed", error)
        else:
            handle._settled = True
            if ended:
                self._end(handle, "done")

    def _end(self, handle: Handle, state: State, error: Exception | None = None) -> None:
        if handle.ended:
            return
        if handle.state == "waiting":
            self._waiting.remove(handle)
        else:
            self._release(handle)
        handle.state, handle.error, handle._settled = state, error, True

    def _release(self, handle: Handle) -> None:
        """Return the blocks of a running text."""
        self._running.remove(handle)
        self.blocks.leave(handle._blocks)
        if self._state_slots is not None:
            self._state_slots.leave(handle._place)
        handle._blocks, handle._numbers, handle._held = [], [], 0


def _why(handle: Handle, logits: Float[Tensor, "vocab"]) -> ValueError:
    """Return the error that explains why no token can follow a text."""
    if bool(logits.isfinite().all()):
        return ValueError(f"rules: every token is excluded for text {handle.number}")
    return NotFinite(f"logits of text {handle.number}: expected finite values, got NaN or infinity")


def _alike(chunks: Sequence[_Chunk]) -> list[list[_Chunk]]:
    """Group chunks that can be read together because they use the same weights and none is more than half padding."""
    groups: list[list[_Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: (chunk.prompt, chunk.tokens)):
        if groups and groups[-1][0].prompt == chunk.prompt and chunk.tokens < 2 * groups[-1][0].tokens:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _bits(weight: Tensor) -> int:
    """Return a checksum of a tensor, which is the sum of its elements with their bits read as integers."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(weight.element_size())
    numbers = weight.detach().contiguous()
    return int((numbers if whole is None else numbers.view(whole)).sum(dtype=torch.int64))
