"""Moving figure of a mixture of experts: tokens queue at the experts while the router is being trained."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm, ListedColormap

from companion_school.study import figures
from companion_school.study.live import moving

IN_A_ROW = 4  # number of tokens in a row of the queue


def queues(
    tokens: Sequence[str],
    runs: Mapping[str, Sequence[Sequence[int]] | torch.Tensor],
    *,
    steps: Sequence[int],
    experts: int,
    start: int = 0,
    caption: str = "",
) -> None:
    """Show how tokens queue at the experts that the router chooses for them, at several moments during training.

    Args:
        tokens: Labels of 8 to 96 tokens, shown in the queues.
        runs: One to three training runs by name, as tables (moment, token) with the index of each token's expert, from
            0 to `experts` - 1.
        steps: Training step of each moment, in increasing order.
        experts: Number of experts, 2 to 8.
        start: Index of the first moment shown.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: A number is out of range, the steps do not increase, or a run does not match the tokens, steps and
            experts.
    """
    signs, moments = list(tokens), list(steps)
    if not 8 <= len(signs) <= 96:
        raise ValueError(f"tokens: expected 8 to 96, got {len(signs)}")
    if not 2 <= experts <= 8:
        raise ValueError(f"experts: expected 2 to 8, got {experts}")
    if len(moments) < 2 or moments != sorted(set(moments)):
        raise ValueError(f"steps: expected two or more increasing numbers, got {moments}")
    if not 0 <= start < len(moments):
        raise ValueError(f"start: expected an index from 0 to {len(moments) - 1}, got {start}")
    if not 1 <= len(runs) <= 3:
        raise ValueError(f"runs: expected one to three, got {len(runs)}")
    chosen = {name: _choices(name, run, (len(moments), len(signs)), experts) for name, run in runs.items()}
    counts = {name: _counts(run, experts) for name, run in chosen.items()}
    even = len(signs) / experts
    # The colors range from an empty queue to a crowded one. The number of tokens doubles from one color to the next.
    edges = sorted({0, 1, *(max(1, round(even * times)) for times in (0.5, 1, 2, 4)), len(signs) + 1})
    edges = [edge for edge in edges if edge <= len(signs) + 1]
    names = [str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in itertools.pairwise(edges)]
    shades = ["white", *colormaps["Blues"](np.linspace(0.2, 1.0, len(names) - 1))]
    width = 2.3 * len(runs) + (1.5 if len(runs) > 1 else 2.7)
    fig, axes = figures.subplots(1, len(runs), width=width, height=2.7, sharey=True, squeeze=False)
    for at, (ax, (name, count)) in enumerate(zip(axes[0], counts.items(), strict=True)):
        drawn = figures.heatmap(
            ax,
            count.T,
            rows=[str(e) for e in range(experts)],
            columns=moments,
            row_label="" if at else "expert",
            column_label="",
            title=name,
            values=False,
        )
        drawn.set(cmap=ListedColormap(shades), norm=BoundaryNorm(edges, len(names)))
        ax.set_aspect("auto")
        every = -(-len(moments) // 5)  # label at most five steps, because more labels would overlap
        ax.set_xticks(range(0, len(moments), every), moments[::every])
    fig.supxlabel("training step, a column each", fontsize=11)
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    bar = fig.colorbar(drawn, ax=list(axes[0]), ticks=middles, label=f"tokens in its queue (even: {even:g})")
    bar.ax.set_yticklabels(names)
    moving.show(
        "queues",
        {
            "tokens": signs,
            "runs": [
                {"name": name, "experts": ["".join(map(str, moment)) for moment in run.tolist()]}
                for name, run in chosen.items()
            ],
            "steps": moments,
            "experts": experts,
            "start": start,
            "wide": IN_A_ROW,
        },
        fig,
        alt=f"{len(signs)} tokens stand in queues at {experts} experts, with a dashed line where all queues would be "
        "equally long. With the training step the tokens change from queue to queue; an expert that hardly "
        "anybody visits goes dark.",
        caption=caption,
        numbers={"expert": list(range(experts))}
        | {
            f"{name}, step {moments[at]}": count[at].tolist()
            for name, count in counts.items()
            for at in (0, len(moments) - 1)
        },
    )


def _choices(
    name: str, run: Sequence[Sequence[int]] | torch.Tensor, shape: tuple[int, int], experts: int
) -> np.ndarray:
    table = np.asarray(run)
    if table.shape != shape or table.dtype.kind not in "iu" or table.min() < 0 or table.max() >= experts:
        raise ValueError(f"runs, {name}: expected whole numbers from 0 to {experts - 1} of shape {shape}")
    return table


def _counts(run: np.ndarray, experts: int) -> np.ndarray:
    """Count the tokens sent to each expert at each moment (moment, expert)."""
    return np.stack([np.bincount(moment, minlength=experts) for moment in run])
