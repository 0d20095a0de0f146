"""Moving figure of ways to limit attention scores: QK-norm, softcapping and a sink (lesson 16)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from companion_school.study import figures
from companion_school.study.live import moving
from companion_school.study.live.attention import softmax, vector

SIZES = (1, 2, 3, 4, 6, 8)


def bounded(
    query: Sequence[float] | torch.Tensor,
    keys: Sequence[Sequence[float]] | torch.Tensor,
    *,
    words: Sequence[str],
    cap: float,
    sink: float = 0.0,
    sizes: Sequence[int] = SIZES,
    start: int | None = None,
    caption: str = "",
) -> None:
    """Show how attention weights change as query and keys grow, in LLaMA and with QK-norm, a softcap or a sink.

    Args:
        query: The query before it is multiplied by a factor (d_head,).
        keys: The key of each word (key, d_head).
        words: The 2 to 6 words that the keys belong to.
        cap: The cap c in c tanh(score / c).
        sink: Score of the sink, a logit that belongs to no key.
        sizes: Factors for query and keys on the slider: integers, at least 1.
        start: Initial factor, also used in the still figure; default: the largest.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The number of words, the cap or a size is out of range, the shapes do not match, the query or a key
            is zero, or `start` is not one of the sizes.
    """
    q, k = vector("query", query), np.asarray(keys, dtype=float)
    _fit(q, k, words, cap, sizes)
    start = max(sizes) if start is None else start
    if start not in sizes:
        raise ValueError(f"start: expected one of the sizes {list(sizes)}, got {start}")
    scores = k @ q / math.sqrt(len(q))
    normed = _unit(k) @ _unit(q) / math.sqrt(len(q))
    grown = scores * start**2
    rows = {
        "as in LLaMA": softmax(grown),
        "normed": softmax(normed),
        "capped": softmax(cap * np.tanh(grown / cap)),
        "with a sink": softmax(np.append(grown, sink)),
    }
    moving.show(
        "bounded",
        {
            "scores": scores,
            "normed": normed,
            "words": list(words),
            "cap": cap,
            "sink": sink,
            "sizes": list(sizes),
            "start": start,
        },
        _still(rows, [*words, "nobody"], start),
        alt="Four rows of bars, the weights of one query whose vectors have grown: as in LLaMA a single bar has all, "
        "with norms the bars are as they were, with a cap several are equal, and with a sink there is one more bar, "
        "for nobody. The size of queries and keys moves.",
        caption=caption,
        numbers={"key": [*words, "nobody"]}
        | {f"{name}, at {start} times": [f"{w:.3f}" for w in row] + [""] * (len(words) + 1 - len(row))
           for name, row in rows.items()},
        colors=8,
    )  # fmt: skip


def _fit(q: np.ndarray, k: np.ndarray, words: Sequence[str], cap: float, sizes: Sequence[int]) -> None:
    if not 2 <= len(words) <= 6 or k.shape != (len(words), len(q)):
        raise ValueError(f"keys: expected one row of {len(q)} numbers for each of 2 to 6 words, got {k.shape}")
    if not (q.any() and k.any(-1).all()):
        raise ValueError("query, keys: expected no row of zeros, which has no direction")
    if not cap > 0:
        raise ValueError(f"cap: expected a number above 0, got {cap!r}")
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes: expected two or more numbers, each at least 1, got {list(sizes)}")


def _still(rows: dict[str, np.ndarray], words: Sequence[str], start: int) -> figures.Figure:
    fig, axes = figures.subplots(1, 4, width=7.6, height=2.4, sharey=True)
    for ax, (title, row) in zip(axes, rows.items(), strict=True):
        ax.bar(range(len(row)), row, color=figures.PALETTE["blue"], width=0.7)
        ax.set_xticks(range(len(row)), words[: len(row)], rotation=90)
        ax.set(title=title, xlabel="key", ylim=(0, 1.05))
        ax.grid(False)
    axes[0].set_ylabel("weight")
    return fig


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.sqrt(np.square(rows).mean(-1, keepdims=True))
