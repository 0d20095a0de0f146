"""Positional encodings, which represent the order of tokens (lessons 04 and 05).

Every function takes an integer tensor `positions`, so that a token has the same position whether it is computed with
the whole sequence, as a single token with a cache, or in a batch of prompts of different lengths.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.config.model import PositionConfig, RotaryScaling
from companion.ground.annotations import checked
from companion.ground.fields import require
from companion.ground.precision import wide_dtype


def frequencies(
    width: int, base: float | Float[Tensor, "*rows 1"], like: Float[Tensor, "*places"]
) -> Float[Tensor, "*rows pair"]:
    """Compute omega_i = base^(-2i / width) for i = 0 ... width/2 - 1, one frequency for each pair of components.

    The result has the dtype and device of `like`.
    """
    exponent = torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width
    return base**-exponent


def _angles(
    positions: Int[Tensor, "*batch token"], width: int, base: float, dtype: torch.dtype, name: str
) -> Float[Tensor, "*batch token pair"]:
    if width % 2:
        raise ValueError(f"{name}={width}: expected an even width, because components are rotated in pairs")
    # Angles reach thousands of radians, where half precision could not distinguish neighboring positions.
    places = positions.to(wide_dtype(dtype))
    return places[..., None] * frequencies(width, base, places)


def _fits(given: dict[str, Any]) -> None:
    require(given.get("base", 1.0) > 0, "base", given.get("base"), "a number > 0")


@checked(fits=_fits)
def sinusoidal(
    positions: Int[Tensor, "*batch token"],
    d_model: int,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    layout: Literal["half", "interleaved"] = "interleaved",
) -> Float[Tensor, "*batch token d_model"]:
    """Sinusoidal encoding (Vaswani et al. 2017, section 3.5; lesson 04).

    PE(pos, 2i) = sin(pos / base^(2i/d_model)), PE(pos, 2i+1) = cos(pos / base^(2i/d_model)), where i counts pairs. With
    `layout="half"` all the sines come first, then all the cosines, as in Marian (and in tensor2tensor, whose
    frequencies differ slightly: the last one is exactly 1 / base).

    Args:
        positions: Positions, (token) or (batch, token).
        d_model: Width of the encoding.
        base: Base of the frequencies.
        dtype: Type of the result.
        layout: Order of the components.

    Returns:
        The encoding, (..., token, d_model).

    Raises:
        ValueError: If `d_model` is odd, or the layout is unknown.
    """
    angles = _angles(positions, d_model, base, dtype, "d_model")
    waves = angles.sin(), angles.cos()
    if layout == "interleaved":
        return torch.stack(waves, dim=-1).flatten(-2).to(dtype)
    return torch.cat(waves, dim=-1).to(dtype)


class Learned(nn.Module):
    """Learned position embeddings, one vector per position up to `context`, as in GPT-2 and BERT.

    `forward(positions: (..., token)) -> (..., token, d_model)`.
    """

    def __init__(self, context: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, d_model))
        nn.init.normal_(self.weight, std=0.02)

    @checked()
    def forward(self, positions: Int[Tensor, "*batch token"]) -> Float[Tensor, "*batch token d_model"]:
        """Look up the vectors of these positions."""
        return nn.functional.embedding(positions, self.weight)

    if TYPE_CHECKING:
        __call__ = forward


def relative_buckets(
    distance: Int[Tensor, "*pairs"], buckets: int, reach: int, *, both_ways: bool
) -> Int[Tensor, "*pairs"]:
    """Return the bucket of each distance, key - query (Raffel et al. 2020, section 2.1).

    The ranges of distances are the same as in T5's released code. With n buckets per direction, a distance d below n/2
    belongs to bucket d. For larger distances the bucket is n/2 + floor(n/2 ln(d / (n/2)) / ln(reach / (n/2))), at most
    n - 1. With `both_ways`, keys after the query use the second half of the buckets. Otherwise these keys all have
    bucket 0, and a causal mask hides them.
    """
    behind = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        behind, distance = buckets * (distance > 0), distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    ratio = (distance.clamp(min=exact).float() / exact).log() / math.log(reach / exact)
    wide = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return behind + torch.where(distance < exact, distance, wide)


class RelativeBias(nn.Module):
    """Relative position bias: a learned number for each head and bucket of distances, which is added to the scores.

    All layers of a stack share this bias (Raffel et al. 2020, T5, section 2.1).

    `forward(queries: (batch, query) or (query), keys: (batch, key) or (key)) -> (#batch, head, query, key)`, from their
    positions. The result is used as an additive mask.
    """

    def __init__(self, config: PositionConfig, heads: int, *, both_ways: bool) -> None:
        super().__init__()
        self.reach, self.both_ways = config.reach, both_ways
        self.weight = nn.Parameter(torch.empty(config.buckets, heads))
        nn.init.normal_(self.weight, std=0.02)

    @checked()
    def forward(
        self, queries: Int[Tensor, "*batch query"], keys: Int[Tensor, "*others key"]
    ) -> Float[Tensor, "#batch head query key"]:
        """Return the biases for these positions of queries and keys."""
        distance = keys[..., None, :] - queries[..., None]
        found = relative_buckets(distance, len(self.weight), self.reach, both_ways=self.both_ways)
        bias = nn.functional.embedding(found, self.weight).movedim(-1, -3)
        return bias if bias.ndim == 4 else bias[None]

    if TYPE_CHECKING:
        __call__ = forward


@checked(fits=_fits)
def rotary_angles(
    positions: Int[Tensor, "*batch token"], d_head: int, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch token pair"]:
    """Compute the rotation angle of each pair of components at each position, in radians (Su et al. 2021, eq. 15).

    angle(m, j) = m * base^(-2j / d_head) for the pair j = 0 ... d_head/2 - 1. Frequencies are computed from the width
    of a *head*.

    Args:
        positions: Positions, (token) or (batch, token).
        d_head: Width of a head, or of its rotated part.
        base: Base of the frequencies.
        dtype: Type of the tensors to be rotated.

    Returns:
        The angles, (..., token, pair), in fp32 or wider.

    Raises:
        ValueError: If `d_head` is odd.
    """
    return _angles(positions, d_head, base, dtype, "d_head")


class Rotation(NamedTuple):
    """Cosines and sines of rotary angles, computed once for all the layers that rotate by them.

    Their shape is (token, pair), or (batch, 1, token, pair) if rows are at different positions.
    """

    cos: Float[Tensor, "... token pair"]
    sin: Float[Tensor, "... token pair"]


def rotation(angles: Float[Tensor, "... token pair"], dtype: torch.dtype, magnitude: float = 1.0) -> Rotation:
    """Compute the cosines and sines that `rotate` needs.

    Args:
        angles: Angles, (token, pair) or (batch, token, pair).
        dtype: Type of the tensors to be rotated.
        magnitude: Factor for the rotated components; 1 gives a pure rotation.
    """
    if angles.ndim == 3:
        angles = angles[:, None]  # (batch, 1, token, pair): all heads of a row have the same angles
    cos, sin = angles.cos(), angles.sin()
    if magnitude != 1.0:
        cos, sin = magnitude * cos, magnitude * sin
    return Rotation(cos.to(dtype), sin.to(dtype))


def _angles_fit(given: dict[str, Any]) -> None:
    """Raise `ValueError` unless there is an angle for each token and pair.

    The angles of a single pair would otherwise broadcast to all pairs.
    """
    x, angles = given["x"], given["angles"]
    cos = angles.cos if isinstance(angles, Rotation) else angles
    wanted, rows = (x.shape[2], x.shape[3] // 2), (1, x.shape[0])
    if cos.shape[-2:] != wanted or cos.ndim > 4 or (cos.ndim > 2 and cos.shape[0] not in rows):
        raise ValueError(
            f"angles has shape {tuple(cos.shape)}: expected (token, pair), {wanted}, or (batch, token, pair) "
            f"with batch={x.shape[0]}"
        )


@checked(fits=_angles_fit)
def rotate(
    x: Float[Tensor, "batch head token d_head"],
    angles: Float[Tensor, "... token pair"] | Rotation,
    layout: Literal["half", "interleaved"] = "half",
) -> Float[Tensor, "batch head token d_head"]:
    """Rotate each pair of components of `x` by its angle (Su et al. 2021, eq. 34; lesson 05).

    (a, b) -> (a cos - b sin, a sin + b cos).

    Args:
        x: Queries or keys, (batch, head, token, d_head).
        angles: (token, pair) or (batch, token, pair), or their `Rotation`.
        layout: Which components form a pair: `"half"` i and i + d_head/2 (NeoX style), `"interleaved"` 2i and 2i + 1
            (GPT-J style).

    Returns:
        The rotated tensor, (batch, head, token, d_head).

    Raises:
        ValueError: If the layout is unknown, or there is not an angle for each token and pair.
    """
    cos, sin = angles if isinstance(angles, Rotation) else rotation(angles, x.dtype)
    if cos.dtype != x.dtype:  # under autocast, the stream has a wider dtype than its projections
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if layout == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat(_turned(a, b, cos, sin), dim=-1)
    return torch.stack(_turned(x[..., 0::2], x[..., 1::2], cos, sin), dim=-1).flatten(-2)


def _turned(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)


def scaled_frequencies(
    width: int, base: float, scaling: RotaryScaling, places: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*rows pair"]:
    """Compute the frequencies by the equations of `RotaryScaling`.

    Args:
        width: Rotated width.
        base: Base of the unscaled frequencies.
        scaling: How the frequencies are scaled.
        places: Positions of the tokens in the floating-point type of the angles.

    Returns:
        Frequencies, (pair); or (batch, 1, pair) for `"dynamic"` and `"longrope"` if rows have separate positions.
    """
    if scaling.kind == "dynamic":
        return frequencies(width, _larger_base(width, base, scaling, places), places)
    omega = frequencies(width, base, places)
    if scaling.kind == "linear":
        return omega / scaling.factor
    if scaling.kind == "longrope":
        return omega / _divisors(scaling, places)
    if scaling.kind == "yarn":
        kept = _kept_by_pair(width, base, scaling, omega)
    else:
        assert scaling.original is not None
        slow, fast = scaling.ramp
        turns = scaling.original * omega / (2 * math.pi)
        kept = ((turns - slow) / (fast - slow)).clamp(0, 1) if slow < fast else (turns > fast).to(turns.dtype)
    return (1 - kept) * omega / scaling.factor + kept * omega


def _larger_base(
    width: int, base: float, scaling: RotaryScaling, places: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*rows 1"]:
    """Compute the base for the text length that each row's largest position implies, without leaving the device."""
    assert scaling.original is not None
    length = (places.amax(-1, keepdim=True) + 1).clamp(min=scaling.original)
    stretch = scaling.factor * length / scaling.original - (scaling.factor - 1)
    larger = base * stretch ** (width / (width - 2)) if width > 2 else base + 0 * stretch  # one pair: omega is 1
    return larger[..., None] if places.ndim > 1 else larger


def _divisors(scaling: RotaryScaling, places: Float[Tensor, "*batch token"]) -> Float[Tensor, "*rows pair"]:
    """Return longrope's divisors for the text length that each row's largest position implies."""
    assert scaling.original is not None and scaling.short is not None and scaling.long is not None
    short, long = places.new_tensor(scaling.short), places.new_tensor(scaling.long)
    found = torch.where(places.amax(-1, keepdim=True) + 1 > scaling.original, long, short)
    return found[:, None] if places.ndim > 1 else found


def _kept_by_pair(width: int, base: float, scaling: RotaryScaling, omega: Tensor) -> Float[Tensor, "pair"]:
    """Compute the fraction of each pair's frequency that yarn leaves unscaled.

    The fraction is a ramp in the index of the pair (Peng et al. 2023, section 3.2, with the ramp of the released code,
    which is linear in the index, not in the number of rotations). omega_j = base^(-2j / width) makes t rotations in C
    tokens at j = width ln(C / (2 pi t)) / (2 ln base).
    """
    assert scaling.original is not None
    slow, fast = scaling.ramp
    least, most = sys.float_info.min, sys.float_info.max  # bounds for finite logarithms
    ratios = (min(max(scaling.original / (2 * math.pi * turns), least), most) for turns in (fast, slow))
    first, last = (width * math.log(ratio) / (2 * math.log(base)) for ratio in ratios)
    if scaling.whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    pair = torch.arange(width // 2, device=omega.device, dtype=omega.dtype)
    return 1 - ((pair - first) / (last - first or 0.001)).clamp(0, 1)


def magnitude_of(scaling: RotaryScaling) -> float:
    """Return the factor that multiplies queries and keys in addition to their rotation.

    For yarn the factor is sqrt(1 / t) of Peng et al. 2023, eq. 22; for longrope it is that of Ding et al. 2024, section
    3.3. For the other kinds it is 1.
    """
    if scaling.magnitude is not None:
        return scaling.magnitude
    if scaling.kind == "longrope":
        assert scaling.original is not None
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original))
    return 0.1 * math.log(scaling.factor) + 1 if scaling.kind == "yarn" else 1.0


@dataclass(frozen=True)
class Rotary:
    """Rotary positions for heads of the same width (Su et al. 2021; lesson 05).

    Layers with equal `Rotary` objects rotate in the same way.

    Args:
        d_head: Width of a query and of a key.
        base: Base of the frequencies (see `rotary_angles`).
        layout: Which components form a pair (see `rotate`).
        width: Number of components that are rotated, beginning with the first of each head; the others are unchanged.
            `None` means all.
        scaling: Scaling of the frequencies (see `companion.config.model.RotaryScaling`).

    Raises:
        ValueError: If the rotated width is odd.
    """

    d_head: int
    base: float = 10000.0
    layout: Literal["half", "interleaved"] = "half"
    width: int | None = None
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        if self.turned % 2:
            name = "d_head" if self.width is None else "width"
            raise ValueError(f"{name}={self.turned}: expected an even width, because RoPE rotates pairs of components")

    @property
    def turned(self) -> int:
        """`width`, with its default filled in."""
        return self.d_head if self.width is None else self.width

    @classmethod
    def of(cls, config: PositionConfig | None, d_head: int) -> Rotary | None:
        """Make the rotary positions that `config` specifies; `None` for other kinds of positions."""
        if config is None or config.kind != "rotary":
            return None
        width = None if config.partial_rotary_factor == 1.0 else int(config.partial_rotary_factor * d_head)
        return cls(d_head, config.base, config.pairing, width, config.scaling)

    def at(self, positions: Int[Tensor, "*batch token"], dtype: torch.dtype) -> Rotation:
        """Compute the rotation of queries and keys of this dtype at these positions."""
        if self.scaling is None:
            return rotation(rotary_angles(positions, self.turned, self.base, dtype), dtype)
        places = positions.to(wide_dtype(dtype))
        omega = scaled_frequencies(self.turned, self.base, self.scaling, places)
        return rotation(places[..., None] * omega, dtype, magnitude_of(self.scaling))

    def turn(
        self, x: Float[Tensor, "batch head token d_head"], by: Rotation
    ) -> Float[Tensor, "batch head token d_head"]:
        """Rotate the first `turned` components of `x`, and leave the others unchanged.

        Raises:
            ValueError: In the same cases as `rotate`.
        """
        if self.turned == x.shape[-1]:
            return rotate(x, by, self.layout)
        front, rest = x[..., : self.turned], x[..., self.turned :]
        return torch.cat((rotate(front, by, self.layout), rest), dim=-1)


def half_from_interleaved(d_head: int) -> Int[Tensor, "d_head"]:
    """Return the permutation p between the two rotary layouts.

    `rotate(x, a, "interleaved")[..., p]` equals `rotate(x[..., p], a, "half")` for p = `half_from_interleaved(d_head)`.
    Permuting the rows of a trained query and key projection in the same way converts a checkpoint from one layout to
    the other.

    Raises:
        ValueError: If `d_head` is odd.
    """
    if d_head % 2:
        raise ValueError(f"d_head={d_head}: expected an even width, because components are rotated in pairs")
    return torch.arange(d_head).view(d_head // 2, 2).T.flatten()
