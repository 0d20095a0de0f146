"""The transformer: an encoder, a decoder, or both, from one configuration (lessons 00, 07 and 08)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config import ModelConfig
from companion.layers.attention import Attention, Mask
from companion.layers.block import Block
from companion.layers.cache import CrossCache, KVCache, LayerCache
from companion.layers.moe import MoE, Routing
from companion.layers.norms import norm
from companion.layers.positions import Learned, sinusoidal


class Output(NamedTuple):
    """What a forward pass gives back.

    logits:   one score per token id, (batch, token, vocab).
    routing:  where each layer's experts were sent its tokens; empty without a mixture of experts.
    cache:    what the decoder has now seen, to be passed to the next call; `None` if none was passed in.
    """

    logits: Float[Tensor, "batch token vocab"]
    routing: tuple[Routing, ...]
    cache: KVCache | None


class Features(NamedTuple):
    """The stream after the last block and norm, before the output head; the rest as in `Output`."""

    stream: Float[Tensor, "batch token d_model"]
    routing: tuple[Routing, ...]
    cache: KVCache | None


class Memory(NamedTuple):
    """A source as the decoder's layers see it: computed once, read at every step.

    layers:   each decoder layer's keys and values of the encoder's output.
    mask:     which source tokens may be looked at, (batch, 1, 1, key); `None`: all.
    routing:  of the encoder's layers.
    """

    layers: tuple[CrossCache, ...]
    mask: Mask | None
    routing: tuple[Routing, ...]


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
    ) -> tuple[Float[Tensor, "batch token d_model"], tuple[Routing, ...]]:
        routing = []
        for i, block in enumerate(self.blocks):
            x, where = block(
                x,
                positions=positions,
                mask=mask,
                cache=None if cache is None else cache[i],
                source=None if memory is None else memory.layers[i],
                source_mask=None if memory is None else memory.mask,
            )
            if where is not None:
                routing.append(where)
        return self.norm(x), tuple(routing)


class Transformer(nn.Module):
    """Token ids in, one score per possible next (or masked) token out.

    The head has no bias. With `config.embedding.tied` it *is* the embedding table: one parameter, whose gradient is the
    sum of both uses.

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
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Stack(config, causal=False) if config.stack != "decoder" else None
        self.decoder = (
            Stack(config, causal=True, cross=config.stack == "encoder_decoder") if config.stack != "encoder" else None
        )
        self.unembedding = None if config.embedding.tied else nn.Linear(config.d_model, config.vocab, bias=False)
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
                outer = module.feed_forward.outer
                nn.init.normal_(
                    outer.weight if isinstance(outer, nn.Linear) else outer, std=std / math.sqrt(writes)
                )
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)

    def forward(
        self,
        tokens: Int[Tensor, "batch token"],
        *,
        source: Int[Tensor, "batch key"] | Memory | None = None,
        positions: Int[Tensor, "*batch token"] | None = None,
        mask: Mask | Bool[Tensor, "batch key"] | None = None,
        cache: KVCache | None = None,
    ) -> Output:
        """Logits for every token.

        source:     for an encoder-decoder: the source's ids, or the `Memory` that `encode` made of them.
        positions:  (token) or (batch, token). Default: 0, 1, ..., or from where each row of the cache stands.
        mask:       (batch, key): which tokens are real; or anything that broadcasts to (batch, head, token, key).
                    With a cache, key counts the slots it shows.
        cache:      what the decoder has seen so far; call under `torch.no_grad()` and go on with `Output.cache`.

        Raises `ValueError` if the stack and the arguments do not fit, or the tokens do not fit the cache or the learned
        positions.
        """
        stream, routing, cache = self.features(tokens, source=source, positions=positions, mask=mask, cache=cache)
        return Output(self.head(stream), routing, cache)

    def features(
        self,
        tokens: Int[Tensor, "batch token"],
        *,
        source: Int[Tensor, "batch key"] | Memory | None = None,
        positions: Int[Tensor, "*batch token"] | None = None,
        mask: Mask | Bool[Tensor, "batch key"] | None = None,
        cache: KVCache | None = None,
    ) -> Features:
        """`forward` without the head, for callers that want the logits of a few tokens only."""
        if self.decoder is None:
            if source is not None or cache is not None:
                raise ValueError("source and cache belong to a decoder; got one for stack='encoder'")
            assert self.encoder is not None
            return Features(*self._run(self.encoder, tokens, positions, mask), None)
        if (source is None) == (self.encoder is not None):
            has = "got none" if source is None else "got one"
            raise ValueError(f"source: stack={self.config.stack!r} {has}; it belongs to an encoder_decoder, always")
        memory = source if source is None or isinstance(source, Memory) else self.encode(source)
        if cache is not None and cache.batch != tokens.shape[0]:
            raise ValueError(f"tokens has batch={tokens.shape[0]}: expected {cache.batch}, as many rows as the cache")
        opened = None if cache is None else cache.open(tokens.shape[1])
        if positions is None and opened is not None:
            positions = opened[0].slots
        reach = tokens.shape[1] + (0 if cache is None else cache.filled)
        stream, routing = self._run(self.decoder, tokens, positions, mask, opened, memory, reach)
        routing = (memory.routing if memory is not None else ()) + routing
        return Features(stream, routing, None if cache is None else cache.advance(tokens.shape[1]))

    def encode(
        self, source: Int[Tensor, "batch key"], *, mask: Mask | Bool[Tensor, "batch key"] | None = None
    ) -> Memory:
        """The source as the decoder's layers see it; run it once and pass it as `source` from then on.

        mask: (batch, key), which source tokens are real. Raises `ValueError` unless this is an encoder-decoder.
        """
        if self.encoder is None or self.decoder is None:
            raise ValueError(f"stack={self.config.stack!r}: expected 'encoder_decoder', the one stack with a source")
        stream, routing = self._run(self.encoder, source, None, mask)
        layers = tuple(block.cross.project_source(stream) for block in self.decoder.blocks)  # type: ignore[union-attr, operator]
        return Memory(layers, _as_mask(mask), routing)

    def head(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of states of the stream: stream @ E^T when tied."""
        table = self.embedding.weight if self.unembedding is None else self.unembedding.weight
        return nn.functional.linear(stream, table)

    def _run(
        self,
        stack: Stack,
        tokens: Tensor,
        positions: Tensor | None,
        mask: Tensor | None,
        cache: list[LayerCache] | None = None,
        memory: Memory | None = None,
        reach: int | None = None,
    ) -> tuple[Tensor, tuple[Routing, ...]]:
        reach = tokens.shape[1] if reach is None else reach
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.positions is not None and reach > self.config.context:
            raise ValueError(
                f"tokens: {reach} of them do not fit the {self.config.context} learned positions; "
                f"expected at most context={self.config.context}"
            )
        x = self._embed(tokens, positions)
        return stack(x, positions=positions, mask=_as_mask(mask), cache=cache, memory=memory)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Float[Tensor, "batch token d_model"]:
        x = self.embedding(tokens)
        if self.config.embedding.scaled:
            x = x * math.sqrt(self.config.d_model)
        if self.positions is not None:
            x = x + self.positions(positions)
        elif self.config.positions.kind == "sinusoidal":
            x = x + sinusoidal(positions, self.config.d_model, self.config.positions.base, x.dtype)
        return self.dropout(x)


def _as_mask(mask: Tensor | None) -> Tensor | None:
    """(batch, key) -> (batch, 1, 1, key): padding hides key columns, for every head and query."""
    return mask[:, None, None, :] if mask is not None and mask.ndim == 2 else mask
