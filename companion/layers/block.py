"""One block of a stack: attention, optionally cross-attention, then a feed-forward network or a mixture of experts,
each with its residual and its norm (lessons 06 to 08)."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config import ModelConfig
from companion.layers.attention import Attention, Mask, SourceMask
from companion.layers.cache import CrossCache, LayerCache
from companion.layers.feedforward import FeedForward
from companion.layers.moe import Experts, MoE, RoutingStats
from companion.layers.norms import norm
from companion.layers.positions import Rotation


class Block(nn.Module):
    """A layer of an encoder (`causal=False`), a decoder, or a decoder that looks at a source (`cross=True`).

    With s for each sub-layer in turn:  post-norm  x <- norm(x + s(x))   (Vaswani et al. 2017, section 3.1)
                                        pre-norm   x <- x + s(norm(x))   (Xiong et al. 2020)
    """

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        d_model = config.d_model
        self.pre = config.norm.placement == "pre"
        self.attention = Attention(
            d_model, config.attention, causal=causal, positions=config.positions, dropout=config.dropout
        )
        self.attention_norm = norm(config.norm, d_model)
        self.cross = Attention(d_model, config.attention, causal=False, dropout=config.dropout) if cross else None
        self.cross_norm = norm(config.norm, d_model) if cross else None
        self.feed_forward: FeedForward | MoE = (
            FeedForward(d_model, config.feed_forward)
            if config.moe is None
            else MoE(d_model, config.feed_forward, config.moe)
        )
        self.feed_forward_norm = norm(config.norm, d_model)
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
        experts: Experts = "auto",
    ) -> tuple[Float[Tensor, "batch token d_model"], RoutingStats | None]:
        """The next state of the stream, and where a mixture of experts sent its tokens (`None` without one).

        `source` is what cross-attention looks at: the encoder's output, or its keys and values projected before.
        `real` and `experts` are for a mixture of experts: which tokens are not padding, and how it computes.
        """
        h = self._enter(x, self.attention_norm)
        x = self._leave(x, self.attention(h, positions=positions, mask=mask, cache=cache), self.attention_norm)
        if self.cross is not None and self.cross_norm is not None:
            kept = source if isinstance(source, CrossCache) else self.cross.project_source(source)
            h = self._enter(x, self.cross_norm)
            x = self._leave(x, self.cross(h, mask=source_mask, cache=kept), self.cross_norm)
        h = self._enter(x, self.feed_forward_norm)
        if isinstance(self.feed_forward, MoE):
            out, routing = self.feed_forward(h, real=real, experts=experts)
        else:
            out, routing = self.feed_forward(h), None
        return self._leave(x, out, self.feed_forward_norm), routing

    def _enter(self, x: Tensor, norm: nn.Module) -> Tensor:
        """What a sub-layer reads from the stream."""
        return norm(x) if self.pre else x

    def _leave(self, x: Tensor, out: Tensor, norm: nn.Module) -> Tensor:
        """The stream after a sub-layer's output has been added."""
        x = x + (self.dropout(out) if self.training else out)
        return x if self.pre else norm(x)
