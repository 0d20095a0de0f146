"""A moving figure of a whole model: the tiny transformer of lesson 00, computed in the figure itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from companion.school.study import figures
from companion.school.study.live import moving
from companion.school.study.live.attention import softmax

PARTS = ("E", "Wq", "Wk", "Wv", "Wo", "g1", "W1", "W2", "g2")


def walk(
    models: Mapping[str, Mapping[str, torch.Tensor]],
    *,
    vocabulary: Sequence[str],
    start: Sequence[str],
    eps: float = 1e-6,
    caption: str = "",
) -> None:
    """Three words on their way through a model of one block: the state, who looks at whom, and the next word.

    models       a name, and the matrices under it, for row vectors: E (vocab, 4); Wq, Wk and Wv (2, 4, 2); Wo (4, 4);
                 the gains g1 and g2 (4); W1 (4, d_ff) and W2 (d_ff, 4). With several models one can be chosen
    vocabulary   the words, (vocab,); the first one is the filler, and is not offered
    start        the three words that stand there at first
    eps          what the norms add inside their square root
    caption      the sentence under the figure, with its number

    Raises ValueError for a model without one of the matrices or of another shape, and for a start of other words.
    """
    words = list(vocabulary)
    if len(start) != 3 or not set(start) <= set(words[1:]):
        raise ValueError(f"start: expected three words of {words[1:]}, got {list(start)}")
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
    p = {name: next_word(arrays, ids, eps) for name, arrays in checked.items()}
    shown = list(p.values())[-1]
    packed = [{"name": name, **arrays} for name, arrays in checked.items()]
    fig, ax = figures.subplots(width=7.6, height=2.6)
    bars = ax.bar(words, shown, color=figures.PALETTE["blue"], width=0.65)
    ax.bar_label(bars, [f"{chance:.2f}" for chance in shown], padding=2)
    ax.set(xlabel=f"next word after “{' '.join(start)}”", ylabel="chance", ylim=(0, 1.2 * float(shown.max())))
    ax.grid(False)
    moving.show(
        "walk",
        {"models": packed, "vocabulary": words, "start": list(start), "eps": eps},
        fig,
        alt="Three words and the four numbers of each, which change from station to station; lines from each word to "
        "those it looks at, thicker for more weight; and bars for the chance of every next word. All of it follows the "
        "words that are chosen.",
        caption=caption,
        numbers={"next word": words} | {f"chance, {name}": np.round(row, 4).tolist() for name, row in p.items()},
    )


def next_word(model: Mapping[str, np.ndarray], ids: Sequence[int], eps: float) -> np.ndarray:
    """The chance of every word to come next, (vocab,), computed as the figure's script computes it."""
    X = model["E"][list(ids)] * 2
    where = np.arange(len(ids))
    cos, sin = np.cos(where), np.sin(where)

    def turn(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 0] * cos - x[:, 1] * sin, x[:, 0] * sin + x[:, 1] * cos], axis=1)

    def size(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * gain

    heads = []
    for q, k, v in zip(model["Wq"], model["Wk"], model["Wv"], strict=True):
        scores = turn(X @ q) @ turn(X @ k).T / math.sqrt(2)
        heads.append(np.stack([softmax(scores[i, : i + 1]) @ (X @ v)[: i + 1] for i in where]))
    Y = size(X + np.concatenate(heads, axis=1) @ model["Wo"], model["g1"])
    end = size(Y + np.maximum(Y @ model["W1"], 0) @ model["W2"], model["g2"])
    return softmax(model["E"] @ end[-1])
