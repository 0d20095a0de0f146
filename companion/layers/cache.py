"""Key-value cache, which stores the keys and values of tokens that have already been read (lesson 10).

A cache is a handle that the caller owns. A call takes a cache and returns a new one. No module stores a cache, so two
conversations with the same model cannot get mixed up.

    out = model(tokens, cache=KVCache.create(model.config, batch=2, slots=64))
    out = model(next_tokens, cache=out.cache)

The tensors are allocated once and written in place; only `lengths` records how much of them is in use. The handles of
one conversation share these tensors: an older handle stays valid for the tokens that it describes, and continuing from
it overwrites what came later (`rewind` does so explicitly). To keep both continuations, `clone` the cache first.

Local layers, whose tokens see a window of the most recent tokens, store only these tokens (see
`companion.layers.rolling_cache`). Linear layers store a matrix instead of keys and values (see
`companion.layers.recurrent_cache`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.config.model import ModelConfig, ResolvedAttention
from companion.ground.arguments import check_kind, described
from companion.ground.fields import require, require_whole
from companion.ground.memory import check_room
from companion.ground.precision import wide_dtype
from companion.ground.replaced import replaced
from companion.layers.masks import AttentionMask, Mask, Predicate, causal, joined, materialize, over_columns, table_of
from companion.layers.recurrent_cache import Log, StateCache, States, refuse_gradients, state_numbers
from companion.layers.rolling_cache import Local


@dataclass(frozen=True)
class CrossCache:
    """Keys and values of a source, projected once and read at every step. They never grow."""

    keys: Float[Tensor, "batch kv_head key d_head"]
    values: Float[Tensor, "batch kv_head key d_v"]

    def check(self, batch: int, sizes: ResolvedAttention) -> None:
        """Check that this cache fits the batch size and the model.

        Raises:
            ValueError: If the source has a different batch size, or comes from a model with different sizes.
        """
        rows, heads, _, d_head = self.keys.shape
        if rows != batch:
            raise ValueError(f"source has batch={rows}: expected {batch}, one row per row of tokens")
        if (heads, d_head, self.values.shape[3]) != (sizes.kv_heads, sizes.d_head, sizes.d_v):
            raise ValueError(
                f"source has kv_head={heads}, d_head={d_head}, d_v={self.values.shape[3]}: expected {sizes.kv_heads}, "
                f"{sizes.d_head} and {sizes.d_v}, as returned by this model's encode"
            )

    def select(self, rows: Int[Tensor, "row"]) -> CrossCache:
        """Return a copy of the given rows in the given order; an index that is repeated repeats its row."""
        return CrossCache(self.keys[rows], self.values[rows])


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a `KVCache`, prepared for a call with `token` new tokens.

    Attributes:
        keys: Stored keys, (batch, kv_head, slot, d_head).
        values: Stored values; `None` if they are part of the keys (latent attention).
        slots: Slot of each new token, which is also its position, (batch, token).
        filled: Number of columns in use before this call if it is the same for every row, otherwise `None`.
        visible: Number of slots that a mask covers.
        mask: Which of the keys each new token may attend to; `None` if causality and the layer's window determine this.
        first: First column that attention reads.
        end: One past the last column that attention reads.
        gone: Number of tokens of each row that a rolling layer has dropped, so that its column c is slot c + gone. If
            `None`, columns are slots.
    """

    keys: Float[Tensor, "batch kv_head slot d_head"]
    values: Float[Tensor, "batch kv_head slot d_v"] | None
    slots: Int[Tensor, "batch token"]
    filled: int | None
    visible: int
    mask: Bool[Tensor, "#batch 1 token key"] | None
    first: int
    end: int
    gone: Int[Tensor, "batch"] | None = None

    def write(
        self, k: Float[Tensor, "batch kv_head token d_head"], v: Float[Tensor, "batch kv_head token d_v"]
    ) -> tuple[Float[Tensor, "batch kv_head key d_head"], Float[Tensor, "batch kv_head key d_v"]]:
        """Store the new keys (already rotated) and values, and return all columns that attention reads.

        Raises:
            ValueError: If a gradient is being recorded, because in-place writes would break it.
        """
        assert self.values is not None
        return self.put(self.keys, k), self.put(self.values, v)

    def put(
        self, store: Float[Tensor, "batch kv_head slot wide"], new: Float[Tensor, "batch kv_head token wide"]
    ) -> Float[Tensor, "batch kv_head key wide"]:
        """Write to one of the two stores, and return all of its columns that attention reads.

        Raises:
            ValueError: If a gradient is being recorded (see `write`).
        """
        refuse_gradients(new)
        if self.filled is not None:
            store[:, :, self.filled : self.filled + new.shape[2]] = new
        else:
            rows = torch.arange(store.shape[0], device=store.device)[:, None]
            columns = self.slots if self.gone is None else self.slots - self.gone[:, None]
            store[rows, :, columns] = new.transpose(1, 2).to(store.dtype)
        return store[:, :, self.first : self.end]


def layer_mask(
    mask: Mask | Predicate | AttentionMask | None,
    x: Float[Tensor, "batch token d_model"],
    heads: int,
    cache: LayerCache | CrossCache | None,
    *,
    causal: bool,
    window: int | None,
) -> AttentionMask:
    """Combine a mask with the causality and the window of a layer, for the keys that the layer reads in this call.

    The layer reads the keys of `x`, of a `LayerCache` and `x`, or of a source, which every query sees in full. The
    result is the same for every layer with the same causality and window.

    Args:
        mask: A mask or a predicate. With a `LayerCache`, the keys of the mask are the slots of the cache. An
            `AttentionMask` is returned unchanged.
        x: The stream, (batch, token, d_model).
        heads: Number of query heads of the layer.
        cache: The layer's part of a cache, or the source.
        causal: Whether the layer is causal.
        window: Width of the layer's window; `None` if it has none.

    Raises:
        ValueError: If the shape of the mask does not match, or a `LayerCache` is passed to a layer that is not causal.
    """
    shape = (x.shape[0], heads, x.shape[1])
    if isinstance(cache, CrossCache):
        return AttentionMask.of(mask, (*shape, cache.keys.shape[2]), x.device)
    if cache is None:
        return AttentionMask.of(mask, (*shape, x.shape[1]), x.device, causal=causal, window=window)
    require(causal, "causal", causal, "True with a cache, because cached keys stay valid only under a causal mask")
    if isinstance(mask, AttentionMask):
        return mask
    if mask is not None:
        table = table_of(mask, (*shape, cache.visible), cache.slots)
        mask = over_columns(table, cache.first, cache.end, cache.visible, cache.gone)
    if cache.mask is not None:  # no row of this mask is empty, because a token sees itself
        return AttentionMask(cache.mask) if mask is None else AttentionMask.from_table(joined(mask, cache.mask))
    return AttentionMask.of(mask, (*shape, cache.end - cache.first), x.device, causal=True, window=window)


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer of a decoder, for `batch` sequences of unequal lengths.

    Attributes:
        keys: One tensor per layer that is not linear, (batch, kv_head, slot, d_head). With latents, each tensor has a
            single key head, [latent, rotated key].
        values: Like `keys`, (batch, kv_head, slot, d_v). Empty with latents, because the value consists of the first
            components of the key.
        lengths: Number of tokens stored for each row, (batch,). Later slots are free, regardless of their contents.
        filled: An upper bound on `lengths`, known without waiting for the device.
        uniform: True if every row's length is exactly `filled`.
        bucket: Attention always reads a multiple of this number of slots, so that a compiled step sees only a few
            different shapes.
        writer: Id of the model that filled the cache; `None` while the cache is empty.
        local: State of the layers with a window; `None` if there are none.
        states: State of the linear layers; `None` if there are none.
    """

    keys: tuple[Float[Tensor, "batch kv_head _ d_head"], ...]  # rolling layers have fewer slots
    values: tuple[Float[Tensor, "batch kv_head _ d_v"], ...]
    lengths: Int[Tensor, "batch"]
    filled: int = 0
    uniform: bool = True
    bucket: int = 1
    writer: int | None = None
    local: Local | None = None
    states: States | None = None

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
        """Create an empty cache with room for `slots` tokens in each of `batch` rows.

        In memory, each layer takes d_head + d_v elements per kv_head and slot, or rank + d_rope per slot with latents.
        A local layer has only `rolling_cache.columns` of the slots, and also keeps all tokens of the last call until
        the next one, because only then is it known which of them were padding. A linear layer takes
        `recurrent_cache.state_numbers` elements in fp32 or wider, a number that stops growing after a few slots.
        `companion.account` counts the bytes.

        Args:
            config: Configuration of the model.
            batch: Number of rows.
            slots: Capacity of each row, in tokens.
            dtype: Type of keys and values.
            device: Device of the tensors.
            bucket: See `KVCache`.

        Raises:
            ValueError: If `config` is not a ModelConfig, a size is below 1, or the cache does not fit in memory.
        """
        check_kind("config", config, ModelConfig, "a ModelConfig, such as model.config")
        for name, value in (("batch", batch), ("slots", slots), ("bucket", bucket)):
            require_whole(name, value)
        sizes, local = config.sizes, Local.of(config, slots)
        room = [slots] * len(config.attending) if local is None else local.room
        numbers, (heads, key, value) = sum(room) * sizes.kept_numbers, sizes.kept
        memory, linear = config.linear_config, config.linears
        states = 0 if memory is None else linear * state_numbers(memory, slots) * wide_dtype(dtype).itemsize
        size = batch * (numbers * dtype.itemsize + states)
        check_room(f"batch={batch} and slots={slots}", "the cache", size, device)
        lengths = torch.zeros(batch, dtype=torch.long, device=device)
        if local is not None and min(room) < slots:
            local = replaced(local, gone=lengths)

        def store(width: int) -> tuple[Tensor, ...]:
            shapes = ((batch, heads, held, width) for held in room if width)
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)

        held = States.of(config, lengths, slots, dtype)
        return cls(store(key), store(value), lengths, bucket=bucket, local=local, states=held)

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.lengths.shape[0]

    @property
    def slots(self) -> int:
        """Capacity of each row, in tokens."""
        if self.states is not None:
            return self.states.slots
        return self.keys[0].shape[2] if self.local is None else self.local.slots

    def check_layers(self, config: ModelConfig, heads: int) -> None:
        """Check that this cache has the layers of a model.

        Args:
            config: Configuration of the model.
            heads: Number of key heads that this cache stores.

        Raises:
            ValueError: If the layers differ.
        """
        memory = (
            None
            if config.linear_config is None
            else (Log.of(config.linear_config), tuple(map(config.linear, range(config.layers))))
        )
        kept = None if self.states is None else (self.states.sizes, self.states.layers)
        if kept != memory:
            raise ValueError(f"cache stores {kept} for linear layers: expected {memory}, as in this model")
        value = self.values[0].shape[3] if self.values else 0
        got = (len(self.keys), *((heads, self.keys[0].shape[3], value) if self.keys else ()))
        expected = (len(config.attending), *(config.sizes.kept if config.attending else ()))
        if got != expected:
            named = "layers={}, kv_head={}, d_head={}, d_v={}".format
            raise ValueError(f"cache has {named(*got)}: expected {named(*expected)}, as in this model")

    def check(self, config: ModelConfig, writer: int) -> None:
        """Check that this cache fits a model of `config`, and that no other model has filled it.

        Raises:
            ValueError: If the cache has different sizes, or another model filled it.
        """
        self.check_layers(config, self.keys[0].shape[1] if self.keys else 0)
        seen, local = config.attention.window, self.local
        layers = tuple(map(config.local, config.attending))
        here = (seen.width, layers) if seen is not None and any(layers) else None
        if here != (None if local is None else (local.width, local.layers)):
            raise ValueError(
                f"cache is for window={local and local.width}: expected a cache made for this model's windows, {here}"
            )
        if self.writer is not None and self.writer != writer:
            raise ValueError(
                "cache: it was filled by another model; expected an empty cache or "
                "the one returned by this model's last call"
            )

    def ready(self, tokens: int, ends: Int[Tensor, "batch"] | None = None) -> KVCache:
        """Make room for `tokens` more tokens in the local and linear layers.

        If there is room, returns this cache. Otherwise returns a new cache whose local and linear layers have moved
        their last columns to new tensors; this cache itself stays unchanged.

        Args:
            tokens: Number of new tokens in each row.
            ends: For linear layers and long calls: how many of these tokens each row has before its trailing padding.
                `None` means all.
        """
        if self.filled + tokens > self.slots:  # `open` raises
            return self
        if self.states is not None:
            states = self.states.ready(self.lengths, tokens, ends)
            self = self if states is self.states else replaced(self, states=states)
        if self.local is None:
            return self
        stores, local = self.local.rolled((*self.keys, *self.values), self.lengths, tokens, uniform=self.uniform)
        if local is self.local:
            return self
        return replaced(self, keys=stores[: len(self.keys)], values=stores[len(self.keys) :], local=local)

    def rounded(self, limit: int) -> KVCache:
        """Return this cache with its Python integers rounded up to the end of a bucket.

        A step that is compiled for these numbers then works for a whole bucket of up to `limit` slots. The step still
        writes into the tensors of this cache. Call this method on the result of `ready` for one token.
        """
        # `filled` and `columns` are only upper bounds on what rows hold, so they may be rounded up.
        last = min(-(-(self.filled + 1) // self.bucket) * self.bucket, limit) - 1
        local = self.local
        if local is not None:
            local = replaced(local, columns=self.keys[local.layers.index(True)].shape[2] - 1)
        states = self.states
        if states is not None:
            states = replaced(states, columns=states.logs[0].shape[1] - 1)
        return replaced(self, filled=last, uniform=False, local=local, states=states)

    def shown(self, tokens: int) -> int:
        """Return the number of slots that a mask covers in a call with `tokens` new tokens per row."""
        reach = self.filled + tokens
        # A chunk of a uniform cache needs no mask if it reads only filled slots; buckets are only for single steps.
        chunk = self.uniform and tokens > 1
        return reach if chunk else min(self.slots, -(-reach // self.bucket) * self.bucket)

    def open(self, tokens: int) -> list[LayerCache | StateCache]:
        """Return each layer's part of the cache, for a call with `tokens` new tokens per row.

        With local or linear layers, call this on the result of `ready`.

        Raises:
            ValueError: If the tokens do not fit; in this case nothing has been written.
        """
        if self.filled + tokens > self.slots:
            raise ValueError(
                f"cache: {self.filled} of {self.slots} slots are filled, got {tokens} more tokens; "
                f"expected at most {self.slots - self.filled}"
            )
        slots = self.lengths[:, None] + torch.arange(tokens, device=self.lengths.device)
        reach, shown_slots = self.filled + tokens, self.shown(tokens)
        mask = None
        if not self.uniform or shown_slots != reach:
            mask = materialize(causal, self.batch, slots, shown_slots)
        filled = self.filled if self.uniform else None
        stores = list(zip(self.keys, self.values or [None] * len(self.keys), strict=True))
        opened = [LayerCache(k, v, slots, filled, shown_slots, mask, 0, shown_slots) for k, v in stores]
        near = self._near(opened, slots)
        if self.states is None:
            return list(near)
        attending, linear = iter(near), iter(self.states.open(self.lengths, slots, uniform=self.uniform))
        return [next(linear) if here else next(attending) for here in self.states.layers]

    def _near(self, opened: list[LayerCache], slots: Int[Tensor, "batch token"]) -> list[LayerCache]:
        """Let local layers read only the columns that their windows can reach."""
        local, tokens = self.local, slots.shape[1]
        if local is None or self.filled + tokens <= local.width:  # every token is inside the window
            return opened
        shown_slots = opened[0].visible
        room = self.keys[local.layers.index(True)].shape[2]
        near = replaced(opened[0], **local.share(slots, shown_slots, room, uniform=self.uniform, bucket=self.bucket))
        return [
            replaced(near, keys=layer.keys, values=layer.values) if here else layer
            for layer, here in zip(opened, local.layers, strict=True)
        ]

    def advance(self, tokens: int, writer: int | None = None) -> KVCache:
        """Return the cache as it is after the model with id `writer` has written `tokens` tokens to every row."""
        local = None if self.local is None else replaced(self.local, columns=self.local.columns + tokens)
        states = None if self.states is None else self.states.advance(tokens)
        lengths, filled = self.lengths + tokens, self.filled + tokens
        return replaced(self, lengths=lengths, filled=filled, writer=writer, local=local, states=states)

    def rewind(self, lengths: int | Int[Tensor, "batch"]) -> KVCache:
        """Shorten rows to `lengths`, to drop the padding of unequal prompts or to remove tokens.

        Local layers can always remove the tokens of the last call and `BACK` more. Linear layers can remove
        `recurrent_cache.BACK` tokens, and the tokens of the last call if it had at most `recurrent_cache.WHOLE`.

        Raises:
            ValueError: If `lengths` is not a number of tokens, if it is longer than the row, or if local or linear
                layers no longer store the tokens that the row's last token saw.
        """
        expected = f"a whole number, or a tensor with one for each of the {self.batch} rows"
        if isinstance(lengths, Tensor):
            if lengths.dtype not in (torch.int64, torch.int32) or lengths.shape not in ((), (1,), (self.batch,)):
                raise ValueError(f"lengths is {described(lengths)}: expected {expected}")
        elif isinstance(lengths, bool) or not isinstance(lengths, int):
            raise ValueError(f"lengths={described(lengths)}: expected {expected}")
        elif not 0 <= lengths <= self.slots:
            raise ValueError(f"lengths={described(lengths)}: expected {expected}, from 0 to the row's current length")
        wanted = torch.as_tensor(lengths, device=self.lengths.device).to(self.lengths.dtype).expand(self.batch)
        if bool(((wanted > self.lengths) | (wanted < 0)).any()):
            raise ValueError(
                f"lengths={wanted.tolist()}: expected lengths from 0 to each row's current length, "
                f"{self.lengths.tolist()}"
            )
        longest, shortest = int(wanted.max()), int(wanted.min())
        writer = self.writer if longest else None
        uniform, local = longest == shortest, self.local
        if local is not None:
            local = local.rewound(wanted, self.lengths)
            uniform = uniform and (local.gone is None or bool((local.gone == local.gone[0]).all()))
        states = None if self.states is None else self.states.rewound(wanted, self.lengths)
        uniform = uniform and (states is None or bool((states.gone == states.gone[0]).all()))
        now: dict[str, Any] = {"local": local, "states": states}
        return replaced(self, lengths=wanted.clone(), filled=longest, uniform=uniform, writer=writer, **now)

    def clone(self) -> KVCache:
        """Copy the cache to new tensors, so that a text can be continued in two ways."""
        return self.select(torch.arange(self.batch, device=self.lengths.device))

    def select(self, rows: Int[Tensor, "row"]) -> KVCache:
        """Return a copy of the given rows in the given order; an index that is repeated repeats its row.

        Beam search uses this to reorder its beams.

        Raises:
            ValueError: If `rows` is not a vector of row indices, (row,); on a GPU their range is not checked.
        """
        if not isinstance(rows, Tensor) or rows.dtype not in (torch.int64, torch.int32) or rows.ndim != 1:
            raise ValueError(f"rows={described(rows)}: expected a tensor of whole numbers, (row,)")
        if rows.device.type == "cpu" and len(rows) and not (rows.min() >= 0 and rows.max() < self.batch):
            raise ValueError(f"rows={rows.tolist()}: expected row indices from 0 to {self.batch - 1}")

        def pick(store: Tensor, filled: int) -> Tensor:
            # Free slots are not copied but set to zero. They cannot stay undefined: a masked slot has weight zero,
            # and zero times an arbitrary float could be NaN.
            picked = store.new_zeros(len(rows), *store.shape[1:])
            picked[:, :, :filled] = store[rows, :, :filled]
            return picked

        local = self.local
        used = [self.filled] * len(self.keys) if local is None else local.used(self.filled)
        return replaced(
            self,
            keys=tuple(map(pick, self.keys, used)),
            values=tuple(map(pick, self.values, used)),
            lengths=self.lengths[rows],
            local=None if local is None else local.select(rows),
            states=None if self.states is None else self.states.select(rows),
        )
