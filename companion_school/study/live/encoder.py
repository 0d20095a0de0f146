"""Moving figures of the encoder: which words have reached each row after each round, and the effect of padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from companion_school.study import figures
from companion_school.study.live import moving
from companion_school.study.live.attention import softmax


def hearing(*, words: Sequence[str], start: int = 0, who: int = 0, caption: str = "") -> None:
    """Show which words have reached each row after each round, in a recurrent network, an encoder and a decoder.

    In round 0, a row knows only its own word. In each round, a row of a recurrent network receives the words known to
    its left neighbor, a row of an encoder receives the words known to any row, and a row of a decoder receives the
    words known to any row to its left.

    Args:
        words: Three to ten words.
        start: Initial number of rounds, at most the number of words.
        who: Index of the row that has a frame initially.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range.
    """
    n = len(words)
    if not 3 <= n <= 10:
        raise ValueError(f"words: expected three to ten, got {n}")
    if not (0 <= start <= n and 0 <= who < n):
        raise ValueError(f"start, who: expected at most {n} rounds and the index of a word, got {start} and {who}")
    row, token = np.indices((n, n))
    heard = {
        "recurrent network": (token <= row) & (token >= row - start),
        "encoder": (token == row) | (start > 0),
        "decoder": (token == row) | ((start > 0) & (token < row)),
    }
    fig, axes = figures.subplots(1, 3, width=6.8, height=2.7)
    for ax, (name, table) in zip(axes, heard.items(), strict=True):
        ax.imshow(table, cmap="Blues", vmin=0, vmax=1.4)
        ax.set(title=name, xlabel="word", ylabel="row", xticks=range(n), yticks=range(n))
        ax.set_xticklabels(words, rotation=60)
        ax.set_yticklabels(words)
        ax.grid(False)
    last = np.arange(n + 1)
    moving.show(
        "hearing",
        {"words": list(words), "start": start, "who": who},
        fig,
        alt="Three tables of rows and words: which words a row has heard of. With each round the cells of the "
        "recurrent network fill up by one to the left; those of the encoder are full after one round, those of the "
        "decoder below the diagonal.",
        caption=caption,
        numbers={
            "rounds": last.tolist(),
            "recurrent: words heard by the last row": np.minimum(last + 1, n).tolist(),
            "encoder": [1] + [n] * n,
            "decoder": [1] + [n] * n,
        },
    )


def _check_filler(table: np.ndarray, points: np.ndarray, words: int, offered: list[int], start: int) -> None:
    if not 2 <= words <= 4 or table.shape != (words + 1,) * 2 or points.shape != (words + 1, 2) or points.min() < 0:
        what = "scores, values: expected (word + 1, word + 1) and (word + 1, 2) from 0 upwards, for two to four words"
        raise ValueError(f"{what}; got {table.shape} and {points.shape} for {words}")
    if offered[:1] != [0] or any(a >= b for a, b in pairwise(offered)):
        raise ValueError(f"counts: expected increasing numbers that start at 0, got {offered}")
    if start not in offered:
        raise ValueError(f"start: expected one of {offered}, got {start}")


def filler(
    scores: Sequence[Sequence[float]] | torch.Tensor,
    values: Sequence[Sequence[float]] | torch.Tensor,
    *,
    words: Sequence[str],
    counts: Sequence[int] = (0, 1, 2, 3, 5, 8, 12, 20, 40),
    start: int = 0,
    caption: str = "",
) -> None:
    """Show the outputs for a few words followed by padding, which is masked as keys, masked as queries, or not masked.

    Args:
        scores: Scaled scores (query, key) of the words and, as the last row and column, of a padding token:
            (word + 1, word + 1).
        values: Non-negative value vectors of the words and, as the last row, of a padding token: (word + 1, 2).
        words: Two to four words.
        counts: Numbers of padding tokens on the slider, increasing from 0.
        start: Initial number of padding tokens, one of `counts`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The shapes do not match the words, a value is negative, the counts do not increase from 0, or
            `start` is not one of them.
    """
    table, points = (np.asarray(x, dtype=float) for x in (scores, values))
    n, offered = len(words), list(counts)
    _check_filler(table, points, n, offered, start)

    def shares(count: int) -> np.ndarray:
        """Return the total attention weight that each word gives to padding tokens."""
        rows = (np.concatenate([row[:n], np.full(count, row[n])]) for row in table[:n])
        return np.array([softmax(row)[n:].sum() for row in rows])

    weights = np.array([softmax(row[:n]) for row in table[:n]])
    outs = weights @ points[:n]
    pulled = shares(start)[:, None]
    seen = (1 - pulled) * outs + pulled * points[n]
    fig, ax = figures.subplots(width=5.2, height=3.4)
    blue, red, orange = (figures.PALETTE[name] for name in ("blue", "red", "orange"))
    ax.plot(*points[:n].T, linestyle="none", marker="s", color=blue, label="what each word hands over")
    ax.plot(*outs.T, linestyle="none", marker="o", color=red, label="outputs, padding hidden or none")
    if start:
        hollow = {"marker": "v", "markerfacecolor": "white", "color": red}
        ax.plot(*seen.T, linestyle="none", label=f"with {start} padding tokens, nothing hidden", **hollow)
        for (a, b), (x, y) in zip(outs, seen, strict=True):
            ax.annotate("", xy=(x, y), xytext=(a, b), arrowprops={"arrowstyle": "->", "color": red})
    ax.plot(*points[n:].T, linestyle="none", marker="D", color=orange, label="what padding hands over")
    ax.set(xlabel="first component", ylabel="second component")
    ax.legend(loc="upper right", fontsize=9)
    moving.show(
        "filler",
        {"scores": table, "values": points, "words": list(words), "counts": offered, "start": start}
        | {"most": float(points.max())},
        fig,
        alt="Points in a plane: what each word and the padding hand over, and the outputs of the words. With more "
        "padding the outputs run towards its point; with the padding's columns hidden they stand still.",
        caption=caption,
        numbers={"padding tokens": offered}
        | {
            f"weight of {word} on padding": [round(float(shares(c)[i]), 4) for c in offered]
            for i, word in enumerate(words)
        },
    )
