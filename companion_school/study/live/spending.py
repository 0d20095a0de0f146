"""Moving figure of training time: the model and data sizes that it allows, next to published runs (lesson 27)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from companion.ground.fields import shown
from companion_school.study import figures
from companion_school.study.live import moving

HOURS = (0.25, 0.5, 1, 2, 4, 8, 24, 42, 72, 168, 720)
PRICES = (0, 0.01, 0.4, 3, 6, 12, 24, 48)
"""Prices of the machine, in dollars per hour."""
RATIOS = (1, 5, 20, 100, 1000, 10_000)
"""Numbers of tokens per parameter."""
SIZES, TOKENS = (1e4, 1e12), (1e4, 1e14)
"""Ranges of the axes."""


def plan(
    machines: Mapping[str, tuple[float, float, float]],
    *,
    known: Mapping[str, tuple[float, float]],
    machine: str,
    hours: float = 42,
    price: float = 24,
    ratio: int = 20,
    caption: str = "",
) -> None:
    """Show which models a machine can train in a given number of hours, with 6 operations per parameter and token.

    Args:
        machines: Up to five machines, by name, as (peak in operations per second, share of the peak that training
            reaches, watts).
        known: Trained models, by name, as (parameters, tokens).
        machine: Name of the machine shown initially.
        hours: Initial number of hours, one of `HOURS`.
        price: Initial price, one of `PRICES`.
        ratio: Initial number of tokens per parameter, one of `RATIOS`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are no machines or more than five, a number of a machine is not positive, a model is outside
            the axes, or an initial value is not allowed.
    """
    if not 1 <= len(machines) <= 5 or any(min(given) <= 0 for given in machines.values()):
        raise ValueError(f"machines: expected one to five machines with positive numbers, got {shown(dict(machines))}")
    for name, (size, tokens) in known.items():
        if not (SIZES[0] <= size <= SIZES[1] and TOKENS[0] <= tokens <= TOKENS[1]):
            raise ValueError(f"known: expected sizes and tokens within the axes, got {name}: {size}, {tokens}")
    if machine not in machines:
        raise ValueError(f"machine: expected one of {', '.join(machines)}, got {shown(machine)}")
    for what, value, values in (("hours", hours, HOURS), ("price", price, PRICES), ("ratio", ratio, RATIOS)):
        if value not in values:
            raise ValueError(f"{what}: expected one of {values}, got {shown(value)}")
    peak, share, _ = machines[machine]
    operations = hours * 3600 * peak * share
    size = math.sqrt(operations / 6 / ratio)
    fig, ax = figures.subplots(width=6.4, height=4.4)
    sizes = np.logspace(math.log10(SIZES[0]), math.log10(SIZES[1]), 50)
    ax.plot(sizes, operations / 6 / sizes, color=figures.PALETTE["blue"], marker="", label="models of equal cost")
    ax.plot(size, ratio * size, "o", color=figures.PALETTE["red"], markersize=9, linestyle="none",
            label=f"{ratio} tokens for each parameter")  # fmt: skip
    for name, (parameters, tokens) in known.items():
        ax.plot(parameters, tokens, "s", color="black", fillstyle="none", linestyle="none")
        ax.annotate(name, (parameters, tokens), xytext=(7, -3), textcoords="offset points", fontsize=9)
    ax.set(xscale="log", yscale="log", xlabel="parameters", ylabel="tokens", xlim=SIZES, ylim=TOKENS)
    ax.legend(loc="lower right", fontsize=9)
    moving.show(
        "plan",
        {
            "machines": [[name, *given] for name, given in machines.items()],
            "known": [[name, *given] for name, given in known.items()],
            "start": {"machine": list(machines).index(machine), "hours": hours, "price": price, "ratio": ratio},
            "hours": HOURS, "prices": PRICES, "ratios": RATIOS, "sizes": SIZES, "tokens": TOKENS,
        },
        fig,
        alt="Tokens against parameters, both in powers of ten. A falling line joins all models that some hours on a "
        "machine can train, and a red dot marks one of them. Squares are published runs. More hours or a faster "
        "machine move the line up and to the right.",
        caption=caption,
        numbers={"model": list(known), "parameters": [one for one, _ in known.values()],
                 "tokens": [two for _, two in known.values()]},
    )  # fmt: skip
