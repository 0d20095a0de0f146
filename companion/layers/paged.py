"""A cache in blocks of a few tokens each, which sequences take as they grow and give back when they end (lesson 18).

A row of a `KVCache` has room for the longest text that may come. Here all texts share one pool of blocks, and a table
says of each text which blocks hold it, in their order (Kwon et al. 2023, "PagedAttention", section 4). Two texts that
begin alike may name the same blocks. Who may have which block is no matter of tensors: `companion.generation.blocks`.

    pool = PagedCache.pool(model.config, blocks=100, size=16)
    out = model(tokens, cache=pool.rows([[7, 2], [7, 5, 3]], held=[20, 33], new=[1, 1]))

What a token sees are the same numbers in the same order as in a `KVCache`, so attention computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from companion.config.model import ModelConfig
from companion.ground.arguments import check_kind
from companion.ground.fields import require_whole
from companion.ground.room import check_room
from companion.layers.cache import KVCache, LayerCache
from companion.layers.masks import backwards, materialize


@dataclass(frozen=True, kw_only=True)
class PagedLayer(LayerCache):
    """One layer's share of a `PagedCache`; `slots` and `mask` are as in a `LayerCache`.

    table:  the blocks of each row; 0 where it has no more.
    into:   the places in the pool, block * size + slot, of the tokens that are written,
    taken:  and which tokens of the call these are, counted through all rows; `None`: all of them.
    """

    keys: Float[Tensor, "block slot kv_head d_head"]
    values: Float[Tensor, "block slot kv_head d_v"] | None
    table: Int[Tensor, "batch column"]
    into: Int[Tensor, "written"]
    taken: Int[Tensor, "written"] | None

    def put(
        self, store: Float[Tensor, "block slot kv_head wide"], new: Float[Tensor, "batch kv_head token wide"]
    ) -> Float[Tensor, "batch kv_head key wide"]:
        """Write into one of the two stores; give back every row's blocks of it, one after the other (a copy)."""
        if torch.is_grad_enabled() and new.requires_grad:
            raise ValueError("cache: writing in place would break the gradient; expected a call under torch.no_grad()")
        tokens = new.transpose(1, 2).flatten(0, 1)
        tokens = tokens if self.taken is None else tokens[self.taken]
        store.flatten(0, 1).index_copy_(0, self.into, tokens.to(store.dtype))
        rows, columns = self.table.shape
        read = store.index_select(0, self.table.flatten())
        return read.view(rows, columns * store.shape[1], *store.shape[2:]).transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class PagedCache(KVCache):
    """A pool of blocks, and the rows of one call that look into it: `pool` makes it, `rows` those of a call.

    keys, values:  one tensor per layer, (block, slot, kv_head, d_head) and (block, slot, kv_head, d_v); as in a
                   `KVCache` no `values` with latents. Block 0 belongs to nobody and stays zero.
    table:         the blocks of each row.
    into, taken:   where its new tokens go, as in a `PagedLayer`.
    ends:          tokens that each row holds after the call, (batch,).
    windows:       of each layer, `None` where it sees all.

    Layers that look through a window have a slot for every token too. A handle is for one call: what a row holds
    afterwards is for the caller to say in the next `rows`.
    """

    keys: tuple[Float[Tensor, "block slot kv_head d_head"], ...]
    values: tuple[Float[Tensor, "block slot kv_head d_v"], ...]
    table: Int[Tensor, "batch column"]
    into: Int[Tensor, "written"]
    taken: Int[Tensor, "written"] | None
    ends: Int[Tensor, "batch"]
    windows: tuple[int | None, ...]

    @classmethod
    def pool(
        cls,
        config: ModelConfig,
        *,
        blocks: int,
        size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> PagedCache:
        """A pool of `blocks` blocks of `size` tokens each, without rows; block 0 beside them.

        Memory: d_head + d_v numbers for each layer, kv_head and slot, with latents rank + d_rope for each layer and
        slot. Raises `ValueError` if a size is below 1, or memory has no room for it.
        """
        check_kind("config", config, ModelConfig, "a ModelConfig, as model.config is one")
        for name, value in (("blocks", blocks), ("size", size)):
            require_whole(name, value)
        heads, key, value = config.sizes.kept
        needed = config.layers * (blocks + 1) * size * config.sizes.kept_numbers * dtype.itemsize
        check_room(f"blocks={blocks} of size={size}", "the pool", needed, device)

        def store(width: int) -> tuple[Tensor, ...]:
            shapes = ((blocks + 1, size, heads, width) for _ in range(config.layers) if width)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)

        none = torch.zeros(0, dtype=torch.long, device=device)
        seen = [config.layer(layer)[0].window for layer in range(config.layers)]
        return cls(
            keys=store(key),
            values=store(value),
            lengths=none,
            uniform=False,
            table=none[:, None],
            into=none,
            taken=None,
            ends=none,
            windows=tuple(None if window is None else window.width for window in seen),
        )

    @property
    def size(self) -> int:
        """Tokens of a block."""
        return self.keys[0].shape[1]

    @property
    def batch(self) -> int:
        """How many rows the call has."""
        return len(self.lengths)

    @property
    def slots(self) -> int:
        """Room in each row, in tokens."""
        return self.table.shape[1] * self.size

    def rows(self, tables: Sequence[Sequence[int]], held: Sequence[int], new: Sequence[int]) -> PagedCache:
        """A handle for a call of as many rows, padded on the right to the longest.

        tables:  the blocks of each, with room for what it holds and for what is new.
        held:    tokens that each holds,
        new:     and that the call brings to it, at least one; what is beyond these is padding and written nowhere.
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
        return replace(
            self,
            table=torch.tensor(table, device=device),
            into=torch.tensor(into, device=device),
            taken=None if whole else torch.tensor(taken, device=device),
            lengths=torch.tensor(held, device=device),
            ends=torch.tensor(ends, device=device),
            filled=max(ends) - tokens,  # so that padding beside a longer row counts for nothing
        )

    def clear(self, blocks: Sequence[int]) -> None:
        """Make these blocks zero: a masked slot has weight zero, and zero times whatever they held could be NaN."""
        for store in (*self.keys, *self.values):
            store[blocks] = 0

    def copy(self, old: int, new: int) -> None:
        """Block `new` holds what `old` does."""
        for store in (*self.keys, *self.values):
            store[new] = store[old]

    def check(self, config: ModelConfig, writer: int) -> None:
        """Raises `ValueError` unless this is a pool for a model of `config`."""
        value = self.values[0].shape[3] if self.values else 0
        got, expected = (len(self.keys), *self.keys[0].shape[2:], value), (config.layers, *config.sizes.kept)
        if got != expected:
            named = "layers={}, kv_head={}, d_head={}, d_v={}".format
            raise ValueError(f"cache has {named(*got)}: expected {named(*expected)}, as this model has")

    def ready(self, tokens: int) -> PagedCache:
        """Itself: nothing rolls."""
        return self

    def shown(self, tokens: int) -> int:
        """How many slots a mask counts: all of the longest row's blocks."""
        return self.slots

    def open(self, tokens: int) -> list[LayerCache]:
        """Every layer's share, for the call that `rows` has described."""
        # Padding stands where the last real token does: a row goes by its own length.
        last = self.ends[:, None] - 1
        slots = (self.lengths[:, None] + torch.arange(tokens, device=last.device)).minimum(last)
        masks = {width: materialize(backwards(width), self.batch, slots, self.slots) for width in set(self.windows)}
        values = self.values or [None] * len(self.keys)
        return [
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

    def advance(self, tokens: int, writer: int | None = None) -> PagedCache:
        """The cache after the call: rows hold what is theirs, and no padding."""
        return replace(self, lengths=self.ends, writer=writer)
