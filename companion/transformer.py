"""The transformer: an encoder, a decoder, or both, from one configuration (lessons 00, 07 and 08)."""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.config.parameters import check_makeable
from companion.ground.boundary import (
    check_broadcasts,
    check_ids,
    check_kind,
    check_positions,
    counted_of,
    described,
    look_up,
    mask_of,
    padding_of,
)
from companion.layers.attention import Attention, Mask, capped, visible_and
from companion.layers.bert import MaskedTransform, Pooler
from companion.layers.block import Block
from companion.layers.cache import CrossCache, KVCache, LayerCache
from companion.layers.moe import MoE, RoutingStats
from companion.layers.norms import norm
from companion.layers.positions import Learned, Rotary, sinusoidal


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
    real:     which source tokens are not padding, (batch, key); `None`: all.
    routing:  of the encoder's layers.
    """

    layers: tuple[CrossCache, ...]
    real: Bool[Tensor, "#batch key"] | None
    routing: tuple[RoutingStats, ...]

    def select(self, rows: Int[Tensor, "row"]) -> Memory:
        """The given rows, in that order and as often as named, copied; without `routing`, which is of whole batches."""
        layers = tuple(layer.select(rows) for layer in self.layers)
        real = None if self.real is None else self.real.expand(len(self.layers[0].keys), -1)[rows]
        return Memory(layers, real, ())


_numbers = count(1)
"""Each model has a number of its own, by which a cache knows who filled it."""


class Inputs(TypedDict, total=False):
    """What goes into a `Transformer` beside the tokens; `Transformer.features` says what each is."""

    source: Tensor | Memory | None
    positions: Tensor | None
    segments: Tensor | None
    real: Tensor | None
    counted: Tensor | None
    mask: Tensor | None
    cache: KVCache | None


class Stack(nn.Module):
    """`layers` blocks one after the other, and unless they are post-norm a last norm."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        turned = [Rotary.of(config.layer(layer)[1], config.sizes.d_head) for layer in range(config.layers)]
        self.rotaries = list(dict.fromkeys(rotary for rotary in turned if rotary is not None))
        self.turns = [None if rotary is None else self.rotaries.index(rotary) for rotary in turned]
        self.blocks = nn.ModuleList(
            Block(config, causal=causal, cross=cross, layer=layer) for layer in range(config.layers)
        )
        self.norm = norm(config.norm, config.d_model) if config.norm.placement != "post" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch token d_model"],
        *,
        positions: Int[Tensor, "*batch token"],
        real: Bool[Tensor, "#batch key"] | None = None,
        counted: Bool[Tensor, "batch token"] | None = None,
        mask: Mask | None = None,
        cache: list[LayerCache] | None = None,
        memory: Memory | None = None,
    ) -> tuple[Float[Tensor, "batch token d_model"], tuple[RoutingStats, ...]]:
        """All blocks in order, then the last norm where the config has one.

        positions:  of each token; rotary angles are made of them here, once for all blocks that turn alike.
        real:       which keys are not padding: no query sees the others, and no expert counts them. `None`: all.
        counted:    which tokens experts count, where `real` does not say it.
        mask:       who may look at whom.
        cache:      of each block; it is written.
        memory:     what cross-attention looks at.

        Returns the state, and the routing of each block that has experts. Raises `ValueError` for `real` of another
        shape.
        """
        if real is not None:
            keys = x.shape[1] if cache is None else cache[0].visible
            if real.ndim != 2 or real.shape[0] not in (1, x.shape[0]) or real.shape[1] != keys:
                raise ValueError(f"real has shape {tuple(real.shape)}: expected (batch, key), {(x.shape[0], keys)}")
            mask = visible_and(mask, real[:, None, None, :])  # padding hides columns: keys, for every head and query
            real = real.expand(len(x), -1)
            counted = real if cache is None else real.gather(1, cache[0].slots)
        rotations = [rotary.at(positions, x.dtype) for rotary in self.rotaries]
        routing = []
        pairs = zip(self.blocks, self.turns, strict=False)  # blocks may have been taken off the end
        for i, (block, turn) in enumerate(pairs):
            x, where = block(
                x,
                positions=positions if turn is None else rotations[turn],
                mask=mask,
                cache=None if cache is None else cache[i],
                source=None if memory is None else memory.layers[i],
                source_mask=None if memory is None or memory.real is None else memory.real[:, None, None, :],
                real=counted,
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
        check_makeable(config)
        super().__init__()
        self.config = config
        self._number = next(_numbers)
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

    def forward(self, tokens: Int[Tensor, "batch token"], **inputs: Unpack[Inputs]) -> Output:
        """Logits for every token: the `head` of `features`, which says what else goes in and what is refused."""
        stream, routing, cache = self.features(tokens, **inputs)
        return Output(self.head(stream), routing, cache)

    def features(
        self,
        tokens: Int[Tensor, "batch token"],
        *,
        source: Int[Tensor, "batch key"] | Memory | None = None,
        positions: Int[Tensor, "*batch token"] | None = None,
        segments: Int[Tensor, "batch token"] | None = None,
        real: Shaped[Tensor, "#batch key"] | None = None,
        counted: Shaped[Tensor, "#batch token"] | None = None,
        mask: Mask | None = None,
        cache: KVCache | None = None,
    ) -> Features:
        """The stream before the head, for callers that want the logits of a few tokens only.

        source:     for an encoder-decoder: the source's ids, or the `Memory` that `encode` made of them.
        positions:  (token) or (batch, token). Default: 0, 1, ..., or from where each row of the cache stands.
        segments:   for an encoder with `config.embedding.segments`: which one each token belongs to. Default: 0.
        real:       (batch, key): which tokens are not padding (True, or 1) and which are (False, or 0). No query sees
                    padding, and no expert counts it. With a cache, key counts the slots it shows. Default: all.
        counted:    (batch, token), in place of `real` for padding at the end of rows, which a causal stack hides by
                    itself: experts do not count it, nothing else is done, and attention needs no mask. Default: `real`.
        mask:       who may look at whom: broadcasts to (batch, head, token, key), with key as in `real`.
        cache:      what the decoder has seen so far; call under `torch.no_grad()` and go on with `Features.cache`.

        Raises `ValueError` if the stack and the arguments do not fit each other, an argument has another dtype or
        shape, the tokens do not fit the cache or the learned positions, and for an id that is not in the vocabulary (on
        a GPU only as `companion.ground.boundary` says).
        """
        check_ids("tokens", tokens)
        real = None if real is None else padding_of(real)
        self._check(tokens, source, segments, mask, cache)
        counted = counted_of(counted, tokens, real, causal=self.decoder is not None)
        memory = self.encode(source) if isinstance(source, Tensor) else source
        if memory is not None:
            self._check_memory(memory, tokens.shape[0])
        if cache is not None:
            cache = cache.ready(tokens.shape[1])
        opened = None if cache is None else cache.open(tokens.shape[1])
        self._check_reach("tokens", tokens.shape[1] + (0 if cache is None else cache.filled))
        if mask is not None:
            keys = tokens.shape[1] if opened is None else opened[0].visible
            shape = (tokens.shape[0], self.config.attention.heads, tokens.shape[1], keys)
            check_broadcasts("mask", mask, shape, "(batch, head, token, key)")
            mask = mask_of(mask, anywhere=True)
        if positions is not None:
            check_positions(positions, *tokens.shape)
        else:
            positions = torch.arange(tokens.shape[1], device=tokens.device) if opened is None else opened[0].slots
        x = self._embed(tokens, positions, segments)
        stack = self.decoder or self.encoder
        assert stack is not None
        x, routing = stack(x, positions=positions, real=real, counted=counted, mask=mask, cache=opened, memory=memory)
        routing = (() if memory is None else memory.routing) + routing
        return Features(x, routing, None if cache is None else cache.advance(tokens.shape[1], self._number))

    def encode(self, source: Int[Tensor, "batch key"], *, real: Shaped[Tensor, "#batch key"] | None = None) -> Memory:
        """The source as the decoder's layers see it; run it once and pass it as `source` from then on.

        real: (batch, key), which source tokens are not padding. Default: all.

        Raises `ValueError` unless this is an encoder-decoder, and as `features` does.
        """
        if self.encoder is None or self.decoder is None:
            raise ValueError(f"stack={self.config.stack!r}: expected 'encoder_decoder', the one stack with a source")
        check_ids("source", source, "(batch, key)")
        real = None if real is None else padding_of(real)
        self._check_reach("source", source.shape[1])
        positions = torch.arange(source.shape[1], device=source.device)
        x, routing = self.encoder(self._embed(source, positions, name="source"), positions=positions, real=real)
        layers = tuple(block.cross.project_source(x) for block in self.decoder.blocks)  # type: ignore[union-attr, operator]
        return Memory(layers, real, routing)

    def head(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of states of the stream: stream @ E^T when tied, plus what `config.embedding.head` adds, capped where
        it says so."""
        if self.transform is not None:
            stream = self.transform(stream)
        table = self.embedding.weight if self.unembedding is None else self.unembedding.weight
        return self.capped(nn.functional.linear(stream, table, self.head_bias))

    def capped(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """c tanh(logits / c) for the cap c of `config.embedding.logit_cap`; without one the logits themselves."""
        cap = self.config.embedding.logit_cap
        return logits if cap is None else capped(logits, cap)

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

    def _check(
        self,
        tokens: Tensor,
        source: Tensor | Memory | None,
        segments: Tensor | None,
        mask: Tensor | None,
        cache: KVCache | None,
    ) -> None:
        """Raises `ValueError` for what does not belong to this stack or its tokens, and a mask that is no table of
        pairs."""
        stack = self.config.stack
        if self.decoder is None:
            if segments is not None and self.segments is None:
                raise ValueError("segments: this model has no vectors for them; expected embedding.segments >= 1")
            if source is not None or cache is not None:
                raise ValueError("source and cache belong to a decoder; got one for stack='encoder'")
        elif segments is not None:
            raise ValueError(f"segments belong to an encoder; got them for stack={stack!r}")
        elif (source is None) == (self.encoder is not None):
            has = "got none" if source is None else "got one"
            raise ValueError(f"source: stack={stack!r} {has}; it belongs to an encoder_decoder, always")
        if segments is not None:
            check_ids("segments", segments)
            if segments.shape != tokens.shape:
                raise ValueError(
                    f"segments has shape {tuple(segments.shape)}: expected {tuple(tokens.shape)}, one for each token"
                )
        if source is not None and not isinstance(source, (Tensor, Memory)):
            raise ValueError(f"source={described(source)}: expected a tensor of token ids, or the Memory of encode")
        if cache is not None:
            check_kind("cache", cache, KVCache, "a KVCache; KVCache.create(config, batch, slots) makes one")
            cache.check(self.config, self._number)
            if cache.batch != tokens.shape[0]:
                raise ValueError(
                    f"tokens has batch={tokens.shape[0]}: expected {cache.batch}, as many rows as the cache"
                )
        if mask is not None:
            check_kind("mask", mask, Tensor, "a tensor, (batch, head, token, key)")
            if mask.ndim != 4:
                raise ValueError(
                    f"mask has shape {tuple(mask.shape)}: expected four axes, each (batch, head, token, key) or 1 in "
                    "place; which tokens are not padding is said by real, (batch, key)"
                )

    def _check_memory(self, memory: Memory, batch: int) -> None:
        """Raises `ValueError` for a source of another batch size, or one that another model has read."""
        assert self.decoder is not None
        if len(memory.layers) != len(self.decoder.blocks):
            raise ValueError(
                f"source is of a model with {len(memory.layers)} layers: expected {len(self.decoder.blocks)}, as here"
            )
        if isinstance(memory.layers[0], CrossCache):  # a layer that looks at nothing may have been put in its place
            memory.layers[0].check(batch, self.config.sizes)

    def _check_reach(self, name: str, tokens: int) -> None:
        if self.positions is not None and tokens > self.config.context:
            raise ValueError(
                f"{name}: {tokens} of them do not fit the {self.config.context} learned positions; "
                f"expected at most context={self.config.context}"
            )

    def _embed(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None, *, name: str = "tokens"
    ) -> Float[Tensor, "batch token d_model"]:
        x = look_up(name, self.embedding, tokens)
        if self.config.embedding.scaled:
            factor = math.sqrt(self.config.d_model)
            x = x * (x.new_full((), factor) if self.config.embedding.rounded else factor)
        if self.positions is not None:
            x = x + look_up("positions", self.positions, positions)
        elif self.config.positions.kind == "sinusoidal":
            order = self.config.positions
            x = x + sinusoidal(positions, self.config.d_model, order.base, x.dtype, order.pairing)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else look_up("segments", self.segments, segments))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.dropout(x)
