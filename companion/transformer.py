"""The transformer: an encoder, a decoder, or both, from one configuration (lessons 00, 07 and 08)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config import ModelConfig
from companion.layers.attention import Attention, Mask
from companion.layers.bert import MaskedTransform, Pooler
from companion.layers.block import Block
from companion.layers.cache import CrossCache, KVCache, LayerCache
from companion.layers.moe import Experts, MoE, RoutingStats
from companion.layers.norms import norm
from companion.layers.positions import Learned, sinusoidal


class Output(NamedTuple):
    """What a forward pass gives back.

    logits:   one score per token id, (batch, token, vocab).
    routing:  where each layer's experts were sent its tokens; empty without a mixture of experts.
    cache:    what the decoder has now seen, to be passed to the next call; `None` if none was passed in.
    """

    logits: Float[Tensor, "batch token vocab"]
    routing: tuple[RoutingStats, ...]
    cache: KVCache | None


class Features(NamedTuple):
    """The stream after the last block and norm, before the output head; the rest as in `Output`."""

    stream: Float[Tensor, "batch token d_model"]
    routing: tuple[RoutingStats, ...]
    cache: KVCache | None


class Memory(NamedTuple):
    """A source as the decoder's layers see it: computed once, read at every step.

    layers:   each decoder layer's keys and values of the encoder's output.
    mask:     which source tokens may be looked at, (batch, 1, 1, key); `None`: all.
    routing:  of the encoder's layers.
    """

    layers: tuple[CrossCache, ...]
    mask: Mask | None
    routing: tuple[RoutingStats, ...]

    def select(self, rows: Int[Tensor, "row"]) -> Memory:
        """The given rows, in that order and as often as named, copied; without `routing`, which is of whole batches."""
        layers = tuple(layer.select(rows) for layer in self.layers)
        mask = self.mask
        if mask is not None:
            mask = mask.expand(self.layers[0].keys.shape[0], -1, -1, -1)[rows]
        return Memory(layers, mask, ())


class Stack(nn.Module):
    """`layers` blocks one after the other, and with pre-norm a last norm."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, causal=causal, cross=cross) for _ in range(config.layers))
        self.norm = norm(config.norm, config.d_model) if config.norm.placement == "pre" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: Int[Tensor, "*batch token"],
        mask: Mask | None = None,
        cache: list[LayerCache] | None = None,
        memory: Memory | None = None,
        real: Bool[Tensor, "batch token"] | None = None,
        experts: Experts = "auto",
    ) -> tuple[Float[Tensor, "batch token d_model"], tuple[RoutingStats, ...]]:
        """All blocks in order, then the last norm where the config has one.

        cache:   of each block; it is written.
        memory:  what cross-attention looks at.
        real:    which tokens a mixture of experts counts; `None`: all.

        Returns the state, and the routing of each block that has experts.
        """
        routing = []
        first: Attention = self.blocks[0].attention  # type: ignore[assignment]
        places = positions if first.rotary is None else first.rotation(positions, x.dtype)  # the same in every layer
        for i, block in enumerate(self.blocks):
            x, where = block(
                x,
                positions=places,
                mask=mask,
                cache=None if cache is None else cache[i],
                source=None if memory is None else memory.layers[i],
                source_mask=None if memory is None else memory.mask,
                real=real,
                experts=experts,
            )
            if where is not None:
                routing.append(where)
        return self.norm(x), tuple(routing)


class Transformer(nn.Module):
    """Token ids in, one score per possible next (or masked) token out.

    With `config.embedding.tied` the head *is* the embedding table: one parameter, whose gradient is the sum of both
    uses. It has a bias, and more, only where `config.embedding.head` says so.

    Embeddings start normal with variance 1 / d_model, so that the logits of a normalised state have variance one
    whatever the width (a fixed 0.02 leaves those of a narrow model near zero, and its first updates slow); other
    weights with variance 2 / (5 d_model) (Nguyen and Salazar 2019), and those that write to the stream 1 / sqrt(number
    of writes) smaller (Radford et al. 2019), so that its variance does not grow with depth.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.d_model)
        self.positions = Learned(config.context, config.d_model) if config.positions.kind == "learned" else None
        ends = config.embedding
        self.segments = nn.Embedding(ends.segments, config.d_model) if ends.segments else None
        self.embedding_norm = norm(config.norm, config.d_model) if ends.norm else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Stack(config, causal=False) if config.stack != "decoder" else None
        self.decoder = (
            Stack(config, causal=True, cross=config.stack == "encoder_decoder") if config.stack != "encoder" else None
        )
        self.transform = (
            MaskedTransform(config.d_model, config.feed_forward, config.norm) if ends.head == "masked" else None
        )
        self.unembedding = None if ends.tied else nn.Linear(config.d_model, config.vocab, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(config.vocab)) if ends.head != "linear" else None
        self.pooler = Pooler(config.d_model) if ends.pooled else None
        self.classifier = nn.Linear(config.d_model, ends.classes) if ends.classes else None
        self._initialise()

    def _initialise(self) -> None:
        d_model = self.config.d_model
        std = math.sqrt(2 / (5 * d_model))
        writes = self.config.layers * (3 if self.config.stack == "encoder_decoder" else 2)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, MoE):
                for weight in (module.gate, module.inner, module.outer):
                    if weight is not None:
                        nn.init.normal_(weight, std=std)
        for module in self.modules():
            if isinstance(module, Attention):
                nn.init.normal_(module.output.weight, std=std / math.sqrt(writes))
            elif isinstance(module, Block):
                layer = module.feed_forward
                outer = [layer.outer] if isinstance(layer, MoE) else [layer.outer.weight]
                if isinstance(layer, MoE) and layer.shared is not None:
                    outer += [layer.shared.outer.weight]
                for matrix in outer:
                    nn.init.normal_(matrix, std=std / math.sqrt(writes))
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=0.02)

    def forward(
        self,
        tokens: Int[Tensor, "batch token"],
        *,
        source: Int[Tensor, "batch key"] | Memory | None = None,
        positions: Int[Tensor, "*batch token"] | None = None,
        segments: Int[Tensor, "batch token"] | None = None,
        mask: Mask | Bool[Tensor, "batch key"] | None = None,
        cache: KVCache | None = None,
        experts: Experts = "auto",
    ) -> Output:
        """Logits for every token.

        source:     for an encoder-decoder: the source's ids, or the `Memory` that `encode` made of them.
        positions:  (token) or (batch, token). Default: 0, 1, ..., or from where each row of the cache stands.
        segments:   for an encoder with `config.embedding.segments`: which one each token belongs to. Default: 0.
        mask:       (batch, key): which tokens are real; or anything that broadcasts to (batch, head, token, key), where
                    a token that may look nowhere is padding. With a cache, key counts the slots it shows.
        cache:      what the decoder has seen so far; call under `torch.no_grad()` and go on with `Output.cache`.
        experts:    how a mixture of experts computes, see `MoE`: `"auto"`, `"loop"`, `"grouped"` or `"gather"`.

        Raises `ValueError` if the stack and the arguments do not fit, or the tokens do not fit the cache or the learned
        positions.
        """
        stream, routing, cache = self.features(
            tokens, source=source, positions=positions, segments=segments, mask=mask, cache=cache, experts=experts
        )
        return Output(self.head(stream), routing, cache)

    def features(
        self,
        tokens: Int[Tensor, "batch token"],
        *,
        source: Int[Tensor, "batch key"] | Memory | None = None,
        positions: Int[Tensor, "*batch token"] | None = None,
        segments: Int[Tensor, "batch token"] | None = None,
        mask: Mask | Bool[Tensor, "batch key"] | None = None,
        cache: KVCache | None = None,
        experts: Experts = "auto",
    ) -> Features:
        """`forward` without the head, for callers that want the logits of a few tokens only. It raises the same."""
        if self.decoder is None:
            if segments is not None and self.segments is None:
                raise ValueError("segments: this model has no vectors for them; expected embedding.segments >= 1")
            if source is not None or cache is not None:
                raise ValueError("source and cache belong to a decoder; got one for stack='encoder'")
            assert self.encoder is not None
            return Features(*self._run(self.encoder, tokens, positions, mask, segments=segments, experts=experts), None)
        if segments is not None:
            raise ValueError(f"segments belong to an encoder; got them for stack={self.config.stack!r}")
        if (source is None) == (self.encoder is not None):
            has = "got none" if source is None else "got one"
            raise ValueError(f"source: stack={self.config.stack!r} {has}; it belongs to an encoder_decoder, always")
        memory = source if source is None or isinstance(source, Memory) else self.encode(source, experts=experts)
        if cache is not None and cache.batch != tokens.shape[0]:
            raise ValueError(f"tokens has batch={tokens.shape[0]}: expected {cache.batch}, as many rows as the cache")
        opened = None if cache is None else cache.open(tokens.shape[1])
        if positions is None and opened is not None:
            positions = opened[0].slots
        reach = tokens.shape[1] + (0 if cache is None else cache.filled)
        stream, routing = self._run(self.decoder, tokens, positions, mask, opened, memory, reach, experts=experts)
        routing = (memory.routing if memory is not None else ()) + routing
        return Features(stream, routing, None if cache is None else cache.advance(tokens.shape[1]))

    def encode(
        self,
        source: Int[Tensor, "batch key"],
        *,
        mask: Mask | Bool[Tensor, "batch key"] | None = None,
        experts: Experts = "auto",
    ) -> Memory:
        """The source as the decoder's layers see it; run it once and pass it as `source` from then on.

        mask: (batch, key), which source tokens are real. `experts` as in `forward`.

        Raises `ValueError` unless this is an encoder-decoder.
        """
        if self.encoder is None or self.decoder is None:
            raise ValueError(f"stack={self.config.stack!r}: expected 'encoder_decoder', the one stack with a source")
        stream, routing = self._run(self.encoder, source, None, mask, experts=experts)
        layers = tuple(block.cross.project_source(stream) for block in self.decoder.blocks)  # type: ignore[union-attr, operator]
        return Memory(layers, _as_mask(mask), routing)

    def head(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of states of the stream: stream @ E^T when tied, plus what `config.embedding.head` adds."""
        if self.transform is not None:
            stream = self.transform(stream)
        table = self.embedding.weight if self.unembedding is None else self.unembedding.weight
        return nn.functional.linear(stream, table, self.head_bias)

    def pool(self, stream: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch d_model"]:
        """The vector that BERT makes of a whole sequence's stream (of `features`, that is).

        Raises `ValueError` unless `config.embedding.pooled`.
        """
        if self.pooler is None:
            raise ValueError("pooled=False: this model has no layer that makes one vector of a sequence")
        return self.pooler(stream)

    def classify(self, stream: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch class"]:
        """The scores that the classifier gives the pooled sequence.

        Raises `ValueError` unless `config.embedding.classes`.
        """
        if self.classifier is None:
            raise ValueError("classes=0: this model has no classifier of sequences")
        return self.classifier(self.pool(stream))

    def _run(
        self,
        stack: Stack,
        tokens: Tensor,
        positions: Tensor | None,
        mask: Tensor | None,
        cache: list[LayerCache] | None = None,
        memory: Memory | None = None,
        reach: int | None = None,
        segments: Tensor | None = None,
        experts: Experts = "auto",
    ) -> tuple[Tensor, tuple[RoutingStats, ...]]:
        reach = tokens.shape[1] if reach is None else reach
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.positions is not None and reach > self.config.context:
            raise ValueError(
                f"tokens: {reach} of them do not fit the {self.config.context} learned positions; "
                f"expected at most context={self.config.context}"
            )
        x = self._embed(tokens, positions, segments)
        real = None  # what is not padding: experts count nothing else
        if mask is not None and mask.dtype == torch.bool:
            if mask.ndim == 2:
                real = mask.expand(len(tokens), -1)
                real = real if cache is None else real.gather(1, cache[0].slots)
            elif cache is None and self.config.moe is not None:
                real = mask.any(-1).any(1).expand(tokens.shape)
        return stack(
            x, positions=positions, mask=_as_mask(mask), cache=cache, memory=memory, real=real, experts=experts
        )

    def _embed(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None
    ) -> Float[Tensor, "batch token d_model"]:
        x = self.embedding(tokens)
        if self.config.embedding.scaled:
            x = x * math.sqrt(self.config.d_model)
        if self.positions is not None:
            x = x + self.positions(positions)
        elif self.config.positions.kind == "sinusoidal":
            order = self.config.positions
            x = x + sinusoidal(positions, self.config.d_model, order.base, x.dtype, order.pairing)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.dropout(x)


def _as_mask(mask: Tensor | None) -> Tensor | None:
    """(batch, key) -> (batch, 1, 1, key): padding hides key columns, for every head and query."""
    return mask[:, None, None, :] if mask is not None and mask.ndim == 2 else mask
