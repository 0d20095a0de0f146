"""Linear attention layer, which stores one matrix per head to represent all earlier tokens (lesson 17).

`companion.layers.linear_attention` computes the recurrence. This module is the layer around it, as in Mamba-2, gated
delta networks and Kimi Linear: short convolutions, unit-length keys and queries, decay and write strength, and an
output gate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
"""Epsilon, which is added to the squared length of a key or a query before the vector is divided by its length."""
SLOWEST, FASTEST = 1e-3, 1e-1
"""Range of the initial decay rate per token, which each head multiplies by a number from 1 to `RATES` (Gu and Dao
2023, section 3.6; Dao and Gu 2024)."""
RATES = 16.0


class ShortConvolution(nn.Module):
    """Causal depthwise convolution without a bias: y_t = sum_i w_i x_(t - width + 1 + i) for each channel.

    `weight` is (channel, width); the last column is for the token itself.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.reset()

    def reset(self) -> None:
        """Initialize the weights as PyTorch's convolutions do."""
        nn.init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    @checked(sizes=lambda layer: {"channel": layer.weight.shape[0]})
    def forward(
        self,
        x: Float[Tensor, "batch token channel"],
        before: Float[Tensor, "batch before channel"] | None = None,
        document_ids: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token channel"]:
        """Convolve the tokens.

        Args:
            x: Inputs, (batch, token, channel).
            before: The width - 1 inputs before these; `None` means zeros.
            document_ids: Document of each token; the convolution does not cross from one document into another.
        """
        width, tokens = self.weight.shape[1], x.shape[1]
        x = F.pad(x, (0, 0, width - 1, 0)) if before is None else torch.cat((before.to(x.dtype), x), 1)
        out = x[:, width - 1 :] * self.weight[:, -1]
        for back in range(1, width):
            earlier = x[:, width - 1 - back : width - 1 - back + tokens]
            if document_ids is not None:
                same = F.pad(document_ids[:, back:] == document_ids[:, : max(0, tokens - back)], (min(back, tokens), 0))
                earlier = earlier * same[..., None]
            out = out + earlier * self.weight[:, -1 - back]
        return out


class LinearAttention(nn.Module):
    """The gated delta rule and related rules (Yang, Kautz and Hatamizadeh 2024; Kimi Team 2025).

    This layer replaces `Attention` if `config.linear` is given. Let x be the stream. Each head uses its own part of
    every vector:

        q, k, v   = silu(convolution(W x)), q and k then divided by their length, and q by sqrt(d_head)
        strength  = sigmoid(W_b x), or twice that with `negative`
        log decay = -exp(rate) softplus(W_a x + bias), one number per head or per row; or fixed
        o         = the recurrence of `companion.layers.linear_attention`
        y = W_o (RMSNorm(o) f(W_g x)), where f is the gate's function

    The outputs of the modules `query` and `key` have width key_heads d_head, and those of `value` have width heads d_v.
    A key head is shared by heads / key_heads matrices. `convolution` runs over the concatenation of the three.
    `strength`, `decay` and `gate` are W_b, W_a and W_g. With a rank, the gate is computed through `gate_down`, and a
    decay per channel through `decay_down`.

    Raises:
        ValueError: If `config.linear` is missing, or `causal` is false.
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
        require(causal, "causal", causal, "True; a linear layer is causal")
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
        """Initialize the convolution and the decay, whose time scales are spread evenly on a logarithmic scale."""
        self.convolution.reset()
        if self.decay_bias is not None and self.decay_rate is not None:
            nn.init.uniform_(self.decay_rate, 1.0, RATES)
            nn.init.uniform_(self.decay_bias, math.log(SLOWEST), math.log(FASTEST))
            with torch.no_grad():
                self.decay_rate.log_()
                step = self.decay_bias.exp()
                self.decay_bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    @checked(sizes=lambda layer: {"d_model": layer.d_model})
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: object = None,
        mask: object = None,
        cache: StateCache | None = None,
        attention_mask: Bool[Tensor, "batch token"] | None = None,
        document_ids: Int[Tensor, "batch token"] | None = None,
    ) -> Float[Tensor, "batch token d_model"]:
        """Let each token read what it and the tokens before it have written.

        Args:
            x: The stream, (batch, token, d_model).
            positions: Ignored, because the recurrence already encodes the order.
            mask: Must be `None`.
            cache: The layer's part of a cache, which this call updates.
            attention_mask: Which tokens are not padding. Padding neither decays a matrix nor writes to it, and the
                convolution skips it, wherever the padding is.
            document_ids: Document ids of a packed row, whose tokens are contiguous; each document is read as if it were
                the only one.

        Returns:
            The layer's output, (batch, token, d_model).

        Raises:
            ValueError: If a mask is passed, or if document ids are passed together with a cache.
        """
        instead = "attention_mask for padding, document_ids for packed rows"
        require(mask is None, "mask", mask, f"None; a linear layer has no pairs of tokens to hide (use {instead})")
        require(cache is None or document_ids is None, "document_ids", document_ids, "None with a cache")
        back = None
        if attention_mask is not None:  # sort padding to the end, where no real token can read it
            order = torch.argsort((~attention_mask).byte(), dim=1, stable=True)
            x, back = _placed(x, order), torch.argsort(order, dim=1)
            attention_mask = attention_mask.gather(1, order)
            document_ids = None if document_ids is None else document_ids.gather(1, order)
        raw = torch.cat((self.query(x), self.key(x), self.value(x)), -1)
        tail, before = (None, None) if cache is None else cache.before()
        q, k, v = self._projected(raw, tail, document_ids)
        strength, log_decay = self._rates(x)
        k, v, log_decay = written_where(Writes(k, v, log_decay), attention_mask)
        if cache is None and document_ids is None:
            out = by_library(q.to(v.dtype), k.to(v.dtype), v, log_decay, strength)
            if out is not None:
                return self._answer(out, x, back)
        read = recurrence(
            *(q, k, v.to(q.dtype)),
            log_decay=None if log_decay is None else log_decay.to(q.dtype),
            strength=None if strength is None else strength.to(q.dtype),
            state=None if cache is None else cache.matrix.to(q.dtype),
            before=None if before is None else before.to(q.dtype),
            document_ids=document_ids,
            keep=False,
        )
        if cache is not None:
            self._keep(cache, raw, read.written, attention_mask, back)
        return self._answer(read.out, x, back)

    if TYPE_CHECKING:
        __call__ = forward

    def _projected(
        self, raw: Float[Tensor, "batch token channel"], tail: Tensor | None, document_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return each matrix's queries and keys (in fp32 or wider) and values, all (batch, head, token, width)."""
        q, k, v = F.silu(self.convolution(raw, tail, document_ids)).split(self.widths, -1)
        q, k = (_unit(self._heads(part, self.key_heads)) for part in (q, k))
        share = self.heads // self.key_heads
        if share > 1:
            q, k = (part.repeat_interleave(share, 1) for part in (q, k))
        return q * q.shape[-1] ** -0.5, k, self._heads(v, self.heads)

    def _keep(
        self, cache: StateCache, raw: Tensor, written: Writes, attention_mask: Tensor | None, back: Tensor | None
    ) -> None:
        """Write new tokens to the cache in their original order, because `forward` has sorted padding to the end."""
        if attention_mask is None or back is None:
            cache.write(None, raw, written)
            return
        k, u = (_placed(part, back[:, None]) for part in (written.k, written.u))
        fades = None if written.log_decay is None else _placed(written.log_decay, back[:, None])
        cache.write(attention_mask.gather(1, back), _placed(raw, back), Writes(k, u, fades))

    def _answer(
        self,
        heads: Float[Tensor, "batch head token d_v"],
        x: Float[Tensor, "batch token d_model"],
        back: Int[Tensor, "batch token"] | None,
    ) -> Float[Tensor, "batch token d_model"]:
        """Gate and project the heads' output, and restore the original order of the tokens."""
        out = self.output(self._gated(heads.to(x.dtype).transpose(1, 2), x).flatten(2))
        return out if back is None else _placed(out, back)

    def _rates(
        self, x: Float[Tensor, "batch token d_model"]
    ) -> tuple[Float[Tensor, "batch head token"] | None, Float[Tensor, "batch head token rate"] | None]:
        """Return the write strength of each token, and the logarithm of its decay factors."""
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
        """Normalize the heads' output and apply the gate."""
        heads = self.norm(heads)
        if self.gate is None:
            return heads
        gate = wide(self.gate(x if self.gate_down is None else self.gate_down(x))).unflatten(-1, (self.heads, -1))
        return (heads * (F.silu(gate) if self.linear.gate == "silu" else gate.sigmoid())).to(heads.dtype)

    @staticmethod
    def _heads(x: Float[Tensor, "batch token wide"], heads: int) -> Float[Tensor, "batch head token d_head"]:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _unit(x: Float[Tensor, "*axes d_head"]) -> Float[Tensor, "*axes d_head"]:
    """Scale vectors to length one, in fp32 or wider."""
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def _placed(
    x: Float[Tensor, "*axes token wide"], order: Int[Tensor, "*#axes token"]
) -> Float[Tensor, "*axes token wide"]:
    order = order.expand(*x.shape[:-2], -1)[..., None]
    return x.gather(-2, order.expand(*order.shape[:-1], x.shape[-1]))
