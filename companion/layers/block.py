"""One block of a stack (lessons 06 to 08).

A block has attention, optionally cross-attention, and a feed-forward network or a mixture of experts, each with its
residual connection and its norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.ground.annotations import checked
from companion.layers.attention import Attention
from companion.layers.cache import CrossCache, LayerCache
from companion.layers.feedforward import FeedForward
from companion.layers.gated_delta_net import LinearAttention
from companion.layers.latent import LatentAttention
from companion.layers.masks import AttentionMask, MaskLike, SourceMask
from companion.layers.moe import MoE
from companion.layers.norms import norm
from companion.layers.positions import Rotation
from companion.layers.recurrent_cache import StateCache
from companion.layers.routing import RoutingStats


class Block(nn.Module):
    """A layer of an encoder (`causal=False`), a decoder, or a decoder with cross-attention (`cross=True`).

    Each sub-layer s updates the stream x in turn:

        post-norm  x <- norm(x + s(x))         (Vaswani et al. 2017, section 3.1)
        pre-norm   x <- x + s(norm(x))         (Xiong et al. 2020)
        both       x <- x + norm'(s(norm(x)))  (Ding et al. 2021, section 2.3)
        after      x <- x + norm(s(x))         (OLMo Team 2025, section 3)

    In a parallel block, attention a and the network f read the same state, and both results are added to it: x <- x +
    a(norm(x)) + f(norm'(x)) (Black et al. 2022, section 2.1). If the two share a norm, norm' is the same as norm.

    Whatever a sub-layer adds to the stream is first multiplied by `config.residual`.

    Args:
        config: Configuration of the model.
        causal: Let a token attend only to itself and to earlier tokens.
        cross: Add cross-attention to a source.
        layer: Index of the block in its stack. `ModelConfig.layer` uses it to find the block's window and positions.
    """

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool = False, layer: int = 0) -> None:
        super().__init__()
        d_model = self.d_model = config.d_model
        self.placement = config.norm.placement
        self.pre, self.parallel = self.placement in ("pre", "both") or config.norm.parallel, config.norm.parallel
        attention, positions = config.layer(layer)
        self.linear = config.linear(layer)
        self.attention: Attention | LatentAttention | LinearAttention
        if self.linear:
            self.attention = LinearAttention(d_model, attention, causal=causal, norms=config.norm)
        else:
            kind = Attention if attention.latent is None else LatentAttention
            self.attention = kind(
                d_model, attention, causal=causal, positions=positions, dropout=config.dropout, norms=config.norm
            )
        self.attention_norm = norm(config.norm, d_model) if layer > 0 or config.norm.first else None
        self.cross = (
            Attention(d_model, attention, causal=False, dropout=config.dropout, norms=config.norm) if cross else None
        )
        self.cross_norm = norm(config.norm, d_model) if cross else None
        network, experts = config.network(layer)
        self.feed_forward: FeedForward | MoE = (
            FeedForward(d_model, network) if experts is None else MoE(d_model, network, experts)
        )
        shared = self.placement == "parallel_shared"
        self.feed_forward_norm = None if shared else norm(config.norm, d_model)
        both = self.placement == "both"
        self.attention_out_norm = norm(config.norm, d_model) if both else None
        self.cross_out_norm = norm(config.norm, d_model) if both and cross else None
        self.feed_forward_out_norm = norm(config.norm, d_model) if both else None
        self.dropout, self.residual = nn.Dropout(config.dropout), config.residual

    @checked(sizes=lambda block: {"d_model": block.d_model})
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: Int[Tensor, "*batch token"] | Rotation | None = None,
        mask: MaskLike = None,
        cache: LayerCache | StateCache | None = None,
        source: Float[Tensor, "batch source d_model"] | CrossCache | None = None,
        source_mask: SourceMask | AttentionMask | None = None,
        attention_mask: Bool[Tensor, "batch token"] | None = None,
        written: Bool[Tensor, "batch token"] | None = None,
        document_ids: Int[Tensor, "batch token"] | None = None,
    ) -> tuple[Float[Tensor, "batch token d_model"], RoutingStats | None]:
        """Apply the block to the stream.

        Args:
            x: The stream, (batch, token, d_model).
            positions: As in `Attention`.
            mask: As in `Attention`.
            cache: This layer's part of a cache, which this call updates.
            source: Input of cross-attention: the encoder's output, or the keys and values already projected from it.
            source_mask: Mask over the source.
            attention_mask: For a mixture of experts: which tokens are not padding.
            written: For a linear layer, which takes no mask: which tokens are not padding. The padding may be anywhere.
            document_ids: For a linear layer: the document of each token in a packed row.

        Returns:
            The next state of the stream, (batch, token, d_model), and the routing of a mixture of experts (`None`
            without one).
        """
        attention: Callable[..., Tensor] = self.attention  # one of three kinds, each with its own type of cache
        normed = self._in(x, self.attention_norm)
        if self.linear:
            h = attention(normed, cache=cache, attention_mask=written, document_ids=document_ids)
        else:
            h = attention(normed, positions=positions, mask=mask, cache=cache)
        if self.parallel:
            wide = normed if self.feed_forward_norm is None else self.feed_forward_norm(x)
            more, routing = self._network(wide, attention_mask)
            x = self._out(x, h, self.attention_norm, None)
            return self._out(x, more, self.attention_norm, None), routing
        x = self._out(x, h, self.attention_norm, self.attention_out_norm)
        if self.cross is not None:
            kept = source if isinstance(source, CrossCache) else self.cross.project_source(source)
            h = self.cross(self._in(x, self.cross_norm), mask=source_mask, cache=kept)
            x = self._out(x, h, self.cross_norm, self.cross_out_norm)
        h, routing = self._network(self._in(x, self.feed_forward_norm), attention_mask)
        return self._out(x, h, self.feed_forward_norm, self.feed_forward_out_norm), routing

    if TYPE_CHECKING:
        __call__ = forward

    def _network(self, x: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, RoutingStats | None]:
        """Return the output of the feed-forward network, and the routing of a mixture of experts."""
        return (
            (self.feed_forward(x), None)
            if isinstance(self.feed_forward, FeedForward)
            else self.feed_forward(x, attention_mask=attention_mask)
        )

    def _in(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Normalize the input of a sub-layer if the placement says so."""
        return norm(x) if self.pre and norm is not None else x

    def _out(self, x: Tensor, h: Tensor, norm: nn.Module | None, out_norm: nn.Module | None) -> Tensor:
        """Add a sub-layer's output h to the stream, with the norms and dropout that belong there."""
        if self.pre:
            h = h if out_norm is None else out_norm(h)
        elif self.placement == "after" and norm is not None:
            h = norm(h)
        h = self.dropout(h)
        x = x + (h if self.residual == 1 else self.residual * h)
        return norm(x) if self.placement == "post" and norm is not None else x
