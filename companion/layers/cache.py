"""What generation keeps: the keys and values of tokens already seen (lesson 10).

A cache is a handle that the caller owns: it goes into a call and a new one comes out. No module holds one, so two
conversations on one model cannot meet.

    out = model(tokens, cache=KVCache.create(model.config, batch=2, slots=64))
    out = model(next_tokens, cache=out.cache)

The tensors are allocated once and written in place; only `lengths` tells what is in them. Handles of one conversation
share them: an older handle stays valid for what it describes, and going on from it overwrites what came later
(`rewind` says so explicitly); `clone` it first to keep both futures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.boundary import check_kind, described
from companion.config import ModelConfig, require_whole
from companion.layers.masks import causal, materialize
from companion.room import check_room


@dataclass(frozen=True)
class CrossCache:
    """Keys and values of a source, projected once and read at every step. They never grow."""

    keys: Float[Tensor, "batch kv_head key d_head"]
    values: Float[Tensor, "batch kv_head key d_v"]

    def select(self, rows: Int[Tensor, "row"]) -> CrossCache:
        """The given rows, in that order and as often as named, copied."""
        return CrossCache(self.keys[rows], self.values[rows])


@dataclass(frozen=True)
class LayerCache:
    """One layer's share of a `KVCache`, opened for a call of `token` new tokens.

    slots:    where each new token goes, (batch, token). It is also its position.
    filled:   slots in use before this call when that is the same for every row, else `None`.
    visible:  how many slots attention reads.
    mask:     which of them each new token may see; `None` when lower-right causal says it all.
    """

    keys: Float[Tensor, "batch kv_head slot d_head"]
    values: Float[Tensor, "batch kv_head slot d_v"]
    slots: Int[Tensor, "batch token"]
    filled: int | None
    visible: int
    mask: Bool[Tensor, "batch 1 token key"] | None

    def write(
        self, k: Float[Tensor, "batch kv_head token d_head"], v: Float[Tensor, "batch kv_head token d_v"]
    ) -> tuple[Float[Tensor, "batch kv_head key d_head"], Float[Tensor, "batch kv_head key d_v"]]:
        """Store the new keys (already rotated) and values; give back every visible slot.

        Raises `ValueError` where a gradient is being recorded, which writing in place would break.
        """
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("cache: writing in place would break the gradient; expected a call under torch.no_grad()")
        for store, new in ((self.keys, k), (self.values, v)):
            if self.filled is not None:
                store[:, :, self.filled : self.filled + new.shape[2]] = new
            else:
                rows = torch.arange(store.shape[0], device=store.device)[:, None]
                store[rows, :, self.slots] = new.transpose(1, 2).to(store.dtype)
        return self.keys[:, :, : self.visible], self.values[:, :, : self.visible]


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer of a decoder, for `batch` sequences of unequal lengths.

    keys, values:  one tensor per layer, (batch, kv_head, slot, d_head) and (batch, kv_head, slot, d_v).
    lengths:       tokens held of each row, (batch,). Slots from there on are free, whatever they contain.
    filled:        an upper bound on `lengths`, known without asking the device.
    uniform:       whether every row's length is exactly `filled`.
    bucket:        attention reads a multiple of this many slots, so that a compiled step meets few different shapes.
    writer:        the number of the model that filled it; `None` while it is empty.
    """

    keys: tuple[Float[Tensor, "batch kv_head slot d_head"], ...]
    values: tuple[Float[Tensor, "batch kv_head slot d_v"], ...]
    lengths: Int[Tensor, "batch"]
    filled: int = 0
    uniform: bool = True
    bucket: int = 1
    writer: int | None = None

    @classmethod
    def create(
        cls,
        config: ModelConfig,
        batch: int,
        slots: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        bucket: int = 1,
    ) -> KVCache:
        """An empty cache with room for `slots` tokens in each of `batch` rows.

        Memory: 2 (or d_head + d_v) numbers for each layer, kv_head and slot; `companion.account` counts the bytes.
        Raises `ValueError` if a size is below 1, or memory has no room for it.
        """
        check_kind("config", config, ModelConfig, "a ModelConfig, as model.config is one")
        for name, value in (("batch", batch), ("slots", slots), ("bucket", bucket)):
            require_whole(name, value)
        sizes = config.sizes
        numbers = config.layers * sizes.kv_heads * (sizes.d_head + sizes.d_v)
        check_room(f"batch={batch} and slots={slots}", "the cache", batch * slots * numbers * dtype.itemsize, device)

        def store(width: int) -> tuple[Tensor, ...]:
            shape = (batch, sizes.kv_heads, slots, width)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers))

        return cls(
            store(sizes.d_head), store(sizes.d_v), torch.zeros(batch, dtype=torch.long, device=device), bucket=bucket
        )

    @property
    def batch(self) -> int:
        """How many rows it holds."""
        return self.keys[0].shape[0]

    @property
    def slots(self) -> int:
        """Room in each row, in tokens."""
        return self.keys[0].shape[2]

    def check(self, config: ModelConfig, writer: int) -> None:
        """Raises `ValueError` unless this is a cache for a model of `config`, and none that another one has filled."""
        sizes = config.sizes
        got = len(self.keys), self.keys[0].shape[1], self.keys[0].shape[3], self.values[0].shape[3]
        expected = config.layers, sizes.kv_heads, sizes.d_head, sizes.d_v
        if got != expected:
            named = "layers={}, kv_head={}, d_head={}, d_v={}".format
            raise ValueError(f"cache has {named(*got)}: expected {named(*expected)}, as this model has")
        if self.writer is not None and self.writer != writer:
            raise ValueError(
                "cache: another model has filled it, whose keys mean nothing to this one; expected an empty cache, or "
                "the one that this model's last call gave back"
            )

    def open(self, tokens: int) -> list[LayerCache]:
        """Every layer's share, for a call that brings `tokens` new tokens to each row.

        Raises `ValueError` if they do not fit; nothing has been written then.
        """
        if self.filled + tokens > self.slots:
            raise ValueError(
                f"cache: {self.filled} of {self.slots} slots are filled, got {tokens} more tokens; "
                f"expected at most {self.slots - self.filled}"
            )
        slots = self.lengths[:, None] + torch.arange(tokens, device=self.lengths.device)
        reach = self.filled + tokens
        visible = min(self.slots, -(-reach // self.bucket) * self.bucket)
        mask = None
        if not self.uniform or visible != reach:
            mask = materialize(causal, self.batch, slots, visible)
        filled = self.filled if self.uniform else None
        return [LayerCache(k, v, slots, filled, visible, mask) for k, v in zip(self.keys, self.values, strict=True)]

    def advance(self, tokens: int, writer: int | None = None) -> KVCache:
        """The cache after a call that wrote `tokens` tokens to every row. `writer`: the number of the model."""
        return replace(self, lengths=self.lengths + tokens, filled=self.filled + tokens, writer=writer)

    def rewind(self, lengths: int | Int[Tensor, "batch"]) -> KVCache:
        """Forget what lies beyond `lengths`: padding of unequal prompts, or tokens to be taken back.

        Raises `ValueError` for what is no number of tokens, and if a row would have to hold more than it does.
        """
        expected = f"a whole number, or a tensor of one for each of the {self.batch} rows"
        if isinstance(lengths, Tensor):
            if lengths.dtype not in (torch.int64, torch.int32) or lengths.shape not in ((), (1,), (self.batch,)):
                raise ValueError(f"lengths is {described(lengths)}: expected {expected}")
        elif isinstance(lengths, bool) or not isinstance(lengths, int):
            raise ValueError(f"lengths={described(lengths)}: expected {expected}")
        wanted = torch.as_tensor(lengths, device=self.lengths.device).to(self.lengths.dtype).expand(self.batch)
        if bool(((wanted > self.lengths) | (wanted < 0)).any()):
            raise ValueError(
                f"lengths={wanted.tolist()}: expected for each row a number from 0 to what it holds, "
                f"{self.lengths.tolist()}"
            )
        longest, shortest = int(wanted.max()), int(wanted.min())
        writer = self.writer if longest else None
        return replace(self, lengths=wanted.clone(), filled=longest, uniform=longest == shortest, writer=writer)

    def clone(self) -> KVCache:
        """A copy with storage of its own, to follow two continuations of one text."""
        return self.select(torch.arange(self.batch, device=self.lengths.device))

    def select(self, rows: Int[Tensor, "row"]) -> KVCache:
        """The given rows, in that order and as often as named, copied (beam search reorders its beams so).

        Raises `ValueError` for what are no numbers of rows, (row,).
        """
        if not isinstance(rows, Tensor) or rows.dtype not in (torch.int64, torch.int32) or rows.ndim != 1:
            raise ValueError(f"rows={described(rows)}: expected a tensor of whole numbers, (row,)")

        def pick(store: Tensor) -> Tensor:
            # What no row has filled is not worth copying. It is zero, not left undefined: a masked slot has weight
            # zero, and zero times whatever a float may hold could be NaN.
            picked = store.new_zeros(len(rows), *store.shape[1:])
            picked[:, :, : self.filled] = store[rows, :, : self.filled]
            return picked

        return replace(
            self,
            keys=tuple(map(pick, self.keys)),
            values=tuple(map(pick, self.values)),
            lengths=self.lengths[rows],
        )
