"""Attention: every query takes a weighted average of values (lessons 02 and 03).

`attend` is the operation on projected heads; `Attention` the layer around it: projections, positions, cache. One layer
serves self- and cross-attention, causal or not, cached or not, with grouped queries or without.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from companion.config.model import AttentionConfig, NormConfig, PositionConfig
from companion.ground.boundary import check_broadcasts, check_kind, described, mask_of
from companion.ground.fields import require, require_number
from companion.layers import chunks
from companion.layers.cache import CrossCache, LayerCache
from companion.layers.masks import Predicate, evaluate, materialize, window
from companion.layers.masks import causal as causal_predicate
from companion.layers.norms import norm
from companion.layers.positions import Rotary, Rotation

Mask = Bool[Tensor, "*#axes"] | Float[Tensor, "*#axes"] | Integer[Tensor, "*#axes"]
"""Four axes that broadcast to (batch, head, query, key). Bool: True = may look. Float: added to scaled scores. Whole
numbers: 1 = may look, 0 = may not."""

SourceMask = Bool[Tensor, "*#source_axes"] | Float[Tensor, "*#source_axes"] | Integer[Tensor, "*#source_axes"]
"""A `Mask` over the keys of a source, of which there are not as many as in the `Mask` beside it."""

Backend = Literal["reference", "sdpa"]
"""How attention is computed; see `attend`. Both give the same numbers, up to rounding."""


def check_heads(q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch kv_head key d_head"]) -> None:
    """Raises `ValueError` unless the heads of `k` divide those of `q`: each serves the same number of query heads."""
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"k has kv_head={k.shape[1]}: expected a divisor of the {q.shape[1]} heads of q")


def check_attended(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
) -> None:
    """Raises `ValueError` unless queries, keys and values belong together: dtypes, and shapes as annotated.

    PyTorch would let a part of them broadcast: the values of one row to all, or one key to many values.
    """
    if isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor):
        # Each shape is asked for once: to ask a tensor is most of what this costs, in every layer of every step.
        queries, keys, values = q.shape, k.shape, v.shape
        if len(queries) == len(keys) == len(values) == 4 and keys[:3] == values[:3] and queries[0] == keys[0]:
            shared = keys[1] > 0 and queries[1] % keys[1] == 0 and queries[3] == keys[3]
            if shared and q.dtype == k.dtype == v.dtype and q.is_floating_point():
                return
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
            got = f"{name} is {described(x)}"
            raise ValueError(f"{got}: expected a floating tensor of four axes, (batch, head, token, width)")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"k has (batch, d_head) = {(k.shape[0], k.shape[3])}: expected {(q.shape[0], q.shape[3])}, as q has"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"v has (batch, kv_head, key) = {tuple(v.shape[:3])}: expected {tuple(k.shape[:3])}, a value for each key"
        )
    check_heads(q, k)
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}: expected one dtype for all three")


def full_mask(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    mask: Mask | Predicate | None,
    causal: bool,
) -> Mask | None:
    """`mask` and the causal rule as one mask, `None` if there is neither. Causal is aligned lower-right: the last query
    sees every key. Raises `ValueError` for a mask that has not four axes."""
    if mask is not None and not isinstance(mask, Tensor):
        keys = torch.arange(k.shape[2], device=q.device)
        mask = evaluate(mask, q.shape[0], q.shape[1], torch.arange(-q.shape[2], 0, device=q.device) + k.shape[2], keys)
    if causal:
        return visible_and(mask, materialize(causal_predicate, 1, q.shape[2], k.shape[2], device=q.device))
    _check_axes(mask)
    return mask if mask is None else mask_of(mask)


def visible_and(mask: Mask | None, allowed: Bool[Tensor, "*#axes"]) -> Mask:
    """What `mask` permits of what is `allowed`. Raises `ValueError` for a mask that has not four axes."""
    if mask is None:
        return allowed
    _check_axes(mask)
    mask = mask_of(mask)
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -math.inf)


def _check_axes(mask: Tensor | None) -> None:
    # (batch, query, key) would broadcast its rows over the heads, and silently so when there are as many.
    if mask is not None and mask.ndim != 4:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}: expected four axes, each (batch, head, query, key) or 1 in place"
        )


def split_empty_rows(mask: Mask) -> tuple[Mask, Bool[Tensor, "#batch #head #query 1"]]:
    """A mask without empty rows, and which rows were empty.

    The softmax over nothing is 0/0. Such a row is given every key, so that its softmax and its gradient are finite, and
    its output is set to zero afterwards.
    """
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        return mask | empty, empty
    empty = (mask == -math.inf).all(-1, keepdim=True)
    return mask.masked_fill(empty, 0.0), empty


def capped(scores: Float[Tensor, "*axes"], cap: float) -> Float[Tensor, "*axes"]:
    """cap tanh(scores / cap), between -cap and cap."""
    cap = min(float(cap), 1e30)  # beyond it nothing is capped, and single precision ends
    return cap * torch.tanh(scores / cap)


def attention_weights(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    *,
    mask: Mask | Predicate | None = None,
    causal: bool = False,
    score_width: float | None = None,
    score_cap: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """softmax(q k^T / sqrt(d_head) + mask) over the keys (Vaswani et al. 2017, eq. 1; lesson 02).

    Scores are scaled first and masked then, before the softmax. Rows sum to one; a row that may look nowhere is all
    zeros. With fewer key heads than query heads, consecutive query heads share one. `attend` says what the last two
    arguments are.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1] if score_width is None else score_width)
    if score_cap is not None:
        scores = capped(scores, score_cap)
    mask = full_mask(q, k, mask, causal)
    if mask is None:
        return scores.softmax(-1)
    mask, empty = split_empty_rows(mask)
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    return scores.softmax(-1).masked_fill(empty, 0.0)


def attend(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: Mask | Predicate | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    backend: Backend = "sdpa",
    score_width: float | None = None,
    score_cap: float | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """Scaled dot-product attention: softmax(q k^T / sqrt(d_head) + mask) v (Vaswani et al. 2017, eq. 1; lesson 02).

    mask:         four axes that broadcast to (batch, head, query, key). Boolean, or whole numbers 1 and 0: True may
                  look. Floating: added to the scaled scores. Or a predicate of `companion.layers.masks`, with the last
                  query at the last key.
    causal:       a query sees the keys up to its own place; with more keys than queries, the last query is at the last
                  key.
    dropout:      probability of dropping a weight (the rest is scaled up). The caller passes 0 outside training.
    backend:      `"reference"` is the formula, `"sdpa"` PyTorch's fused operator.
    score_width:  scores are q k^T / sqrt(score_width). `None`: d_head.
    score_cap:    c: scaled scores s become c tanh(s / c), between -c and c, before the mask (Gemma Team 2024, Gemma 2).
                  The fused operator cannot: they are computed by the formula, all of them at once. `None`: they stay.

    A query that may look nowhere gives zeros, and no gradient, on either backend. Cost: 2 query key (d_head + d_v)
    floating-point operations per head.

    Raises `ValueError` if shapes or dtypes do not fit each other, the head counts do not divide, the mask has not four
    axes, `backend` is unknown, or the last two are not numbers above 0.
    """
    check_attended(q, k, v)
    check_kind("causal", causal, bool, "True or False")
    require_number("dropout", dropout)
    for name, value in (("score_width", score_width), ("score_cap", score_cap)):
        if value is not None and not require_number(name, value) > 0:
            raise ValueError(f"{name}={value!r}: expected a number > 0, or None")
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout={dropout!r}: expected a probability in [0, 1]")
    if isinstance(mask, Tensor) and mask.ndim == 4:
        check_broadcasts("mask", mask, (*q.shape[:3], k.shape[2]), "(batch, head, query, key)")
    if backend not in ("reference", "sdpa"):
        raise ValueError(f"backend={backend!r}: expected 'reference' or 'sdpa'")
    if backend == "reference" or score_cap is not None:
        if backend == "sdpa" and causal and mask is None and q.shape[2] * k.shape[2] > chunks.PAIRS:
            return chunks.in_chunks(
                lambda q, k, v, seen: attend(
                    q, k, v, mask=seen, dropout=dropout, score_width=score_width, score_cap=score_cap
                ),
                *(q, k, v),
            )
        weights = attention_weights(q, k, mask=mask, causal=causal, score_width=score_width, score_cap=score_cap)
        weights = F.dropout(weights, dropout, training=dropout > 0)
        return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    scale = None if score_width is None else score_width**-0.5  # `None`: PyTorch's own, 1 / sqrt(d_head)
    grouped = q.shape[1] != k.shape[1]
    if mask is None and (not causal or q.shape[2] == k.shape[2] or q.shape[2] == 1):
        # PyTorch aligns is_causal top-left, which is right only for as many keys as queries; a single last query
        # sees every key and needs no mask at all.
        triangle = causal and q.shape[2] > 1
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=triangle, dropout_p=dropout, enable_gqa=grouped, scale=scale
        )
    if mask is None and q.shape[2] < k.shape[2]:
        return _last_queries(q, k, v, dropout_p=dropout, enable_gqa=grouped, scale=scale)
    full = full_mask(q, k, mask, causal)
    assert full is not None
    full, empty = split_empty_rows(full)
    if full.dtype != torch.bool:
        full = full.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=full, dropout_p=dropout, enable_gqa=grouped, scale=scale)
    return out.masked_fill(empty, 0.0)


def _last_queries(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Float[Tensor, "batch head query d_v"]:
    """Causal attention of queries that are the last of more keys, as a second chunk on a cache is: on a GPU with a
    kernel that knows it, else some queries at a time, so that there is never a large mask."""
    queries, keys = q.shape[2], k.shape[2]
    recording = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))  # that kernel has no gradient
    if q.is_cuda and not recording and not torch.compiler.is_compiling():
        from torch.nn.attention.bias import causal_lower_right  # loads the compiler, two seconds for every process

        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(queries, keys), **options)
    return chunks.in_chunks(
        lambda q, k, v, seen: F.scaled_dot_product_attention(q, k, v, attn_mask=seen, **options), q, k, v
    )


class Attention(nn.Module):
    """Multi-head attention with grouped queries (Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023).

    d_model:    width of what comes in and goes out.
    config:     the heads and their widths.
    causal:     whether a token may look only at itself and what came before it.
    positions:  rotary positions turn queries and keys here; the other kinds do nothing in this layer.
    dropout:    probability of dropping an attention weight in training.
    norms:      the kind of those of queries and keys, where `config.qk_norm` asks for them.

    A layer with `config.window` is local. Which layers of a model are is for `ModelConfig.layer` to say.

    Raises `ValueError` for an odd `d_head` with rotary positions, heads that do not divide, or a window that is not
    causal.
    """

    def __init__(
        self,
        d_model: int,
        config: AttentionConfig,
        *,
        causal: bool = True,
        positions: PositionConfig | None = None,
        dropout: float = 0.0,
        norms: NormConfig = NormConfig(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__()
        self.sizes = sizes = config.resolved(d_model)
        self.causal = causal
        self.dropout = dropout
        self.rotary = Rotary.of(positions, sizes.d_head)
        self.query = nn.Linear(d_model, sizes.heads * sizes.d_head, bias=config.bias)
        self.key = nn.Linear(d_model, sizes.kv_heads * sizes.d_head, bias=config.bias)
        self.value = nn.Linear(d_model, sizes.kv_heads * sizes.d_v, bias=config.bias)
        self.output = nn.Linear(sizes.heads * sizes.d_v, d_model, bias=config.biased_output)
        self.by_width = config.qk_norm == "width"  # else by head
        widths = (sizes.heads * sizes.d_head, sizes.kv_heads * sizes.d_head) if self.by_width else (sizes.d_head,) * 2
        self.query_norm, self.key_norm = (None if config.qk_norm is None else norm(norms, width) for width in widths)
        self.score_width, self.score_cap = config.score_width, config.score_cap
        if config.window is not None:
            require(causal, "causal", causal, "True beside a window, which looks back")
        self.window = None if config.window is None else config.window.width

    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        source: Float[Tensor, "batch key d_model"] | None = None,
        positions: Int[Tensor, "*batch token"] | Rotation | None = None,
        mask: Mask | Predicate | None = None,
        cache: LayerCache | CrossCache | None = None,
        backend: Backend = "sdpa",
    ) -> Float[Tensor, "batch token d_model"]:
        """Each token of `x` looks at `x` itself, at what the cache holds, or at `source`.

        source:     cross-attention: keys and values come from here, queries from `x`.
        positions:  (token) or (batch, token), for rotary; or what `Rotary.at` made of them, once for all layers.
                    Default: 0, 1, ... from where the cache stands.
        mask:       broadcast to (batch, head, token, key); with a cache, key counts the slots it shows. Or a predicate.
        cache:      a `LayerCache` for self-attention (written), or a `CrossCache` in place of `source` (read).

        Raises `ValueError` for a `LayerCache` without a causal mask, under which alone kept keys stay right.
        """
        causal, width = self.causal, None
        if isinstance(cache, CrossCache) or source is not None:
            kept = cache if isinstance(cache, CrossCache) else self.project_source(source)
            q = self._heads(self.query(x), self.sizes.heads, self.query_norm)
            k, v, causal = kept.keys, kept.values, False
        elif cache is None:
            n = x.shape[1]
            q, k, v = self.project(x, torch.arange(n, device=x.device) if positions is None else positions)
            if self.window is not None and n > self.window and n * n > chunks.PAIRS:
                mask, width = full_mask(q, k, mask, causal=False), self.window
            elif self.window is not None and n > self.window:
                near = materialize(window(self.window), 1, n, n, device=x.device)
                mask, causal = visible_and(full_mask(q, k, mask, causal=False), near), False
        elif not causal:
            raise ValueError("cache: kept keys and values stay right only under a causal mask; got causal=False")
        else:
            q, k, v = self.project(x, cache.slots if positions is None else positions)
            k, v = cache.write(k, v)
            width = cache.near
            if mask is not None and not isinstance(mask, Tensor):
                mask = evaluate(mask, q.shape[0], q.shape[1], cache.slots, torch.arange(cache.visible, device=q.device))
            if mask is not None:
                mask = cache.shown(mask)
            if cache.mask is not None:  # it says what causal would, of rows that stand at different places
                mask, causal = visible_and(mask, cache.mask), False
        options: Any = {
            "dropout": self.dropout if self.training else 0.0,
            "backend": backend,
            "score_width": self.score_width,
            "score_cap": self.score_cap,
        }
        k, v = k.to(q.dtype), v.to(q.dtype)
        if width is None:
            heads = attend(q, k, v, mask=mask, causal=causal, **options)
        else:
            assert mask is None or isinstance(mask, Tensor)
            heads = chunks.in_chunks(lambda q, k, v, seen: attend(q, k, v, mask=seen, **options), q, k, v, width, mask)
        return self.output(self._merge(heads))

    def project(
        self, x: Float[Tensor, "batch token d_model"], positions: Int[Tensor, "*batch token"] | Rotation
    ) -> tuple[
        Float[Tensor, "batch head token d_head"],
        Float[Tensor, "batch kv_head token d_head"],
        Float[Tensor, "batch kv_head token d_v"],
    ]:
        """Queries, keys and values of `x`, split into heads; queries and keys normalised where there is a norm for
        them, and rotated if positions are rotary."""
        queries, keys, values = self._projected(x)
        q = self._heads(queries, self.sizes.heads, self.query_norm)
        k, v = self._heads(keys, self.sizes.kv_heads, self.key_norm), self._split(values, self.sizes.kv_heads)
        if self.rotary is not None:
            turn = positions if isinstance(positions, Rotation) else self.rotary.at(positions, x.dtype)
            q, k = self.rotary.turn(q, turn), self.rotary.turn(k, turn)
        return q, k, v

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of `x`, their heads side by side."""
        return self.query(x), self.key(x), self.value(x)

    def project_source(self, source: Float[Tensor, "batch key d_model"] | None) -> CrossCache:
        """Keys and values of a source, to be computed once and passed as `cache` from then on (lesson 10).

        Raises `ValueError` if there is none.
        """
        if source is None:
            raise ValueError("source=None: expected the tensor that cross-attention looks at, (batch, key, d_model)")
        keys, values = self.key(source), self.value(source)
        return CrossCache(
            self._heads(keys, self.sizes.kv_heads, self.key_norm), self._split(values, self.sizes.kv_heads)
        )

    def _heads(
        self, x: Float[Tensor, "batch token wide"], heads: int, norm: nn.Module | None
    ) -> Float[Tensor, "batch head token d_head"]:
        """Queries or keys split into heads, and normalised before or after, or not at all."""
        if norm is None:
            return self._split(x, heads)
        return self._split(norm(x), heads) if self.by_width else norm(self._split(x, heads))

    @staticmethod
    def _split(x: Float[Tensor, "batch token wide"], heads: int) -> Float[Tensor, "batch head token d_head"]:
        """(batch, token, head * d) -> (batch, head, token, d). Viewing first and transposing then keeps each token's
        components together; a direct view to the final shape would mix tokens with heads."""
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    @staticmethod
    def _merge(heads: Float[Tensor, "batch head token d_head"]) -> Float[Tensor, "batch token wide"]:
        """The way back: heads side by side again, in every token."""
        return heads.transpose(1, 2).flatten(2)
