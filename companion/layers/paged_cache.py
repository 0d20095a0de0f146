"""Paged cache, which assigns blocks to sequences as they grow and frees the blocks when they end (lesson 18).

A row of a `KVCache` has room for the longest possible text. Here all texts share one pool of blocks of a few tokens
each, and a block table lists the blocks of each text in order (Kwon et al. 2023, "PagedAttention", section 4). Texts
with a common prefix may share blocks. `companion.generation.block_manager` decides which text gets which block, and
this module only holds the tensors.

    pool = PagedCache.pool(model.config, blocks=100, size=16)
    out = model(tokens, cache=pool.rows([[7, 2], [7, 5, 3]], held=[20, 33], new=[1, 1]))

A token sees the same keys and values in the same order as in a `KVCache`, so attention gives the same result.

A linear layer has no blocks. Instead, its part of the pool has one slot per text, which stores the text's matrices
after its last token. Unlike in `companion.layers.recurrent_cache`, tokens are never removed, so no log is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.config.model import ModelConfig
from companion.ground.arguments import check_kind
from companion.ground.fields import require_whole
from companion.ground.memory import check_room
from companion.ground.precision import wide_dtype
from companion.ground.replaced import replaced
from companion.layers.cache import KVCache, LayerCache
from companion.layers.linear_attention import Writes, fold
from companion.layers.masks import backwards, materialize
from companion.layers.recurrent_cache import (
    StateCache,
    States,
    last_real,
    refuse_gradients,
    state_numbers,
    written_where,
)


@dataclass(frozen=True, kw_only=True)
class PagedLayer(LayerCache):
    """One layer's part of a `PagedCache`; `slots` and `mask` are as in a `LayerCache`.

    Attributes:
        keys: The pool's keys, (block, slot, kv_head, d_head).
        values: The pool's values, (block, slot, kv_head, d_v), or `None`.
        table: Blocks of each row; 0 after its last block.
        into: Index in the pool, block * size + slot, for each token that is written.
        taken: Which tokens of the call are written, as indices into the concatenation of all rows; `None` means all of
            them.
    """

    keys: Float[Tensor, "block slot kv_head d_head"]
    values: Float[Tensor, "block slot kv_head d_v"] | None
    table: Int[Tensor, "batch column"]
    into: Int[Tensor, "written"]
    taken: Int[Tensor, "written"] | None

    def put(
        self, store: Float[Tensor, "block slot kv_head wide"], new: Float[Tensor, "batch kv_head token wide"]
    ) -> Float[Tensor, "batch kv_head key wide"]:
        """Write to one of the two stores, and return a copy of every row's blocks from that store, in order.

        Raises:
            ValueError: If a gradient is being recorded, because in-place writes would break it.
        """
        refuse_gradients(new)
        tokens = new.transpose(1, 2).flatten(0, 1)
        tokens = tokens if self.taken is None else tokens[self.taken]
        store.flatten(0, 1).index_copy_(0, self.into, tokens.to(store.dtype))
        rows, columns = self.table.shape
        read = store.index_select(0, self.table.flatten())
        return read.view(rows, columns * store.shape[1], *store.shape[2:]).transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class PagedState(StateCache):
    """One linear layer's part of a `PagedCache`. `matrix` and `tail` are copies for the rows, and the log is empty.

    Attributes:
        matrices: Matrices of all texts, which a call updates.
        tails: Last convolution inputs of all texts, which a call updates.
        places: Index of each row's matrices in `matrices`.
        new: Which tokens of the call are not padding at the end of a row; `None` means all.
    """

    matrices: Float[Tensor, "place head d_head d_v"]
    tails: Float[Tensor, "place before channel"]
    places: Int[Tensor, "batch"]
    new: Bool[Tensor, "batch token"] | None

    def write(self, attention_mask: Bool[Tensor, "batch token"] | None, raw: Tensor, written: Writes) -> None:
        """Update the matrices with what the new tokens write.

        Raises:
            ValueError: In the same cases as `StateCache.write`.
        """
        refuse_gradients(raw, written.u)
        here = self.new if attention_mask is None else attention_mask if self.new is None else attention_mask & self.new
        raw = raw.to(self.tails.dtype)
        seen = raw.new_ones(raw.shape[:2], dtype=torch.bool) if here is None else here
        self.matrices.index_copy_(0, self.places, fold(self.matrix, written_where(written, here)))
        self.tails.index_copy_(0, self.places, last_real(self.tail, raw, seen))


@dataclass(frozen=True, kw_only=True)
class PagedCache(KVCache):
    """A pool of blocks, and the rows of one call that use it.

    `pool` creates a pool, and `rows` adds the rows of a call. Even layers with a window have a slot for every token. A
    handle is valid for one call only; call `rows` again afterwards to see what each row contains.

    Attributes:
        keys: One tensor per layer that is not linear, (block, slot, kv_head, d_head). Block 0 is never assigned and
            stays zero.
        values: Like `keys`, (block, slot, kv_head, d_v); empty with latents, as in a `KVCache`.
        states: State of the linear layers, with one row for each text and no log; `None` if there are none.
        size: Tokens per block.
        table: Blocks of each row.
        into: Where the new tokens go, as in a `PagedLayer`.
        taken: Which tokens are written, as in a `PagedLayer`.
        ends: Number of tokens of each row after the call, (batch,).
        places: Index of each row's matrices; empty without linear layers.
        windows: Width of the window of each layer that is not linear; `None` if the layer sees all tokens.
    """

    keys: tuple[Float[Tensor, "block slot kv_head d_head"], ...]
    values: tuple[Float[Tensor, "block slot kv_head d_v"], ...]
    size: int
    table: Int[Tensor, "batch column"]
    into: Int[Tensor, "written"]
    taken: Int[Tensor, "written"] | None
    ends: Int[Tensor, "batch"]
    places: Int[Tensor, "row"]
    windows: tuple[int | None, ...]

    @classmethod
    def pool(
        cls,
        config: ModelConfig,
        *,
        blocks: int,
        size: int,
        places: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> PagedCache:
        """Make a pool of block 0 and `blocks` more blocks, each with room for `size` tokens. The pool has no rows yet.

        In memory, each layer takes d_head + d_v elements per kv_head and slot, or rank + d_rope per slot with latents.
        A linear layer takes `recurrent_cache.state_numbers` elements for each of its texts, without a log, in fp32 or
        wider.

        Args:
            config: Configuration of the model.
            blocks: Number of blocks.
            size: Tokens per block.
            places: Number of texts for which linear layers, if there are any, store matrices.
            dtype: Type of keys and values.
            device: Device of the tensors.

        Raises:
            ValueError: If a size is below 1, or the pool does not fit in memory.
        """
        check_kind("config", config, ModelConfig, "a ModelConfig, such as model.config")
        for name, value in (("blocks", blocks), ("size", size), ("places", places)):
            require_whole(name, value)
        heads, key, value = config.sizes.kept
        needed = len(config.attending) * (blocks + 1) * size * config.sizes.kept_numbers * dtype.itemsize
        if config.linear_config is not None:
            needed += places * config.linears * state_numbers(config.linear_config, 0) * wide_dtype(dtype).itemsize
        check_room(f"blocks={blocks} of size={size}", "the pool", needed, device)

        def store(width: int) -> tuple[Tensor, ...]:
            shapes = ((blocks + 1, size, heads, width) for _ in config.attending if width)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)

        none = torch.zeros(0, dtype=torch.long, device=device)
        seen = [config.layer(layer)[0].window for layer in config.attending]
        return cls(
            keys=store(key),
            values=store(value),
            lengths=none,
            uniform=False,
            states=States.of(config, none.new_zeros(places), 0, dtype),
            size=size,
            table=none[:, None],
            into=none,
            taken=None,
            ends=none,
            places=none,
            windows=tuple(None if window is None else window.width for window in seen),
        )

    @property
    def batch(self) -> int:
        """Number of rows (the batch size) in the call."""
        return len(self.lengths)

    @property
    def slots(self) -> int:
        """Capacity of each row, in tokens."""
        return self.table.shape[1] * self.size

    def rows(
        self, tables: Sequence[Sequence[int]], held: Sequence[int], new: Sequence[int], places: Sequence[int] = ()
    ) -> PagedCache:
        """Make a handle for a call with one row for each entry of `tables`, padded on the right to the longest row.

        Args:
            tables: Blocks of each row, with room for its stored and new tokens.
            held: Number of stored tokens of each row.
            new: Number of new tokens of each row, at least one; later tokens of the call are padding and are not
                written.
            places: With linear layers, the index of each row's matrices. A row without stored tokens starts from zeros,
                whatever its matrices contain.
        """
        size, device, tokens = self.size, self.lengths.device, max(new)
        ends = [start + count for start, count in zip(held, new, strict=True)]
        columns = -(-max(ends) // size)
        table = [[*blocks, *[0] * (columns - len(blocks))][:columns] for blocks in tables]
        into, taken = [], []  # type: tuple[list[int], list[int]]
        for row, (blocks, start, end) in enumerate(zip(tables, held, ends, strict=True)):
            into += [blocks[slot // size] * size + slot % size for slot in range(start, end)]
            taken += range(row * tokens, row * tokens + end - start)
        whole = len(taken) == len(new) * tokens
        return replaced(
            self,
            table=torch.tensor(table, device=device),
            into=torch.tensor(into, device=device),
            taken=None if whole else torch.tensor(taken, device=device),
            lengths=torch.tensor(held, device=device),
            ends=torch.tensor(ends, device=device),
            places=torch.tensor(places, dtype=torch.long, device=device),
            filled=max(ends) - tokens,  # padding next to a longer row does not count
        )

    def clear(self, blocks: Sequence[int]) -> None:
        """Set these blocks to zero, because zero times arbitrary contents could be NaN.

        A masked slot has weight zero, but attention still multiplies its value by this weight.
        """
        for store in (*self.keys, *self.values):
            store[blocks] = 0

    def copy(self, old: int, new: int) -> None:
        """Copy block `old` to block `new`."""
        for store in (*self.keys, *self.values):
            store[new] = store[old]

    def copy_state(self, old: int, new: int) -> None:
        """Copy the matrices with index `old` to index `new`."""
        assert self.states is not None
        for store in self.states.tensors:
            store[new] = store[old]

    def check(self, config: ModelConfig, writer: int) -> None:
        """Check that this is a pool for a model of `config`.

        Raises:
            ValueError: If the pool is for another model.
        """
        self.check_layers(config, self.keys[0].shape[2] if self.keys else 0)

    def ready(self, tokens: int, ends: Tensor | None = None) -> PagedCache:
        """Return this cache, which has no rolling layers."""
        return self

    def shown(self, tokens: int) -> int:
        """Return the number of slots that a mask covers, which is all of the longest row's blocks."""
        return self.slots

    def open(self, tokens: int) -> list[LayerCache | StateCache]:
        """Return each layer's part of the cache, for the call that `rows` described."""
        # Padding gets the position of the last real token, so that it needs no slot.
        last = self.ends[:, None] - 1
        slots = (self.lengths[:, None] + torch.arange(tokens, device=last.device)).minimum(last)
        masks = {width: materialize(backwards(width), self.batch, slots, self.slots) for width in set(self.windows)}
        values = self.values or [None] * len(self.keys)
        opened = [
            PagedLayer(
                keys=k,
                values=v,
                slots=slots,
                filled=None,
                visible=self.slots,
                mask=masks[width],
                first=0,
                end=self.slots,
                table=self.table,
                into=self.into,
                taken=self.taken,
            )
            for k, v, width in zip(self.keys, values, self.windows, strict=True)
        ]
        if self.states is None:
            return list(opened)
        attending, linear = iter(opened), iter(self._states(self.states, slots))
        return [next(linear) if here else next(attending) for here in self.states.layers]

    def _states(self, states: States, slots: Int[Tensor, "batch token"]) -> list[PagedState]:
        """Return each linear layer's part of the cache."""
        new = None
        if self.taken is not None:
            new = torch.arange(slots.shape[1], device=slots.device) < (self.ends - self.lengths)[:, None]
        begins = (self.lengths == 0)[:, None, None]
        return [
            PagedState(
                sizes=states.sizes,
                matrix=matrices[self.places].masked_fill(begins[..., None], 0),
                tail=tails[self.places].masked_fill(begins, 0),
                log=log[self.places],
                held=self.lengths,
                slots=slots,
                filled=None,
                end=0,
                matrices=matrices,
                tails=tails,
                places=self.places,
                new=new,
            )
            for matrices, tails, log in zip(states.matrices, states.tails, states.logs, strict=True)
        ]

    def advance(self, tokens: int, writer: int | None = None) -> PagedCache:
        """Return the cache after the call; its rows contain only their real tokens."""
        return replaced(self, lengths=self.ends, writer=writer)
