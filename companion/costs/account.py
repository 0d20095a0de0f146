"""Costs of a model, computed from its configuration: parameters, FLOPs and bytes (lessons 10, 12 and 13).

Units: a FLOP is one multiplication or one addition, so a product of (m, k) and (k, n) costs 2 m k n. Only matrix
products are counted, as in PyTorch's `FlopCounterMode`: norms, softmax, activations and rotations cost a few FLOPs per
element and are left out. Sizes are in bytes, not in kB or KiB.

`forward_flops` agrees with PyTorch's counter, which includes every query-key pair that attention computes, including
those that a causal mask discards; `causal=True` counts only the pairs that are used.
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

    Attributes:
        projections: the projections of attention, including its gate and, with latents, the up-projection (applied or
            absorbed).
        scores: q k^T and the weighted sum of the values, which grow with the number of pairs of tokens. Sinks, which
            are not tokens, are left out. For linear layers, this is everything that the recurrence computes.
        feed_forward: the feed-forward networks.
        router: the routers of mixtures of experts.
        head: the output head.
    """

    projections: int
    scores: int
    feed_forward: int
    router: int
    head: int

    @property
    def total(self) -> int:
        """FLOPs of all parts."""
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
    """Count the FLOPs of one forward pass over `tokens` new tokens in each of `batch` rows.

    With latents, keys and values are expanded if there are no cached tokens. With cached tokens,
    `companion.layers.latent.absorbs` decides whether they are. In the expanded form, every visible key must be
    expanded, and each pair costs 2 h (d_head + d_rope + d_v). In the absorbed form, each new token costs as much as an
    expansion, and each pair costs 2 h (2 rank + d_rope).

    Linear layers are computed in chunks, by equations (6) and (7) of `companion.layers.linear_attention`. In each head,
    a chunk of n tokens costs 2 n^2 (2 d_k + d_v) + n (n - 1) d_v, where the terms with d_k are left out if each channel
    has its own decay, because they are then not matrix products. Reading and writing the matrix costs 6 n d_k d_v.
    After `cached` tokens, of which up to 2 `recurrent_cache.BACK` are in a log, the matrix is only read. Occasionally
    the log is folded into the matrix. Folding costs 2 d_k d_v per token and is not counted.

    With d_k = d_v = d / h, a plain feed-forward network, and one new token that attends to t keys, including its own, a
    layer costs 8 d^2 + 4 t d + 4 d d_ff (lesson 10).

    Args:
        config: configuration of the model.
        tokens: number of new tokens per row.
        batch: number of rows.
        cached: number of tokens already in the KV cache; the new tokens also attend to them.
        source: the length of the source, for an encoder-decoder. With `cached > 0` the source is assumed to be encoded
            already.
        logits: the tokens that the head is applied to.
        causal: count only the pairs in decoder self-attention that the causal mask (and in local layers the window)
            allows. Otherwise local layers count the pairs that are computed: all pairs of new tokens, and every pair of
            a new token with a cached token that at least one new token sees.

    Raises:
        ValueError: if `logits` is unknown, `source` does not match the stack, or `cached` is set for an encoder.
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
        raise ValueError(f"cached={cached!r}: expected 0 for stack='encoder', which has no cache")
    sizes = config.sizes
    encoder, decoder = stacks(config)
    read = tokens if decoder == 0 else source if cached == 0 else 0  # tokens that pass through the encoder
    written = tokens if decoder else 0
    cross = decoder if encoder else 0
    keys_values = 0 if sizes.latent else 2 * config.d_model * sizes.kv_heads * (sizes.d_head + sizes.d_v)
    queries_output = 2 * attention_weights(config) - keys_values
    scores, expanded = _of_the_decoder(config, written, cached, causal) if decoder else (0, 0)
    visits = encoder * read + decoder * written  # number of (token, layer) pairs
    linear = config.linears  # number of layers, all in the decoder
    plain = (visits - linear * written) * (keys_values + queries_output) + linear * written * 2 * linear_weights(config)
    asked = ((encoder > 0) * read + (decoder > 0) * written) * config.mixtures  # those with experts
    experts = 0 if config.moe is None else config.moe.experts
    visited = shared_d_ff(config) + (0 if config.moe is None else config.moe.top_k * config.feed_forward.d_ff)
    gated = config.moe is not None and config.moe.shared_gate  # the gate of shared experts is one more product
    heads = {"all": tokens, "last": 1, "none": 0}[logits]
    masked = config.d_model if config.embedding.head == "masked" else 0  # BERT's head has one more square matrix
    projections = plain + cross * (written * queries_output + read * keys_values)
    hidden = asked * visited + (visits - asked) * plain_d_ff(config)  # hidden components
    return Flops(
        projections=batch * (projections + expanded),
        scores=batch * (scores + _pair(sizes) * (encoder * read**2 + cross * written * source)),
        feed_forward=batch * 2 * config.d_model * (hidden * matrices(config) + asked * gated),
        router=batch * asked * 2 * config.d_model * experts,
        head=batch * heads * 2 * config.d_model * (config.vocab + masked),
    )


def train_flops(config: ModelConfig, tokens: int, *, batch: int = 1, source: int = 0) -> int:
    """Count the FLOPs of one forward and backward pass.

    The count equals that of 3 forward passes, because computing the gradients of each matrix product takes two more
    products. Multi-token-prediction heads run only in training; each costs 2 d_model (d_model + vocab) per token in a
    forward pass.
    """
    later = config.medusa_heads * batch * tokens * 2 * config.d_model * (config.d_model + config.vocab)
    return 3 * (forward_flops(config, tokens, batch=batch, source=source).total + later)


def counted_flops(run: Callable[[], Any]) -> int:
    """Count FLOPs with PyTorch's `FlopCounterMode` while `run()` runs, including attention on the CPU and experts.

    The counter does not support the CPU's fused attention kernel, the grouped matrix product of a mixture of experts or
    the triangular solve of linear attention (PyTorch 2.13). PyTorch counts them as zero, so their FLOPs are added here.
    """

    def attention(q: torch.Size, k: torch.Size, v: torch.Size, *_: Any, out_shape: Any = None, **__: Any) -> int:
        k, v = (torch.Size((*x[:1], q[1], *x[2:])) for x in (k, v))  # PyTorch's count does not support shared heads
        return sdpa_flop_count(q, k, v)

    def grouped(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
        return 2 * a.numel() * b[-1]  # each row of `a`, or column in the gradient, is in one group

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
    """Return the size of all parameters in bytes."""
    return parameters(config).total * dtype.itemsize


def train_bytes(config: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Return the size in bytes of everything that training with Adam keeps in memory throughout.

    The total includes the weights, the gradients, two moments and, if the weights are in half precision, an fp32 master
    copy (Rajbhandari et al. 2020, section 3.1). In both fp32 and bf16, the total is 16 bytes per parameter.
    Activations, which depend on the batch, are not included.
    """
    moment = max(dtype.itemsize, 4)
    master = 4 if dtype.itemsize < 4 else 0
    return parameters(config).total * (2 * dtype.itemsize + 2 * moment + master)


def cache_bytes(
    config: ModelConfig, tokens: int, *, batch: int = 1, dtype: torch.dtype = torch.float32, source: int = 0
) -> int:
    """Return the size in bytes of a `KVCache` with room for `tokens` tokens in each of `batch` rows.

    A token takes layers * kv_heads * (d_head + d_v) elements, or layers * (rank + d_rope) with latents. A local layer
    stores little more than a window of tokens. A linear layer stores the same number of elements for any number of
    tokens, in fp32 or a wider dtype. For an encoder-decoder, the keys and values of `source` tokens are included.

    Raises:
        ValueError: if the model is an encoder, which has no cache, or a decoder with a `source`.
    """
    require_whole("tokens", tokens, 0)
    require_whole("batch", batch, 1)
    if config.stack == "encoder":
        raise ValueError("config has stack='encoder': expected a decoder, which has a cache")
    require_whole("source", source, 0)
    if source and config.stack == "decoder":
        raise ValueError(f"source={source!r}: expected 0 for stack='decoder', which has no source")
    sizes, window = config.sizes, config.attention.window
    held = [tokens + source] * len(config.attending)
    if window is not None:
        held = [columns(window.width, tokens) if config.local(layer) else tokens for layer in config.attending]
    return batch * sum(held) * sizes.kept_numbers * dtype.itemsize + state_bytes(
        config, tokens, batch=batch, dtype=dtype
    )


def state_bytes(config: ModelConfig, tokens: int, *, batch: int = 1, dtype: torch.dtype = torch.float32) -> int:
    """Return the part of `cache_bytes` that linear layers store.

    This part stops growing after `2 * recurrent_cache.BACK` tokens.
    """
    if config.linear_config is None:
        return 0
    return batch * config.linears * state_numbers(config.linear_config, tokens) * wide_dtype(dtype).itemsize


def serve_bytes(
    config: ModelConfig,
    *,
    tokens: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> int:
    """Return the bytes needed to serve `batch` rows: the weights, and a cache with room for `tokens` tokens per row.

    For an encoder-decoder, the cache includes a source of the same length. An encoder has no cache.

    Args:
        config: configuration of the model.
        tokens: length of a row; `None` means the full context.
        batch: number of rows.
        dtype: dtype of the weights.
        cache_dtype: dtype of the cache; `None` means the dtype of the weights.
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
    """Return the minimum number of bytes that a forward pass moves between memory and processor.

    Every weight that is used is read once. Cached keys and values are read (in local layers, only those in the window),
    and new ones are written. In linear layers, the whole stored state is counted. Activations are assumed to stay close
    to the processor.

    For each token, one row of the embedding table and of the learned positions is read; a tied table is read entirely,
    for the head. With a mixture of experts, the count includes the expected number of experts that `tokens * batch`
    tokens visit if each token chooses at random.

    Raises:
        ValueError: if the model is not a decoder.
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
        missed = (1 - config.moe.top_k / config.moe.experts) ** rows  # the probability that no token visits an expert
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
    """Return the bytes moved by one decoding step, in which each row has one new token and `cached` earlier ones."""
    return forward_bytes(config, 1, cached=cached, batch=batch, dtype=dtype, cache_dtype=cache_dtype)


def intensity(
    config: ModelConfig, tokens: int, *, cached: int = 0, batch: int = 1, dtype: torch.dtype = torch.float32
) -> float:
    """Return the FLOPs per byte moved, for a prefill (`tokens` = the prompt) or a decoding step (`tokens=1`)."""
    flops = forward_flops(config, tokens, cached=cached, batch=batch, logits="last").total
    return flops / forward_bytes(config, tokens, cached=cached, batch=batch, dtype=dtype)


def _of_the_decoder(config: ModelConfig, tokens: int, cached: int, causal: bool) -> tuple[int, int]:
    """Return the FLOPs of the scores of a decoder's self-attention, and of the expansion of cached latents."""
    scores, expanded, sizes = 0, 0, config.sizes
    scores += config.linears * _of_a_recurrence(config, tokens, cached)
    for layer in config.attending:
        keys, pairs = _seen(config, layer, tokens, cached, causal)
        absorbed = sizes.latent is not None and cached > 0 and absorbs(sizes, tokens, keys)
        scores += pairs * _pair(sizes, absorbed)
        expanded += 0 if absorbed else keys - tokens  # the expansion of new tokens counts as a projection
    return scores, expanded * 2 * expansion_weights(config)


def _of_a_recurrence(config: ModelConfig, tokens: int, cached: int) -> int:
    """Return the FLOPs of the recurrence of a linear layer."""
    memory = config.linear_config
    if memory is None:
        return 0
    sizes, delta = Log.of(memory), memory.rule == "delta"
    by_channel = memory.decay == "channel"
    width = 0 if by_channel else sizes.d_head  # width of a pair in a matrix product
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
    """Return the FLOPs for one pair of a query and a key, summed over all heads."""
    width = sizes.d_head + sizes.d_v
    if sizes.latent is not None:
        width = (2 * sizes.latent.kv_lora_rank if absorbed else width) + sizes.latent.d_rope
    return 2 * sizes.heads * width


def _seen(config: ModelConfig, layer: int, tokens: int, cached: int, causal: bool) -> tuple[int, int]:
    """Count the keys and the query-key pairs in the self-attention of a decoder layer.

    The keys are the cached ones and those of the new tokens. Every pair that is computed is counted; with `causal`,
    only the pairs that are actually used are.
    """
    window = config.attention.window
    if window is None or not config.local(layer):
        pairs = tokens * cached + tokens * (tokens + 1) // 2 if causal else tokens * (cached + tokens)
        return cached + tokens, pairs
    before = min(cached, window.width - 1)
    pairs = tokens * (before + tokens)
    if causal:  # each new token sees all tokens before it, up to the width
        short = max(0, min(tokens, window.width - before))  # tokens without a full window before them
        pairs = short * before + short * (short + 1) // 2 + (tokens - short) * window.width
    return before + tokens, pairs
