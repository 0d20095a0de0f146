"""Moving figures of generation: the chances of the next word, bent by a temperature and cut by top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from companion.study import figures
from companion.study.live import moving
from companion.study.live.attention import softmax, vector

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
SHARES = tuple(share / 20 for share in range(1, 21))


def sampling(logits: Sequence[float] | torch.Tensor, *, words: Sequence[str], caption: str = "") -> None:
    """The chances of a few words to come next, with handles for temperature, top-k and top-p, applied in this order.

    logits:   one for each word, (vocab), of two to ten words.
    words:    as many.
    caption:  the sentence under the figure, with its number.

    Raises `ValueError` if logits and words are not as many, or fewer than two or more than ten.
    """
    z = vector("logits", logits)
    if not 2 <= len(z) <= 10 or len(words) != len(z):
        raise ValueError(f"logits, words: expected two to ten, as many of each, got {len(z)} and {len(words)}")
    shares = softmax(z)
    fig, ax = figures.subplots(width=7.6, height=2.9)
    bars = ax.bar(range(len(z)), shares, color=figures.PALETTE["blue"], width=0.65)
    ax.bar_label(bars, [f"{share:.2f}" for share in shares], padding=2)
    ax.set_xticks(range(len(z)), words)
    ax.set(xlabel="next word", ylabel="chance, at temperature 1", ylim=(0, min(1.0, 1.2 * float(shares.max()))))
    ax.grid(False)
    columns = {f"chance at temperature {t:g}": np.round(softmax(z / t), 4).tolist() for t in (1.0, 0.5, 2.0)}
    moving.show(
        "sampling",
        {"words": list(words), "logits": z, "temperatures": TEMPERATURES, "shares": SHARES},
        fig,
        alt="Bars, the chances of a few words to come next. A lower temperature makes the first bar grow and the "
        "others shrink, a higher one evens them out; top-k and top-p cut the last bars off, and the others grow to "
        "fill the gap.",
        caption=caption,
        numbers={"word": list(words), "logit": z.tolist()} | columns,
    )
