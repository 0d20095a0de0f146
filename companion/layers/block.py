"""One block of a stack: attention, optionally cross-attention, then a feed-forward network or a mixture of experts,
each with its residual and its norm (lessons 06 to 08)."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.layers.attention import Attention, Mask, SourceMask
from companion.layers.cache import CrossCache, LayerCache
from companion.layers.feedforward import FeedForward
from companion.layers.moe import MoE, RoutingStats
from companion.layers.norms import norm
from companion.layers.positions import Rotation


class Block(nn.Module):
    """A layer of an encoder (`causal=False`), a decoder, or a decoder that looks at a source (`cross=True`).

    With s for each sub-layer in turn:  post-norm  x <- norm(x + s(x))         (Vaswani et al. 2017, section 3.1)
                                        pre-norm   x <- x + s(norm(x))         (Xiong et al. 2020)
                                        both       x <- x + norm'(s(norm(x)))  (Ding et al. 2021, section 2.3)
                                        after      x <- x + norm(s(x))         (OLMo Team 2025, section 3)

    layer: its number in the stack, counted from 0, by which `ModelConfig.layer` knows its window and its positions.
    """

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool = False, layer: int = 0) -> None:
        super().__init__()
        d_model = config.d_model
        self.placement = config.norm.placement
        self.pre = self.placement in ("pre", "both")
        attention, positions = config.layer(layer)
        self.attention = Attention(
            d_model, attention, causal=causal, positions=positions, dropout=config.dropout, norms=config.norm
        )
        self.attention_norm = norm(config.norm, d_model)
        self.cross = (
            Attention(d_model, attention, causal=False, dropout=config.dropout, norms=config.norm) if cross else None
        )
        self.cross_norm = norm(config.norm, d_model) if cross else None
        self.feed_forward: FeedForward | MoE = (
            FeedForward(d_model, config.feed_forward)
            if config.moe is None
            else MoE(d_model, config.feed_forward, config.moe)
        )
        self.feed_forward_norm = norm(config.norm, d_model)
        both = self.placement == "both"
        self.attention_out_norm = norm(config.norm, d_model) if both else None
        self.cross_out_norm = norm(config.norm, d_model) if both and cross else None
        self.feed_forward_out_norm = norm(config.norm, d_model) if both else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: Int[Tensor, "*batch token"] | Rotation | None = None,
        mask: Mask | None = None,
        cache: LayerCache | None = None,
        source: Float[Tensor, "batch key d_model"] | CrossCache | None = None,
        source_mask: SourceMask | None = None,
        real: Bool[Tensor, "batch token"] | None = None,
    ) -> tuple[Float[Tensor, "batch token d_model"], RoutingStats | None]:
        """The next state of the stream, and where a mixture of experts sent its tokens (`None` without one).

        `source` is what cross-attention looks at: the encoder's output, or its keys and values projected before.
        `real` is for a mixture of experts: which tokens are not padding.
        """
        x = self._residual(
            x,
            self.attention_norm,
            lambda h: self.attention(h, positions=positions, mask=mask, cache=cache),
            self.attention_out_norm,
        )
        if self.cross is not None and self.cross_norm is not None:
            cross, kept = self.cross, source
            if not isinstance(kept, CrossCache):
                kept = cross.project_source(kept)
            x = self._residual(
                x, self.cross_norm, lambda h: cross(h, mask=source_mask, cache=kept), self.cross_out_norm
            )
        routing = None

        def feed_forward(h: Tensor) -> Tensor:
            nonlocal routing
            if isinstance(self.feed_forward, FeedForward):
                return self.feed_forward(h)
            out, routing = self.feed_forward(h, real=real)
            return out

        return self._residual(x, self.feed_forward_norm, feed_forward, self.feed_forward_out_norm), routing

    def _residual(
        self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], out_norm: nn.Module | None
    ) -> Tensor:
        """The stream after a sub-layer, by one of the equations above; dropout acts on what is added to the stream."""
        if self.pre:
            out = sublayer(norm(x))
            return x + self.dropout(out if out_norm is None else out_norm(out))
        if self.placement == "after":
            return x + self.dropout(norm(sublayer(x)))
        return norm(x + self.dropout(sublayer(x)))
