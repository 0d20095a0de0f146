"""Moving figure of Muon's iteration: a polynomial that pushes all singular values towards 1 (lesson 22)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from companion_school.study import figures
from companion_school.study.live import moving

Polynomial = tuple[float, float, float]
"""Coefficients of x, x³ and x⁵."""


def newton_schulz(
    values: Sequence[float], polynomials: Mapping[str, Polynomial], *, most: int = 8, start: int = 0, caption: str = ""
) -> None:
    """Show how the singular values of a matrix change as a polynomial is repeatedly applied to them.

    Args:
        values: Two to nine singular values, above 0 and at most 1, as if the matrix had been divided by its Frobenius
            norm.
        polynomials: Two or three polynomials by name.
        most: Maximum number of applications on the slider.
        start: Initial number of applications.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range.
    """
    if not 2 <= len(values) <= 9 or any(not 0 < x <= 1 for x in values):
        raise ValueError(f"values: expected 2 to 9 numbers above 0 and at most 1, got {list(values)}")
    if len(polynomials) not in (2, 3):
        raise ValueError(f"polynomials: expected two or three, got {len(polynomials)}")
    if not 0 <= start <= most:
        raise ValueError(f"start={start}: expected 0 to most={most}")
    moving.show(
        "newton_schulz",
        {
            "values": list(values),
            "polynomials": [{"name": name, "at": list(at)} for name, at in polynomials.items()],
            "most": most,
            "start": start,
        },
        _still(values, polynomials, most),
        alt="Left, a polynomial that rises steeply from 0 and swings around 1 afterwards, beside the diagonal. Right, "
        "a line for each singular value, from where it begins to where it is after each round: small ones rise, and "
        "all end near 1. The number of rounds moves.",
        caption=caption,
        numbers={"before": [f"{x:.3f}" for x in values]}
        | {f"{name}, 5 rounds": [f"{x:.3f}" for x in _after(values, at, 5)] for name, at in polynomials.items()},
        colors=4,
    )


def _after(values: Sequence[float], at: Polynomial, times: int) -> np.ndarray:
    x = np.array(values, dtype=float)
    for _ in range(times):
        x = at[0] * x + at[1] * x**3 + at[2] * x**5
    return x


def _still(values: Sequence[float], polynomials: Mapping[str, Polynomial], most: int) -> figures.Figure:
    fig, axes = figures.subplots(1, 2, width=6.0, height=2.4)
    x = np.linspace(0, 1.25, 101)
    for (name, at), style in zip(polynomials.items(), ("-", "--", ":"), strict=False):
        axes[0].plot(x, _after(x.tolist(), at, 1), style, marker="", label=name)
    axes[0].plot(x, x, color="black", linewidth=0.8, marker="")
    axes[0].set(xlabel="singular value, before", ylabel="after one round", ylim=(0, 1.9))
    axes[0].legend(loc="upper left", fontsize=8)
    first = next(iter(polynomials.values()))
    path = np.array([_after(values, first, times) for times in range(most + 1)])
    axes[1].plot(range(most + 1), path, "-", color=figures.PALETTE["blue"], marker=".", linewidth=1.2)
    axes[1].axhline(1, color="black", linestyle="--", marker="")
    axes[1].set(xlabel="rounds", ylabel="singular values", ylim=(0, 1.3))
    return fig
