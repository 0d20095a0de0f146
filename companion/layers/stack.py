"""A stack of blocks: an encoder or a decoder without embeddings and head (lessons 07 and 08)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.ground.annotations import checked
from companion.layers.block import Block
from companion.layers.cache import CrossCache, LayerCache, layer_mask
from companion.layers.masks import AttentionMask, Mask, documents, joined, materialize
from companion.layers.norms import norm
from companion.layers.positions import RelativeBias, Rotary
from companion.layers.recurrent_cache import StateCache
from companion.layers.routing import RoutingStats


class Memory(NamedTuple):
    """Encoder output in the form that the decoder's layers need, computed once and read at every step.

    Attributes:
        layers: Keys and values of the encoder's output, for each decoder layer.
        attention_mask: Which source tokens are not padding, (batch, key); `None` means all.
        routing: Routing of the encoder's layers.
    """

    layers: tuple[CrossCache, ...]
    attention_mask: Bool[Tensor, "#batch key"] | None
    routing: tuple[RoutingStats, ...]

    def select(self, rows: Int[Tensor, "row"]) -> Memory:
        """Return a copy of the given rows in the given order; an index that is repeated repeats its row.

        `routing` is dropped, because its statistics are for whole batches.
        """
        layers = tuple(layer.select(rows) for layer in self.layers)
        attention_mask = (
            None if self.attention_mask is None else self.attention_mask.expand(len(self.layers[0].keys), -1)[rows]
        )
        return Memory(layers, attention_mask, ())


class Stack(nn.Module):
    """A sequence of blocks, with a final norm unless the blocks are post-norm."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        turned = [Rotary.of(config.layer(layer)[1], config.sizes.d_turned) for layer in range(config.layers)]
        self.rotaries = list(dict.fromkeys(rotary for rotary in turned if rotary is not None))
        self.turns = [None if rotary is None else self.rotaries.index(rotary) for rotary in turned]
        self.causal, self.heads = causal, config.attention.heads
        windows = [config.layer(layer)[0].window for layer in range(config.layers)]
        self.windows = [None if window is None else window.width for window in windows]
        self.linear = [config.linear(layer) for layer in range(config.layers)]
        self.blocks = nn.ModuleList(
            Block(config, causal=causal, cross=cross, layer=layer) for layer in range(config.layers)
        )
        relative = config.positions.kind == "relative"
        self.relative = RelativeBias(config.positions, self.heads, both_ways=not causal) if relative else None
        self.norm = norm(config.norm, config.d_model) if config.norm.placement != "post" else nn.Identity()

    @checked()
    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: Int[Tensor, "*batch token"],
        attention_mask: Bool[Tensor, "#batch key"] | None = None,
        token_mask: Bool[Tensor, "batch token"] | None = None,
        mask: Mask | None = None,
        cache: list[LayerCache | StateCache] | None = None,
        memory: Memory | None = None,
        document_ids: Int[Tensor, "batch token"] | None = None,
    ) -> tuple[Float[Tensor, "batch token d_model"], tuple[RoutingStats, ...]]:
        """Apply all blocks in order, then the final norm if the configuration has one.

        Args:
            x: The stream, (batch, token, d_model).
            positions: Position of each token. Rotary angles are computed from the positions once for all blocks that
                rotate in the same way. With a cache, distances are measured between slots.
            attention_mask: Which keys are not padding: no query attends to padding, and the routing statistics do not
                count it. `None` means all.
            token_mask: Which tokens the routing statistics count, if `attention_mask` is not given.
            mask: Which tokens may attend to which.
            cache: Each block's part of a cache, which this call updates.
            memory: Input of cross-attention.
            document_ids: Document of each token in a packed row; no information passes between documents.

        Returns:
            The stream after the last block, (batch, token, d_model), and the routing of each block that has experts.
        """
        written = None
        if document_ids is not None:
            batch, tokens = document_ids.shape
            mask = joined(mask, materialize(documents(document_ids), batch, tokens, tokens, device=x.device))
        if attention_mask is not None:
            mask = joined(mask, attention_mask[:, None, None, :])  # padding hides keys for every head and query
            attention_mask = attention_mask.expand(len(x), -1)
            token_mask = written = attention_mask if cache is None else attention_mask.gather(1, cache[0].slots)
        if self.relative is not None:
            mask = joined(self._distances(self.relative, positions, cache), mask)
        masks = self._masks(x, mask, cache)
        source_mask = None
        if memory is not None and memory.attention_mask is not None:
            source_mask = AttentionMask.from_table(memory.attention_mask[:, None, None, :])
        rotations = [rotary.at(positions, x.dtype) for rotary in self.rotaries]
        routing = []
        # Blocks may have been removed from the end.
        layers = zip(self.blocks, self.turns, masks, self.linear, strict=False)
        for i, (block, turn, allowed, linear) in enumerate(layers):
            x, where = block(
                x,
                positions=positions if turn is None else rotations[turn],
                mask=allowed,
                cache=None if cache is None else cache[i],
                source=None if memory is None else memory.layers[i],
                source_mask=source_mask,
                attention_mask=token_mask,
                **({"written": written, "document_ids": document_ids} if linear else {}),
            )
            if where is not None:
                routing.append(where)
        return self.norm(x), tuple(routing)

    @staticmethod
    def _distances(
        relative: RelativeBias, positions: Tensor, cache: list[LayerCache | StateCache] | None
    ) -> Float[Tensor, "#batch head token key"]:
        """Return the biases of relative positions."""
        if cache is None:
            return relative(positions, positions)
        opened = cache[0]
        assert isinstance(opened, LayerCache)
        return relative(opened.slots, torch.arange(opened.visible, device=positions.device))

    def _masks(
        self, x: Tensor, mask: Mask | None, cache: list[LayerCache | StateCache] | None
    ) -> list[AttentionMask | None]:
        """Make the mask of each layer; `None` for linear layers.

        Layers with the same window and causality share one mask.
        """
        made: dict[tuple[int | None, bool], AttentionMask] = {}
        masks: list[AttentionMask | None] = []
        for layer, (rule, linear) in enumerate(zip(self._rules(), self.linear, strict=False)):
            if not linear and rule not in made:
                window, causal = rule
                opened = None if cache is None else cache[layer]
                assert not isinstance(opened, StateCache)
                made[rule] = layer_mask(mask, x, self.heads, opened, causal=causal, window=window)
            masks.append(None if linear else made[rule])
        return masks

    def _rules(self) -> list[tuple[int | None, bool]]:
        """Return each layer's window and whether its attention is causal, as defined by the layer itself."""
        attentions = [getattr(block, "attention", None) for block in self.blocks]
        causal = [getattr(attention, "causal", self.causal) for attention in attentions]
        return list(zip(self.windows, causal, strict=False))  # blocks may have been removed from the end
