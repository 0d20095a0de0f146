"""Moving figures of generation: sampling the next word, causal attention with and without a cache, and the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from companion.config.model import AttentionConfig, ModelConfig
from companion.costs import account
from companion.costs.chips import Chip
from companion_school.study import figures
from companion_school.study.live import moving
from companion_school.study.live.attention import softmax, vector

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
SHARES = tuple(share / 20 for share in range(1, 21))
TEXTS = tuple(2**power for power in range(11))


def sampling(logits: Sequence[float] | torch.Tensor, *, words: Sequence[str], caption: str = "") -> None:
    """Show the probabilities of the next word, with sliders for temperature, top-k and top-p (applied in this order).

    Args:
        logits: Logits of two to ten words (vocab).
        words: The words.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The numbers of logits and words differ or are not between two and ten.
    """
    z = vector("logits", logits)
    if not 2 <= len(z) <= 10 or len(words) != len(z):
        raise ValueError(
            f"logits, words: expected two to ten logits and one word for each logit, got {len(z)} and {len(words)}"
        )
    shares = softmax(z)
    fig, ax = figures.subplots(width=7.6, height=2.9)
    bars = ax.bar(range(len(z)), shares, color=figures.PALETTE["blue"], width=0.65)
    ax.bar_label(bars, [f"{share:.2f}" for share in shares], padding=2)
    ax.set_xticks(range(len(z)), words)
    ax.set(xlabel="next word", ylabel="probability at temperature 1", ylim=(0, min(1.0, 1.2 * float(shares.max()))))
    ax.grid(False)
    columns = {f"probability at temperature {t:g}": np.round(softmax(z / t), 4).tolist() for t in (1.0, 0.5, 2.0)}
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


def triangle(words: Sequence[str], *, start: int = 1, caption: str = "") -> None:
    """Show causal attention while a text grows: each step computes one new row, or all rows if there is no cache.

    Args:
        words: Three to eight words of the text.
        start: Number of words read at the start.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The number of words or `start` is out of range.
    """
    n = len(words)
    if not 3 <= n <= 8:
        raise ValueError(f"words: expected three to eight, got {n}")
    if not 1 <= start <= n:
        raise ValueError(f"start: expected a number from 1 to {n}, the number of words, got {start}")
    fig, ax = figures.subplots(width=5.8, height=4.0)
    new, kept, gone = [
        {"facecolor": (*to_rgb(figures.PALETTE[color]), alpha), "edgecolor": edge, "linestyle": line, "linewidth": wide}
        for color, alpha, edge, line, wide in (
            ("blue", 0.4, "black", "-", 2.2), ("green", 0.5, "0.3", "-", 1.0), ("sky", 0.0, "0.3", "--", 1.0),
        )
    ]  # fmt: skip
    rows = ["keys", "values", *words]
    for i in range(start):
        newest = i == start - 1
        drawn = [(float(row), i, new if newest else kept) for row in (0, 1)]
        drawn += [(2.4 + i, j, new if newest else gone) for j in range(i + 1)]
        for row, column, look in drawn:
            cell = Rectangle((column - 0.45, row - 0.42), 0.9, 0.84)
            cell.set(**look)
            ax.add_patch(cell)
    ax.set(xlim=(-0.6, n - 0.4), ylim=(n + 2, -0.6), xlabel="token looked at", ylabel="query of")
    ax.yaxis.set_label_coords(-0.13, 0.36)
    ax.set_xticks(range(n), words)
    ax.set_yticks([0, 1, *(2.4 + i for i in range(n))], rows)
    ax.grid(False)
    counts = list(range(1, n + 1))
    moving.show(
        "triangle",
        {"words": list(words), "start": start},
        fig,
        alt="A triangle of queries by keys that grows by a row with every word. Beside what is kept only the newest "
        "row is computed: its key and value are added to the others, and old queries fade. Without it all rows are "
        "computed again.",
        caption=caption,
        numbers={
            "words read": counts,
            "rows so far, the new one each time": counts,
            "rows so far, everything again each time": [t * (t + 1) // 2 for t in counts],
        },
    )


def roofline(
    chip: Chip,
    config: ModelConfig,
    *,
    kv_heads: Sequence[int],
    texts: Sequence[int] = TEXTS,
    kept: Sequence[int] = (0, 1024, 4096, 16384, 65536),
    caption: str = "",
) -> None:
    """Show a model's decoding step on the roofline of a chip (Williams et al. 2009), with two bytes per value.

    Only the layers are counted, not the embedding and the output head.

    Args:
        chip: Peak arithmetic and memory bandwidth.
        config: A decoder with d_k = d_v = d_model / heads and a plain feed-forward network.
        kv_heads: Two or three numbers of key heads to choose from; the first one is the number of query heads.
        texts: Batch sizes on the slider.
        kept: Numbers of cached tokens per text on the slider.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: `kv_heads` is not two or three divisors of the number of query heads, beginning with that number.
    """
    sizes = config.sizes
    if not 2 <= len(kv_heads) <= 3 or kv_heads[0] != sizes.heads or any(sizes.heads % few for few in kv_heads):
        raise ValueError(f"kv_heads: expected {sizes.heads} and then one or two of its divisors, got {kv_heads}")
    grouped = [config.with_(attention=AttentionConfig(sizes.heads, few)) for few in kv_heads]
    counts = [account.parameters(model) for model in grouped]
    weights = [(count.attention + count.feed_forward) / config.layers for count in counts]
    width, size, low, high = config.d_model, 2, 0.25, 4096.0

    def intensity(batch: int, tokens: int, at: int = 0) -> float:
        cache = batch * 2 * tokens * width * kv_heads[at] / kv_heads[0]
        return batch * (2 * weights[at] + 4 * tokens * width) / (size * (weights[at] + cache))

    fig, ax = figures.subplots(width=6.6, height=3.4)
    line = [low, chip.balance, high]
    ax.plot(line, [chip.attainable(i) for i in line], color="black", marker="", label="roof of the chip")
    shown = [batch for batch in (1, 16, 256) if batch in texts] or list(texts)
    at = [intensity(batch, kept[0]) for batch in shown]
    label = f"texts at once, {f'{kept[0]:,}' if kept[0] else 'no'} tokens cached"
    ax.plot(at, [chip.attainable(i) for i in at], "o", color=figures.PALETTE["blue"], label=label)
    for batch, i in zip(shown, at, strict=True):
        ax.annotate(str(batch), (i, chip.attainable(i)), xytext=(8, -12), textcoords="offset points")
    long = kept[len(kept) // 2]  # the batch size is unchanged, and each text has its own cache
    back = intensity(shown[-1], long)
    label = f"{shown[-1]} texts, {long:,} tokens cached for each"
    ax.plot([back], [chip.attainable(back)], "s", color=figures.PALETTE["orange"], label=label)
    ax.set(xscale="log", yscale="log", xlabel="operations per byte read", ylabel="operations per second")
    ax.legend(loc="lower right")
    moving.show(
        "roofline",
        {
            "flops": chip.flops, "bandwidth": chip.bandwidth, "low": low, "high": high, "weights": weights,
            "width": width, "layers": config.layers, "size": size, "heads": list(kv_heads), "texts": list(texts),
            "kept": list(kept),
        },
        fig,
        alt="A line that rises and then runs flat: the most operations a second that memory and arithmetic allow. One "
        "text is a dot far down on the slope. More texts at once move it up the slope; more tokens kept of each move "
        "it back, and fewer key heads up again.",
        caption=caption,
        numbers={
            "texts at once": list(texts),
            **{f"operations per byte, {n} tokens cached": [round(intensity(b, n), 1) for b in texts] for n in kept[:3]},
        },
    )  # fmt: skip
