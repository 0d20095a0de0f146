"""Weights in the form that decoding wants (lesson 10): a step of one row reads every weight once, so bytes are time.

`prepared` makes a copy of a decoder for its steps, once: queries, keys and values in one product, gate and inner in
one, stored transposed, in half precision, or as whole numbers of 8 or 4 bits with scales
(`companion.generation.products`). The model itself, its parameters and their names stay as they are; the stream
between the products and the cache keep their precision.

    fp32    transposed: the same numbers, summed in another order
    fp16    half the bytes
    bf16    half the bytes, and an eighth of fp16's precision
    int8    a quarter: each row of a matrix divided by its largest number / 127 (Dettmers et al. 2022, section 2.1)
    int4    an eighth: groups of 32 numbers from the least to the largest in 16 levels; the head in int8
    auto    whichever of these, int4 excepted, takes the least time for a step here, measured once

Experts are not copied: a step reads those that it visits alone, as they are.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal, Unpack, get_args
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.generation.products import Product, possible
from companion.ground.boundary import check_ids
from companion.layers.attention import Attention
from companion.layers.block import Block
from companion.layers.cache import KVCache, LayerCache
from companion.layers.feedforward import FeedForward
from companion.layers.norms import RMSNorm
from companion.layers.positions import Rotary, Rotation
from companion.transformer import Inputs, Output, Transformer

Weights = Literal["fp32", "fp16", "bf16", "int8", "int4", "auto"]
"""The forms, see above."""
FORMS = tuple(form for form in get_args(Weights) if form != "auto")
AUTO = ("fp32", "fp16", "bf16", "int8")
"""What `"auto"` chooses from: forms that change the bits per byte of a text by less than 0.2 %."""


def _product(layers: list[nn.Linear], form: str) -> Product:
    """Several products of the same x as one."""
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return Product(torch.cat([layer.weight for layer in layers]), torch.cat(biases) if biases else None, form)


class _RMSNorm(nn.Module):
    """The same norm in four operations: x / hypot(|x|, sqrt(n eps)) * (sqrt(n) gain), because the root of
    mean(x^2) + eps is hypot(|x|, sqrt(n eps)) / sqrt(n)."""

    gain: Tensor
    least: Tensor

    def __init__(self, layer: RMSNorm) -> None:
        super().__init__()
        gain = layer.weight.detach().float() + layer.unit_offset
        self.register_buffer("gain", gain * len(gain) ** 0.5, persistent=False)
        self.register_buffer("least", gain.new_tensor(len(gain) * layer.eps).sqrt(), persistent=False)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        w = x.float()
        length = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        return (w / length.hypot_(self.least)).mul_(self.gain).to(x.dtype)


def _norm(layer: nn.Module | None) -> nn.Module | None:
    return _RMSNorm(layer) if isinstance(layer, RMSNorm) else layer


class _Attention(Attention):
    """Self-attention whose queries, keys and values come from one product, and for one token a row turn together."""

    def __init__(self, layer: Attention, form: str) -> None:
        nn.Module.__init__(self)
        self.sizes, self.causal, self.dropout, self.rotary = layer.sizes, layer.causal, layer.dropout, layer.rotary
        self.window, self.score_width, self.score_cap = layer.window, layer.score_width, layer.score_cap
        self.query_norm = _norm(layer.query_norm)  # type: ignore[assignment]
        self.key_norm, self.by_width = _norm(layer.key_norm), layer.by_width  # type: ignore[assignment]
        self.together = _product([layer.query, layer.key, layer.value], form)
        self.widths = [layer.query.out_features, layer.key.out_features, layer.value.out_features]
        self.output = _product([layer.output], form)  # type: ignore[assignment]
        alike = self.sizes.d_head == self.sizes.d_v and self.query_norm is None
        self.quick = alike and self.rotary is not None and self.score_cap is None

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.together(x).split(self.widths, dim=-1)
        return q, k, v

    def forward(self, x: Float[Tensor, "batch token d_model"], **inputs: Any) -> Float[Tensor, "batch token d_model"]:
        cache, by = inputs.get("cache"), inputs.get("positions")
        masked = inputs.get("mask") is not None or (isinstance(cache, LayerCache) and cache.mask is not None)
        if not self.quick or x.shape[1] > 1 or masked or not isinstance(cache, LayerCache) or len(inputs) > 3:
            return super().forward(x, **inputs)
        assert self.rotary is not None
        sizes, batch = self.sizes, x.shape[0]
        turned = sizes.heads + sizes.kv_heads
        heads = self.together(x).view(batch, -1, 1, sizes.d_head)
        rotation = by if isinstance(by, Rotation) else self.rotary.at(cache.slots if by is None else by, x.dtype)
        both = self.rotary.turn(heads[:, :turned], rotation)
        k, v = cache.write(both[:, sizes.heads :], heads[:, turned:])
        out = F.scaled_dot_product_attention(
            both[:, : sizes.heads],
            k.to(x.dtype),
            v.to(x.dtype),
            enable_gqa=sizes.heads != sizes.kv_heads,
            scale=None if self.score_width is None else self.score_width**-0.5,
        )
        return self.output(out.reshape(batch, 1, -1))

    def step(
        self,
        x: Float[Tensor, "batch d_model"],
        turn: Turn,
        keys: Float[Tensor, "batch kv_head slot d_head"],
        values: Float[Tensor, "batch kv_head slot d_v"],
        filled: int,
    ) -> Float[Tensor, "batch d_model"]:
        """A token a row after `filled` others, whose keys and values are in the stores, and its own from now on."""
        sizes, batch = self.sizes, len(x)
        heads = self.together(x).view(batch, -1, 1, sizes.d_head)
        turned, value = heads.tensor_split([sizes.heads + sizes.kv_heads], dim=1)
        query, key = turn(turned).tensor_split([sizes.heads], dim=1)
        keys.narrow(2, filled, 1).copy_(key)
        values.narrow(2, filled, 1).copy_(value)
        out = F.scaled_dot_product_attention(
            query,
            keys.narrow(2, 0, filled + 1),
            values.narrow(2, 0, filled + 1),
            enable_gqa=sizes.heads != sizes.kv_heads,
            scale=None if self.score_width is None else self.score_width**-0.5,
        )
        return self.output(out.view(batch, -1))


Turn = Callable[[Float[Tensor, "batch head 1 d_head"]], Float[Tensor, "batch head 1 d_head"]]
"""How the queries and keys of one token turn to its place."""


class _Turns:
    """The turns of the steps to come, kept for 64 places at a time: a step takes its row of cosines and sines."""

    def __init__(self, rotary: Rotary) -> None:
        self.rotary = rotary
        self.alike = rotary.scaling is None and rotary.layout == "half" and rotary.turned == rotary.d_head
        self.kept = 0, *torch.empty(2, 0, rotary.d_head)  # the first place, cosines, sines: (place, d_head)

    def at(self, place: int, like: Tensor) -> Turn:
        """For rows that all stand at `place`, in the dtype and on the device of `like`."""
        if not self.alike:
            return partial(self.rotary.turn, by=self.rotary.at(torch.tensor([place], device=like.device), like.dtype))
        first, cos, sin = self.kept
        if not first <= place < first + len(cos) or cos.dtype != like.dtype or cos.device != like.device:
            first = place
            cos, sin = self.rotary.at(torch.arange(place, place + 64, device=like.device), like.dtype)
            # (a, b) -> (a cos - b sin, b cos + a sin) is all of it times cos, and its swapped halves times (-sin, sin).
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            self.kept = first, cos, sin
        row = place - first
        cos, sin, half = cos[row], sin[row], self.rotary.d_head // 2
        return lambda heads: torch.addcmul(heads * cos, heads.roll(half, -1), sin)


class _FeedForward(FeedForward):
    """A feed-forward network whose gate and inner matrices stand side by side."""

    def __init__(self, layer: FeedForward, form: str) -> None:
        nn.Module.__init__(self)
        self.activation, self.gated = layer.activation, layer.gate is not None
        self.together = _product([layer.inner] if layer.gate is None else [layer.gate, layer.inner], form)
        self.outer = _product([layer.outer], form)  # type: ignore[assignment]

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        hidden = self.together(x)
        if not self.gated:
            return self.outer(self.activation(hidden))
        gate, inner = hidden.chunk(2, dim=-1)
        return self.outer(self.activation(gate).mul_(inner))


class Prepared(Transformer):
    """What `prepared` makes: a decoder for inference whose products have another form. Its head is a product too.

    A step of one token a row goes through the layers in `step`, where the layout is one that it knows: a small model's
    step is as much Python and small operations as it is products.
    """

    output: Product

    def forward(self, tokens: Int[Tensor, "batch token"], **inputs: Unpack[Inputs]) -> Output:
        """As `Transformer.forward`."""
        cache = inputs.get("cache")
        others = len(inputs) - ("cache" in inputs) - ("source" in inputs and inputs["source"] is None)
        if isinstance(cache, KVCache) and tokens.shape[1:] == (1,) and not others and self._steps_through(cache):
            return self.step(tokens, cache)
        return super().forward(tokens, **inputs)

    def _steps_through(self, cache: KVCache) -> bool:
        whole = cache.uniform and cache.bucket == 1 and cache.filled < cache.slots
        ours = self.plain and not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
        return whole and ours and cache.keys[0].dtype == self.embedding.weight.dtype == torch.float32

    @cached_property
    def plain(self) -> bool:
        """Whether every layer is one of those that `step` knows."""
        decoder = self.decoder
        assert decoder is not None
        return self.encoder is None and all(
            block.placement == "pre"
            and isinstance(block.attention, _Attention)
            and block.attention.quick
            and block.attention.window is None
            and isinstance(block.feed_forward, _FeedForward)
            for block in decoder.blocks
        )

    @cached_property
    def turns(self) -> list[_Turns]:
        """Of each of the decoder's ways to turn."""
        assert self.decoder is not None
        return [_Turns(rotary) for rotary in self.decoder.rotaries]

    def step(self, tokens: Int[Tensor, "batch 1"], cache: KVCache) -> Output:
        """One more token a row, for rows of one length: the same operations as in `forward`, and no others."""
        check_ids("tokens", tokens)
        self._check_belongs(tokens, None, None, cache)
        decoder, n = self.decoder, cache.filled
        assert decoder is not None
        self._check_reach("tokens", n + 1)
        x = self._embed(tokens, cache.lengths[:, None])[:, 0]
        turns = [turns.at(n, x) for turns in self.turns]
        stores = zip(decoder.blocks, decoder.turns, cache.keys, cache.values, strict=True)
        for block, turn, keys, values in stores:
            assert isinstance(block, Block) and isinstance(block.attention, _Attention) and turn is not None
            x = x + block.attention.step(block.attention_norm(x), turns[turn], keys, values, n)
            x = x + block.feed_forward(block.feed_forward_norm(x))
        return Output(self.head(decoder.norm(x))[:, None], (), cache.advance(1, self._number))

    def head(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of states of the stream."""
        transform = getattr(self, "transform", None)  # of a model with BERT's head
        return self.capped(self.output(stream if transform is None else transform(stream)))

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads at least, experts left out: all products, with their scales."""
        return sum(module.bytes for module in self.modules() if isinstance(module, Product))


def prepared(model: Transformer, weights: Weights) -> Transformer:
    """A copy of the model for decoding with its weights in that form, made once: asked for again it is the same, until
    a weight has changed.

    It stands beside the model, and takes its form's share of the model's bytes.

    Raises `ValueError` for an unknown form, one that this processor cannot do, and a model that writes no text.
    """
    check_weights(model, weights)
    kept = _copies.setdefault(model, {})
    stamp = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())
    if weights not in kept or kept[weights][0] != stamp:
        kept[weights] = stamp, _fastest(model) if weights == "auto" else _prepare(model, weights)
    return kept[weights][1]


_copies: WeakKeyDictionary[Transformer, dict[str, tuple[object, Transformer]]] = WeakKeyDictionary()


def check_weights(model: Transformer, weights: str) -> None:
    """Raises `ValueError` as `prepared` does, without making anything."""
    if weights not in get_args(Weights):
        raise ValueError(f"weights={weights!r}: expected one of {', '.join(get_args(Weights))}")
    if model.config.stack == "encoder":
        raise ValueError(f"weights={weights!r}: expected a model that writes text, got stack='encoder'")
    device = model.embedding.weight.device.type
    if weights != "auto" and not possible(weights, device):
        others = ", ".join(form for form in FORMS if possible(form, device))
        raise ValueError(
            f"weights={weights!r}: PyTorch has no such product for this processor ({device}); it has {others}"
        )


def _prepare(model: Transformer, form: str) -> Prepared:
    with torch.no_grad(), torch.inference_mode(False):
        # The structure is copied, and no tensor: what stays as it is, is shared.
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        made = object.__new__(Prepared)
        made.__dict__ = copy.deepcopy(model, shared).__dict__
        assert made.decoder is not None
        _replace(made.decoder, form)
        table = made.embedding.weight if made.unembedding is None else made.unembedding.weight
        made.unembedding = None
        made.output = Product(table, made.head_bias, "int8" if form == "int4" else form)
    return made.eval()


def _replace(module: nn.Module, form: str) -> None:
    """The products in `module` in their new form."""
    for name, child in module.named_children():
        if isinstance(child, Attention) and name != "cross":
            setattr(module, name, _Attention(child, form))
        elif isinstance(child, FeedForward):
            setattr(module, name, _FeedForward(child, form))
        elif isinstance(child, RMSNorm):
            setattr(module, name, _RMSNorm(child))
        elif isinstance(child, nn.Linear) and name != "router":
            setattr(module, name, _product([child], form))
        else:
            _replace(child, form)


def _fastest(model: Transformer) -> Transformer:
    """The copy whose steps take the least time: the best of five, after one to warm up."""
    device = model.embedding.weight.device
    best: tuple[float, Transformer] | None = None
    for form in AUTO:
        if not possible(form, device.type):
            continue
        made = _prepare(model, form)
        seconds = min(_step_seconds(made) for _ in range(6))
        if best is None or seconds < best[0]:
            best = seconds, made
    assert best is not None
    return best[1]


def _step_seconds(model: Transformer) -> float:
    """Of the blocks and the head for one token, without a cache."""
    weight = model.embedding.weight
    token = torch.zeros(1, 1, dtype=torch.long, device=weight.device)
    with torch.inference_mode():
        memory = model.encode(token) if model.encoder is not None else None
        cache = KVCache.create(model.config, 1, 1, dtype=weight.dtype, device=weight.device)
        start = time.perf_counter()
        model(token, source=memory, cache=cache).logits.argmax().item()
        return time.perf_counter() - start


def largest_change(model: Transformer, weights: Weights, tokens: Tensor) -> float:
    """How far at most a logit of these tokens (batch, token) is from the model's own, in logits."""
    with torch.inference_mode():
        return float((prepared(model, weights)(tokens).logits - model(tokens).logits).abs().max())
