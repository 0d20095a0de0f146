"""Attention: every query takes a weighted average of values (lessons 02 and 03).

`attend` is the operation on projected heads. `Attention` is the layer around it, which adds projections, positions and
a cache. The same layer is used for self-attention and cross-attention, causal or not, cached or not, with or without
grouped queries.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.config.model import AttentionConfig, NormConfig, PositionConfig
from companion.ground.annotations import checked
from companion.ground.arguments import heads_fit
from companion.ground.fields import require, require_share, require_whole
from companion.ground.precision import wide
from companion.layers.cache import CrossCache, LayerCache, layer_mask
from companion.layers.kernels.chunked import in_chunks
from companion.layers.kernels.fused import fused
from companion.layers.masks import AttentionMask, MaskLike, addable, as_mask
from companion.layers.norms import UnitNorm, norm
from companion.layers.positions import Rotary, Rotation

Backend = Literal["reference", "sdpa"]
"""Implementations of attention (see `attend`). Both give the same result, up to rounding."""


def capped(scores: Float[Tensor, "*axes"], cap: float) -> Float[Tensor, "*axes"]:
    """Softcap scores to cap tanh(scores / cap), which lies between -cap and cap."""
    cap = min(float(cap), 1e30)  # a larger cap changes nothing, and may overflow single precision
    return cap * torch.tanh(scores / cap)


def _fits(given: dict[str, Any]) -> None:
    """Check the conditions that the type annotations of the attention functions cannot express."""
    heads_fit(given)
    require_share("dropout", given.get("dropout", 0.0))
    if given.get("window") is not None:
        require_whole("window", given["window"])
    for name in ("score_width", "softcap"):
        value = given.get(name)
        require(value is None or value > 0, name, value, "a number > 0, or None")


@checked(fits=_fits)
def attention_weights(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    *,
    mask: MaskLike = None,
    causal: bool = False,
    window: int | None = None,
    score_width: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "head"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Compute softmax(q k^T / sqrt(d_head) + mask) over the keys (Vaswani et al. 2017, eq. 1; lesson 02).

    Scores are scaled and then masked, before the softmax. Each row sums to one, or to less with `sinks`; the row of a
    query that may attend to no key is all zeros. With fewer key heads than query heads, consecutive query heads share a
    key head. Half-precision inputs are computed in fp32, as in fused operators. `attend` documents the arguments.

    Returns:
        The weights, (batch, head, query, key).
    """
    k = _for_each(q, k)
    scores = wide(q) @ wide(k).transpose(-2, -1) / math.sqrt(q.shape[-1] if score_width is None else score_width)
    if softcap is not None:
        scores = capped(scores, softcap)
    shape, causal = (*q.shape[:3], k.shape[2]), causal or window is not None
    mask = AttentionMask.of(as_mask(mask), shape, q.device, causal=causal, window=window, dense=True)
    added = addable(mask.table, q.dtype)
    if added is not None:
        scores = scores.masked_fill(~added, -math.inf) if added.dtype == torch.bool else scores + added
    if sinks is not None:  # one more column, which takes some of the weight but has no value
        scores = torch.cat([scores, sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]].to(q.dtype)
    return weights if mask.empty is None else weights.masked_fill(mask.empty, 0.0)


@checked(fits=_fits)
def attend(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    mask: MaskLike = None,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    backend: Backend = "sdpa",
    score_width: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "head"] | None = None,
) -> Float[Tensor, "batch head query d_v"]:
    """Scaled dot-product attention: softmax(q k^T / sqrt(d_head) + mask) v (Vaswani et al. 2017, eq. 1; lesson 02).

    A query that may attend to no key returns zeros and gets no gradient, on either backend. The cost is 2 query key
    (d_head + d_v) floating-point operations per head.

    Args:
        q: Queries, (batch, head, query, d_head).
        k: Keys, (batch, kv_head, key, d_head).
        v: Values, (batch, kv_head, key, d_v).
        mask: A tensor with four axes that broadcast to (batch, head, query, key). In a boolean mask, True means
            that the query may attend to the key. A mask of the integers 1 and 0 works the same way. A floating-point
            mask is added to the scaled scores. The mask may also be a predicate from `companion.layers.masks`, which
            aligns the last query with the last key, or an `AttentionMask`, which replaces `causal` and `window`.
        causal: Let a query attend only to keys up to its own position. With more keys than queries, the last query is
            aligned with the last key.
        window: Number of most recent keys that a query attends to, including its own. `None` means all of them.
        dropout: Probability of dropping a weight (the others are scaled up). Pass 0 outside training.
        backend: `"reference"` computes the formula, `"sdpa"` calls PyTorch's fused operator.
        score_width: Scores are q k^T / sqrt(score_width). `None` means d_head.
        softcap: Softcapping: before the mask, each scaled score s becomes c tanh(s / c), between -c and c (Gemma Team
            2024, Gemma 2). The fused operator does not support it, so the formula is used. `None` means no cap.
        sinks: One logit s per head. Weights are exp(z_j) / (exp(s) + sum over the keys of exp(z)), and the weight that
            goes to the sink adds nothing to the output (OpenAI 2025, gpt-oss). If `None`, weights are a plain softmax.

    Returns:
        The weighted averages, (batch, head, query, d_v).

    Raises:
        ValueError: If shapes or dtypes do not match, the number of query heads is not a multiple of the number of key
            heads, the mask does not have four axes, `backend` is unknown, `window` is not a number of tokens, or
            `score_width` or `softcap` is not a number above 0.
    """
    shape, causal, dense = (*q.shape[:3], k.shape[2]), causal or window is not None, backend == "reference"
    mask = AttentionMask.of(as_mask(mask), shape, q.device, causal=causal, window=window, dense=dense)
    if backend == "sdpa" and softcap is None:
        return fused(q, k, v, mask=mask, dropout=dropout, score_width=score_width, sinks=sinks)
    options: dict[str, Any] = {"score_width": score_width, "softcap": softcap, "sinks": sinks}
    if mask.causal:  # causality is not in the table here, because a table of all pairs would be large
        return in_chunks(partial(attend, dropout=dropout, backend="reference", **options), q, k, v, mask)
    weights = attention_weights(q, k, mask=mask, **options)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weights @ _for_each(q, v)


def _for_each(q: Tensor, kept: Tensor) -> Tensor:
    """Repeat keys or values once for each query head; return them uncopied if the head counts are equal."""
    return kept if q.shape[1] == kept.shape[1] else kept.repeat_interleave(q.shape[1] // kept.shape[1], dim=1)


class Attention(nn.Module):
    """Multi-head attention with grouped queries (Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023).

    A layer with `config.window` is local: its window covers earlier tokens, or both sides if the layer is not causal.
    `ModelConfig.layer` decides which layers of a model are local.

    Args:
        d_model: Width of the input and the output.
        config: The heads and their widths.
        causal: Let a token attend only to itself and to earlier tokens.
        positions: Rotary positions rotate queries and keys in this layer; the other kinds have no effect here.
        dropout: Probability of dropping an attention weight in training.
        norms: Kind of norm for queries and keys, if `config.qk_norm` is set.

    Raises:
        ValueError: If `d_head` is odd with rotary positions, or the number of query heads is not a multiple of the
            number of key heads.
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
        self.d_model, self.sizes = d_model, config.resolved(d_model)
        sizes = self.sizes
        self.causal = causal
        self.dropout = require_share("dropout", dropout)
        self.rotary = Rotary.of(positions, sizes.d_head)
        self.query = nn.Linear(d_model, sizes.heads * sizes.d_head, bias=config.bias)
        self.key = nn.Linear(d_model, sizes.kv_heads * sizes.d_head, bias=config.bias)
        self.value = nn.Linear(d_model, sizes.kv_heads * sizes.d_v, bias=config.bias)
        self.output = nn.Linear(sizes.heads * sizes.d_v, d_model, bias=config.biased_output)
        self.by_width = config.qk_norm == "width"  # otherwise each head is normalized separately
        widths = (sizes.heads * sizes.d_head, sizes.kv_heads * sizes.d_head) if self.by_width else (sizes.d_head,) * 2
        self.query_norm: nn.Module | None
        self.key_norm: nn.Module | None
        if config.qk_norm == "unit":
            self.query_norm = self.key_norm = UnitNorm(norms.eps)
        else:
            self.query_norm, self.key_norm = (norm(norms, width) if config.qk_norm else None for width in widths)
        self.score_width, self.softcap = config.score_width, config.softcap
        self.sinks = nn.Parameter(torch.zeros(sizes.heads)) if config.sinks else None
        self.gate = nn.Linear(d_model, config.gates(sizes.d_v), bias=config.bias) if config.gate else None
        self.window = None if config.window is None else config.window.width

    @checked(sizes=lambda layer: {"d_model": layer.d_model})
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        source: Float[Tensor, "batch key d_model"] | None = None,
        positions: Int[Tensor, "*batch token"] | Rotation | None = None,
        mask: MaskLike = None,
        cache: LayerCache | CrossCache | None = None,
        backend: Backend = "sdpa",
    ) -> Float[Tensor, "batch token d_model"]:
        """Let each token of `x` attend to `x` itself, to the cache and `x`, or to `source`.

        Args:
            x: The stream, (batch, token, d_model).
            source: For cross-attention: keys and values come from here, queries from `x`.
            positions: Positions for rotary layers, (token) or (batch, token), or the result of `Rotary.at`, computed
                once for all layers. Default: 0, 1, ..., or with a cache the slots of the new tokens.
            mask: A mask that broadcasts to (batch, head, token, key), where `key` is the number of slots that the cache
                shows, if there is a cache. The mask may also be a predicate, or an `AttentionMask` that already
                includes causality and the window of this layer.
            cache: A `LayerCache` for self-attention, which this call updates, or a `CrossCache`, which is read in place
                of `source`.
            backend: As in `attend`.

        Returns:
            The heads' outputs, projected back to the stream, (batch, token, d_model).

        Raises:
            ValueError: If a `LayerCache` is passed to a layer that is not causal. Cached keys stay correct only under a
                causal mask.
        """
        if source is not None and not isinstance(cache, CrossCache):
            cache = self.project_source(source)
        mask = layer_mask(as_mask(mask), x, self.sizes.heads, cache, causal=self.causal, window=self.window)
        if isinstance(cache, CrossCache):  # attend to a source
            q = self._heads(self.query(x), self.sizes.heads, self.query_norm)
            k, v = cache.keys, cache.values
        elif cache is None:  # attend to x itself
            q, k, v = self.project(x, torch.arange(x.shape[1], device=x.device) if positions is None else positions)
        else:  # attend to the cached tokens and to x
            q, k, v = self.project(x, cache.slots if positions is None else positions)
            k, v = cache.write(k, v)
        heads = attend(
            *(q, k.to(q.dtype), v.to(q.dtype)),
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            backend=backend,
            score_width=self.score_width,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        if self.gate is not None:  # one factor per head, or one per component of a head's output
            heads = heads * self._split(self.gate(x).sigmoid(), self.sizes.heads)
        return self.output(self._merge(heads))

    if TYPE_CHECKING:
        __call__ = forward

    def project(
        self, x: Float[Tensor, "batch token d_model"], positions: Int[Tensor, "*batch token"] | Rotation
    ) -> tuple[
        Float[Tensor, "batch head token d_head"],
        Float[Tensor, "batch kv_head token d_head"],
        Float[Tensor, "batch kv_head token d_v"],
    ]:
        """Project `x` to queries, keys and values, split into heads.

        Queries and keys are normalized if there is a norm for them, and rotated if the positions are rotary.
        """
        queries, keys, values = self._projected(x)
        q = self._heads(queries, self.sizes.heads, self.query_norm)
        k, v = self._heads(keys, self.sizes.kv_heads, self.key_norm), self._split(values, self.sizes.kv_heads)
        if self.rotary is not None:
            turn = positions if isinstance(positions, Rotation) else self.rotary.at(positions, x.dtype)
            q, k = self.rotary.turn(q, turn), self.rotary.turn(k, turn)
        return q, k, v

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of `x`, with their heads side by side."""
        return self.query(x), self.key(x), self.value(x)

    def project_source(self, source: Float[Tensor, "batch key d_model"] | None) -> CrossCache:
        """Project a source to keys and values once; pass the result as `cache` in all later calls (lesson 10).

        Raises:
            ValueError: If `source` is `None`.
        """
        if source is None:
            raise ValueError("source=None: expected the encoder output for cross-attention, (batch, key, d_model)")
        keys, values = self.key(source), self.value(source)
        return CrossCache(
            self._heads(keys, self.sizes.kv_heads, self.key_norm), self._split(values, self.sizes.kv_heads)
        )

    def _heads(
        self, x: Float[Tensor, "batch token wide"], heads: int, norm: nn.Module | None
    ) -> Float[Tensor, "batch head token d_head"]:
        """Split queries or keys into heads; a norm is applied before the split (over the whole width) or after it."""
        if norm is None:
            return self._split(x, heads)
        return self._split(norm(x), heads) if self.by_width else norm(self._split(x, heads))

    @staticmethod
    def _split(x: Float[Tensor, "batch token wide"], heads: int) -> Float[Tensor, "batch head token d_head"]:
        """Reshape (batch, token, head * d) to (batch, head, token, d).

        Calling view first and transpose afterwards keeps each token's components together. A direct view to the final
        shape would mix tokens with heads.
        """
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    @staticmethod
    def _merge(heads: Float[Tensor, "batch head token d_head"]) -> Float[Tensor, "batch token wide"]:
        """Undo `_split`: put the heads of each token side by side again."""
        return heads.transpose(1, 2).flatten(2)
