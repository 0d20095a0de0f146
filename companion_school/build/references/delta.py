"""Stage 14, delta.py: a layer that reads and writes a state of fixed size in place of a cache (lesson 17).

An option: nothing rests on it. The layer takes the place of your attention and is called as it is.
"""

import torch
import torch.nn.functional as F
from attention import merge, split
from generation import Cache
from layers import initialise
from model import Transformer
from torch import Tensor, nn


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Let each token write to a state what is missing there, and then read it: state += beta * k^T (v - k state).

    q, k:   (batch, head, token, d_k); keys have the length 1.
    v:      (batch, head, token, d_v).
    beta:   write strengths from 0 to 1, (batch, head, token).
    state:  (batch, head, d_k, d_v), which earlier tokens left; `None`: zeros. It is not changed in place.

    Returns what was read, (batch, head, token, d_v), and the state after the last token.
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
    """What a `DeltaLayer` keeps of a text: `table`, (batch, head, d_k, d_v), `None` at first; and `tokens`, how many
    it has read, which is its `len`."""

    def __init__(self):
        self.table, self.tokens = None, 0

    def __len__(self) -> int:
        return self.tokens


class DeltaLayer(nn.Module):
    """In the place of `Attention`. Linear layers without bias: `query`, `key`, `value`, `output`, d_model wide, and
    `write`, to `heads` numbers, whose sigmoid is the write strength. Queries and keys are scaled to length 1."""

    def __init__(self, d_model: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.write = nn.Linear(d_model, heads, bias=False)

    def forward(self, x: Tensor, mask=None, turn=None, cache: State | None = None) -> Tensor:
        """(batch, token, d_model) -> the same. The order of the writes says where a token is, so nothing is rotated,
        and no token reads what comes later, so no mask is needed. A `cache` is a `State`, which goes on."""
        q, k = (F.normalize(split(layer(x), self.heads), dim=-1) for layer in (self.query, self.key))
        v, beta = split(self.value(x), self.heads), self.write(x).sigmoid().transpose(1, 2)
        heads, table = delta_rule(q, k, v, beta, None if cache is None else cache.table)
        if cache is not None:
            cache.table, cache.tokens = table, cache.tokens + x.shape[1]
        return self.output(merge(heads))


def put_states(model: Transformer, attend: tuple[int, ...] = ()) -> Transformer:
    """The same model with a `DeltaLayer` in every block but those whose numbers are in `attend`; all weights are drawn
    anew."""
    config = model.config
    for number, block in enumerate(model.decoder.blocks):
        if number not in attend:
            block.attention = DeltaLayer(config.d_model, config.heads)
    initialise(model, config.d_model, writes=2 * config.layers)
    return model


def new_caches(model: Transformer) -> list[State | Cache]:
    """What each block of a model needs to go on with a text: a `State`, or a `Cache` where it has your attention."""
    return [State() if isinstance(block.attention, DeltaLayer) else Cache() for block in model.decoder.blocks]
