"""A linear layer: what it keeps of all tokens before is one matrix a head (lesson 17).

`companion.layers.linear_attention` is the recurrence; here is what stands around it in Mamba-2, gated delta networks
and Kimi Linear: short convolutions, keys and queries of length one, what fades and how strongly is written, and a gate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import AttentionConfig, NormConfig
from companion.ground.annotations import checked
from companion.ground.fields import require
from companion.ground.precision import wide
from companion.layers.kernels.fla import by_library
from companion.layers.linear_attention import Writes, recurrence
from companion.layers.norms import RMSNorm
from companion.layers.recurrent_cache import StateCache, written_where

UNIT_EPS = 1e-6
"""Added to the square of a key's or a query's length before it is divided by."""
SLOWEST, FASTEST = 1e-3, 1e-1
"""Between these a layer begins to fade at each token, times a number from 1 to `RATES` a head (Gu and Dao 2023,
section 3.6; Dao and Gu 2024)."""
RATES = 16.0


class ShortConvolution(nn.Module):
    """Each channel's weighted sum of its last `width` numbers: y_t = sum_i w_i x_(t - width + 1 + i), without a bias.

    weight: (channel, width), the token's own last.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.reset()

    def reset(self) -> None:
        """Weights as PyTorch's convolutions begin."""
        nn.init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    @checked(sizes=lambda layer: {"channel": layer.weight.shape[0]})
    def forward(
        self,
        x: Float[Tensor, "batch token channel"],
        before: Float[Tensor, "batch before channel"] | None = None,
        document: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token channel"]:
        """`before`: the width - 1 numbers before these; `None`: zeros. `document`: nothing comes from another one."""
        width, tokens = self.weight.shape[1], x.shape[1]
        x = F.pad(x, (0, 0, width - 1, 0)) if before is None else torch.cat((before.to(x.dtype), x), 1)
        out = x[:, width - 1 :] * self.weight[:, -1]
        for back in range(1, width):
            earlier = x[:, width - 1 - back : width - 1 - back + tokens]
            if document is not None:
                same = F.pad(document[:, back:] == document[:, : max(0, tokens - back)], (min(back, tokens), 0))
                earlier = earlier * same[..., None]
            out = out + earlier * self.weight[:, -1 - back]
        return out


def _settle(given: dict[str, Any]) -> None:
    mask = given.get("mask")
    require(mask is None, "mask", mask, "None; a linear layer has no pairs of tokens to hide, see real and document")


class LinearAttention(nn.Module):
    """The gated delta rule and its kin (Yang, Kautz and Hatamizadeh 2024; Kimi Team 2025), in the place of `Attention`
    where `config.linear` is given.

    With x the stream, and for each head its own part of every vector:

        q, k, v   = silu(convolution(W x)), q and k then divided by their length, and q by sqrt(d_head)
        strength  = sigmoid(W_b x), twice that where `negative`
        log decay = -exp(rate) softplus(W_a x + bias), one number a head or a row; or fixed
        o         = the recurrence of `companion.layers.linear_attention`
        y         = W_o (RMSNorm(o) f(W_g x)), f the function of the gate

    query, key, value:  (key_heads d_head), the same, and (heads d_v); a key head serves heads / key_heads matrices.
    convolution:        over the three side by side.
    strength, decay, gate: W_b, W_a and W_g; with a rank the last two by way of `decay_down` (by channel) and
                        `gate_down`.

    Raises `ValueError` without `config.linear`, or where it is not causal.
    """

    def __init__(
        self,
        d_model: int,
        config: AttentionConfig,
        *,
        causal: bool = True,
        norms: NormConfig = NormConfig(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__()
        require(config.linear is not None, "linear", config.linear, "a LinearConfig")
        require(causal, "causal", causal, "True; a linear layer looks back")
        assert config.linear is not None
        sizes = config.resolved(d_model)
        linear = self.linear = config.linear.resolved(sizes.heads, sizes.d_head)
        heads, keys, d_head, d_v = linear.heads, linear.key_heads, linear.d_head, linear.d_v
        assert heads is not None and keys is not None and d_head is not None and d_v is not None
        self.d_model, self.heads, self.key_heads, self.causal = d_model, heads, keys, causal
        self.widths = (keys * d_head, keys * d_head, heads * d_v)
        self.query, self.key, self.value = (nn.Linear(d_model, width, bias=False) for width in self.widths)
        self.convolution = ShortConvolution(sum(self.widths), linear.convolution)
        self.strength = nn.Linear(d_model, heads, bias=False) if linear.rule == "delta" else None
        by_channel = linear.decay == "channel"
        learned, rates = linear.decay in ("head", "channel"), heads * (d_head if by_channel else 1)
        narrow = linear.rank if by_channel else None
        self.decay_down = None if narrow is None else nn.Linear(d_model, narrow, bias=False)
        self.decay = nn.Linear(narrow or d_model, rates, bias=False) if learned else None
        self.decay_bias = nn.Parameter(torch.empty(rates)) if learned else None
        self.decay_rate = nn.Parameter(torch.empty(heads)) if learned else None
        gated, narrow = linear.gate is not None, linear.rank
        self.gate_down = nn.Linear(d_model, narrow, bias=False) if gated and narrow is not None else None
        self.gate = nn.Linear(narrow or d_model, heads * d_v, bias=False) if gated else None
        self.norm = RMSNorm(d_v, norms.eps)
        self.output = nn.Linear(heads * d_v, d_model, bias=False)
        self.reset()

    def reset(self) -> None:
        """What fades begins at times spread evenly over their logarithm, and the convolution as PyTorch's do."""
        self.convolution.reset()
        if self.decay_bias is not None and self.decay_rate is not None:
            nn.init.uniform_(self.decay_rate, 1.0, RATES)
            nn.init.uniform_(self.decay_bias, math.log(SLOWEST), math.log(FASTEST))
            with torch.no_grad():
                self.decay_rate.log_()
                step = self.decay_bias.exp()
                self.decay_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus undone

    @checked(sizes=lambda layer: {"d_model": layer.d_model}, settles=_settle)
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: object = None,
        mask: object = None,
        cache: StateCache | None = None,
        real: Bool[Tensor, "batch token"] | None = None,
        document: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token d_model"]:
        """Each token reads what it and those before it have written.

        positions:  make no difference: order is in the recurrence.
        mask:       refused, but for `None`.
        cache:      it is written.
        real:       which tokens are not padding. The others neither fade a matrix nor write to it, nor are they among
                    those that the convolution sees, wherever they stand.
        document:   a number for each document of a packed row, whose tokens stand together: each is read as if alone.

        Raises `ValueError` for a mask, and for documents beside a cache.
        """
        require(cache is None or document is None, "document", document, "None beside a cache")
        back = None
        if real is not None:  # padding last, where nothing comes after it
            order = torch.argsort((~real).byte(), dim=1, stable=True)
            x, back = _placed(x, order), torch.argsort(order, dim=1)
            real = real.gather(1, order)
            document = None if document is None else document.gather(1, order)
        raw = torch.cat((self.query(x), self.key(x), self.value(x)), -1)
        tail, before = (None, None) if cache is None else cache.before()
        q, k, v = self._projected(raw, tail, document)
        strength, log_decay = self._rates(x)
        k, v, log_decay = written_where(Writes(k, v, log_decay), real)
        if cache is None and document is None:
            out = by_library(q.to(v.dtype), k.to(v.dtype), v, log_decay, strength)
            if out is not None:
                return self._answer(out, x, back)
        read = recurrence(
            *(q, k, v.to(q.dtype)),
            log_decay=None if log_decay is None else log_decay.to(q.dtype),
            strength=None if strength is None else strength.to(q.dtype),
            state=None if cache is None else cache.matrix.to(q.dtype),
            before=None if before is None else before.to(q.dtype),
            document=document,
            keep=False,
        )
        if cache is not None:
            self._keep(cache, raw, read.written, real, back)
        return self._answer(read.out, x, back)

    if TYPE_CHECKING:
        __call__ = forward

    def _projected(
        self, raw: Float[Tensor, "batch token channel"], tail: Tensor | None, document: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of every matrix, in fp32 or better, and values, each (batch, head, token, its width)."""
        q, k, v = F.silu(self.convolution(raw, tail, document)).split(self.widths, -1)
        q, k = (_unit(self._heads(part, self.key_heads)) for part in (q, k))
        share = self.heads // self.key_heads
        if share > 1:
            q, k = (part.repeat_interleave(share, 1) for part in (q, k))
        return q * q.shape[-1] ** -0.5, k, self._heads(v, self.heads)

    def _keep(self, cache: StateCache, raw: Tensor, written: Writes, real: Tensor | None, back: Tensor | None) -> None:
        """Write what new tokens have written, those that were put last for being padding in their own places."""
        if real is None or back is None:
            cache.write(None, raw, written)
            return
        k, u = (_placed(part, back[:, None]) for part in (written.k, written.u))
        fades = None if written.log_decay is None else _placed(written.log_decay, back[:, None])
        cache.write(real.gather(1, back), _placed(raw, back), Writes(k, u, fades))

    def _answer(
        self,
        heads: Float[Tensor, "batch head token d_v"],
        x: Float[Tensor, "batch token d_model"],
        back: Int[Tensor, "batch token"] | None,
    ) -> Float[Tensor, "batch token d_model"]:
        """What the layer makes of what its heads have read, its tokens back in the places that they had."""
        out = self.output(self._gated(heads.to(x.dtype).transpose(1, 2), x).flatten(2))
        return out if back is None else _placed(out, back)

    def _rates(
        self, x: Float[Tensor, "batch token d_model"]
    ) -> tuple[Float[Tensor, "batch head token"] | None, Float[Tensor, "batch head token rate"] | None]:
        """How strongly each token writes, and the logarithm of what is left of what was there."""
        strength, log_decay = None, None
        if self.strength is not None:
            strength = wide(self.strength(x)).sigmoid().transpose(1, 2) * (2 if self.linear.negative else 1)
        if self.decay is not None and self.decay_bias is not None and self.decay_rate is not None:
            step = wide(self.decay(x if self.decay_down is None else self.decay_down(x))) + wide(self.decay_bias)
            rate = wide(self.decay_rate).exp()[:, None, None]
            log_decay = -rate * F.softplus(self._heads(step, self.heads))
        elif self.linear.decay == "fixed":
            head = torch.arange(self.heads, device=x.device, dtype=wide(x[:0]).dtype)
            log_decay = torch.log1p(-(2.0 ** (-5 - head)))[:, None, None].expand(len(x), -1, x.shape[1], 1)
        return strength, log_decay

    def _gated(
        self, heads: Float[Tensor, "batch token head d_v"], x: Float[Tensor, "batch token d_model"]
    ) -> Float[Tensor, "batch token head d_v"]:
        """What the heads have read, normalised and gated."""
        heads = self.norm(heads)
        if self.gate is None:
            return heads
        gate = wide(self.gate(x if self.gate_down is None else self.gate_down(x))).unflatten(-1, (self.heads, -1))
        return (heads * (F.silu(gate) if self.linear.gate == "silu" else gate.sigmoid())).to(heads.dtype)

    @staticmethod
    def _heads(x: Float[Tensor, "batch token wide"], heads: int) -> Float[Tensor, "batch head token d_head"]:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _unit(x: Float[Tensor, "*axes d_head"]) -> Float[Tensor, "*axes d_head"]:
    """Vectors of length one, in fp32 or better."""
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def _placed(
    x: Float[Tensor, "*axes token wide"], order: Int[Tensor, "*#axes token"]
) -> Float[Tensor, "*axes token wide"]:
    """The tokens in that order."""
    order = order.expand(*x.shape[:-2], -1)[..., None]
    return x.gather(-2, order.expand(*order.shape[:-1], x.shape[-1]))
