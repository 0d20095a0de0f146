"""Moving figure of a whole model: the tiny transformer from lesson 00, computed in the figure itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving
from companion_school.study.live.attention import softmax

PARTS = ("E", "Wq", "Wk", "Wv", "Wo", "g1", "W1", "W2", "g2")


def walk(
    models: Mapping[str, Mapping[str, torch.Tensor]],
    *,
    vocabulary: Sequence[str],
    start: Sequence[str],
    eps: float = 1e-6,
    film: str = "",
    caption: str = "",
) -> None:
    """Show how three words pass through a one-block model: the states, the attention and the next word.

    Args:
        models: The matrices of each model, by the model's name. The matrices multiply row vectors: E (vocab, 4); Wq, Wk
            and Wv (2, 4, 2); Wo (4, 4); the gains g1 and g2 (4,); W1 (4, d_ff) and W2 (d_ff, 4). The reader can choose
            among several models.
        vocabulary: The words (vocab,), the first of which is padding and cannot be chosen.
        start: The first three words.
        eps: Epsilon in the square root of the norms.
        film: If the models are moments of one training run, the unit of the numbers in their names, such as "update".
            The reader then chooses a moment with a slider.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There is no model, a matrix is missing or has the wrong shape, or `start` is not three words from
            the vocabulary.
    """
    words = list(vocabulary)
    if len(start) != 3 or not set(start) <= set(words[1:]):
        raise ValueError(f"start: expected three of the words {words[1:]}, got {list(start)}")
    checked: dict[str, dict[str, np.ndarray]] = {}
    for name, parts in models.items():
        arrays = {part: np.asarray(parts[part], dtype=float) for part in PARTS if part in parts}
        if set(arrays) != set(PARTS):
            raise ValueError(f"{name}: expected the matrices {', '.join(PARTS)}, got {', '.join(arrays) or 'none'}")
        hidden = arrays["W1"].shape[-1]
        shapes = ((len(words), 4), *[(2, 4, 2)] * 3, (4, 4), (4,), (4, hidden), (hidden, 4), (4,))
        for part, shape in zip(PARTS, shapes, strict=True):
            if arrays[part].shape != shape:
                raise ValueError(f"{name}: expected {part} of shape {shape}, got {arrays[part].shape}")
        checked[name] = arrays
    if not checked:
        raise ValueError("models: expected at least one, got none")
    ids = [words.index(word) for word in start]
    last = follow(list(checked.values())[-1], ids, eps)
    ends = dict.fromkeys((next(iter(checked)), [*checked][-1])) if film else checked
    p = {name: follow(checked[name], ids, eps)[2] for name in ends}
    packed = [{"name": name, **arrays} for name, arrays in checked.items()]
    fig = _still(*last, words, list(start))
    moving.show(
        "walk",
        {"models": packed, "vocabulary": words, "start": list(start), "eps": eps, "film": film},
        fig,
        alt="Three words and the four numbers of each, which change from station to station; lines from each word to "
        "those it looks at, thicker for more weight; and bars for the chance of every next word. All of it follows the "
        "words that are chosen.",
        caption=caption,
        colors=4,
        numbers={"next word": words} | {f"probability, {name}": np.round(row, 4).tolist() for name, row in p.items()},
    )


def _still(state: np.ndarray, weights: np.ndarray, p: np.ndarray, words: list[str], start: list[str]) -> Figure:
    """Draw the final states, lines between words that show attention, and the next word."""
    fig, (left, *heads, right) = figures.subplots(1, 4, width=7.6, height=2.3, width_ratios=[2, 1, 1, 2])
    for ax, title in ((left, "the state, at the end"), (heads[0], "head 0"), (heads[1], "head 1")):
        ax.set(title=title, xlim=(-0.2, 1.5), ylim=(len(start) - 0.5, -0.6))
        ax.axis("off")
    for i, word in enumerate(start):
        left.text(-0.2, i, word, va="center", weight="bold" if i == len(start) - 1 else "normal")
        left.text(1.6, i, "  ".join(f"{number:5.2f}" for number in state[i]), va="center", ha="right", fontsize=10)
    for ax, head in zip(heads, weights, strict=True):
        for i in range(len(start)):
            own = i == len(start) - 1
            for j in range(i + 1):
                color = figures.PALETTE["blue"] if own else "0.6"
                ax.plot([0, 0.85], [i, j], color=color, linewidth=0.3 + 6 * head[i, j], marker="", linestyle="-")
        for j, weight in enumerate(head[-1]):
            ax.text(1.0, j, f"{weight:.2f}", va="center", fontsize=10)
    right.bar(words, p, color=figures.PALETTE["blue"], width=0.65)
    right.set(title="the next word", xlabel="word", ylabel="probability")
    right.tick_params(axis="x", labelrotation=90)
    right.grid(False)
    return fig


def follow(
    model: Mapping[str, np.ndarray], ids: Sequence[int], eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute in Python what the figure's script computes in the browser.

    Returns:
        The final states (token, 4), the attention weights of the heads (2, token, token), and the probability that each
        word comes next (vocab,).
    """
    X = model["E"][list(ids)] * 2
    where = np.arange(len(ids))
    cos, sin = np.cos(where), np.sin(where)

    def turn(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 0] * cos - x[:, 1] * sin, x[:, 0] * sin + x[:, 1] * cos], axis=1)

    def size(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * gain

    weights = np.zeros((2, len(ids), len(ids)))
    for h, (q, k) in enumerate(zip(model["Wq"], model["Wk"], strict=True)):
        scores = turn(X @ q) @ turn(X @ k).T / math.sqrt(2)
        for i in where:
            weights[h, i, : i + 1] = softmax(scores[i, : i + 1])
    heads = weights @ (X @ model["Wv"])
    Y = size(X + np.concatenate(list(heads), axis=1) @ model["Wo"], model["g1"])
    end = size(Y + np.maximum(Y @ model["W1"], 0) @ model["W2"], model["g2"])
    return end, weights, softmax(model["E"] @ end[-1])
