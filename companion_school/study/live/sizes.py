"""Moving figure of a compute budget: what a scaling law predicts for models of every size (lesson 23)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from companion_school.study import figures
from companion_school.study.live import moving

Law = tuple[float, float, float, float, float]
"""Floor, alpha, delta, factor 1 and factor 2 (see `budget`)."""
FACTORS = (0.25, 0.5, 1, 3, 10, 30, 100)
RANGE = (1.25, 3.5)  # bits per byte
LISTED = (1e3, 1e4, 1e5, 1e6, 1e7)  # parameters, in the table of a budget without measured runs


def budget(
    laws: Sequence[Law],
    *,
    compute: float,
    runs: Sequence[tuple[float, int, float]],
    law: int = 0,
    caption: str = "",
) -> None:
    """Plot the score that a scaling law predicts for a given compute budget against model size.

    A law is (floor, alpha, delta, factor 1, factor 2): bits per byte = floor + factor 1 / parameters^alpha + factor 2 /
    tokens^delta. Training a model on that many tokens costs 6 * parameters * tokens operations.

    Args:
        laws: One to six laws, each with a different floor.
        compute: Number of operations in one night; the slider multiplies it by a value in `FACTORS`.
        runs: Measured runs as tuples (number of nights from `FACTORS`, parameters, bits per byte).
        law: Index of the law that is shown initially.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are no laws or more than six, two laws have the same floor, `compute` is not positive, a run's
            number of nights is not in `FACTORS`, or `law` is not the index of a law.
    """
    floors = [one[0] for one in laws]
    if not 1 <= len(laws) <= 6 or len(set(floors)) < len(floors):
        raise ValueError(f"laws: expected one to six laws with different floors, got the floors {floors}")
    if not compute > 0:
        raise ValueError(f"compute: expected a number above 0, got {compute}")
    if others := sorted({nights for nights, *_ in runs} - set(FACTORS)):
        raise ValueError(f"runs: expected numbers of nights from {FACTORS}, got {others}")
    if law not in range(len(laws)):
        raise ValueError(f"law: expected 0 to {len(laws) - 1}, got {law}")
    sizes = np.logspace(3, 6, 121)
    scores = _predicted(laws[law], compute, sizes)
    best = int(scores.argmin())
    fig, ax = figures.subplots(width=5.6, height=3.4)
    inside = scores <= RANGE[1]
    ax.plot(
        sizes[inside], scores[inside], color=figures.PALETTE["blue"], marker="", label=f"the law, floor {floors[law]:g}"
    )
    ax.plot(sizes[best], scores[best], "o", color=figures.PALETTE["red"], markersize=9, label="its best size")
    measured = [(size, bits) for nights, size, bits in runs if nights == 1]
    if measured:
        ax.plot(*zip(*measured, strict=True), "s", color="black", fillstyle="none", linestyle="none", label="measured")
    ax.set(xscale="log", xlabel="parameters", ylabel="bits per byte")
    ax.legend()
    moving.show(
        "budget",
        {
            "laws": [{"floor": one[0], "exponents": one[1:3], "factors": one[3:5]} for one in laws],
            "compute": compute, "factors": FACTORS, "start": 1, "law": law, "range": RANGE,
            "runs": [{"compute": nights, "size": size, "bits": bits} for nights, size, bits in runs],
        },
        fig,
        alt="A valley: the score that a law predicts for one budget of compute, against the number of parameters. "
        "Small models on the left read much, large ones on the right little, and a red dot marks the best size. With "
        "more compute the dot moves right and down. Squares are measured runs.",
        caption=caption,
        numbers=_valley(
            laws[law], compute, [size for size, _ in measured] or sorted({*LISTED, sizes[best]}),
            [bits for _, bits in measured],
        ),
    )  # fmt: skip


def _predicted(law: Law, compute: float, size: Any) -> Any:
    """Return the bits per byte that the law predicts for a model of this size, or for an array of sizes."""
    floor, alpha, delta, first, second = law
    return floor + first / size**alpha + second / (compute / 6 / size) ** delta


def _valley(law: Law, compute: float, sizes: Sequence[float], measured: Sequence[float]) -> dict[str, list[object]]:
    """Return a table of models of these sizes that take the same compute, with any measured bits per byte."""
    table: dict[str, list[object]] = {
        "parameters": [round(size) for size in sizes],
        "tokens": [round(compute / 6 / size) for size in sizes],
        "predicted": [float(_predicted(law, compute, size)) for size in sizes],
    }
    return table | ({"measured": [*measured]} if measured else {})
