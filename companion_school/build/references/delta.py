"""Stage 14, delta.py: a layer with a state of fixed size instead of a cache (lesson 17).

This stage is optional; no other stage needs it. The layer replaces your attention and is called in the same way.
"""

import torch
import torch.nn.functional as F
from attention import merge, split
from generation import Cache
from layers import initialise
from model import Transformer
from torch import Tensor, nn


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """For each token, write the missing part of its value to a state, then read: state += beta * k^T (v - k state).

    q, k:   (batch, head, token, d_k); keys have length 1.
    v:      (batch, head, token, d_v).
    beta:   write strengths from 0 to 1, (batch, head, token).
    state:  (batch, head, d_k, d_v), the state after earlier tokens; `None` means zeros. It is not changed in place.

    Returns the values that were read, (batch, head, token, d_v), and the state after the last token.
    """
    if state is None:
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    read = []
    for t in range(k.shape[2]):
        query, key, value = (x[:, :, t : t + 1] for x in (q, k, v))
        missing = value - key @ state
        state = state + beta[:, :, t, None, None] * (key.mT @ missing)
        read.append(query @ state)
    return torch.cat(read, dim=2), state


class State:
    """The state of a `DeltaLayer`. `table` is (batch, head, d_k, d_v), or `None` at first, and `tokens` is the number
    of tokens read, which `len` returns."""

    def __init__(self):
        self.table, self.tokens = None, 0

    def __len__(self) -> int:
        return self.tokens


class DeltaLayer(nn.Module):
    """A replacement for `Attention`. `query`, `key`, `value` and `output` are linear layers of width d_model without
    bias; `write`, also without bias, maps to `heads` numbers, whose sigmoids are the write strengths. Queries and keys
    are scaled to length 1."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.write = nn.Linear(d_model, heads, bias=False)

    def forward(self, x: Tensor, mask=None, turn=None, cache: State | None = None) -> Tensor:
        """(batch, token, d_model) -> (batch, token, d_model). No rotation and no mask are needed, because the order of
        the writes encodes the positions and no token reads later ones. If a `cache` is given, it must be a `State`,
        which is updated."""
        q, k = (F.normalize(split(layer(x), self.heads), dim=-1) for layer in (self.query, self.key))
        v, beta = split(self.value(x), self.heads), self.write(x).sigmoid().transpose(1, 2)
        heads, table = delta_rule(q, k, v, beta, None if cache is None else cache.table)
        if cache is not None:
            cache.table, cache.tokens = table, cache.tokens + x.shape[1]
        return self.output(merge(heads))


def put_states(model: Transformer, attend: tuple[int, ...] = ()) -> Transformer:
    """Return the same model with a `DeltaLayer` in every block except those whose indices are in `attend`; all weights
    are drawn again."""
    config = model.config
    for number, block in enumerate(model.decoder.blocks):
        if number not in attend:
            block.attention = DeltaLayer(config.d_model, config.heads)
    initialise(model, config.d_model, writes=2 * config.layers)
    return model


def new_caches(model: Transformer) -> list[State | Cache]:
    """Return what each block needs to continue a text: a `State`, or a `Cache` if the block has your attention."""
    return [State() if isinstance(block.attention, DeltaLayer) else Cache() for block in model.decoder.blocks]
