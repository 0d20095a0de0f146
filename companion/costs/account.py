"""What a model costs, from its configuration alone: parameters, FLOPs, bytes (lessons 10, 12 and 13).

Units: a FLOP is one multiplication or one addition, so a product of (m, k) and (k, n) costs 2 m k n. Only matrix
products are counted, as in PyTorch's `FlopCounterMode`: norms, softmax, activations and rotations cost a few FLOPs per
number and are left out. Bytes are bytes, not multiples.

`forward_flops` agrees with the counter, which credits attention with every pair of query and key that is computed, also
those that a causal mask throws away; `causal=True` counts only the pairs that are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from companion.config.model import ModelConfig, ResolvedAttention
from companion.config.parameter_count import (
    attention_weights,
    expansion_weights,
    linear_weights,
    matrices,
    parameters,
    plain_d_ff,
    routed,
    shared_d_ff,
    stacks,
)
from companion.ground.fields import require_whole
from companion.ground.precision import wide_dtype
from companion.layers.latent import absorbs
from companion.layers.linear_attention import CHUNK, CHUNK_BY_CHANNEL
from companion.layers.recurrent_cache import BACK, Log, state_numbers
from companion.layers.rolling_cache import columns


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a forward pass, by part.

    projections:  the matrices of attention, that of its gate included; with latents, what expands them or is absorbed.
    scores:       q k^T and the weighted sum of the values: the part that grows with the pairs of tokens. Sinks, which
                  are no tokens, are left out. In linear layers all that the recurrence computes.
    """

    projections: int
    scores: int
    feed_forward: int
    router: int
    head: int

    @property
    def total(self) -> int:
        """The FLOPs of all parts."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """The parts by name; they sum to `total`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def forward_flops(
    config: ModelConfig,
    tokens: int,
    *,
    batch: int = 1,
    cached: int = 0,
    source: int = 0,
    logits: Literal["all", "last", "none"] = "all",
    causal: bool = False,
) -> Flops:
    """FLOPs of one forward pass over `tokens` new tokens in each of `batch` rows.

    cached:  tokens already in the KV cache; the new ones look at them too.
    source:  for an encoder-decoder, the source's length. With `cached > 0` it is taken as encoded already.
    logits:  for which tokens the head runs.
    causal:  credit decoder self-attention only with the pairs that the causal mask, and in local layers the window, let
             through. Otherwise local layers count the pairs of new tokens with each other and with the cached ones that
             are in the window of any: what is computed.

    With latents, new tokens alone are computed expanded, and beside cached ones as `companion.layers.latent.absorbs`
    says: expanded, each key in sight costs its expansion and each pair 2 h (d_head + d_rope + d_v); absorbed, each new
    token costs that much and each pair 2 h (2 rank + d_rope).

    Linear layers are computed in chunks, by equations (6) and (7) of `companion.layers.linear_attention`: each chunk of
    n tokens costs a head 2 n^2 (2 d_k + d_v) + n (n - 1) d_v, where rows fade each in its own way without the d_k, as
    those are no products of matrices; to read the matrix and to write it are 6 n d_k d_v. Beside `cached` tokens, of
    which a log shows up to 2 `recurrent_cache.BACK`, the matrix is read alone; to fold the log into it, now and then,
    takes 2 d_k d_v a token, which is left out.

    For d_k = d_v = d / h, a plain feed-forward network and one token that makes t keys with the `cached` ones, a layer
    costs 8 d^2 + 4 t d + 4 d d_ff (lesson 10).

    Raises `ValueError` for an unknown `logits`, a `source` that does not fit the stack, or an encoder with `cached`.
    """
    for name, value in (("tokens", tokens), ("batch", batch)):
        require_whole(name, value, 1)
    for name, value in (("cached", cached), ("source", source)):
        require_whole(name, value, 0)
    if logits not in ("all", "last", "none"):
        raise ValueError(f"logits={logits!r}: expected 'all', 'last' or 'none'")
    if (config.stack == "encoder_decoder") != (source > 0):
        raise ValueError(f"source={source!r}: expected a length >= 1 for an encoder_decoder, 0 for other stacks")
    if cached and config.stack == "encoder":
        raise ValueError(f"cached={cached!r}: expected 0 for stack='encoder', which keeps no keys and values")
    sizes = config.sizes
    encoder, decoder = stacks(config)
    read = tokens if decoder == 0 else source if cached == 0 else 0  # tokens that go through the encoder
    written = tokens if decoder else 0
    cross = decoder if encoder else 0
    keys_values = 0 if sizes.latent else 2 * config.d_model * sizes.kv_heads * (sizes.d_head + sizes.d_v)
    queries_output = 2 * attention_weights(config) - keys_values
    scores, expanded = _of_the_decoder(config, written, cached, causal) if decoder else (0, 0)
    visits = encoder * read + decoder * written  # of a token to a layer
    linear = config.linears  # layers, all in the decoder
    plain = (visits - linear * written) * (keys_values + queries_output) + linear * written * 2 * linear_weights(config)
    asked = ((encoder > 0) * read + (decoder > 0) * written) * config.mixtures  # to one with experts
    experts = 0 if config.moe is None else config.moe.experts
    visited = shared_d_ff(config) + (0 if config.moe is None else config.moe.top_k * config.feed_forward.d_ff)
    gated = config.moe is not None and config.moe.shared_gate  # what shared experts answer, by a product more
    heads = {"all": tokens, "last": 1, "none": 0}[logits]
    masked = config.d_model if config.embedding.head == "masked" else 0  # one more matrix, d_model by d_model
    projections = plain + cross * (written * queries_output + read * keys_values)
    hidden = asked * visited + (visits - asked) * plain_d_ff(config)  # numbers in the middle of networks
    return Flops(
        projections=batch * (projections + expanded),
        scores=batch * (scores + _pair(sizes) * (encoder * read**2 + cross * written * source)),
        feed_forward=batch * 2 * config.d_model * (hidden * matrices(config) + asked * gated),
        router=batch * asked * 2 * config.d_model * experts,
        head=batch * heads * 2 * config.d_model * (config.vocab + masked),
    )


def train_flops(config: ModelConfig, tokens: int, *, batch: int = 1, source: int = 0) -> int:
    """FLOPs of one forward and backward pass: 3 forward passes, because each matrix product has two in its gradient.
    Heads for later tokens take part in these alone: 2 d_model (d_model + vocab) a token and head in a forward pass."""
    later = config.later_heads * batch * tokens * 2 * config.d_model * (config.d_model + config.vocab)
    return 3 * (forward_flops(config, tokens, batch=batch, source=source).total + later)


def counted_flops(run: Callable[[], Any]) -> int:
    """What PyTorch's `FlopCounterMode` counts while `run()` runs, attention on the CPU and experts included.

    The counter does not know the CPU's fused attention kernel, the grouped product of a mixture of experts nor the
    triangular system of a linear layer (PyTorch 2.13) and credits them with nothing; it is told.
    """

    def attention(q: torch.Size, k: torch.Size, v: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
        k, v = (torch.Size((*x[:1], q[1], *x[2:])) for x in (k, v))  # PyTorch 2.11 does not know shared heads
        return sdpa_flop_count(q, k, v)

    def grouped(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
        return 2 * a.numel() * b[-1]  # a row of `a` meets one group's matrix; in the gradient of the groups, a column

    def triangular(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
        return b.numel() * (a[-1] - 1)  # the diagonal is 1

    told: dict[Any, Any] = {
        torch.ops.aten.linalg_solve_triangular: triangular,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
        torch.ops.aten._grouped_mm: grouped,
    }
    with FlopCounterMode(display=False, custom_mapping=told) as counter:
        run()
    return counter.get_total_flops()


def weights_bytes(config: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of all parameters."""
    return parameters(config).total * dtype.itemsize


def train_bytes(config: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that training with Adam holds all the time: weights, gradients, two moments, and for half-precision weights
    an fp32 master copy (Rajbhandari et al. 2020, section 3.1). 16 a parameter in fp32 and in bf16 alike. Activations,
    which depend on the batch, come on top.
    """
    moment = max(dtype.itemsize, 4)
    master = 4 if dtype.itemsize < 4 else 0
    return parameters(config).total * (2 * dtype.itemsize + 2 * moment + master)


def cache_bytes(
    config: ModelConfig, tokens: int, *, batch: int = 1, dtype: torch.dtype = torch.float32, source: int = 0
) -> int:
    """Bytes of a `KVCache` with room for `tokens` tokens in each of `batch` rows:
    layers kv_heads (d_head + d_v) numbers a token, with latents layers (rank + d_rope); a local layer keeps little more
    than a window of them, and a linear layer as many numbers for any number of tokens, in fp32 at least. For an
    encoder-decoder the keys and values of `source` tokens too.

    Raises `ValueError` for an encoder, which keeps nothing.
    """
    require_whole("tokens", tokens, 0)
    require_whole("batch", batch, 1)
    if config.stack == "encoder":
        raise ValueError("config has stack='encoder': expected a decoder, which keeps keys and values")
    require_whole("source", source, 0)
    if source and config.stack == "decoder":
        raise ValueError(f"source={source!r}: expected 0 for stack='decoder', which looks at no source")
    sizes, window = config.sizes, config.attention.window
    held = [tokens + source] * len(config.attending)
    if window is not None:
        held = [columns(window.width, tokens) if config.local(layer) else tokens for layer in config.attending]
    return batch * sum(held) * sizes.kept_numbers * dtype.itemsize + state_bytes(
        config, tokens, batch=batch, dtype=dtype
    )


def state_bytes(config: ModelConfig, tokens: int, *, batch: int = 1, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of these that linear layers keep: from `2 * states.BACK` tokens on the same, however many there are."""
    if config.memory is None:
        return 0
    return batch * config.linears * state_numbers(config.memory, tokens) * wide_dtype(dtype).itemsize


def serve_bytes(
    config: ModelConfig,
    *,
    tokens: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> int:
    """Bytes that answering `batch` rows needs: the weights, and a cache with room for `tokens` tokens in each (and, for
    an encoder-decoder, a source as long). An encoder keeps no cache.

    tokens:       `None`: a full context.
    cache_dtype:  `None`: that of the weights.
    """
    length = config.context if tokens is None else tokens
    source = length if config.stack == "encoder_decoder" else 0
    room = 0 if config.stack == "encoder" else length
    cache = cache_bytes(config, room, batch=batch, dtype=cache_dtype or dtype, source=source) if room else 0
    return weights_bytes(config, dtype) + cache


def forward_bytes(
    config: ModelConfig,
    tokens: int,
    *,
    cached: int = 0,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> int:
    """Bytes that a forward pass must at least move between memory and processor: every weight that takes part, once;
    the cached keys and values, read, in local layers those in the window; the new ones, written; of linear layers all
    that is kept. Activations are taken
    to stay close to the processor.

    Of the tables of embeddings and learned positions a row per token is read (the whole of a tied table, for the head).
    With a mixture of experts, the experts that `tokens * batch` tokens are expected to visit if each chooses at random.

    Raises `ValueError` for a stack other than a decoder.
    """
    if config.stack != "decoder":
        raise ValueError(f"config has stack={config.stack!r}: expected 'decoder'")
    require_whole("tokens", tokens, 1)
    require_whole("cached", cached, 0)
    count = parameters(config)
    rows = batch * tokens
    weights: float = count.attention + count.feed_forward + count.router + count.norms + count.head
    weights += (config.vocab if config.embedding.tied else rows) * config.d_model
    if config.positions.kind == "learned":
        weights += min(rows, config.context) * config.d_model
    if config.positions.kind == "relative":
        weights += count.positions
    if config.moe is not None:
        missed = (1 - config.moe.top_k / config.moe.experts) ** rows  # the chance that no token visits an expert
        weights -= missed * routed(config)
    sizes, window = config.sizes, config.attention.window
    seen = [cached + tokens] * len(config.attending)
    if window is not None:
        near = min(cached, window.width - 1) + tokens
        seen = [near if config.local(layer) else cached + tokens for layer in config.attending]
    kept_dtype = cache_dtype or dtype
    kept = batch * sum(seen) * sizes.kept_numbers * kept_dtype.itemsize
    kept += state_bytes(config, cached + tokens, batch=batch, dtype=kept_dtype)
    return round(weights * dtype.itemsize) + kept


def decode_bytes(
    config: ModelConfig,
    cached: int,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> int:
    """Bytes of one decode step: `forward_bytes` of one token in each row after `cached` others."""
    return forward_bytes(config, 1, cached=cached, batch=batch, dtype=dtype, cache_dtype=cache_dtype)


def intensity(
    config: ModelConfig, tokens: int, *, cached: int = 0, batch: int = 1, dtype: torch.dtype = torch.float32
) -> float:
    """FLOPs per byte moved: of a prefill (`tokens` = the prompt) or of a decode step (`tokens=1`)."""
    flops = forward_flops(config, tokens, cached=cached, batch=batch, logits="last").total
    return flops / forward_bytes(config, tokens, cached=cached, batch=batch, dtype=dtype)


def _of_the_decoder(config: ModelConfig, tokens: int, cached: int, causal: bool) -> tuple[int, int]:
    """FLOPs of the scores of self-attention in a decoder's layers, and of the expansion of cached latents."""
    scores, expanded, sizes = 0, 0, config.sizes
    scores += config.linears * _of_a_recurrence(config, tokens, cached)
    for layer in config.attending:
        keys, pairs = _seen(config, layer, tokens, cached, causal)
        absorbed = sizes.latent is not None and cached > 0 and absorbs(sizes, tokens, keys)
        scores += pairs * _pair(sizes, absorbed)
        expanded += 0 if absorbed else keys - tokens  # of new ones it is among the projections
    return scores, expanded * 2 * expansion_weights(config)


def _of_a_recurrence(config: ModelConfig, tokens: int, cached: int) -> int:
    """FLOPs of the recurrence of a linear layer."""
    memory = config.memory
    if memory is None:
        return 0
    sizes, delta = Log.of(memory), memory.rule == "delta"
    by_channel = memory.decay == "channel"
    width = 0 if by_channel else sizes.d_head  # of a pair that is a product of matrices
    chunk = CHUNK_BY_CHANNEL if by_channel else CHUNK
    past = cached if cached + tokens <= 2 * BACK else min(cached, BACK)
    total, matrix, kept = 0, 2 * sizes.d_head * sizes.d_v, cached > 0
    if tokens > chunk:
        total, past = past * matrix, 0
    for first in range(0, tokens, chunk):
        n = min(chunk, tokens - first)
        total += 2 * n * (n + past) * ((1 + delta) * width + sizes.d_v)
        total += delta * (n * (n - 1) + 2 * n * past) * sizes.d_v
        total += (first > 0 or kept) * (1 + delta) * n * matrix + (first + n < tokens) * n * matrix
    return sizes.heads * total


def _pair(sizes: ResolvedAttention, absorbed: bool = False) -> int:
    """FLOPs of one pair of a query and a key, in all heads together."""
    width = sizes.d_head + sizes.d_v
    if sizes.latent is not None:
        width = (2 * sizes.latent.rank if absorbed else width) + sizes.latent.d_rope
    return 2 * sizes.heads * width


def _seen(config: ModelConfig, layer: int, tokens: int, cached: int, causal: bool) -> tuple[int, int]:
    """Of the self-attention of a decoder's layer: the keys that are read, and the pairs of a query and a key that are
    computed, or with `causal` those that are used."""
    window = config.attention.window
    if window is None or not config.local(layer):
        pairs = tokens * cached + tokens * (tokens + 1) // 2 if causal else tokens * (cached + tokens)
        return cached + tokens, pairs
    before = min(cached, window.width - 1)
    pairs = tokens * (before + tokens)
    if causal:  # each new token sees as many as there are, up to the width
        short = max(0, min(tokens, window.width - before))  # tokens that have not yet a whole window before them
        pairs = short * before + short * (short + 1) // 2 + (tokens - short) * window.width
    return before + tokens, pairs
