"""Latent attention, which caches one small vector per token instead of keys and values (lesson 15).

Let c be the latent of a token, k its rotated key, and q' the rotated part of a query. The score of a head is (q . U_k c
+ q' . k) / sqrt(width). The *expanded* form computes the key U_k c and the value U_v c of every head. The *absorbed*
form moves the matrices to the other side: q . U_k c = (U_k^T q) . c, and the weighted sum of values is U_v times the
weighted sum of latents. The cached vectors [c, k] then serve as a single key head that all query heads share, and c is
its value. Both forms give the same result, up to rounding. `companion.layers.cache.LayerCache` stores the cached
vectors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.config.model import AttentionConfig, NormConfig, PositionConfig, ResolvedAttention
from companion.ground.annotations import checked
from companion.ground.fields import require, require_share
from companion.ground.precision import wide_dtype
from companion.layers.attention import Backend, attend
from companion.layers.cache import LayerCache, layer_mask
from companion.layers.masks import AttentionMask, MaskLike, as_mask
from companion.layers.norms import norm
from companion.layers.positions import Rotary, Rotation


def absorbs(sizes: ResolvedAttention, tokens: int, keys: int) -> bool:
    """Return whether the absorbed form is used for `tokens` new tokens that attend to `keys` cached ones.

    The absorbed form is used if it takes at most as many floating-point operations as expanding all cached latents,
    which is the case for one or a few tokens. Let r be the rank and w = d_head + d_v. The costs per head that the two
    forms do not share are

        expanded    2 r w for each key, and 2 w for each pair of token and key;
        absorbed    2 r w for each token, and 4 r for each pair.
    """
    assert sizes.latent is not None
    rank, width = sizes.latent.kv_lora_rank, sizes.d_head + sizes.d_v
    if tokens == 1:
        return True
    return keys > tokens and (keys - tokens) * rank * width >= tokens * keys * (2 * rank - width)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1 and eqs. 37 to 47).

    This layer replaces `Attention` if `config.latent` is given, and takes the same arguments. Prompts and training use
    the expanded form; with a cache, the absorbed form is used if `absorbs` returns True.

    The module `down` maps the stream to [c, k], (rank + d_rope). `latent_norm` normalizes c, and k is rotated if the
    positions are rotary. `up` maps c to the key and the value of each head, in this order, (heads (d_head + d_v)).
    `query` maps the stream to every head's query, whose rotated part comes last, (heads (d_head + d_rope)). With
    `q_lora_rank`, the stream first passes through `query_down` and `query_norm`.

    Raises:
        ValueError: If `config.latent` is missing, `d_rope` is odd with rotary positions, or a window is given without
            causality.
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
        latent = config.latent
        require(latent is not None, "latent", latent, "a LatentConfig")
        assert latent is not None
        sizes = self.sizes = config.resolved(d_model)
        self.d_model, self.causal, self.dropout = d_model, causal, require_share("dropout", dropout)
        self.rank, self.d_query = latent.kv_lora_rank, sizes.d_head + latent.d_rope
        self.rotary = Rotary.of(positions, latent.d_rope)
        if latent.eps is not None:
            norms = replace(norms, eps=latent.eps)
        wide = d_model if latent.q_lora_rank is None else latent.q_lora_rank
        self.query = nn.Linear(wide, sizes.heads * self.d_query, bias=False)
        narrow = latent.q_lora_rank is not None
        self.query_down = nn.Linear(d_model, wide, bias=False) if narrow else None
        self.query_norm = norm(norms, wide) if narrow else None
        self.down = nn.Linear(d_model, latent.kv_lora_rank + latent.d_rope, bias=False)
        self.latent_norm = norm(norms, latent.kv_lora_rank)
        self.up = nn.Linear(latent.kv_lora_rank, sizes.heads * (sizes.d_head + sizes.d_v), bias=False)
        self.gate = nn.Linear(d_model, config.gates(sizes.d_v), bias=False) if config.gate else None
        self.output = nn.Linear(sizes.heads * sizes.d_v, d_model, bias=config.biased_output)
        self.score_width = float(self.d_query) if config.score_width is None else config.score_width
        self.softcap = config.softcap
        if config.window is not None:
            require(causal, "causal", causal, "True with a window, which looks back")
        self.window = None if config.window is None else config.window.width

    @checked(sizes=lambda layer: {"d_model": layer.d_model})
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: Int[Tensor, "*batch token"] | Rotation | None = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        backend: Backend = "sdpa",
        absorbed: bool | None = None,
    ) -> Float[Tensor, "batch token d_model"]:
        """Let each token of `x` attend to `x` itself and to the cache.

        Args:
            x: The stream, (batch, token, d_model).
            positions: As in `Attention`.
            mask: As in `Attention`.
            cache: The layer's part of a cache, which this call updates.
            backend: As in `attend`.
            absorbed: Use the absorbed form. If `None`, the form is chosen as described for the class.

        Returns:
            The heads' outputs, projected back to the stream, (batch, token, d_model).

        Raises:
            ValueError: If a cache is passed to a layer that is not causal, or `absorbed=True` is passed when `up` was
                replaced by something other than a plain linear layer.
        """
        mask = layer_mask(as_mask(mask), x, self.sizes.heads, cache, causal=self.causal, window=self.window)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device) if cache is None else cache.slots
        turn = None
        if self.rotary is not None:
            turn = positions if isinstance(positions, Rotation) else self.rotary.at(positions, x.dtype)
        q, kept = self.queries(x, turn), self.latents(x, turn)
        if cache is not None:
            kept = cache.put(cache.keys, kept).to(q.dtype)
        if absorbed is None:
            absorbed = cache is not None and absorbs(self.sizes, x.shape[1], kept.shape[2]) and self._is_matrix()
        asked: dict[str, Any] = {
            "dropout": self.dropout if self.training else 0.0,
            "backend": backend,
            "score_width": self.score_width,
            "softcap": self.softcap,
        }
        if absorbed:
            mask = AttentionMask.of(mask, (*q.shape[:3], kept.shape[2]), x.device, dense=True)
            heads = self._absorbed(q, kept, mask, asked)
        else:
            heads = attend(q, *self.expand(kept), mask=mask, **asked)
        if self.gate is not None:  # as in `Attention`
            heads = heads * self._split(self.gate(x).sigmoid())
        return self.output(heads.transpose(1, 2).flatten(2))

    if TYPE_CHECKING:
        __call__ = forward

    def queries(
        self, x: Float[Tensor, "batch token d_model"], turn: Rotation | None
    ) -> Float[Tensor, "batch head token d_query"]:
        """Project `x` to every head's query, with the last d_rope components rotated."""
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(self.query_down(x))
        return self._turned(self._split(self.query(x)), self.sizes.d_head, turn)

    def latents(
        self, x: Float[Tensor, "batch token d_model"], turn: Rotation | None
    ) -> Float[Tensor, "batch 1 token kept"]:
        """Compute the vector to cache for each token: [c, k], its normalized latent and its rotated key.

        kept = rank + d_rope.
        """
        c, key = self.down(x).split((self.rank, self.d_query - self.sizes.d_head), -1)
        return self._turned(torch.cat((self.latent_norm(c), key), -1)[:, None], self.rank, turn)

    def expand(
        self, kept: Float[Tensor, "batch 1 key kept"]
    ) -> tuple[Float[Tensor, "batch head key d_query"], Float[Tensor, "batch head key d_v"]]:
        """Compute every head's keys and values from the cached latents."""
        sizes = self.sizes
        both = self._split(self.up(kept[:, 0, :, : self.rank]))
        key, value = both.split((sizes.d_head, sizes.d_v), -1)
        shared = kept[..., self.rank :].expand(-1, sizes.heads, -1, -1)
        return torch.cat((key, shared), -1), value

    def matrices(self) -> tuple[Float[Tensor, "head d_head rank"], Float[Tensor, "head d_v rank"]]:
        """Return U_k and U_v of each head, which consist of rows of `up`.

        Raises:
            ValueError: If `up` is no longer a plain linear layer.
        """
        if not self._is_matrix():
            raise ValueError("up: expected a plain linear layer without hooks or parametrizations")
        weight = self.up.weight.view(self.sizes.heads, -1, self.rank)
        keys, values = weight.split((self.sizes.d_head, self.sizes.d_v), 1)
        return keys, values

    def _is_matrix(self) -> bool:
        up = self.up
        hooked = up._forward_hooks or up._forward_pre_hooks or "forward" in up.__dict__
        return type(up) is nn.Linear and up.bias is None and not hooked

    def _absorbed(
        self,
        q: Float[Tensor, "batch head token d_query"],
        kept: Float[Tensor, "batch 1 key kept"],
        mask: AttentionMask,
        asked: dict[str, Any],
    ) -> Float[Tensor, "batch head token d_v"]:
        """Compute every head's weighted average of values without computing the values themselves.

        The queries of all heads are treated as queries of a single head, so that the cached latents are read only once.
        """
        to_latent, to_value = self.matrices()
        plain, turned = q.split((self.sizes.d_head, self.d_query - self.sizes.d_head), -1)
        # einsum computes one product per head over all rows; `@` would copy the matrices for each row.
        q = torch.cat((torch.einsum("bhnd,hdr->bhnr", plain, to_latent), turned), -1)
        heads, tokens = q.shape[1:3]
        mask = AttentionMask(_side_by_side(mask.table, heads, tokens), _side_by_side(mask.empty, heads, tokens))
        if wide_dtype(q.dtype) == q.dtype:  # in half precision the formula would first widen the whole cache
            asked["backend"] = "reference"  # for one head, two plain products are as fast as the fused operator
        sums = attend(q.flatten(1, 2)[:, None], kept, kept[..., : self.rank], mask=mask, **asked)
        return torch.einsum("bhnr,hvr->bhnv", sums[:, 0].unflatten(1, (heads, tokens)), to_value)

    def _split(self, x: Tensor) -> Tensor:
        """Reshape (batch, token, head * width) to (batch, head, token, width)."""
        return x.view(*x.shape[:2], self.sizes.heads, -1).transpose(1, 2)

    def _turned(self, x: Tensor, plain: int, turn: Rotation | None) -> Tensor:
        """Rotate all but the first `plain` components of `x`."""
        if self.rotary is None or turn is None:
            return x
        return torch.cat((x[..., :plain], self.rotary.turn(x[..., plain:], turn)), -1)


def _side_by_side(mask: Tensor | None, heads: int, tokens: int) -> Tensor | None:
    """Reshape a mask from (batch, head, token, key) to (batch, 1, head * token, key), as if all heads were one."""
    if mask is None or mask.shape[1] == mask.shape[2] == 1:
        return mask
    return mask.expand(-1, heads, tokens, -1).flatten(1, 2)[:, None]
