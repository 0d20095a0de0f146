"""The transformer: an encoder, a decoder, or both, from one configuration (lessons 00, 07 and 08)."""

from __future__ import annotations

import math
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.config.parameter_count import check_makeable
from companion.ground.annotations import checked
from companion.ground.arguments import check_ids, check_positions, look_up
from companion.ground.fields import require
from companion.layers.attention import Attention, capped
from companion.layers.bert import MaskedTransform, Pooler
from companion.layers.block import Block
from companion.layers.cache import CrossCache, KVCache
from companion.layers.gated_delta_net import LinearAttention
from companion.layers.latent import LatentAttention
from companion.layers.masks import GivenMask, Mask, as_mask, check_shape, padding_of, token_mask_of
from companion.layers.medusa_heads import MedusaHeads
from companion.layers.moe import MoE
from companion.layers.norms import norm
from companion.layers.positions import Learned, sinusoidal
from companion.layers.routing import RoutingStats
from companion.layers.stack import Memory as Memory
from companion.layers.stack import Stack


class Output(NamedTuple):
    """Result of a forward pass.

    Attributes:
        logits: One score per token id, (batch, token, vocab).
        routing: The routing of each layer with experts; empty without a mixture of experts.
        cache: The cache after this call, to be passed to the next one; `None` if no cache was passed in.
    """

    logits: Float[Tensor, "batch token vocab"]
    routing: tuple[RoutingStats, ...]
    cache: KVCache | None


class Features(NamedTuple):
    """The stream after the last block and norm, before the output head; the other fields are those of `Output`."""

    stream: Float[Tensor, "batch token d_model"]
    routing: tuple[RoutingStats, ...]
    cache: KVCache | None


_numbers = count(1)
"""Ids for models; a cache stores the id of the model that filled it."""


class Inputs(TypedDict, total=False):
    """Arguments that a call to a `Transformer` takes besides the tokens; `Transformer.features` documents them."""

    source: Tensor | Memory | None
    positions: Tensor | None
    segments: Tensor | None
    attention_mask: Tensor | None
    token_mask: Tensor | None
    mask: Tensor | None
    document_ids: Tensor | None
    cache: KVCache | None


_HINTS = {
    "tokens": "torch.tensor(...) converts a list",
    "mask": "to mark padding, pass attention_mask, (batch, key)",
    "cache": "KVCache.create(config, batch, slots) creates one",
}
"""Advice that is added to the error message about an argument."""


class Transformer(nn.Module):
    """A transformer, from token ids to one score per possible next (or masked) token.

    If `config.embedding.tied` is set, the head *is* the embedding table: one parameter, whose gradient is the sum of
    both uses. The head has a bias or further layers only if `config.embedding.head` says so. An encoder may also have
    BERT's additional layers, if `config.embedding` asks for them: segment vectors added to the token embeddings, a
    layer before the output table, and a pooled vector of the whole sequence with a classifier (Devlin et al. 2019;
    lesson 13).

    Embeddings are initialized from a normal distribution with variance 1 / d_model, so that the logits of a normalized
    state have variance one at any width (a fixed standard deviation of 0.02 leaves the logits of a narrow model near
    zero and slows its first updates). Other weights have variance 2 / (5 d_model) (Nguyen and Salazar 2019), with the
    rank in place of d_model if they read a latent. Weights that write to the stream are smaller by a factor of
    sqrt(number of writes) (Radford et al. 2019), so that the stream's variance does not grow with depth.
    """

    published_kind: str | None = None
    """The `model_type` of the published folder that the model was loaded from. It decides how adapters are named."""

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
        apart = ends.apart  # the encoder has its own input layers; otherwise both stacks share those above
        self.source_positions = (
            Learned(config.context, config.d_model) if apart and self.positions is not None else None
        )
        self.source_norm = norm(config.norm, config.d_model) if apart and ends.norm else None
        self.dropout = nn.Dropout(config.dropout)
        both = config.stack == "encoder_decoder"
        self.encoder = Stack(config, causal=False) if config.stack != "decoder" else None
        self.decoder = Stack(config, causal=True, cross=both) if config.stack != "encoder" else None
        transform = partial(MaskedTransform, config.d_model, config.feed_forward, config.norm, bias=ends.dense_bias)
        self.transform = transform() if ends.head == "masked" else None
        self.unembedding = None if ends.tied else nn.Linear(config.d_model, config.vocab, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(config.vocab)) if ends.head != "linear" else None
        self.pooler = Pooler(config.d_model) if ends.pooled else None
        self.classifier = nn.Linear(config.d_model, ends.classes) if ends.classes else None
        self.medusa = MedusaHeads(config.d_model, config.medusa_heads) if config.medusa_heads else None
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
            if isinstance(module, LatentAttention):  # keys and values start at the scale they have without latents
                nn.init.normal_(module.up.weight, std=math.sqrt(2 / (5 * module.up.in_features)))
                nn.init.normal_(module.query.weight, std=math.sqrt(2 / (5 * module.query.in_features)))
            if isinstance(module, LinearAttention):
                module.reset()
                for narrow, wide in ((module.decay_down, module.decay), (module.gate_down, module.gate)):
                    if narrow is not None and wide is not None:
                        nn.init.normal_(wide.weight, std=math.sqrt(2 / (5 * wide.in_features)))
            if isinstance(module, Attention | LatentAttention | LinearAttention):
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
        """Return logits for every token: `head` applied to `features`, which documents the arguments and errors."""
        stream, routing, cache = self.features(tokens, **inputs)
        return Output(self.head(stream), routing, cache)

    if TYPE_CHECKING:
        __call__ = forward

    @checked(hints=_HINTS)
    def features(
        self,
        tokens: Int[Tensor, "batch token"],
        *,
        source: Int[Tensor, "batch source"] | Memory | None = None,
        positions: Int[Tensor, "*batch token"] | None = None,
        segments: Int[Tensor, "batch token"] | None = None,
        attention_mask: Shaped[Tensor, "#batch key"] | None = None,
        token_mask: Shaped[Tensor, "#batch token"] | None = None,
        mask: GivenMask | None = None,
        document_ids: Int[Tensor, "batch token"] | None = None,
        cache: KVCache | None = None,
    ) -> Features:
        """Compute the stream before the head, for callers that need the logits of only a few tokens.

        Args:
            tokens: Token ids, (batch, token).
            source: For an encoder-decoder: the source's ids, or the `Memory` that `encode` computed from them.
            positions: (token) or (batch, token). Default: 0, 1, ..., or with a cache the next free slots of each row.
            segments: For an encoder with `config.embedding.segments`: the segment of each token. Default: 0.
            attention_mask: Attention mask, (batch, key): True or 1 for tokens, False or 0 for padding. No query attends
                to padding, and routing statistics do not count it. With a cache, the axis key has one entry for each
                slot that the cache shows. Default: all True.
            token_mask: Token mask, (batch, token), used instead of `attention_mask` for padding at the end of rows,
                which a causal stack hides anyway. Routing statistics do not count this padding, linear layers do not
                store it in a cache, and attention needs no mask. Default: `attention_mask`.
            mask: Which tokens may attend to which; broadcasts to (batch, head, token, key), with key as in
                `attention_mask`. A mask cannot be used with linear layers, which have no pairs of tokens to hide.
            document_ids: Document ids for sequence packing, for a decoder without a cache. The tokens of a document are
                contiguous, and no information passes between documents.
            cache: Cache of the tokens that the decoder has already read. Call under `torch.no_grad()`, and continue
                with `Features.cache`.

        Returns:
            The stream, (batch, token, d_model), with the routing and the cache.

        Raises:
            ValueError: If the arguments do not match the stack or each other, an argument has the wrong dtype or
                shape, there are more tokens than the cache has slots or than there are learned positions, or an id is
                not in the vocabulary (on a GPU, a later `RuntimeError`: see `companion.ground.arguments`).
        """
        check_ids("tokens", tokens)
        attention_mask = None if attention_mask is None else padding_of(attention_mask)
        self._check_belongs(tokens, source, segments, cache)
        token_mask = token_mask_of(token_mask, tokens, attention_mask, causal=self.decoder is not None)
        self._check_fits(tokens, positions, attention_mask, document_ids, cache)
        mask = None if mask is None else self._settled(mask, tokens, cache)
        memory = self.encode(source) if isinstance(source, Tensor) else source
        ends = None if cache is None or cache.states is None or token_mask is None else token_mask.sum(-1)
        cache = None if cache is None else cache.ready(tokens.shape[1], ends)
        opened = None if cache is None else cache.open(tokens.shape[1])
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device) if opened is None else opened[0].slots
        x = self._embed(tokens, positions, segments)
        stack = self.decoder or self.encoder
        assert stack is not None
        given: dict[str, Any] = {
            "attention_mask": attention_mask,
            "token_mask": token_mask,
            "mask": mask,
            "document_ids": document_ids,
        }
        x, routing = stack(x, positions=positions, cache=opened, memory=memory, **given)
        routing = (() if memory is None else memory.routing) + routing
        return Features(x, routing, None if cache is None else cache.advance(tokens.shape[1], self._number))

    @checked()
    def encode(
        self, source: Int[Tensor, "batch key"], *, attention_mask: Shaped[Tensor, "#batch key"] | None = None
    ) -> Memory:
        """Encode a source once; pass the result as `source` in all later calls.

        Args:
            source: Token ids, (batch, key).
            attention_mask: Attention mask, (batch, key): which source tokens are not padding. Default: all.

        Returns:
            The keys and values that the decoder's layers read.

        Raises:
            ValueError: If this is not an encoder-decoder, and in the same cases as `features`.
        """
        if self.encoder is None or self.decoder is None:
            raise ValueError(f"stack={self.config.stack!r}: expected 'encoder_decoder', the only stack with a source")
        check_ids("source", source, "(batch, key)")
        self._check_reach("source", source.shape[1])
        attention_mask = None if attention_mask is None else padding_of(attention_mask)
        positions = torch.arange(source.shape[1], device=source.device)
        x, routing = self.encoder(
            self._embed(source, positions, name="source"), positions=positions, attention_mask=attention_mask
        )
        layers = tuple(block.cross.project_source(x) for block in self.decoder.blocks)  # type: ignore[union-attr, operator]
        return Memory(layers, attention_mask, routing)

    def head(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Compute the logits for states of the stream.

        The logits are stream @ E^T if the head is tied. `config.embedding` may add a bias, and divide and cap the
        logits; BERT applies one more layer to the stream first.
        """
        stream = stream if self.transform is None else self.transform(stream)
        if self.unembedding is None:
            return self.limited(nn.functional.linear(stream, self.embedding.weight, self.head_bias))
        logits = self.unembedding(stream)
        return self.limited(logits if self.head_bias is None else logits + self.head_bias)

    def limited(self, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """Divide and softcap logits as configured.

        Logits are divided by `config.embedding.logit_divisor`, and then become c tanh(logits / c) if `logit_softcap` is
        c.
        """
        ends = self.config.embedding
        logits = logits if ends.logit_divisor == 1 else logits / ends.logit_divisor
        return logits if ends.logit_softcap is None else capped(logits, ends.logit_softcap)

    def _check_fits(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        cache: KVCache | None,
    ) -> None:
        """Raise `ValueError` unless the arguments match this model and the number of tokens."""
        batch, new = tokens.shape
        self._check_reach("tokens", new + (0 if cache is None else cache.filled))
        if positions is not None:
            check_positions(positions, batch, new)
            by_slot = cache is not None and self.config.positions.kind == "relative"
            require(not by_slot, "positions", positions, "None with a cache, whose slots give the distances")
        keys = new if cache is None else cache.shown(new)
        if attention_mask is not None and (
            (attention_mask.shape[0] != 1 and attention_mask.shape[0] != batch) or attention_mask.shape[1] != keys
        ):
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}: expected (batch, key), {(batch, keys)}"
            )
        self._check_document(document_ids, tokens, cache)

    def _settled(self, mask: GivenMask, tokens: Tensor, cache: KVCache | None) -> Mask | None:
        """Convert a call's mask to the form that the layers expect.

        Raises `ValueError` if it does not fit the model's heads, the tokens and the keys.
        """
        batch, new = tokens.shape
        require(self.config.linear_config is None, "mask", mask, "None; linear layers have no pairs to hide")
        check_shape(mask, (batch, self.config.attention.heads, new, new if cache is None else cache.shown(new)))
        settled = as_mask(mask, anywhere=True)
        assert isinstance(settled, Tensor)
        return settled

    def _check_document(self, document_ids: Tensor | None, tokens: Tensor, cache: KVCache | None) -> None:
        """Raise `ValueError` unless `document_ids` fits the tokens and this is a decoder without a cache."""
        if document_ids is None:
            return
        alone = self.decoder is not None and self.encoder is None and cache is None
        require(alone, "document_ids", document_ids, "None, except for a decoder without a cache")
        check_ids("document_ids", document_ids)
        if document_ids.shape != tokens.shape:
            raise ValueError(
                f"document_ids has shape {tuple(document_ids.shape)}: expected {tuple(tokens.shape)}, like tokens"
            )

    def _check_belongs(
        self, tokens: Tensor, source: Tensor | Memory | None, segments: Tensor | None, cache: KVCache | None
    ) -> None:
        stack = self.config.stack
        if self.decoder is None:
            if segments is not None and not self.config.embedding.segments:
                raise ValueError("segments: this model has no segment embeddings; expected embedding.segments >= 1")
            if source is not None or cache is not None:
                raise ValueError("source and cache are only for decoders, but were passed with stack='encoder'")
        elif segments is not None:
            raise ValueError(f"segments are only for encoders, but were passed with stack={stack!r}")
        elif (source is None) == (self.encoder is not None):
            has = "got none" if source is None else "got one"
            raise ValueError(
                f"source: stack={stack!r} {has}; a source is required for encoder_decoder and not allowed otherwise"
            )
        if segments is not None:
            check_ids("segments", segments)
        if isinstance(source, Tensor):
            check_ids("source", source, "(batch, key)")
            self._check_reach("source", source.shape[1])
            if source.shape[0] != tokens.shape[0]:
                raise ValueError(
                    f"source has batch={source.shape[0]}: expected {tokens.shape[0]}, one row per row of tokens"
                )
        elif isinstance(source, Memory):
            self._check_memory(source, tokens.shape[0])
        if cache is not None:
            cache.check(self.config, self._number)
            if cache.batch != tokens.shape[0]:
                raise ValueError(
                    f"tokens has batch={tokens.shape[0]}: expected {cache.batch}, the number of rows in the cache"
                )

    def _check_memory(self, memory: Memory, batch: int) -> None:
        """Raise `ValueError` if the source has a different batch size or was encoded by a different model."""
        assert self.decoder is not None
        if len(memory.layers) != len(self.decoder.blocks):
            raise ValueError(
                f"source comes from a model with {len(memory.layers)} layers, expected {len(self.decoder.blocks)}"
            )
        if isinstance(memory.layers[0], CrossCache):  # cross-attention may have been replaced by another layer
            memory.layers[0].check(batch, self.config.sizes)

    def _check_reach(self, name: str, tokens: int) -> None:
        if self.positions is not None and tokens > self.config.context:
            raise ValueError(
                f"{name}: {tokens} tokens exceed the {self.config.context} learned positions; "
                f"expected at most context={self.config.context}"
            )

    def _embed(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None, *, name: str = "tokens"
    ) -> Float[Tensor, "batch token d_model"]:
        """Embed the tokens, and add positions if the configuration has additive ones."""
        x = look_up(name, self.embedding, tokens)
        if self.config.embedding.scaled:
            factor = math.sqrt(self.config.d_model)
            x = x * (x.new_full((), factor) if self.config.embedding.rounded else factor)
        elif self.config.embedding.multiplier != 1:
            x = x * self.config.embedding.multiplier
        learned, entering = self.positions, self.embedding_norm
        if name == "source" and self.config.embedding.apart:
            learned, entering = self.source_positions, self.source_norm
        if learned is not None:
            x = x + look_up("positions", learned, positions)
        elif self.config.positions.kind == "sinusoidal":
            order = self.config.positions
            x = x + sinusoidal(positions, self.config.d_model, order.base, x.dtype, order.pairing)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else look_up("segments", self.segments, segments))
        return self.dropout(x if entering is None else entering(x))

    @checked(sizes=lambda model: {"d_model": model.config.d_model})
    def pool(self, stream: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch d_model"]:
        """Pool a sequence's stream, as `features` returns it, into one vector.

        Raises:
            ValueError: If `config.embedding.pooled` is false.
        """
        if self.pooler is None:
            raise ValueError("pooled=False: this model has no pooling layer")
        return self.pooler(stream)

    @checked(sizes=lambda model: {"d_model": model.config.d_model})
    def classify(self, stream: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch class"]:
        """Return the classifier's scores for the pooled sequence.

        Raises:
            ValueError: If `config.embedding.classes` is 0.
        """
        if self.classifier is None:
            raise ValueError("classes=0: this model has no sequence classifier")
        return self.classifier(self.pool(stream))
