"""What a model is: frozen, validated dataclasses that travel as JSON.

A configuration says only what the model *is*. How it runs (device, dtype, attention backend, compilation, cache size)
is an argument of the call that runs it.

Axis names, used in every signature and lesson of the course:

| name      | meaning                                     | name     | meaning                                    |
|-----------|---------------------------------------------|----------|--------------------------------------------|
| `batch`   | independent sequences                       | `d_model`| width of the residual stream               |
| `token`   | positions of a sequence                     | `d_head` | width of one head's queries and keys (d_k) |
| `query`   | positions that look                         | `d_v`    | width of one head's values                 |
| `key`     | positions that are looked at                | `d_ff`   | hidden width of a feed-forward network     |
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
    """What a pattern says of layer `layer`, counted from 0: it begins anew where it is used up."""
    return pattern[layer % len(pattern)]


def how_many(pattern: tuple[bool, ...], layers: int) -> int:
    """How many of so many layers a pattern chooses."""
    whole, rest = divmod(layers, len(pattern))
    return whole * sum(pattern) + sum(pattern[:rest])


def require_pattern(name: str, pattern: tuple[bool, ...]) -> None:
    """Raises `ValueError` unless the pattern, the argument called `name`, says something and chooses some layer."""
    require(any(pattern), name, pattern, "at least one True")


@dataclass(frozen=True)
class RotaryScaling:
    """How the frequencies of rotary positions are changed, so that a model reads texts longer than it was trained on.

    With omega_j the frequency of pair j, s the factor, C the original context and r_j = C omega_j / (2 pi), the turns
    that pair j makes in it:

    `"linear"`   omega_j / s: every position is divided by s (Chen et al. 2023, section 2.3).
    `"dynamic"`  omega_j of a larger base, base (s n / C - s + 1)^(d / (d - 2)), once a text has n > C tokens; d is the
                 width that is turned (bloc97 and emozilla 2023; Peng et al. 2023, section 3.3). A row goes by its
                 furthest position in a call, as released code does; keys that a cache holds stay as they were turned.
    `"yarn"`     (1 - g_j) omega_j / s + g_j omega_j, where g falls from 1 to 0 linearly in j, between the pairs that
                 make `fast` and `slow` turns; cosines and sines are multiplied by `magnitude` (Peng et al. 2023).
    `"llama3"`   the same with g_j = (r_j - slow) / (fast - slow), cut to [0, 1] (Grattafiori et al. 2024, and the
                 code released with Llama 3.1).
    `"longrope"` omega_j / long_j in a text of more than C tokens, omega_j / short_j in others, by divisors that were
                 searched for; cosines and sines are multiplied by `magnitude` (Ding et al. 2024; Phi-3). A row goes by
                 its furthest position in a call, as with `"dynamic"`; whatever writes a text reads it anew where it
                 passes C.

    factor:     s, at least 1. Of longrope it makes nothing but the magnitude.
    original:   C in tokens. All but `"linear"` need it.
    slow, fast: turns in C: pairs that make fewer than `slow` are slowed down by the whole factor, those that make more
                than `fast` are left alone. `None`: 1, and 32 for yarn or 4 for llama3.
    magnitude:  of yarn and longrope. `None`: 0.1 ln(s) + 1, or sqrt(1 + ln(s) / ln(C)).
    whole:      of yarn: the ramp begins and ends at whole pairs, rounded outwards.
    short:      of longrope: a divisor for each pair that is turned, the fastest first; all above 0.
    long:       the same for texts of more than C tokens.

    Raises `ValueError` naming the field, what it was and what it must be.
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
            require(
                self.original is None, "original", self.original, "None for kind='linear', which asks for no length"
            )
        else:
            require_whole("original", self.original)
        ramp = self.kind in ("yarn", "llama3")
        for name in ("slow", "fast"):
            value = getattr(self, name)
            require(ramp or value is None, name, value, f"None for kind={self.kind!r}, which has no ramp")
        slow, fast = self.ramp
        cut = self.kind == "llama3" and slow == fast  # no ramp, but a step
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
            require(not wanted or (value and min(value) > 0), name, value, "a number > 0 for each pair that is turned")
        if self.short is not None and self.long is not None:
            require(
                len(self.long) == len(self.short), "long", self.long, f"as many numbers as short, {len(self.short)}"
            )
            require((self.original or 0) > 1, "original", self.original, "a whole number > 1: its logarithm divides")

    @property
    def by_length(self) -> bool:
        """Whether frequencies depend on how long a text is."""
        return self.kind in ("dynamic", "longrope")

    @property
    def ramp(self) -> tuple[float, float]:
        """`slow` and `fast` with their defaults filled in."""
        fast = 32.0 if self.kind == "yarn" else 4.0
        return 1.0 if self.slow is None else self.slow, fast if self.fast is None else self.fast


@dataclass(frozen=True)
class WindowConfig:
    """Local layers: a token sees itself and the `width - 1` tokens before it (Beltagy et al. 2020; Jiang et al. 2023).
    In an encoder it sees itself and `width // 2` tokens on either side (ModernBERT, Warner et al. 2024).

    width:    tokens that a token sees, its own included; in an encoder of even width, one more.
    pattern:  which layers are local, from the first on; it begins anew where it is used up. (True,): all (Mistral 7B).
              (True, False): every second is global (Gemma 2). Five times True, then False: every sixth (Gemma 3).
    base:     of the rotary frequencies in local layers, which are not scaled then. `None`: as in the global ones.

    Raises `ValueError` naming the field, what it was and what it must be.
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
    """Latent attention: keys and values of all heads are made of one small vector a token (DeepSeek-AI 2024,
    DeepSeek-V2, section 2.1), which is all that a cache keeps, beside one turned key that the heads share.

    rank:        width of that vector (d_c).
    d_rope:      width of the shared key and of the part of each query that meets it: what rotary positions turn. With
                 other kinds of positions it may be 0.
    query_rank:  queries too are made of a small vector, of this width (d'_c). `None`: of the stream.
    eps:         of the norms of these vectors. `None`: that of the model's norms.

    Raises `ValueError` naming the field, what it was and what it must be.
    """

    rank: int
    d_rope: int
    query_rank: int | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("rank", self.rank)
        require_whole("d_rope", self.d_rope, 0)
        if self.query_rank is not None:
            require_whole("query_rank", self.query_rank)
        require(self.eps is None or self.eps >= 0, "eps", self.eps, "a number >= 0, or None")


@dataclass(frozen=True)
class LinearConfig:
    """Linear layers: in place of keys and values, a head keeps one matrix of d_head rows and d_v columns, which each
    token fades, writes and reads (lesson 17). `companion.layers.gated_delta_net.LinearAttention` says how.

    pattern:      which layers are linear, from the first on; it begins anew where it is used up. The others have the
                  attention that stands beside this. Three times True, then False: every fourth is in full (Qwen3-Next).
    heads:        how many matrices there are, each with values of its own. `None`: as many as attention has heads.
    key_heads:    heads of queries and keys, each of which serves heads / key_heads matrices. `None`: `heads`.
    d_head:       width of a query and of a key. `None`: that of attention.
    d_v:          width of a value. `None`: `d_head`.
    rule:         `"delta"`: a token writes what its value has and the matrix does not yet say for its key, times a
                  strength from 0 to 1 (Schlag et al. 2021; Yang et al. 2024). `"sum"`: it adds its value, whatever is
                  there (Katharopoulos et al. 2020).
    negative:     strengths go from 0 to 2, so that a write can turn what is there round (Grazzi et al. 2024).
    decay:        what fades before a token writes: `"head"`, a factor for each matrix, made of the token (Mamba-2, Dao
                  and Gu 2024; gated delta, Yang et al. 2024); `"channel"`, one for each of its rows (Kimi Linear);
                  `"fixed"`, 1 - 2^(-5 - h) for matrix h, whatever the token (RetNet, Sun et al. 2023). `None`: nothing.
    convolution:  each number of a query, key and value is a sum over the last so many tokens, weighted by learned
                  numbers of its own, and goes through a silu. 1: over the token itself.
    gate:         what is read is normalised, and multiplied by this function of a linear map of the layer's input.
                  `None`: it is only normalised.
    rank:         the gate, and a decay by channel, come by way of a vector of this width (Kimi Linear: d_head). `None`:
                  by one matrix.

    Raises `ValueError` naming the field, what it was and what it must be.
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
        require(used or self.rank is None, "rank", self.rank, "None where neither a gate nor a decay by channel is")

    def resolved(self, heads: int, d_head: int) -> LinearConfig:
        """The same with every size filled in, beside attention of `heads` heads whose keys are `d_head` wide."""
        heads, d_head = self.heads or heads, self.d_head or d_head
        return replace(self, heads=heads, key_heads=self.key_heads or heads, d_head=d_head, d_v=self.d_v or d_head)


@dataclass(frozen=True)
class AttentionConfig:
    """The heads of an attention layer (Vaswani et al. 2017, section 3.2.2; grouped queries: Ainslie et al. 2023).

    heads:        number of query heads.
    kv_heads:     number of key and value heads; `heads / kv_heads` query heads share one. `None`: as many as `heads`.
    d_head:       width of a query and of a key (d_k). `None`: `d_model / heads`.
    d_v:          width of a value. `None`: `d_head`.
    bias:         whether the projections to queries, keys and values add a bias.
    output_bias:  whether the one back to the stream does. `None`: as `bias` (Qwen2: biases on the first three alone).
    qk_norm:      queries and keys are normalised before they are turned (Henry et al. 2020), by norms of the model's
                  kind and epsilon: `"head"`, each head's d_head numbers on their own, with one gain for all the heads
                  (Qwen3, Gemma 3); `"width"`, all heads of a token together (OLMo 2); `"unit"`, each head's numbers
                  are divided by the root of their mean square, without a gain, in layers that turn them alone
                  (Llama 4). `None`: they are not.
    score_width:  scores are q k^T / sqrt(score_width) (Gemma 2 27B: d_model / heads, with a wider d_head). `None`:
                  the width of a whole query: d_head, with latents d_head + d_rope. (DeepSeek, which for longer texts
                  multiplies scores by m^2, has that width / m^4.)
    score_cap:    scores s become cap tanh(s / cap) before they are masked (Gemma Team 2024, Gemma 2, section 2).
                  `None`: they stay.
    window:       layers that see the last tokens only. `None`: every layer sees all.
    sinks:        each head has a logit, learned, that joins every row's softmax and takes weight from it, and has no
                  value: a row's weights sum to less than one (OpenAI 2025, gpt-oss).
    gate:         what the heads found is multiplied by a sigmoid of a linear map of the layer's input, before the
                  output matrix (Qiu et al. 2025): `"width"`, each of their heads d_v numbers by one of its own
                  (Qwen3-Next); `"head"`, one number a head. `None`: it is not.
    latent:       keys and values are made of a small vector. Then d_head is the width of the part of a query and a key
                  that is not turned, and each head has keys and values of its own. `None`: they are made of the stream.
    linear:       layers that keep a matrix in place of keys and values. `None`: none does.
    """

    heads: int
    kv_heads: int | None = None
    d_head: int | None = None
    d_v: int | None = None
    bias: bool = False
    output_bias: bool | None = None
    qk_norm: Literal["head", "width", "unit"] | None = None
    score_width: float | None = None
    score_cap: float | None = None
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
            f"a divisor of heads={shown(self.heads)}: each key-value head serves the same number of query heads",
        )
        for name in ("score_width", "score_cap"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "a number > 0, or None")
        if self.latent is not None:
            alone = self.kv_heads in (None, self.heads)
            require(alone, "kv_heads", self.kv_heads, "None beside latent: each head makes keys of its own")
            require(not self.bias, "bias", self.bias, "False beside latent")
            require(
                self.qk_norm is None, "qk_norm", self.qk_norm, "None beside latent, which norms what both come from"
            )
            require(not self.sinks, "sinks", self.sinks, "False beside latent")

    def gates(self, d_v: int) -> int:
        """How many numbers a token's output gate has, where values are `d_v` wide."""
        return {None: 0, "head": self.heads, "width": self.heads * d_v}[self.gate]

    @property
    def biased_output(self) -> bool:
        """`output_bias`, with its default filled in."""
        return self.bias if self.output_bias is None else self.output_bias

    def resolved(self, d_model: int) -> ResolvedAttention:
        """The same heads with every width filled in for a model of width `d_model`."""
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
    """The sizes of an attention layer, none of them left to a default."""

    heads: int
    kv_heads: int
    d_head: int
    d_v: int
    latent: LatentConfig | None = None

    @property
    def d_turned(self) -> int:
        """Width of that of a query or key which rotary positions may turn."""
        return self.d_head if self.latent is None else self.latent.d_rope

    @property
    def kept(self) -> tuple[int, int, int]:
        """What a cache keeps of a token in a layer: how many heads, and the widths of the key and the value of each.
        With latents one key, whose first `rank` numbers are the value, so that none is stored beside it."""
        if self.latent is None:
            return self.kv_heads, self.d_head, self.d_v
        return 1, self.latent.rank + self.latent.d_rope, 0

    @property
    def kept_numbers(self) -> int:
        """How many numbers that is."""
        heads, key, value = self.kept
        return heads * (key + value)


@dataclass(frozen=True)
class PositionConfig:
    """How a model is told the order of its tokens.

    kind:    `"sinusoidal"` (added, Vaswani et al. 2017), `"learned"` (added, GPT-2 and BERT), `"rotary"` (rotates
             queries and keys, Su et al. 2021), `"relative"` (a learned number is added to each score, by head and by
             the distance between query and key; Raffel et al. 2020, T5, section 2.1) or `"none"`.
    base:    the 10000 of the sinusoidal and rotary frequencies.
    layout:  which two components make a pair: `"half"` i and i + width/2 (LLaMA as published by Hugging Face; Marian's
             sinusoids), `"interleaved"` 2i and 2i + 1 (both papers). `None`: `"half"` for rotary, else `"interleaved"`.

    Of rotary positions alone:

    share:    of each head's width, the part that is turned: its first int(share d_head) components, an even number. The
              others pass as they are, and frequencies come from the width that is turned (Black et al. 2022, GPT-NeoX).
    scaling:  of the frequencies, for longer texts. `None`: none.
    pattern:  which layers turn queries and keys, from the first on; it begins anew where it is used up. The others know
              no positions but by their causal mask (Kazemnejad et al. 2023; every fourth layer of SmolLM3).

    Of relative positions alone:

    buckets:  how many numbers a head has; an even number. Half of them are for distances one by one, the others for
              ranges that widen logarithmically. A stack that sees both ways has half of them for each direction.
    reach:    the distance from which on all keys are in the last bucket.
    """

    kind: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "rotary"
    base: float = 10000.0
    layout: Literal["half", "interleaved"] | None = None
    share: float = 1.0
    scaling: RotaryScaling | None = None
    pattern: tuple[bool, ...] = (True,)
    buckets: int = 32
    reach: int = 128

    def __post_init__(self) -> None:
        require_types(self)
        require(self.base > 0, "base", self.base, "a number > 0")
        require_whole("buckets", self.buckets, 4)
        require(self.buckets % 2 == 0, "buckets", self.buckets, "an even number, half of them for each direction")
        require_whole("reach", self.reach, self.buckets // 2 + 1)
        for name, usual in (("buckets", 32), ("reach", 128)):
            value = getattr(self, name)
            require(self.kind == "relative" or value == usual, name, value, f"{usual} for kind={self.kind!r}")
        require(0 < self.share <= 1, "share", self.share, "a number above 0 and at most 1")
        require_pattern("pattern", self.pattern)
        for name, plain in (("share", 1.0), ("scaling", None), ("pattern", (True,))):
            value = getattr(self, name)
            require(self.kind == "rotary" or value == plain, name, value, f"{plain!r} for kind={self.kind!r}")
        # Its ramp is over the logarithms of frequencies, which are all alike where the base is 1.
        falls = self.base > 1 or self.scaling is None or self.scaling.kind != "yarn"
        require(falls, "base", self.base, "a number > 1 for yarn")

    @property
    def pairing(self) -> Literal["half", "interleaved"]:
        """`layout`, with its default filled in."""
        return self.layout or ("half" if self.kind == "rotary" else "interleaved")


@dataclass(frozen=True)
class NormConfig:
    """Normalisation: which, where, and its epsilon (added inside the square root).

    kind:         `"layer"` (Ba et al. 2016) or `"rms"` (Zhang and Sennrich 2019).
    placement:    for a sub-layer f on the stream x; all but the first have one more norm at the end of the stack.
                  `"post"`:  norm(x + f(x)), as in 2017.
                  `"pre"`:   x + f(norm(x)) (Xiong et al. 2020).
                  `"both"`:  x + norm'(f(norm(x))), two norms (Ding et al. 2021, section 2.3; Gemma 2).
                  `"after"`: x + norm(f(x)) (OLMo Team 2025, OLMo 2, section 3).
                  The last two read the stream side by side, with attention a and feed-forward network f:
                  `"parallel"`:        x + a(norm(x)) + f(norm'(x)) (Black et al. 2022, GPT-NeoX, section 2.1).
                  `"parallel_shared"`: x + a(norm(x)) + f(norm(x)), with one norm (GPT-J; Cohere's Command R).
    unit_offset:  the gain is 1 + weight, and weights begin at zero (Gemma). Only for `"rms"`.
    bias:         whether a layer norm adds a bias (Cohere's do not). RMS norms never have one.
    first:        whether the first block has a norm before its attention (ModernBERT, which normalises embeddings, has
                  none). `False` only for `"pre"`.
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
        """Whether attention and the feed-forward network read the same state of the stream."""
        return self.placement in ("parallel", "parallel_shared")


@dataclass(frozen=True)
class FeedForwardConfig:
    """A feed-forward network; with experts, each of them.

    d_ff:        hidden width.
    activation:  `"relu"`, `"gelu"` (exact), `"gelu_tanh"` (GPT-2's approximation), `"silu"` (x sigmoid(x)); or gated,
                 with three matrices: `"swiglu"` by a silu, `"geglu"` by a gelu, `"geglu_tanh"` by its approximation
                 (Shazeer 2020; Gemma); `"swiglu_clamped"` (min(x, 7) sigmoid(1.702 min(x, 7)) times 1 + the hidden
                 number, cut to [-7, 7]; OpenAI 2025, gpt-oss).
    bias:        whether its products add a bias.
    """

    d_ff: int
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "swiglu_clamped"] = (
        "swiglu"
    )
    bias: bool = False

    @property
    def gated(self) -> bool:
        """Whether a third matrix makes a gate."""
        return self.activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_clamped")

    def __post_init__(self) -> None:
        require_types(self)
        require_whole("d_ff", self.d_ff)


@dataclass(frozen=True)
class MoEConfig:
    """A mixture of experts in place of feed-forward networks (Shazeer et al. 2017).

    experts:      how many feed-forward networks there are to choose from.
    top_k:        how many of them each token visits.
    gating:       how the router's logits become the weights of the chosen experts.
                  `"topk_softmax"`: softmax over the chosen logits (Mixtral); equals `"softmax_topk_renormalised"`.
                  `"softmax_topk"`: softmax over all, then cut: the weights sum to less than one (Switch, DeepSeek-V2).
                  `"sigmoid"`: a sigmoid each, then divided by their sum (DeepSeek-V3). With k = 1 the three that
                  renormalise give weight one and the router no gradient.
                  `"sigmoid_topk"`: a sigmoid each, as it is (Llama 4).
    shared:       further experts that every token visits with weight one (DeepSeekMoE).
    capacity:     most tokens an expert takes in training, as a multiple of the even share tokens * top_k / experts;
                  later ones are dropped and get zero from it. `None`: no token is dropped.
    noise:        standard deviation of normal noise added to the logits in training.
    balanced:     a bias for each expert, not trained by gradient, enters the choice of experts but not their weights,
                  and is moved towards even load (Wang et al. 2024).
    router_bias:  whether the logits have a bias, which is trained and enters the weights too (gpt-oss).
    groups:       experts stand in so many groups of equal size, and a token chooses among those of its best groups
                  alone (DeepSeek-AI 2024, DeepSeek-V2, section 2.2.2). 1: among all.
    top_groups:   how many groups these are.
    group_best:   what makes a group good: the sum of so many of its best scores, the bias of `balanced` included
                  (DeepSeek-V3: 2; DeepSeek-V2: 1).
    scale:        all weights are multiplied by it (DeepSeek-V3: 2.5).
    weighted:     `"output"`: weights multiply what experts answer. `"input"`: what they are asked (Llama 4).
    pattern:      which layers have experts, from the first on; it begins anew where it is used up. The others have one
                  plain network. (False,) + (True,) * 45: the first of 46 layers is plain (GLM-4.5-Air). (False, True):
                  every second has experts (Llama 4 Maverick).
    plain_d_ff:   hidden width of the networks in layers without experts. `None`: that of an expert.
    shared_d_ff:  hidden width of each shared expert. `None`: that of the others.
    shared_gate:  what the shared experts answer is multiplied by a sigmoid of a number that is made of the token
                  (Qwen2-MoE, Qwen3-Next).

    Raises `ValueError` naming the field, what it was and what it must be.
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
                require(used, name, width, "None where no network has that width")


def require_groups(experts: int, top_k: int, groups: int, top_groups: int, group_best: int) -> None:
    """Raises `ValueError` naming a size of `MoEConfig` by which a token cannot choose among the experts of its best
    groups."""
    require(experts % groups == 0, "groups", groups, f"a divisor of experts={shown(experts)}")
    size = experts // groups
    require(top_groups <= groups, "top_groups", top_groups, f"at most groups={shown(groups)}")
    if groups > 1:
        require(group_best <= size, "group_best", group_best, f"at most the {shown(size)} experts of a group")
        open_ = top_groups * size
        require(top_k <= open_, "top_k", top_k, f"at most the {shown(open_)} experts of {shown(top_groups)} groups")


@dataclass(frozen=True)
class EmbeddingConfig:
    """The table of token vectors, and what stands at both ends of the stack.

    tied:           the output head uses the same table (one parameter, not a copy; Press and Wolf 2017).
    scaled:         embeddings are multiplied by sqrt(d_model) (Vaswani et al. 2017, section 3.4).
    rounded:        that factor is first rounded to the dtype of the table, as where Gemma was trained: in bf16 25.25
                    for the square root of 640, 25.298. In fp32 it changes nothing.
    multiplier:     embeddings are multiplied by it (Granite).
    norm:           what enters the first block is normalised (BERT).
    apart:          the two stacks of an encoder-decoder have learned positions, and norms of what enters, of their own
                    (BART). Otherwise they share both.
    segments:       how many kinds of segment have a vector that is added to their tokens' (BERT: 2); 0: none.
    head:           what stands between the last block and the logits: `"linear"`; `"biased"`, with one bias per token
                    id (Marian); `"masked"`, BERT's dense layer, activation and norm, then the table and a bias.
    dense_bias:     whether that dense layer has a bias (ModernBERT's has none).
    pooled:         a dense layer and a tanh make a vector of the first token's last state (BERT).
    classes:        outputs of a classifier of that vector (BERT: 2, is the second sentence the next one?); 0: none.
    logit_divisor:  logits are divided by it, before they are capped (Granite).
    logit_cap:      logits z become cap tanh(z / cap) (Bello et al. 2017, section 5.1; Gemma 2). `None`: they stay.
    """

    tied: bool = True
    scaled: bool = False
    norm: bool = False
    segments: int = 0
    head: Literal["linear", "biased", "masked"] = "linear"
    pooled: bool = False
    classes: int = 0
    rounded: bool = False
    logit_cap: float | None = None
    multiplier: float = 1.0
    logit_divisor: float = 1.0
    apart: bool = False
    dense_bias: bool = True

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("segments", "classes"):
            require_whole(name, getattr(self, name), 0)
        require(self.scaled or not self.rounded, "rounded", self.rounded, "False unless scaled=True")
        require(self.logit_cap is None or self.logit_cap > 0, "logit_cap", self.logit_cap, "a number > 0, or None")
        require(self.multiplier > 0, "multiplier", self.multiplier, "a number > 0")
        require(self.multiplier == 1 or not self.scaled, "multiplier", self.multiplier, "1.0 beside scaled=True")
        require(self.logit_divisor > 0, "logit_divisor", self.logit_divisor, "a number > 0")
        masked = self.head == "masked"
        require(masked or self.dense_bias, "dense_bias", self.dense_bias, f"True for head={self.head!r}")
        require(self.pooled or not self.classes, "classes", self.classes, "0 unless pooled=True")


@dataclass(frozen=True)
class ModelConfig:
    """One model of the family: the 2017 encoder-decoder, an encoder, or a decoder, from one set of parts.

    vocab:         number of token ids.
    d_model:       width of the residual stream.
    layers:        number of blocks (in an encoder-decoder: of each of the two stacks).
    context:       the longest sequence, in tokens, the model is meant for.
    feed_forward:  of each block, or of each expert.
    moe:           `None` for a plain feed-forward network in each block.
    stack:         `"decoder"` (causal), `"encoder"` (sees both ways) or `"encoder_decoder"`.
    dropout:       probability, applied in training to embeddings, attention weights and each sub-layer's output.
    residual:      what each sub-layer adds to the stream is multiplied by it (Granite).
    later_heads:   further heads of a decoder, for that many tokens after the next one: `companion.layers.medusa_heads`.

    Raises `ValueError` naming the field, what it was and what it must be.
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
    later_heads: int = 0

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("vocab", "d_model", "layers", "context"):
            require_whole(name, getattr(self, name))
        require(0 <= self.dropout < 1, "dropout", self.dropout, "a probability in [0, 1)")
        require(self.residual > 0, "residual", self.residual, "a number > 0")
        require_whole("later_heads", self.later_heads, 0)
        turns_some = self.positions.kind == "rotary" or self.attention.qk_norm != "unit"
        require(turns_some, "qk_norm", self.attention.qk_norm, "another norm where positions are not rotary")
        if self.embedding.apart:
            has = self.positions.kind == "learned" or self.embedding.norm
            two = "False but for an encoder_decoder with learned positions or embedding.norm, which could be apart"
            require(self.stack == "encoder_decoder" and has, "apart", self.embedding.apart, two)
        if self.stack != "encoder":
            segments, pooled = self.embedding.segments, self.embedding.pooled
            require(segments == 0, "segments", segments, "0; only an encoder has segments")
            require(not pooled, "pooled", pooled, "False; only an encoder has a pooler")
        sizes = self.attention.resolved(self.d_model)
        if self.positions.kind == "rotary":
            turns = "d_head" if sizes.latent is None else "d_rope"
            some = sizes.d_turned > 0 and sizes.d_turned % 2 == 0
            require(some, turns, sizes.d_turned, "an even width: rotary turns pairs of components")
            share = self.positions.share
            require(share == 1 or sizes.latent is None, "share", share, "1 beside latent, whose d_rope says what turns")
            turned = sizes.d_turned if share == 1 else int(share * sizes.d_head)  # of any size, if all of it is turned
            whole = f"a share of d_head={shown(sizes.d_head)} that is an even number of components, not {shown(turned)}"
            require(turned > 0 and turned % 2 == 0, "share", share, whole)
            divisors = None if self.positions.scaling is None else self.positions.scaling.short
            for_each = f"a number for each of the {shown(turned // 2)} pairs that are turned"
            require(divisors is None or len(divisors) == turned // 2, "short", divisors, for_each)
        self._check_layers()
        if self.positions.kind == "relative":
            for name in ("latent", "linear", "window"):
                part = getattr(self.attention, name)
                require(part is None, name, part, "None beside relative positions, whose numbers every pair has")
        if self.positions.kind == "sinusoidal":
            require(
                self.d_model % 2 == 0, "d_model", self.d_model, "an even width: sinusoids come in sine-cosine pairs"
            )

    def _check_layers(self) -> None:
        """Of the kinds of layers that only some stacks have."""
        side_by_side = self.norm.parallel and self.stack == "encoder_decoder"
        place = "one without 'parallel' in an encoder_decoder, whose cross-attention stands between the two sub-layers"
        require(not side_by_side, "placement", self.norm.placement, place)
        window, latent = self.attention.window, self.attention.latent
        if self.later_heads:
            require(self.stack == "decoder", "later_heads", self.later_heads, "0; only a decoder has such heads")
        if latent is not None:
            require(self.stack == "decoder", "latent", latent, "None; only a decoder keeps latents")
        if self.attention.linear is not None:
            require(self.stack == "decoder", "linear", self.attention.linear, "None; only a decoder has linear layers")
            self.memory  # noqa: B018  (its sizes are checked where they are filled in)
        if window is not None:
            alone = self.stack != "encoder_decoder"
            require(alone, "window", window, "None; an encoder_decoder sees all, only one stack alone has windows")
            require(
                window.base is None or self.positions.kind == "rotary",
                "base",
                window.base,
                f"None for positions.kind={self.positions.kind!r}, which has no frequencies",
            )

    @property
    def sizes(self) -> ResolvedAttention:
        """heads, kv_heads, d_head and d_v with every default filled in, and the latents."""
        return self.attention.resolved(self.d_model)

    def local(self, layer: int) -> bool:
        """Whether layer `layer`, counted from 0, looks through the window; a linear one does not."""
        window = self.attention.window
        return window is not None and in_turn(window.pattern, layer) and not self.linear(layer)

    @property
    def memory(self) -> LinearConfig | None:
        """What linear layers are made of, with every size filled in; `None` where there are none, as where a pattern is
        longer than the stack."""
        sizes, linear = self.sizes, self.attention.linear
        return None if linear is None or not self.linears else linear.resolved(sizes.heads, sizes.d_head)

    def linear(self, layer: int) -> bool:
        """Whether layer `layer`, counted from 0, keeps a matrix in place of keys and values."""
        linear = self.attention.linear
        return linear is not None and in_turn(linear.pattern, layer)

    @property
    def attending(self) -> tuple[int, ...]:
        """The numbers of the layers that keep keys and values: all that are not linear."""
        return tuple(layer for layer in range(self.layers) if not self.linear(layer))

    def layer(self, layer: int) -> tuple[AttentionConfig, PositionConfig]:
        """What layer `layer`, counted from 0, is made of: its attention, with a window only if it is local, and linear
        only if it is that; and its positions."""
        if self.linear(layer):
            return replace(self.attention, linear=self.memory, window=None), PositionConfig("none")
        window, positions = self.attention.window, self.positions
        if not in_turn(positions.pattern, layer):
            seen = self._seen(layer)
            return replace(seen, qk_norm=None) if seen.qk_norm == "unit" else seen, PositionConfig("none")
        if self.local(layer) and window is not None and window.base is not None:
            positions = replace(positions, base=window.base, scaling=None)
        return self._seen(layer), replace(positions, pattern=(True,))

    def network(self, layer: int) -> tuple[FeedForwardConfig, MoEConfig | None]:
        """The feed-forward network of layer `layer`, counted from 0; if it has experts, that of each, and which."""
        if self.moe is None or in_turn(self.moe.pattern, layer):
            return self.feed_forward, self.moe
        return replace(self.feed_forward, d_ff=self.moe.plain_d_ff or self.feed_forward.d_ff), None

    @property
    def mixtures(self) -> int:
        """How many layers of a stack have experts."""
        return 0 if self.moe is None else how_many(self.moe.pattern, self.layers)

    @property
    def linears(self) -> int:
        """How many layers keep a matrix in place of keys and values."""
        linear = self.attention.linear
        return 0 if linear is None else how_many(linear.pattern, self.layers)

    def _seen(self, layer: int) -> AttentionConfig:
        seen = self.attention if self.local(layer) else replace(self.attention, window=None)
        return replace(seen, linear=None)

    def with_(self, **changes: Any) -> ModelConfig:
        """A copy with some fields changed, validated again."""
        known = [f.name for f in fields(self)]
        for name, value in changes.items():
            require(name in known, name, value, f"one of the fields {', '.join(known)}")
        return replace(self, **changes)

    def to_json(self) -> str:
        """The configuration as JSON text; `from_json` gives an equal one back."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Read what `to_json` wrote. Raises `ValueError` for bad JSON, an unknown, missing or ill-typed field."""
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ValueError(f"config: expected JSON, got text that is not ({why(error)})") from None
        return build(cls, data, "config")
