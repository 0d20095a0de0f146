"""Moving figure of activation patching: a vector from one forward pass replaces that of another (lesson 21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving


def travels(
    shares: Mapping[str, Sequence[Sequence[float]] | torch.Tensor],
    *,
    words: Sequence[str],
    start: tuple[int, int] = (0, 0),
    caption: str = "",
) -> None:
    """Show how much an answer changes if one vector of the residual stream is replaced by that of another text.

    Args:
        shares: Effects (layer, token) of patching, for 1 to 3 ways of patching and 1 to 8 layers. An effect is 0 if the
            answer does not change, and 1 if it becomes the other text's answer.
        words: The text's tokens, 2 to 60.
        start: Layer and token that are marked initially.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range, the tables differ in shape or do not match `words`, or an entry is not
            finite.
    """
    if not 1 <= len(shares) <= 3:
        raise ValueError(f"shares: expected 1 to 3 ways of patching; got {list(shares)}")
    tables = {way: np.asarray(of, dtype=float) for way, of in shares.items()}
    shape = next(iter(tables.values())).shape
    if any(of.shape != shape for of in tables.values()) or len(shape) != 2 or not 1 <= shape[0] <= 8:
        raise ValueError(
            f"shares: expected tables (layer, token) of equal shape with 1 to 8 layers, got "
            f"{[of.shape for of in tables.values()]}"
        )
    if not 2 <= len(words) <= 60 or shape[1] != len(words):
        raise ValueError(f"words: expected one for each of the {shape[1]} tokens (2 to 60), got {len(words)}")
    if not all(np.isfinite(of).all() for of in tables.values()):
        raise ValueError("shares: expected finite numbers; got NaN or infinity")
    if not (0 <= start[0] < shape[0] and 0 <= start[1] < shape[1]):
        raise ValueError(f"start: expected a layer index and a token index within {shape}, got {start}")
    first = next(iter(tables))
    moving.show(
        "travels",
        {
            "shares": [(np.round(of, 2) + 0.0).tolist() for of in tables.values()],
            "ways": list(tables),
            "words": [word.strip() or "·" for word in words],
            "layer": start[0],
            "token": start[1],
        },
        _still(tables[first], words),
        alt="A table of layers and tokens, a square for each vector of the stream. Dark squares: a vector that "
        "the other text lends carries the answer; the others are empty, and one square is framed.",
        caption=caption,
        numbers={
            "token": [word.strip() or "·" for word in words],
            **{f"layer {layer}": [f"{share:.2f}" for share in row + 0.0] for layer, row in enumerate(tables[first])},
        },
    )


def _still(shares: np.ndarray, words: Sequence[str]) -> Figure:
    fig, ax = figures.subplots(width=9.0, height=2.4)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
    ax.set_xticks(range(len(words)), [word.strip() or "·" for word in words], rotation=90, fontsize=8)
    ax.set_yticks(range(len(shares)), [f"before {layer}" for layer in range(len(shares))], fontsize=8)
    ax.set(xlabel="token", ylabel="layer")
    ax.grid(False)
    return fig
