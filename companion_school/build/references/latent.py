"""Stage 12, latent.py: attention that caches one small vector and one rotated key per token, for all heads (lesson 15).

This stage is optional. It uses the cache of stage 7, which stores whatever tensors it is given.
"""

import math

import torch
from attention import attend, merge, split
from layers import RMSNorm, initialise
from model import Config, Transformer
from torch import Tensor, nn


def expanded(q: Tensor, c: Tensor, k: Tensor, U_k: Tensor, U_v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute every head's keys (U_k c, followed by k) and values (U_v c), and attend: (batch, head, query, d_v).

    q:     (batch, head, query, d_k + d_rope), with the rotated part last.
    c, k:  latents, (batch, 1, key, rank), and rotated keys, (batch, 1, key, d_rope), which all heads share.
    U_k, U_v:  (head, d_k, rank) and (head, d_v, rank).
    mask:  as in `attend`.
    """
    keys = torch.cat([c @ U_k.mT, k.expand(-1, len(U_k), -1, -1)], dim=-1)
    return attend(q, keys, c @ U_v.mT, mask)


def absorbed(q: Tensor, c: Tensor, k: Tensor, U_k: Tensor, U_v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the same result from the same inputs without any head's keys or values: U_k is applied to the queries,
    and U_v to the weighted average of latents."""
    d_k = U_k.shape[1]
    down = torch.einsum("bhqd,hdr->bhqr", q[..., :d_k], U_k)
    asks, kept = torch.cat([down, q[..., d_k:]], dim=-1), torch.cat([c, k], dim=-1)
    asks = asks * math.sqrt(asks.shape[-1] / q.shape[-1])  # corrects the width that `attend` divides by
    return torch.einsum("bhqr,hdr->bhqd", attend(asks, kept, c, mask), U_v)


class LatentAttention(nn.Module):
    """A replacement for `Attention`. It has linear layers without bias: `query`, to heads * (d_head + d_rope); `down`,
    to rank + d_rope, the latent followed by the key to rotate; `up`, from the latent to heads * 2 d_head, which holds
    U_k and then U_v for each head; and `output`. `latent_norm`, an RMSNorm, is applied to the latent. d_head is d_model
    / heads."""

    def __init__(self, d_model: int, heads: int, rank: int, d_rope: int):
        super().__init__()
        self.heads, self.rank, self.d_rope, self.d_head = heads, rank, d_rope, d_model // heads
        self.query = nn.Linear(d_model, heads * (self.d_head + d_rope), bias=False)
        self.down, self.latent_norm = nn.Linear(d_model, rank + d_rope, bias=False), RMSNorm(rank)
        self.up = nn.Linear(rank, heads * 2 * self.d_head, bias=False)
        self.output = nn.Linear(heads * self.d_head, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, turn=None, cache=None) -> Tensor:
        """(batch, token, d_model) -> (batch, token, d_model). A `cache` stores the normed latent and the rotated key in
        place of keys and values. A single token is computed with `absorbed`, several tokens with `expanded`."""
        q = split(self.query(x), self.heads)
        c, k = self.down(x)[:, None].split([self.rank, self.d_rope], dim=-1)
        c = self.latent_norm(c)
        if turn is not None:
            q = torch.cat([q[..., : self.d_head], turn(q[..., self.d_head :])], dim=-1)
            k = turn(k)
        if cache is not None:
            c, k = cache.extend(c, k)
        U_k, U_v = self.up.weight.unflatten(0, (self.heads, -1)).chunk(2, dim=1)
        way = absorbed if x.shape[1] == 1 else expanded
        return self.output(merge(way(q, c, k, U_k, U_v, mask)))


def put_latents(model: Transformer, rank: int, d_rope: int) -> Transformer:
    """Return the same model with latent attention in every block; all weights are drawn again."""
    config = model.config
    for block in model.decoder.blocks:
        block.attention = LatentAttention(config.d_model, config.heads, rank, d_rope)
    initialise(model, config.d_model, writes=2 * config.layers)
    return model


def bytes_kept(config: Config, tokens: int, rank: int | None = None, d_rope: int = 0, size: int = 4) -> int:
    """Return the size of the caches of all layers in bytes for this many tokens of one text, with `size` bytes per
    number. They hold the keys and values of your own attention or, with a `rank`, latents and rotated keys."""
    numbers = 2 * config.kv_heads * (config.d_model // config.heads) if rank is None else rank + d_rope
    return config.layers * tokens * numbers * size
