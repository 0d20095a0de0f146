"""Moving figures of attention: how weights collapse as vectors get wider, and how dot products become weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from companion_school.study import figures
from companion_school.study.live import moving

WIDTHS = (1, 4, 16, 64, 256, 1024)
MOST_WITH_PARTS = 4  # the still figure shows the products for at most this many words, because more would not fit


def collapse(
    scores: Sequence[float] | torch.Tensor,
    *,
    words: Sequence[str],
    widths: Sequence[int] = WIDTHS,
    start: int | None = None,
    caption: str = "",
) -> None:
    """Show how one query's attention weights change as the vectors get wider, with raw and with scaled scores.

    Args:
        scores: Scaled scores q · k / sqrt(d_k) of the keys (key,), with magnitudes of about 1.
        words: Word of each key.
        widths: Values of d_k on the slider.
        start: Initial value of the slider, also shown in the still figure; default: the largest width.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are fewer than two scores or widths, the numbers of words and scores differ, a width is not
            positive, or `start` is not among the widths.
    """
    unit = vector("scores", scores)
    if len(unit) < 2 or len(words) != len(unit):
        raise ValueError(
            f"scores, words: expected at least two scores and one word for each score, got {len(unit)} and {len(words)}"
        )
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"widths: expected two or more positive numbers, got {list(widths)}")
    start = max(widths) if start is None else start
    if start not in widths:
        raise ValueError(f"start: expected one of the widths {list(widths)}, got {start}")
    rows = {"raw scores q · k": softmax(unit * math.sqrt(start)), "divided by √dₖ": softmax(unit)}
    fig, axes = figures.subplots(1, 2, width=7.6, height=3.0, sharey=True)
    for ax, (title, row), color in zip(axes, rows.items(), ("red", "blue"), strict=True):
        bars = ax.bar(range(len(unit)), row, color=figures.PALETTE[color], width=0.7)
        ax.bar_label(bars, [f"{weight:.2f}" for weight in row], fontsize=9, padding=2)
        ax.set_xticks(range(len(unit)), words)
        ax.set(title=title, xlabel=f"key, at dₖ = {start}", ylim=(0, 1.08))
        ax.grid(False)
    axes[0].set_ylabel("weight")
    moving.show(
        "collapse",
        {"scores": unit, "words": list(words), "widths": list(widths), "start": start},
        fig,
        alt="Two rows of bars, the weights of one query. With more components the bars of the raw scores collapse to a "
        "single one; the bars of the scores divided by the root of the number of components keep their shape.",
        caption=caption,
        numbers={
            "key": list(words),
            "score / √dₖ": unit.tolist(),
            f"weight, raw, at dₖ = {max(widths)}": _rounded(softmax(unit * math.sqrt(max(widths)))),
            "weight, divided, at every width": _rounded(softmax(unit)),
        },
    )


def hover(
    queries: Sequence[Sequence[float]] | torch.Tensor,
    keys: Sequence[Sequence[float]] | torch.Tensor,
    *,
    words: Sequence[str],
    start: int = -1,
    caption: str = "",
) -> None:
    """Show how the dot products of one query with all keys become scores, and how the scores become weights.

    Readers choose the query.

    Args:
        queries: Query vectors (token, d_k) of two to eight tokens, with at most six components.
        keys: Key vectors of the same shape.
        words: Word of each token.
        start: Index of the query shown first; -1 is the last token.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The shapes differ or are too large, the numbers of words and tokens differ, or `start` is not the
            index of a token.
    """
    Q, K = _matrix("queries", queries), _matrix("keys", keys)
    if Q.shape != K.shape or not (2 <= len(Q) <= 8 and 1 <= Q.shape[1] <= 6):
        raise ValueError(
            "queries, keys: expected the same shape for both (2 to 8 tokens, 1 to 6 components), "
            f"got {Q.shape} and {K.shape}"
        )
    if len(words) != len(Q):
        raise ValueError(f"words: expected {len(Q)}, one for each token, got {len(words)}: {list(words)}")
    if not -len(Q) <= start < len(Q):
        raise ValueError(f"start: expected the index of one of {len(Q)} tokens, got {start}")
    start %= len(Q)
    scaled = Q @ K.T / math.sqrt(Q.shape[1])
    weights = np.stack([softmax(row) for row in scaled])
    parts = len(words) <= MOST_WITH_PARTS
    fig, ax = figures.subplots(width=7.6, height=3.4 + 0.17 * Q.shape[1] * parts)
    bars = ax.bar(range(len(words)), weights[start], color=figures.PALETTE["blue"], width=0.6)
    ax.bar_label(bars, [f"{weight:.2f}" for weight in weights[start]], padding=2)
    ticks = [f"{word}\n{_score(Q[start], key, parts)}" for word, key in zip(words, K, strict=True)]
    ax.set_xticks(range(len(words)), ticks, parse_math=False)
    label = "key, query × key part by part, and the scaled score" if parts else "key, and its scaled score"
    ax.set(xlabel=label, ylabel="weight", ylim=(0, 1.08), title=f"where “{words[start]}” looks")
    ax.grid(False)
    moving.show(
        "hover",
        {"words": list(words), "queries": Q, "keys": K, "start": start},
        fig,
        alt="The words of a sentence, one of which looks at all of them. Under each word its products with the query, "
        "part by part, their sum, which is the score, and a bar for the weight that the softmax makes of it. Another "
        "word can be chosen.",
        caption=caption,
        numbers={"weights: query \\ key": list(words)}
        | {
            f"{word} ({j})" if list(words).count(word) > 1 else word: _rounded(weights[:, j])
            for j, word in enumerate(words)
        },
    )


def _score(query: np.ndarray, key: np.ndarray, parts: bool) -> str:
    """Write out the scaled dot product of two vectors and, if `parts` is true, the products on separate lines."""
    each = [f"{_factor(x)} · {_factor(y)} = {x * y + 0:.4g}" for x, y in zip(query, key, strict=True) if parts]
    score = query @ key
    return "\n".join([*each, f"{score:.4g} / √{len(query)} = {score / len(query) ** 0.5 + 0:.4g}"]).replace("-", "−")


def _factor(x: float) -> str:
    return f"({x:.4g})" if x < 0 else f"{x:.4g}"


def _rounded(weights: np.ndarray) -> list[str]:
    return [f"{weight:.4f}" for weight in weights]


def vector(name: str, values: Sequence[float] | torch.Tensor) -> np.ndarray:
    """Convert a list of numbers to an array, or raise `ValueError` for anything else."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected a list of numbers, got shape {array.shape}")
    return array


def _matrix(name: str, values: Sequence[Sequence[float]] | torch.Tensor) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 2:
        raise ValueError(f"{name}: expected rows of numbers, got shape {array.shape}")
    return array


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of one row."""
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()
