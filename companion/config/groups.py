"""Small groups of a configuration that models for long texts have: how rotary positions reach further than they were
trained to, and which layers look through a window. `companion.config.model` says what the groups around them are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from companion.ground.fields import require, require_types, require_whole

_Kind = TypeVar("_Kind")


def in_turn(pattern: tuple[_Kind, ...], layer: int) -> _Kind:
    """What a pattern says of layer `layer`, counted from 0: it begins anew where it is used up."""
    return pattern[layer % len(pattern)]


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

    factor:     s, at least 1.
    original:   C in tokens. All but `"linear"` need it.
    slow, fast: turns in C: pairs that make fewer than `slow` are slowed down by the whole factor, those that make more
                than `fast` are left alone. `None`: 1, and 32 for yarn or 4 for llama3.
    magnitude:  of yarn. `None`: 0.1 ln(s) + 1.
    whole:      of yarn: the ramp begins and ends at whole pairs, rounded outwards.

    Raises `ValueError` naming the field, what it was and what it must be.
    """

    kind: Literal["linear", "dynamic", "yarn", "llama3"]
    factor: float
    original: int | None = None
    slow: float | None = None
    fast: float | None = None
    magnitude: float | None = None
    whole: bool = True

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
        require(0 < slow < fast, "slow", self.slow, f"a number > 0 and below fast={fast}")
        yarn = self.kind == "yarn"
        require(yarn or self.magnitude is None, "magnitude", self.magnitude, f"None for kind={self.kind!r}")
        require(self.magnitude is None or self.magnitude > 0, "magnitude", self.magnitude, "a number > 0, or None")
        require(yarn or self.whole, "whole", self.whole, f"True for kind={self.kind!r}")

    @property
    def ramp(self) -> tuple[float, float]:
        """`slow` and `fast` with their defaults filled in."""
        fast = 32.0 if self.kind == "yarn" else 4.0
        return 1.0 if self.slow is None else self.slow, fast if self.fast is None else self.fast


@dataclass(frozen=True)
class WindowConfig:
    """Local layers: a token sees itself and the `width - 1` tokens before it (Beltagy et al. 2020; Jiang et al. 2023).

    width:    tokens that a token sees, its own included.
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
