"""Positions: how a model is told the order of its tokens (lessons 04 and 05).

Every function takes an integer tensor `positions`, so that a token keeps its place whether it is computed with the
whole sequence, alone beside a cache, or in a batch of unequal prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.config.groups import RotaryScaling
from companion.config.model import PositionConfig
from companion.ground.boundary import described
from companion.layers.frequencies import frequencies, magnitude_of, scaled_frequencies
from companion.layers.wide import wide_dtype


def _angles(
    positions: Int[Tensor, "*batch token"], width: int, base: float, dtype: torch.dtype, name: str
) -> Float[Tensor, "*batch token pair"]:
    if width % 2:
        raise ValueError(f"{name}={width}: expected an even width, because components are taken in pairs")
    # Angles reach thousands of radians: half precision would blur neighbouring positions into one.
    places = positions.to(wide_dtype(dtype))
    return places[..., None] * frequencies(width, base, places)


def sinusoidal(
    positions: Int[Tensor, "*batch token"],
    d_model: int,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    layout: Literal["half", "interleaved"] = "interleaved",
) -> Float[Tensor, "*batch token d_model"]:
    """Sinusoidal encoding (Vaswani et al. 2017, section 3.5; lesson 04).

    PE(pos, 2i) = sin(pos / base^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / base^(2i/d_model)); i counts pairs.
    With `layout="half"` all the sines come first, then all the cosines, as in Marian (and in
    tensor2tensor, whose frequencies differ a little: there the last is 1 / base exactly).

    Raises `ValueError` if `d_model` is odd, or for another layout.
    """
    angles = _angles(positions, d_model, base, dtype, "d_model")
    waves = angles.sin(), angles.cos()
    if layout == "interleaved":
        return torch.stack(waves, dim=-1).flatten(-2).to(dtype)
    if layout == "half":
        return torch.cat(waves, dim=-1).to(dtype)
    raise ValueError(f"layout={layout!r}: expected 'half' or 'interleaved'")


class Learned(nn.Module):
    """One trained vector per position, as in GPT-2 and BERT. It cannot go past `context`.

    `forward(positions: (..., token)) -> (..., token, d_model)`.
    """

    def __init__(self, context: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, positions: Int[Tensor, "*batch token"]) -> Float[Tensor, "*batch token d_model"]:
        """The rows of these positions."""
        return nn.functional.embedding(positions, self.weight)


def rotary_angles(
    positions: Int[Tensor, "*batch token"], d_head: int, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*batch token pair"]:
    """The angle, in radians, by which each pair of components turns at each position (Su et al. 2021, eq. 15).

    angle(m, j) = m * base^(-2j / d_head) for the pair j = 0 ... d_head/2 - 1. Frequencies come from the width of a
    *head*. Raises `ValueError` if `d_head` is odd.
    """
    return _angles(positions, d_head, base, dtype, "d_head")


class Rotation(NamedTuple):
    """Cosines and sines of rotary angles, made once for all the layers that turn by them: (token, pair), or
    (batch, 1, token, pair) where rows stand at different positions."""

    cos: Float[Tensor, "... token pair"]
    sin: Float[Tensor, "... token pair"]


def rotation(angles: Float[Tensor, "... token pair"], dtype: torch.dtype, magnitude: float = 1.0) -> Rotation:
    """What `rotate` needs of the angles, (token, pair) or (batch, token, pair), in the dtype of what it will turn.

    magnitude: by which turning also stretches; 1 is a rotation and nothing else.
    """
    if angles.ndim == 3:
        angles = angles[:, None]  # (batch, 1, token, pair): all heads of a row turn alike
    cos, sin = angles.cos(), angles.sin()
    if magnitude != 1.0:
        cos, sin = magnitude * cos, magnitude * sin
    return Rotation(cos.to(dtype), sin.to(dtype))


def rotate(
    x: Float[Tensor, "batch head token d_head"],
    angles: Float[Tensor, "... token pair"] | Rotation,
    layout: Literal["half", "interleaved"] = "half",
) -> Float[Tensor, "batch head token d_head"]:
    """Turn each pair of components of `x` by its angle (Su et al. 2021, eq. 34; lesson 05).

    (a, b) -> (a cos - b sin, a sin + b cos). `angles` is (token, pair) or (batch, token, pair), or their `Rotation`.
    `layout` says which components make a pair: `"half"` i and i + d_head/2, `"interleaved"` 2i and 2i + 1.
    Raises `ValueError` for any other layout, and unless there is an angle for each token and pair.
    """
    if isinstance(angles, Rotation):
        cos, sin = angles
    else:
        known = isinstance(angles, Tensor) and angles.is_floating_point()
        if not known or angles.ndim not in (2, 3) or (angles.ndim == 3 and angles.shape[0] not in (1, x.shape[0])):
            raise ValueError(
                f"angles={described(angles)}: expected a floating tensor, (token, pair) or (batch, token, pair)"
            )
        cos, sin = rotation(angles, x.dtype)
    if cos.shape[-2:] != (x.shape[2], x.shape[3] // 2):  # one pair's angles would broadcast to all
        raise ValueError(
            f"angles has (token, pair) = {tuple(cos.shape[-2:])}: expected {(x.shape[2], x.shape[3] // 2)}, one for "
            "each token and pair of x"
        )
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)  # under autocast the stream is wider than its projections
    if layout == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat(_turned(a, b, cos, sin), dim=-1)
    if layout == "interleaved":
        return torch.stack(_turned(x[..., 0::2], x[..., 1::2], cos, sin), dim=-1).flatten(-2)
    raise ValueError(f"layout={layout!r}: expected 'half' or 'interleaved'")


def _turned(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions of heads of one width (Su et al. 2021; lesson 05). Layers whose `Rotary` is equal turn alike.

    d_head:   width of a query and of a key.
    base:     of the frequencies, see `rotary_angles`.
    layout:   which components make a pair, see `rotate`.
    width:    how many components are turned, the first of each head; the others pass. `None`: all.
    scaling:  of the frequencies, see `companion.config.groups.RotaryScaling`.

    Raises `ValueError` if the width that is turned is odd.
    """

    d_head: int
    base: float = 10000.0
    layout: Literal["half", "interleaved"] = "half"
    width: int | None = None
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        if self.turned % 2:
            name = "d_head" if self.width is None else "width"
            raise ValueError(f"{name}={self.turned}: expected an even width, because rotary turns pairs of components")

    @property
    def turned(self) -> int:
        """`width`, with its default filled in."""
        return self.d_head if self.width is None else self.width

    @classmethod
    def of(cls, config: PositionConfig | None, d_head: int) -> Rotary | None:
        """The rotary positions that `config` asks for; `None` for the other kinds."""
        if config is None or config.kind != "rotary":
            return None
        width = None if config.share == 1.0 else int(config.share * d_head)
        return cls(d_head, config.base, config.pairing, width, config.scaling)

    def at(self, positions: Int[Tensor, "*batch token"], dtype: torch.dtype) -> Rotation:
        """By how much queries and keys of that dtype turn at these positions."""
        if self.scaling is None:
            return rotation(rotary_angles(positions, self.turned, self.base, dtype), dtype)
        places = positions.to(wide_dtype(dtype))
        omega = scaled_frequencies(self.turned, self.base, self.scaling, places)
        return rotation(places[..., None] * omega, dtype, magnitude_of(self.scaling))

    def turn(
        self, x: Float[Tensor, "batch head token d_head"], by: Rotation
    ) -> Float[Tensor, "batch head token d_head"]:
        """`x` turned, and what is not turned beside it as it was. Raises `ValueError` as `rotate` does."""
        if self.turned == x.shape[-1]:
            return rotate(x, by, self.layout)
        front, rest = x[..., : self.turned], x[..., self.turned :]
        return torch.cat((rotate(front, by, self.layout), rest), dim=-1)


def half_from_interleaved(d_head: int) -> Int[Tensor, "d_head"]:
    """The permutation between the two rotary layouts: `rotate(x, a, "interleaved")[..., p]` equals
    `rotate(x[..., p], a, "half")` for p = `half_from_interleaved(d_head)`.

    Permuting the rows of a trained query and key projection the same way converts a checkpoint from one layout to the
    other. Raises `ValueError` if `d_head` is odd.
    """
    if d_head % 2:
        raise ValueError(f"d_head={d_head}: expected an even width, because components are taken in pairs")
    return torch.arange(d_head).view(d_head // 2, 2).T.flatten()
