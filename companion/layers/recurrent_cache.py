"""Cache of linear-attention layers, with one matrix per head and a log of the most recent writes (lesson 17).

Unlike keys and values, a matrix cannot be shortened. Therefore a layer stores the matrix as it was some tokens ago, and
a log of what each token has written since. From these two, equation (5) of `companion.layers.linear_attention` computes
the matrix after any of the tokens. When a log is full, it is folded into a new matrix: all its writes, except those of
the last `BACK` tokens, are applied to a copy of the matrix; older handles keep the old matrix. A cache of linear layers
is therefore as large after a million tokens as after a hundred. The cache can drop the last `BACK` tokens, and the
tokens of the last call if there were at most `WHOLE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.config.model import LinearConfig, ModelConfig
from companion.ground.precision import wide_dtype
from companion.ground.replaced import replaced
from companion.layers.linear_attention import CHUNK, Writes, fold

BACK = 16
"""Number of tokens at the end of a log that are not folded, so that they can be removed."""
WHOLE = CHUNK
"""A log stores all tokens of a call that has at most this many, but only the last `BACK` tokens of a longer call."""


@dataclass(frozen=True)
class Log:
    """Sizes of the parts of a log, each in elements per token and row.

    The parts are `attention_mask` (1 if a token was not padding), `raw` (the input of the convolution), and the fields
    of `Writes` for all heads.
    """

    channels: int
    heads: int
    d_head: int
    d_v: int
    rates: int

    @classmethod
    def of(cls, sizes: LinearConfig) -> Log:
        """Compute the sizes from a configuration whose defaults are filled in."""
        heads, keys, d_head, d_v = sizes.heads or 0, sizes.key_heads or 0, sizes.d_head or 0, sizes.d_v or 0
        rates = {None: 0, "fixed": 1, "head": 1, "channel": d_head}[sizes.decay]
        return cls(2 * keys * d_head + heads * d_v, heads, d_head, d_v, rates)

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each part, in order."""
        return 1, self.channels, self.heads * self.d_head, self.heads * self.d_v, self.heads * self.rates

    def split(self, log: Float[Tensor, "batch column wide"]) -> tuple[Tensor, Tensor, Writes]:
        """Split a log into `attention_mask` (batch, column), `raw` (batch, column, channel), and the writes."""
        attention_mask, raw, *parts = log.split(self.widths, -1)
        k, u, decay = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._nonempty(parts))
        return attention_mask[..., 0] > 0, raw, Writes(k, u, decay if self.rates else None)

    def _nonempty(self, parts: list[Tensor]) -> list[Tensor]:
        """Replace an empty part with the previous part, because an empty part cannot be split into heads."""
        return parts if self.rates else [*parts[:2], parts[1]]

    def joined(self, attention_mask: Tensor | None, raw: Tensor, written: Writes) -> Float[Tensor, "batch column wide"]:
        """Undo `split`."""
        flags = raw.new_ones(*raw.shape[:2], 1) if attention_mask is None else attention_mask[..., None].to(raw.dtype)
        parts = [part.transpose(1, 2).flatten(2) for part in written if part is not None]
        return torch.cat([flags, *(part.to(raw.dtype) for part in (raw, *parts))], -1)


def written_where(written: Writes, here: Bool[Tensor, "batch token"] | None) -> Writes:
    """Keep the writes where `here` is true, and change the others so that they leave the matrix unchanged."""
    if here is None:
        return written
    there = ~here[:, None, :, None]
    decay = None if written.log_decay is None else written.log_decay.masked_fill(there, 0)
    return Writes(written.k.masked_fill(there, 0), written.u, decay)


def last_real(
    tail: Float[Tensor, "batch before channel"],
    raw: Float[Tensor, "batch column channel"],
    here: Bool[Tensor, "batch column"],
) -> Float[Tensor, "batch before channel"]:
    """Return the last inputs of the convolution, as many as `tail` has.

    The inputs are taken from `tail` followed by those inputs in `raw` for which `here` is true.
    """
    if tail.shape[1] == 0:
        return tail
    both = torch.cat((tail, raw), 1)
    here = torch.cat((here.new_ones(tail.shape[:2]), here), 1)
    place = torch.arange(both.shape[1], device=here.device)
    last = place.masked_fill(~here, -1).topk(tail.shape[1], -1).values.flip(-1)
    return both.gather(1, last[..., None].expand(-1, -1, both.shape[2]))


def refuse_gradients(*new: Tensor) -> None:
    """Check that no gradient is being recorded, because writing in place would break it.

    Raises:
        ValueError: If a gradient is being recorded.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in new):
        raise ValueError("cache: in-place writes would break the gradient; call the model under torch.no_grad()")


@dataclass(frozen=True)
class StateCache:
    """One linear layer's part of a `KVCache`, prepared for a call with `token` new tokens.

    Attributes:
        sizes: Sizes of the log.
        matrix: The matrix before the tokens of the log.
        tail: The convolution's last inputs before the tokens of the log.
        log: The writes of all tokens since `matrix`.
        held: Number of tokens in the log for each row.
        slots: Slot of each new token.
        filled: Column of the log for the first new token if it is the same for every row, otherwise `None`.
        end: Number of columns of the log in use.
        kept: In a call of more than `WHOLE` tokens: the matrix, tail and log to be filled, and how many of the tokens
            are folded into the matrix, (batch,).
    """

    sizes: Log
    matrix: Float[Tensor, "batch head d_head d_v"]
    tail: Float[Tensor, "batch before channel"]
    log: Float[Tensor, "batch column wide"]
    held: Int[Tensor, "batch"]
    slots: Int[Tensor, "batch token"]
    filled: int | None
    end: int
    kept: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def before(self) -> tuple[Float[Tensor, "batch before channel"], Writes | None]:
        """Return the convolution's last inputs, and the writes since `matrix`."""
        if self.end == 0:
            return self.tail, None
        attention_mask, raw, written = self.sizes.split(self.log[:, : self.end])
        here = torch.arange(self.end, device=attention_mask.device) < self.held[:, None]
        return last_real(self.tail, raw, here & attention_mask), written_where(written, here)

    def write(self, attention_mask: Bool[Tensor, "batch token"] | None, raw: Tensor, written: Writes) -> None:
        """Store the writes of new tokens.

        Raises:
            ValueError: If a gradient is being recorded, because in-place writes would break it.
        """
        refuse_gradients(raw, written.u)
        new = self.sizes.joined(attention_mask, raw.to(self.log.dtype), written)
        if self.kept is not None:
            self._write_last(attention_mask, raw, written, new)
        elif self.filled is not None:
            self.log[:, self.filled : self.filled + new.shape[1]] = new
        else:
            rows = torch.arange(len(new), device=new.device)[:, None]
            self.log[rows, self.held[:, None] + torch.arange(new.shape[1], device=new.device)] = new

    def _write_last(self, attention_mask: Tensor | None, raw: Tensor, written: Writes, new: Tensor) -> None:
        """Fold all but the last tokens of each row into the new matrix."""
        assert self.kept is not None
        matrix, tail, log, folded = self.kept
        place = torch.arange(raw.shape[1], device=raw.device)
        here = place < folded[:, None]
        last, before = self.before()
        state = self.matrix if before is None else fold(self.matrix, before)
        matrix.copy_(fold(state, written_where(written, here)))
        tail.copy_(last_real(last, raw.to(tail.dtype), here if attention_mask is None else here & attention_mask))
        columns = (folded[:, None] + place[: log.shape[1]]).clamp(max=raw.shape[1] - 1)
        log.copy_(new.gather(1, columns[..., None].expand(-1, -1, new.shape[2])))


@dataclass(frozen=True)
class States:
    """State of the linear layers of a `KVCache`, in fp32 or wider.

    Attributes:
        sizes: Sizes of the logs.
        layers: Which layers of the model are linear.
        matrices: One tensor per linear layer, (batch, head, d_head, d_v).
        tails: The convolution's earlier inputs per linear layer, (batch, convolution - 1, channel).
        logs: One log per linear layer, (batch, column, wide) (see `Log`).
        slots: Capacity of each row, in tokens.
        columns: Number of columns in use in the logs: an upper bound, exact if the cache is uniform.
        gone: Number of tokens of each row that are folded into the matrices, (batch,).
        previous: During a call of more than `WHOLE` tokens: the state that the call reads while it fills this one.
        padded: True after a call of more than `WHOLE` tokens if rows end in padding that has not been removed yet.
    """

    sizes: Log
    layers: tuple[bool, ...]
    matrices: tuple[Float[Tensor, "batch head d_head d_v"], ...]
    tails: tuple[Float[Tensor, "batch before channel"], ...]
    logs: tuple[Float[Tensor, "batch column wide"], ...]
    slots: int
    columns: int
    gone: Int[Tensor, "batch"]
    previous: States | None = None
    padded: bool = False

    @classmethod
    def of(cls, config: ModelConfig, lengths: Int[Tensor, "batch"], slots: int, dtype: torch.dtype) -> States | None:
        """Make the state for an empty cache; `None` if no layer is linear."""
        sizes = config.linear_config
        if sizes is None:
            return None
        log, layers, rows = Log.of(sizes), tuple(map(config.linear, range(config.layers))), len(lengths)
        made = {"dtype": wide_dtype(dtype), "device": lengths.device}

        def store(*shape: int) -> tuple[Tensor, ...]:
            return tuple(torch.zeros(rows, *shape, **made) for _ in range(sum(layers)))  # type: ignore[call-overload]

        matrices, tails = store(*matrix_shape(log)), store(sizes.convolution - 1, log.channels)
        logs = store(columns(slots), sum(log.widths))
        return cls(log, layers, matrices, tails, logs, slots, 0, torch.zeros_like(lengths))

    def ready(self, lengths: Int[Tensor, "batch"], tokens: int, ends: Int[Tensor, "batch"] | None) -> States:
        """Make room for `tokens` more tokens. Returns this state or a new one; older handles keep their contents.

        Args:
            lengths: Number of tokens of each row.
            tokens: Number of new tokens.
            ends: Number of new tokens of each row before its trailing padding; `None` means all.

        Raises:
            ValueError: If the padding of a long call has not been removed.
        """
        if self.padded:
            raise ValueError("cache: its rows end in padding (see token_mask); rewind it first")
        if tokens > WHOLE:
            counts = torch.full_like(lengths, tokens) if ends is None else ends
            folded = (counts - BACK).clamp(min=0)
            room = max(columns(self.slots), BACK)
            new = self._like(room)
            return replaced(new, columns=BACK, gone=lengths + folded, previous=self, padded=ends is not None)
        if self.columns + tokens <= self.logs[0].shape[1]:
            return self
        if not self.columns:  # the log is empty but too small
            return replaced(self, logs=self._like(tokens).logs)
        held = min(self.columns, BACK)
        shift = (lengths - self.gone - held).clamp(min=0)
        new = self._like(max(columns(self.slots), held + tokens))
        for i, log in enumerate(self.logs):
            attention_mask, raw, written = self.sizes.split(log[:, : self.columns])
            here = torch.arange(self.columns, device=shift.device) < shift[:, None]
            new.matrices[i].copy_(fold(self.matrices[i], written_where(written, here)))
            new.tails[i].copy_(last_real(self.tails[i], raw, here & attention_mask))
            if held:
                column = shift[:, None] + torch.arange(held, device=shift.device)
                new.logs[i][:, :held] = log.gather(1, column[..., None].expand(-1, -1, log.shape[2]))
        return replaced(new, columns=held, gone=self.gone + shift)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors: the matrices of all layers, then the tails, then the logs."""
        return (*self.matrices, *self.tails, *self.logs)

    def with_tensors(self, tensors: Sequence[Tensor], gone: Tensor) -> States:
        """Return this state with other tensors, given in the order of `tensors`."""
        layers = len(self.logs)
        matrices, tails, logs = (tuple(tensors[at : at + layers]) for at in (0, layers, 2 * layers))
        return replaced(self, matrices=matrices, tails=tails, logs=logs, gone=gone)

    def _like(self, room: int) -> States:
        """Allocate new matrices, tails, and logs of `room` columns."""
        logs = tuple(log.new_zeros(log.shape[0], room, log.shape[2]) for log in self.logs)
        matrices, tails = (tuple(map(torch.empty_like, stores)) for stores in (self.matrices, self.tails))
        return replaced(self, matrices=matrices, tails=tails, logs=logs)

    def open(
        self, lengths: Int[Tensor, "batch"], slots: Int[Tensor, "batch token"], *, uniform: bool
    ) -> list[StateCache]:
        """Return each linear layer's part of the state; call this on the result of `ready`."""
        of = self if self.previous is None else self.previous
        held = lengths - of.gone
        filled = of.columns if uniform else None
        opened = []
        for i in range(len(self.logs)):
            kept = None
            if self.previous is not None:
                kept = self.matrices[i], self.tails[i], self.logs[i], self.gone - lengths
            stores = of.matrices[i], of.tails[i], of.logs[i]
            opened.append(StateCache(self.sizes, *stores, held, slots, filled, of.columns, kept))
        return opened

    def advance(self, tokens: int) -> States:
        """Return the state after a call with `tokens` tokens."""
        if self.previous is not None:
            return replaced(self, previous=None)
        return replaced(self, columns=self.columns + tokens)

    def rewound(self, wanted: Int[Tensor, "batch"], lengths: Int[Tensor, "batch"]) -> States:
        """Return the state after shortening each row from its current length to the requested length.

        Raises:
            ValueError: If the logs do not reach back to a wanted length.
        """
        gone = self.gone.masked_fill(wanted == 0, 0)
        if bool((gone > wanted).any()):
            raise ValueError(
                f"lengths={wanted.tolist()}: expected each length to be 0 or close to the current one, "
                f"{lengths.tolist()}; linear layers store only the updates of the last {BACK} tokens, because earlier "
                "updates are part of a matrix and cannot be removed"
            )
        if bool((gone != self.gone).any()):  # rows of length 0 start again from zeros
            begun = (wanted == 0)[:, None, None]
            matrices = tuple(one.masked_fill(begun[..., None], 0) for one in self.matrices)
            tails = tuple(one.masked_fill(begun, 0) for one in self.tails)
            self = replaced(self, matrices=matrices, tails=tails, gone=gone)
        return replaced(self, columns=int((wanted - gone).max()), padded=False)

    def select(self, rows: Int[Tensor, "row"]) -> States:
        """Return a copy of the given rows."""
        return self.with_tensors([store[rows] for store in self.tensors], self.gone[rows])


def columns(slots: int) -> int:
    """Return the number of columns of a linear layer's log, in a cache of `slots` tokens per row."""
    return min(slots, 2 * BACK)


def matrix_shape(log: Log) -> tuple[int, int, int]:
    """Return the shape of a layer's matrices for one sequence of the batch."""
    return log.heads, log.d_head, log.d_v


def state_numbers(sizes: LinearConfig, slots: int) -> int:
    """Return the number of elements that a linear layer stores for a row of `slots` tokens.

    All defaults of `sizes` must be filled in.
    """
    log = Log.of(sizes)
    return log.heads * log.d_head * log.d_v + (sizes.convolution - 1) * log.channels + columns(slots) * sum(log.widths)
