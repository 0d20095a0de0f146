"""Configurations of models: frozen, validated dataclasses that can be stored as JSON.

A configuration describes only what the model *is*. How it runs (device, dtype, attention backend, compilation, cache
size) is an argument of the call that runs it.

Axis names, used in every signature and lesson of the course:

| name      | meaning                                     | name     | meaning                                    |
|-----------|---------------------------------------------|----------|--------------------------------------------|
| `batch`   | independent sequences                       | `d_model`| width of the residual stream               |
| `token`   | positions of a sequence                     | `d_head` | width of one head's queries and keys (d_k) |
| `query`   | positions that attend                       | `d_v`    | width of one head's values                 |
| `key`     | positions that are attended to              | `d_ff`   | hidden width of a feed-forward network     |
| `head`    | query heads                                 | `vocab`  | number of different token ids              |
| `kv_head` | key and value heads, at most `head`         | `expert` | feed-forward networks to choose from       |
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from companion.ground.fields import build, parse_json, require, require_types, require_whole, shown, why

_Kind = TypeVar("_Kind")


def in_turn(pattern: tuple[_Kind, ...], layer: int) -> _Kind:
    """Return a repeating pattern's entry for layer `layer`, counted from 0."""
    return pattern[layer % len(pattern)]


def how_many(pattern: tuple[bool, ...], layers: int) -> int:
    """Count how many of the first `layers` layers a repeating pattern selects."""
    whole, rest = divmod(layers, len(pattern))
    return whole * sum(pattern) + sum(pattern[:rest])


def require_pattern(name: str, pattern: tuple[bool, ...]) -> None:
    """Raise `ValueError`, naming the argument `name`, unless the pattern selects at least one layer."""
    require(any(pattern), name, pattern, "at least one True")


@dataclass(frozen=True)
class RotaryScaling:
    """Scaling of rotary frequencies, which lets a model read longer texts than it was trained on.

    Let omega_j be the frequency of pair j, s the factor, C the original context, and r_j = C omega_j / (2 pi) the
    number of full rotations of pair j within C tokens:

    `"linear"`   omega_j / s: every position is divided by s (Chen et al. 2023, section 2.3).
    `"dynamic"`  omega_j computed with a larger base, base (s n / C - s + 1)^(d / (d - 2)), once a text has n > C
                 tokens; d is the rotated width (bloc97 and emozilla 2023; Peng et al. 2023, section 3.3). As in
                 released code, n is computed from the largest position of the row in the call, and cached keys keep the
                 rotation that they already have.
    `"yarn"`     (1 - g_j) omega_j / s + g_j omega_j, where g falls from 1 to 0 linearly in j, between the pairs that
                 make `fast` and `slow` rotations; cosines and sines are multiplied by `magnitude` (Peng et al. 2023).
    `"llama3"`   yarn's frequencies with g_j = (r_j - slow) / (fast - slow), clamped to [0, 1] (Grattafiori et al.
                 2024, and the code released with Llama 3.1).
    `"longrope"` omega_j / long_j in a text of more than C tokens, otherwise omega_j / short_j; the divisors were found
                 by a search; cosines and sines are multiplied by `magnitude` (Ding et al. 2024; Phi-3). As with
                 `"dynamic"`, the length is computed from the largest position of the row in the call; a text that grows
                 beyond C during generation is read again.

    Args:
        kind: One of the five methods above.
        factor: s, at least 1. For longrope it only determines the default magnitude.
        original: C in tokens. All kinds but `"linear"` need it.
        slow: For yarn and llama3: pairs that make fewer than this many rotations within C tokens are slowed down by the
            full factor. `None` means 1.
        fast: For yarn and llama3: pairs that make more than this many rotations within C tokens are left unchanged.
            `None` means 32 for yarn, 4 for llama3.
        magnitude: For yarn and longrope: the factor that multiplies cosines and sines. `None` means 0.1 ln(s) + 1 for
            yarn, sqrt(1 + ln(s) / ln(C)) for longrope.
        whole: For yarn: widen the range over which g falls, so that it begins and ends at whole pairs.
        short: For longrope: one positive divisor for each rotated pair, starting with the fastest pair.
        long: Like `short`, but for texts of more than C tokens.

    Raises:
        ValueError: If a field is invalid; the message names the field, its value and what was expected.
    """

    kind: Literal["linear", "dynamic", "yarn", "llama3", "longrope"]
    factor: float
    original: int | None = None
    slow: float | None = None
    fast: float | None = None
    magnitude: float | None = None
    whole: bool = True
    short: tuple[float, ...] | None = None
    long: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        require_types(self)
        require(self.factor >= 1, "factor", self.factor, "a number >= 1")
        if self.kind == "linear":
            require(self.original is None, "original", self.original, "None for kind='linear', which needs no length")
        else:
            require_whole("original", self.original)
        ramp = self.kind in ("yarn", "llama3")
        for name in ("slow", "fast"):
            value = getattr(self, name)
            require(ramp or value is None, name, value, f"None for kind={self.kind!r}, which has no ramp")
        slow, fast = self.ramp
        cut = self.kind == "llama3" and slow == fast  # the ramp is then a step
        require(0 < slow < fast or (cut and slow > 0), "slow", self.slow, f"a number > 0 and below fast={fast}")
        stretches = self.kind in ("yarn", "longrope")
        require(stretches or self.magnitude is None, "magnitude", self.magnitude, f"None for kind={self.kind!r}")
        require(self.magnitude is None or self.magnitude > 0, "magnitude", self.magnitude, "a number > 0, or None")
        require(self.kind == "yarn" or self.whole, "whole", self.whole, f"True for kind={self.kind!r}")
        self._check_divisors()

    def _check_divisors(self) -> None:
        wanted = self.kind == "longrope"
        for name in ("short", "long"):
            value = getattr(self, name)
            require(wanted or value is None, name, value, f"None for kind={self.kind!r}")
            require(not wanted or (value and min(value) > 0), name, value, "a number > 0 for each rotated pair")
        if self.short is not None and self.long is not None:
            same = f"the same number of entries as short, {len(self.short)}"
            require(len(self.long) == len(self.short), "long", self.long, same)
            require((self.original or 0) > 1, "original", self.original, "a whole number > 1, whose logarithm is not 0")

    @property
    def by_length(self) -> bool:
        """True if frequencies depend on the length of the text."""
        return self.kind in ("dynamic", "longrope")

    @property
    def ramp(self) -> tuple[float, float]:
        """`slow` and `fast`, with their defaults filled in."""
        fast = 32.0 if self.kind == "yarn" else 4.0
        return 1.0 if self.slow is None else self.slow, fast if self.fast is None else self.fast


@dataclass(frozen=True)
class WindowConfig:
    """Local layers, in which a token sees itself and the `width - 1` tokens before it.

    See Beltagy et al. (2020) and Jiang et al. (2023). In an encoder, a token sees itself and `width // 2` tokens on
    either side (ModernBERT, Warner et al. 2024).

    Args:
        width: Number of tokens that a token sees, including itself. In an encoder, an even width is rounded up to the
            next odd number.
        pattern: Which layers are local, starting with the first; the pattern repeats. (True,): all layers are local
            (Mistral 7B). (True, False): every second layer is global (Gemma 2). Five times True, then False: every
            sixth layer is global (Gemma 3).
        base: Base of the rotary frequencies in local layers. If it is given, these frequencies are not scaled. `None`
            means the base of the global layers.

    Raises:
        ValueError: If a field is invalid; the message names the field, its value and what was expected.
    """

    width: int
    pattern: tuple[bool, ...] = (True,)
    base: float | None = None

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("width", self.width)
        require_pattern("pattern", self.pattern)
        require(self.base is None or self.base > 0, "base", self.base, "a number > 0, or None")


@dataclass(frozen=True)
class LatentConfig:
    """Latent attention, in which the keys and values of all heads are computed from one small vector per token.

    A cache stores only this vector (the latent) and one rotated key that the heads share (DeepSeek-AI 2024,
    DeepSeek-V2, section 2.1).

    Args:
        kv_lora_rank: Width of the latent (d_c).
        d_rope: Width of the shared key, and of the part of each query that is compared with it. Rotary positions rotate
            only these components. With other kinds of positions, the width may be 0.
        q_lora_rank: Width (d'_c) of the small vector from which queries are computed. If `None`, they are
            computed directly from the stream.
        eps: Epsilon of the norms of these vectors. `None` means the epsilon of the model's norms.

    Raises:
        ValueError: If a field is invalid; the message names the field, its value and what was expected.
    """

    kv_lora_rank: int
    d_rope: int
    q_lora_rank: int | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("kv_lora_rank", self.kv_lora_rank)
        require_whole("d_rope", self.d_rope, 0)
        if self.q_lora_rank is not None:
            require_whole("q_lora_rank", self.q_lora_rank)
        require(self.eps is None or self.eps >= 0, "eps", self.eps, "a number >= 0, or None")


@dataclass(frozen=True)
class LinearConfig:
    """Linear layers, in which each head stores one matrix of d_head rows and d_v columns instead of keys and values.

    Each token decays this matrix, writes to it and reads from it (lesson 17).
    `companion.layers.gated_delta_net.LinearAttention` documents the computation.

    Args:
        pattern: Which layers are linear, starting with the first; the pattern repeats. The other layers use softmax
            attention, with the settings of the `AttentionConfig`. Three times True, then False: every fourth layer has
            softmax attention (Qwen3-Next).
        heads: Number of heads, each with its own matrix and its own values. `None` means the number of attention heads.
        key_heads: Number of query and key heads; each is shared by heads / key_heads matrices. `None` means `heads`.
        d_head: Width of a query and of a key. `None` means the `d_head` of softmax attention.
        d_v: Width of a value. `None` means `d_head`.
        rule: With `"delta"`, a token writes the difference between its value and what the matrix returns for its key,
            times a strength from 0 to 1 (Schlag et al. 2021; Yang et al. 2024). With `"sum"`, a token adds its value
            regardless of the matrix (Katharopoulos et al. 2020).
        negative: Let strengths go from 0 to 2, so that a write can reverse the sign of what is stored (Grazzi et al.
            2024).
        decay: How the matrix decays before a token writes to it. `"head"`: by one factor per head (that is, per
            matrix), computed from the token (Mamba-2, Dao and Gu 2024; gated delta, Yang et al. 2024). `"channel"`: by
            one factor per row of the matrix, computed from the token (Kimi Linear). `"fixed"`: by the factor 1 - 2^(-5
            - h) in head h, regardless of the token (RetNet, Sun et al. 2023). `None` means no decay.
        convolution: Width of the short convolution: each component of a query, key and value is a learned weighted sum
            over this many most recent tokens, followed by a SiLU. With a width of 1, the convolution sees only the
            token itself.
        gate: Activation of the output gate: the output is normalized and then multiplied by this function of a linear
            map of the layer's input. If `None`, it is only normalized.
        rank: Width of the bottleneck in the two linear maps that compute the gate and the per-channel decay (Kimi
            Linear: d_head). If `None`, each of the two is a single matrix.

    Raises:
        ValueError: If a field is invalid; the message names the field, its value and what was expected.
    """

    pattern: tuple[bool, ...] = (True,)
    heads: int | None = None
    key_heads: int | None = None
    d_head: int | None = None
    d_v: int | None = None
    rule: Literal["delta", "sum"] = "delta"
    negative: bool = False
    decay: Literal["head", "channel", "fixed"] | None = "head"
    convolution: int = 4
    gate: Literal["silu", "sigmoid"] | None = "silu"
    rank: int | None = None

    def __post_init__(self) -> None:
        require_types(self)
        require_pattern("pattern", self.pattern)
        for name in ("heads", "key_heads", "d_head", "d_v", "convolution", "rank"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        divides = None in (self.heads, self.key_heads) or not self.heads % self.key_heads  # type: ignore[operator]
        require(divides, "key_heads", self.key_heads, f"a divisor of heads={shown(self.heads)}")
        require(self.rule == "delta" or not self.negative, "negative", self.negative, "False for rule='sum'")
        used = self.gate is not None or self.decay == "channel"
        require(used or self.rank is None, "rank", self.rank, "None without a gate or a decay by channel")

    def resolved(self, heads: int, d_head: int) -> LinearConfig:
        """Fill in every size, for a model whose attention has `heads` heads with keys of width `d_head`."""
        heads, d_head = self.heads or heads, self.d_head or d_head
        return replace(self, heads=heads, key_heads=self.key_heads or heads, d_head=d_head, d_v=self.d_v or d_head)


@dataclass(frozen=True)
class AttentionConfig:
    """Heads of an attention layer (Vaswani et al. 2017, section 3.2.2; for grouped queries: Ainslie et al. 2023).

    Args:
        heads: Number of query heads.
        kv_heads: Number of key and value heads; each is shared by `heads / kv_heads` query heads. `None` means as many
            as `heads`.
        d_head: Width of a query and of a key (d_k). `None` means `d_model / heads`.
        d_v: Width of a value. `None` means `d_head`.
        bias: Add biases to the projections that compute queries, keys and values.
        output_bias: Add a bias to the output projection. `None` means the value of `bias` (in Qwen2, only the
            projections for queries, keys and values have biases).
        qk_norm: Normalize queries and keys before they are rotated (Henry et al. 2020), using the model's kind of norm
            and its epsilon. `"head"`: the d_head components of each head separately, with one gain shared by all heads
            (Qwen3, Gemma 3). `"width"`: all heads of a token together (OLMo 2). `"unit"`: divide each head's components
            by their root mean square, without a gain and only in layers that rotate them (Llama 4). `None` means no
            norm.
        score_width: Scores are q k^T / sqrt(score_width) (Gemma 2 27B: d_model / heads, which is wider than its
            d_head). `None` means the width of a whole query, which is d_head, or d_head + d_rope with latents.
            (DeepSeek multiplies scores by m^2 for longer texts, which corresponds to dividing this width by m^4.)
        softcap: Attention softcapping: scores s become cap tanh(s / cap) before they are masked (Gemma Team 2024,
            Gemma 2, section 2). `None` means no cap.
        window: Layers that see only the most recent tokens. If `None`, every layer sees all tokens.
        sinks: Give each head a learned logit that takes part in the softmax of every query but has no value, so that a
            query's weights sum to less than one (OpenAI 2025, gpt-oss).
        gate: Multiply the heads' output by a sigmoid of a linear map of the layer's input, before the output matrix
            (Qiu et al. 2025). `"width"`: one factor for each of a head's d_v components (Qwen3-Next). `"head"`: one
            factor for each head. `None` means no gate.
        latent: Compute keys and values from a small vector. In this case d_head is the width of the unrotated part of a
            query and a key, and each head has its own keys and values. If `None`, they are computed from the stream.
        linear: Layers that store a matrix instead of keys and values. `None` means that there are none.
    """

    heads: int
    kv_heads: int | None = None
    d_head: int | None = None
    d_v: int | None = None
    bias: bool = False
    output_bias: bool | None = None
    qk_norm: Literal["head", "width", "unit"] | None = None
    score_width: float | None = None
    softcap: float | None = None
    window: WindowConfig | None = None
    sinks: bool = False
    gate: Literal["head", "width"] | None = None
    latent: LatentConfig | None = None
    linear: LinearConfig | None = None

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("heads", self.heads)
        for name in ("kv_heads", "d_head", "d_v"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))
        require(
            self.heads % (self.kv_heads or self.heads) == 0,
            "kv_heads",
            self.kv_heads,
            f"a divisor of heads={shown(self.heads)}, so that all key-value heads serve equally many query heads",
        )
        for name in ("score_width", "softcap"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "a number > 0, or None")
        if self.latent is not None:
            alone = self.kv_heads in (None, self.heads)
            require(alone, "kv_heads", self.kv_heads, "None with latent, where each head has its own keys")
            require(not self.bias, "bias", self.bias, "False with latent")
            require(self.qk_norm is None, "qk_norm", self.qk_norm, "None with latent, which has norms of its own")
            require(not self.sinks, "sinks", self.sinks, "False with latent")

    def gates(self, d_v: int) -> int:
        """Return the number of output gates per token, for values of width `d_v`."""
        return {None: 0, "head": self.heads, "width": self.heads * d_v}[self.gate]

    @property
    def biased_output(self) -> bool:
        """`output_bias`, with its default filled in."""
        return self.bias if self.output_bias is None else self.output_bias

    def resolved(self, d_model: int) -> ResolvedAttention:
        """Fill in all unset dimensions for a model of width `d_model`."""
        require_whole("d_model", d_model)
        if self.d_head is None:
            require(
                d_model % self.heads == 0,
                "heads",
                self.heads,
                f"a divisor of d_model={shown(d_model)}, or an explicit d_head",
            )
        d_head = self.d_head or d_model // self.heads
        return ResolvedAttention(self.heads, self.kv_heads or self.heads, d_head, self.d_v or d_head, self.latent)


@dataclass(frozen=True)
class ResolvedAttention:
    """Sizes of an attention layer with all defaults filled in."""

    heads: int
    kv_heads: int
    d_head: int
    d_v: int
    latent: LatentConfig | None = None

    @property
    def d_turned(self) -> int:
        """Width of the part of a query or key that rotary positions may rotate."""
        return self.d_head if self.latent is None else self.latent.d_rope

    @property
    def kept(self) -> tuple[int, int, int]:
        """Number of heads that a cache stores for each token in a layer, and the widths of a key and a value.

        With latents this is one key whose first `kv_lora_rank` components are the value, so the width of a separate
        value is 0.
        """
        if self.latent is None:
            return self.kv_heads, self.d_head, self.d_v
        return 1, self.latent.kv_lora_rank + self.latent.d_rope, 0

    @property
    def kept_numbers(self) -> int:
        """Number of elements that a cache stores for each token in a layer."""
        heads, key, value = self.kept
        return heads * (key + value)


@dataclass(frozen=True)
class PositionConfig:
    """How a model represents the order of its tokens.

    Args:
        kind: `"sinusoidal"` (added to embeddings, Vaswani et al. 2017), `"learned"` (added, GPT-2 and BERT), `"rotary"`
            (rotates queries and keys, Su et al. 2021), `"relative"` (adds a learned bias to each score, which depends
            on the head and the distance between query and key; Raffel et al. 2020, T5, section 2.1) or `"none"`.
        base: Base of the sinusoidal and rotary frequencies.
        layout: Which two components form a pair: with `"half"`, i and i + width/2 (NeoX style, used by Hugging Face's
            version of LLaMA and by Marian's sinusoids); with `"interleaved"`, 2i and 2i + 1 (GPT-J style, as in both
            papers). `None` means `"half"` for rotary, otherwise `"interleaved"`.
        partial_rotary_factor: Only for rotary: the fraction of each head's width that is rotated. The first
            int(factor d_head) components are rotated, and their number must be even. The other components are left
            unchanged, and frequencies are computed from the rotated width (Black et al. 2022, GPT-NeoX).
        scaling: Only for rotary: scaling of the frequencies for longer texts. `None` means none.
        pattern: Only for rotary: which layers rotate queries and keys, starting with the first; the pattern repeats.
            The other layers can infer the order of tokens only from the causal mask (Kazemnejad et al. 2023; every
            fourth layer of SmolLM3).
        buckets: Only for relative: the number of biases per head, which must be even. Half of the buckets stand for a
            single distance each, and the other half for ranges that widen logarithmically. A bidirectional stack uses
            half of them for each direction.
        reach: Only for relative: all keys at this distance or farther away share the last bucket.
    """

    kind: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "rotary"
    base: float = 10000.0
    layout: Literal["half", "interleaved"] | None = None
    partial_rotary_factor: float = 1.0
    scaling: RotaryScaling | None = None
    pattern: tuple[bool, ...] = (True,)
    buckets: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        require_types(self)
        require(self.base > 0, "base", self.base, "a number > 0")
        require_whole("buckets", self.buckets, 4)
        require(self.buckets % 2 == 0, "buckets", self.buckets, "an even number, so that each direction gets half")
        require_whole("reach", self.reach, self.buckets // 2 + 1)
        for name, usual in (("buckets", 32), ("reach", 128)):
            value = getattr(self, name)
            require(self.kind == "relative" or value == usual, name, value, f"{usual} for kind={self.kind!r}")
        require(
            0 < self.partial_rotary_factor <= 1,
            "partial_rotary_factor",
            self.partial_rotary_factor,
            "a number above 0 and at most 1",
        )
        require_pattern("pattern", self.pattern)
        for name, plain in (("partial_rotary_factor", 1.0), ("scaling", None), ("pattern", (True,))):
            value = getattr(self, name)
            require(self.kind == "rotary" or value == plain, name, value, f"{plain!r} for kind={self.kind!r}")
        # yarn's ramp is over the logarithms of frequencies, which are all equal if the base is 1.
        falls = self.base > 1 or self.scaling is None or self.scaling.kind != "yarn"
        require(falls, "base", self.base, "a number > 1 for yarn")

    @property
    def pairing(self) -> Literal["half", "interleaved"]:
        """`layout`, with its default filled in."""
        return self.layout or ("half" if self.kind == "rotary" else "interleaved")


@dataclass(frozen=True)
class NormConfig:
    """Normalization: its kind, its placement and its epsilon (added inside the square root).

    Args:
        kind: `"layer"` (Ba et al. 2016) or `"rms"` (Zhang and Sennrich 2019).
        placement: Where the norms are placed around a sub-layer f that reads the stream x. All placements but `"post"`
            have one more norm at the end of the stack.
            `"post"`:  norm(x + f(x)), as in 2017.
            `"pre"`:   x + f(norm(x)) (Xiong et al. 2020).
            `"both"`:  x + norm'(f(norm(x))), two norms (Ding et al. 2021, section 2.3; Gemma 2).
            `"after"`: x + norm(f(x)) (OLMo Team 2025, OLMo 2, section 3).
            In the next two placements, attention a and the feed-forward network f read the stream in parallel:
            `"parallel"`:        x + a(norm(x)) + f(norm'(x)) (Black et al. 2022, GPT-NeoX, section 2.1).
            `"parallel_shared"`: x + a(norm(x)) + f(norm(x)), with one norm (GPT-J; Cohere's Command R).
        eps: Epsilon.
        unit_offset: Use 1 + weight as the gain, where the weights start at zero (Gemma). Only for `"rms"`.
        bias: Add a bias to layer norms (Cohere's layer norms have none). RMS norms never have one.
        first: Put a norm before the first block's attention (ModernBERT, which already normalizes the embeddings, has
            none there). `False` requires `placement="pre"`.
    """

    kind: Literal["layer", "rms"] = "rms"
    placement: Literal["pre", "post", "both", "after", "parallel", "parallel_shared"] = "pre"
    eps: float = 1e-6
    unit_offset: bool = False
    bias: bool = True
    first: bool = True

    def __post_init__(self) -> None:
        require_types(self)
        require(self.eps >= 0, "eps", self.eps, "a number >= 0")
        pre = self.placement == "pre"
        require(self.first or pre, "first", self.first, f"True for placement={self.placement!r}")
        rms = self.kind == "rms"
        require(rms or not self.unit_offset, "unit_offset", self.unit_offset, f"False for kind={self.kind!r}")
        require(self.bias or not rms, "bias", self.bias, "True for kind='rms', which has no bias to leave out")

    @property
    def parallel(self) -> bool:
        """True if attention and the feed-forward network read the same state of the stream."""
        return self.placement in ("parallel", "parallel_shared")


@dataclass(frozen=True)
class FeedForwardConfig:
    """A feed-forward network or, in a mixture of experts, the network of each expert.

    Args:
        d_ff: Hidden width.
        activation: `"relu"`, `"gelu"` (exact), `"gelu_tanh"` (GPT-2's approximation) or `"silu"` (x sigmoid(x)). Gated
            networks have three matrices: `"swiglu"` is gated by a SiLU, `"geglu"` by a GELU, `"geglu_tanh"` by the
            approximate GELU (Shazeer 2020; Gemma). `"swiglu_clamped"` is min(x, 7) sigmoid(1.702 min(x, 7)) times 1 +
            the hidden activation, which is clamped to [-7, 7] (OpenAI 2025, gpt-oss).
        bias: Add biases to the matrix products.
    """

    d_ff: int
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "swiglu_clamped"] = (
        "swiglu"
    )
    bias: bool = False

    @property
    def gated(self) -> bool:
        """True if a third matrix computes a gate."""
        return self.activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_clamped")

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("d_ff", self.d_ff)


@dataclass(frozen=True)
class MoEConfig:
    """A mixture of experts in place of feed-forward networks (Shazeer et al. 2017).

    Args:
        experts: Number of feed-forward networks to choose from.
        top_k: Number of experts that each token visits.
        gating: How the router's logits become the weights of the chosen experts. With k = 1, the three kinds that
            renormalize give a weight of one, and the router gets no gradient.
            `"topk_softmax"`: softmax over the chosen logits (Mixtral); equals `"softmax_topk_renormalised"`.
            `"softmax_topk"`: softmax over all experts. Only the top k weights are used, so they sum to less than one
            (Switch, DeepSeek-V2).
            `"sigmoid"`: a sigmoid of each logit, divided by their sum (DeepSeek-V3).
            `"sigmoid_topk"`: a sigmoid of each logit, not renormalized (Llama 4).
        shared: Number of additional experts that every token visits with weight one (DeepSeekMoE).
        capacity: Maximum number of tokens per expert in training, as a multiple of the even share tokens * top_k /
            experts; tokens beyond this number are dropped, which means that the expert returns zero for them. If
            `None`, no token is dropped.
        noise: Standard deviation of the normal noise added to the logits in training.
        balanced: Add a bias per expert to the scores that decide which experts are chosen, but not to the weights of
            the experts. The bias is not trained by gradient descent; it is adjusted to even out the load (Wang et al.
            2024).
        router_bias: Give the logits a trained bias, which affects the weights too (gpt-oss).
        groups: Number of groups of equal size into which the experts are divided; a token chooses only among the
            experts of its best groups (DeepSeek-AI 2024, DeepSeek-V2, section 2.2.2). With 1 group it chooses among all
            experts.
        top_groups: Number of groups that a token chooses from.
        group_best: A group's score is the sum of this many of its best scores, including the bias from `balanced`
            (DeepSeek-V3: 2; DeepSeek-V2: 1).
        scale: Factor that multiplies all weights (DeepSeek-V3: 2.5).
        weighted: `"output"`: the weights multiply the experts' outputs. `"input"`: the weights multiply the experts'
            inputs (Llama 4).
        pattern: Which layers have experts, starting with the first; the pattern repeats. The other layers have one
            plain network. (False,) + (True,) * 45: the first of 46 layers is plain (GLM-4.5-Air). (False, True): every
            second layer has experts (Llama 4 Maverick).
        plain_d_ff: Hidden width of the networks in layers without experts. `None` means the hidden width of an expert.
        shared_d_ff: Hidden width of each shared expert. `None` means the width of the other experts.
        shared_gate: Multiply the output of the shared experts by the sigmoid of one logit computed from the token
            (Qwen2-MoE, Qwen3-Next).

    Raises:
        ValueError: If a field is invalid; the message names the field, its value and what was expected.
    """

    experts: int
    top_k: int
    gating: Literal["topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid", "sigmoid_topk"] = (
        "topk_softmax"
    )
    shared: int = 0
    capacity: float | None = None
    noise: float = 0.0
    balanced: bool = False
    router_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    scale: float = 1.0
    weighted: Literal["output", "input"] = "output"
    pattern: tuple[bool, ...] = (True,)
    plain_d_ff: int | None = None
    shared_d_ff: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("experts", self.experts)
        require_whole("top_k", self.top_k)
        require(self.top_k <= self.experts, "top_k", self.top_k, f"at most experts={shown(self.experts)}")
        require_whole("shared", self.shared, 0)
        require(self.capacity is None or self.capacity > 0, "capacity", self.capacity, "a number > 0, or None")
        require(self.noise >= 0, "noise", self.noise, "a number >= 0")
        require(self.scale > 0, "scale", self.scale, "a number > 0")
        require_pattern("pattern", self.pattern)
        for name in ("groups", "top_groups", "group_best"):
            require_whole(name, getattr(self, name))
        require_groups(self.experts, self.top_k, self.groups, self.top_groups, self.group_best)
        require(
            self.shared > 0 or not self.shared_gate, "shared_gate", self.shared_gate, "False without shared experts"
        )
        for name, used in (("plain_d_ff", not all(self.pattern)), ("shared_d_ff", self.shared > 0)):
            width = getattr(self, name)
            if width is not None:
                require_whole(name, width)
                require(used, name, width, "None, because no network has that width")


def require_groups(experts: int, top_k: int, groups: int, top_groups: int, group_best: int) -> None:
    """Check that a token can choose `top_k` experts from its best groups.

    Raises:
        ValueError: If this is impossible; the message names the field of `MoEConfig` that prevents it.
    """
    require(experts % groups == 0, "groups", groups, f"a divisor of experts={shown(experts)}")
    size = experts // groups
    require(top_groups <= groups, "top_groups", top_groups, f"at most groups={shown(groups)}")
    if groups > 1:
        require(group_best <= size, "group_best", group_best, f"at most the {shown(size)} experts of a group")
        open_ = top_groups * size
        require(top_k <= open_, "top_k", top_k, f"at most the {shown(open_)} experts of {shown(top_groups)} groups")


@dataclass(frozen=True)
class EmbeddingConfig:
    """The token embeddings, and the layers at both ends of the stack.

    Args:
        tied: Use the embedding table in the output head too (one parameter, not a copy; Press and Wolf 2017).
        scaled: Multiply embeddings by sqrt(d_model) (Vaswani et al. 2017, section 3.4).
        norm: Normalize the input of the first block (BERT).
        segments: Number of segment types. Each type has a vector that is added to the embeddings of its tokens (BERT:
            2); 0 means that there are no segments.
        head: Layers between the last block and the logits: `"linear"`; `"biased"`, the same with one bias per token id
            (Marian); `"masked"`, BERT's dense layer, activation and norm, then the table and a bias.
        pooled: Compute a vector for the sequence from the first token's last state, using a dense layer and a tanh
            (BERT).
        classes: Number of outputs of a classifier that reads the pooled vector (BERT has 2 for next-sentence
            prediction); 0 means no classifier.
        rounded: Round the factor of `scaled` to the dtype of the table first, as in Gemma's training: in bf16, the
            square root of 640 becomes 25.25 instead of 25.298. Rounding makes no difference in fp32.
        logit_softcap: Final logit softcapping: logits z become cap tanh(z / cap) (Bello et al. 2017, section 5.1; Gemma
            2). `None` means no cap.
        multiplier: Factor that multiplies the embeddings (Granite).
        logit_divisor: Divisor of the logits, applied before they are capped (Granite).
        apart: Give the two stacks of an encoder-decoder separate learned positions and input norms (BART). Otherwise
            they share both.
        dense_bias: Add a bias to the dense layer of the `"masked"` head (ModernBERT's dense layer has none).
    """

    tied: bool = True
    scaled: bool = False
    norm: bool = False
    segments: int = 0
    head: Literal["linear", "biased", "masked"] = "linear"
    pooled: bool = False
    classes: int = 0
    rounded: bool = False
    logit_softcap: float | None = None
    multiplier: float = 1.0
    logit_divisor: float = 1.0
    apart: bool = False
    dense_bias: bool = True

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("segments", "classes"):
            require_whole(name, getattr(self, name), 0)
        require(self.scaled or not self.rounded, "rounded", self.rounded, "False unless scaled=True")
        require(
            self.logit_softcap is None or self.logit_softcap > 0,
            "logit_softcap",
            self.logit_softcap,
            "a number > 0, or None",
        )
        require(self.multiplier > 0, "multiplier", self.multiplier, "a number > 0")
        require(self.multiplier == 1 or not self.scaled, "multiplier", self.multiplier, "1.0 with scaled=True")
        require(self.logit_divisor > 0, "logit_divisor", self.logit_divisor, "a number > 0")
        masked = self.head == "masked"
        require(masked or self.dense_bias, "dense_bias", self.dense_bias, f"True for head={self.head!r}")
        require(self.pooled or not self.classes, "classes", self.classes, "0 unless pooled=True")


@dataclass(frozen=True)
class ModelConfig:
    """A complete model: the 2017 encoder-decoder, an encoder, or a decoder, built from the same parts.

    Args:
        vocab: Number of token ids.
        d_model: Width of the residual stream.
        layers: Number of blocks (in an encoder-decoder, in each of the two stacks).
        context: Length in tokens of the longest sequence that the model is meant for.
        attention: The heads of each block.
        feed_forward: The feed-forward network of each block, or of each expert.
        positions: How the order of tokens is represented.
        norm: The norms of all blocks.
        embedding: The embeddings and the output head.
        moe: A mixture of experts. `None` means a plain feed-forward network in each block.
        stack: `"decoder"` (causal), `"encoder"` (bidirectional) or `"encoder_decoder"`.
        dropout: Dropout probability in training, for embeddings, attention weights and each sub-layer's output.
        residual: Factor that multiplies what each sub-layer adds to the stream (Granite).
        medusa_heads: Number of Medusa heads of a decoder, which predict the tokens after the next one (see
            `companion.layers.medusa_heads`).

    Raises:
        ValueError: If a field is invalid; the message names the field, its value and what was expected.
    """

    vocab: int
    d_model: int
    layers: int
    context: int
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    positions: PositionConfig = field(default_factory=PositionConfig)
    norm: NormConfig = field(default_factory=NormConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    moe: MoEConfig | None = None
    stack: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    dropout: float = 0.0
    residual: float = 1.0
    medusa_heads: int = 0

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("vocab", "d_model", "layers", "context"):
            require_whole(name, getattr(self, name))
        require(0 <= self.dropout < 1, "dropout", self.dropout, "a probability in [0, 1)")
        require(self.residual > 0, "residual", self.residual, "a number > 0")
        require_whole("medusa_heads", self.medusa_heads, 0)
        turns_some = self.positions.kind == "rotary" or self.attention.qk_norm != "unit"
        require(turns_some, "qk_norm", self.attention.qk_norm, "a different norm, because positions are not rotary")
        if self.embedding.apart:
            has = self.positions.kind == "learned" or self.embedding.norm
            two = "False, except in an encoder_decoder with learned positions or embedding.norm"
            require(self.stack == "encoder_decoder" and has, "apart", self.embedding.apart, two)
        if self.stack != "encoder":
            segments, pooled = self.embedding.segments, self.embedding.pooled
            require(segments == 0, "segments", segments, "0; only an encoder has segments")
            require(not pooled, "pooled", pooled, "False; only an encoder has a pooler")
        sizes = self.attention.resolved(self.d_model)
        if self.positions.kind == "rotary":
            turns = "d_head" if sizes.latent is None else "d_rope"
            some = sizes.d_turned > 0 and sizes.d_turned % 2 == 0
            require(some, turns, sizes.d_turned, "an even width, because rotary positions rotate pairs")
            part, factor = "partial_rotary_factor", self.positions.partial_rotary_factor
            require(factor == 1 or sizes.latent is None, part, factor, "1 with latent, where d_rope is rotated")
            # With a factor of 1, d_head is not multiplied, so that a large value does not become a float.
            turned = sizes.d_turned if factor == 1 else int(factor * sizes.d_head)
            whole = f"a share of d_head={shown(sizes.d_head)} that is an even number of components, not {shown(turned)}"
            require(turned > 0 and turned % 2 == 0, part, factor, whole)
            divisors = None if self.positions.scaling is None else self.positions.scaling.short
            for_each = f"a number for each of the {shown(turned // 2)} rotated pairs"
            require(divisors is None or len(divisors) == turned // 2, "short", divisors, for_each)
        self._check_layers()
        if self.positions.kind == "relative":
            for name in ("latent", "linear", "window"):
                given = getattr(self.attention, name)
                require(given is None, name, given, "None with relative positions, which need all scores")
        if self.positions.kind == "sinusoidal":
            require(
                self.d_model % 2 == 0, "d_model", self.d_model, "an even width, because sines and cosines come in pairs"
            )

    def _check_layers(self) -> None:
        """Check that the stack supports every kind of layer in the configuration."""
        side_by_side = self.norm.parallel and self.stack == "encoder_decoder"
        place = "one without 'parallel' in an encoder_decoder, whose cross-attention is between the two sub-layers"
        require(not side_by_side, "placement", self.norm.placement, place)
        window, latent = self.attention.window, self.attention.latent
        if self.medusa_heads:
            require(self.stack == "decoder", "medusa_heads", self.medusa_heads, "0; only a decoder has such heads")
        if latent is not None:
            require(self.stack == "decoder", "latent", latent, "None; only a decoder can have latents")
        if self.attention.linear is not None:
            require(self.stack == "decoder", "linear", self.attention.linear, "None; only a decoder has linear layers")
            self.linear_config  # noqa: B018  (filling in the sizes checks them)
        if window is not None:
            alone = self.stack != "encoder_decoder"
            require(alone, "window", window, "None; an encoder_decoder cannot have windows")
            require(
                window.base is None or self.positions.kind == "rotary",
                "base",
                window.base,
                f"None for positions.kind={self.positions.kind!r}, which has no frequencies",
            )

    @property
    def sizes(self) -> ResolvedAttention:
        """Sizes of the attention layers (heads, kv_heads, d_head, d_v and latents), with all defaults filled in."""
        return self.attention.resolved(self.d_model)

    def local(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, is limited to the window; linear layers never are."""
        window = self.attention.window
        return window is not None and in_turn(window.pattern, layer) and not self.linear(layer)

    @property
    def linear_config(self) -> LinearConfig | None:
        """Configuration of the linear layers with all sizes filled in.

        `None` if the model has no linear layers, for example because the pattern is longer than the stack.
        """
        sizes, linear = self.sizes, self.attention.linear
        return None if linear is None or not self.linears else linear.resolved(sizes.heads, sizes.d_head)

    def linear(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, stores a matrix instead of keys and values."""
        linear = self.attention.linear
        return linear is not None and in_turn(linear.pattern, layer)

    @property
    def attending(self) -> tuple[int, ...]:
        """Indices of the layers that store keys and values: all layers that are not linear."""
        return tuple(layer for layer in range(self.layers) if not self.linear(layer))

    def layer(self, layer: int) -> tuple[AttentionConfig, PositionConfig]:
        """Return the configurations of the attention and the positions in layer `layer`, counted from 0.

        The attention has a window only if the layer is local, and a `LinearConfig` only if the layer is linear.
        """
        if self.linear(layer):
            return replace(self.attention, linear=self.linear_config, window=None), PositionConfig("none")
        window, positions = self.attention.window, self.positions
        if not in_turn(positions.pattern, layer):
            seen = self._seen(layer)
            return replace(seen, qk_norm=None) if seen.qk_norm == "unit" else seen, PositionConfig("none")
        if self.local(layer) and window is not None and window.base is not None:
            positions = replace(positions, base=window.base, scaling=None)
        return self._seen(layer), replace(positions, pattern=(True,))

    def network(self, layer: int) -> tuple[FeedForwardConfig, MoEConfig | None]:
        """Return the feed-forward network and the mixture of experts of layer `layer`, counted from 0.

        In a layer with experts, the network describes each expert. In other layers, the mixture is `None`.
        """
        if self.moe is None or in_turn(self.moe.pattern, layer):
            return self.feed_forward, self.moe
        return replace(self.feed_forward, d_ff=self.moe.plain_d_ff or self.feed_forward.d_ff), None

    @property
    def mixtures(self) -> int:
        """Number of layers in a stack that have experts."""
        return 0 if self.moe is None else how_many(self.moe.pattern, self.layers)

    @property
    def linears(self) -> int:
        """Number of layers that store a matrix instead of keys and values."""
        linear = self.attention.linear
        return 0 if linear is None else how_many(linear.pattern, self.layers)

    def _seen(self, layer: int) -> AttentionConfig:
        seen = self.attention if self.local(layer) else replace(self.attention, window=None)
        return replace(seen, linear=None)

    def with_(self, **changes: Any) -> ModelConfig:
        """Return a validated copy with some fields changed."""
        known = [f.name for f in fields(self)]
        for name, value in changes.items():
            require(name in known, name, value, f"one of the fields {', '.join(known)}")
        return replace(self, **changes)

    def to_json(self) -> str:
        """Return the configuration as JSON text, from which `from_json` restores it."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Parse the output of `to_json`.

        Raises:
            ValueError: If the text is not JSON, or a field is unknown, missing or of the wrong type.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ValueError(f"config: expected JSON, got other text ({why(error)})") from None
        return build(cls, data, "config")
