"""Moving figures of the decoder: how it generates a text word by word, and which targets each slot has seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving

MASKS = {"strict": -1, "inclusive": 0, "one too wide": 1}  # slot i sees the inputs up to index i plus this number
SHIFTS = {"not shifted": 0, "shifted": 1, "shifted twice": 2}  # input i is the target this many positions earlier


def writing(
    own: Sequence[Sequence[float]] | torch.Tensor,
    cross: Sequence[Sequence[float]] | torch.Tensor,
    chances: Sequence[Sequence[float]] | torch.Tensor,
    *,
    source: Sequence[str],
    vocabulary: Sequence[str],
    start: str = "<start>",
    caption: str = "",
) -> None:
    """Show how a decoder generates a text: its self-attention, its cross-attention and the next word at every step.

    Args:
        own: Weights of self-attention (slot, slot), 0 above the diagonal.
        cross: Weights of cross-attention (slot, source token).
        chances: Probabilities of the next word (slot, vocab), the most probable of which becomes the input of the next
            slot.
        source: The two to six words of the source text.
        vocabulary: The two to eight words that the decoder can generate.
        start: Input of the first slot.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The shapes do not match, rows do not add up to one, or a slot attends to a later slot.
    """
    tables = [np.asarray(table, dtype=float) for table in (own, cross, chances)]
    slots, n, vocab = len(tables[0]), len(source), len(vocabulary)
    shapes = [table.shape for table in tables]
    if shapes != [(slots, slots), (slots, n), (slots, vocab)] or not (1 < slots < 7 and 1 < n < 7 and 1 < vocab < 9):
        what = "own, cross, probabilities: expected (slot, slot), (slot, source), (slot, vocab), with two to six slots,"
        raise ValueError(f"{what} two to six source words and two to eight vocabulary entries; got {shapes}")
    if any(np.abs(table.sum(axis=1) - 1).max() > 1e-4 or table.min() < 0 for table in tables):
        raise ValueError("own, cross, probabilities: expected rows of probabilities that sum to one")
    if np.triu(tables[0], 1).any():
        raise ValueError("own: expected no weight above the diagonal: a position cannot attend to later ones")
    says = [vocabulary[at] for at in tables[2].argmax(axis=1)]
    inputs = [start, *says[:-1]]
    moving.show(
        "writing",
        {"source": list(source), "inputs": inputs, "words": list(vocabulary)}
        | dict(zip(("own", "cross", "chances"), tables, strict=True)),
        _looks_at(tables[0], tables[1], list(source), inputs, says),
        alt="Words of a source, words that are written, and a bar for each word that may come next. Step by step the "
        "newest word looks at what is written, then at the source, and the likeliest next word is written under it.",
        caption=caption,
        numbers={"slot": list(range(slots)), "reads": inputs, "says": says}
        | {f"looks at {word}": [f"{weight:.4f}" for weight in tables[1][:, j]] for j, word in enumerate(source)},
    )


def _looks_at(own: np.ndarray, cross: np.ndarray, source: list[str], inputs: list[str], says: list[str]) -> Figure:
    """Draw the still picture, in which lines up to the source show cross-attention and arcs to the left self-attention.

    The larger the weight, the thicker the line.
    """
    fig, ax = figures.subplots(width=5.0, height=2.7)
    above, below = (np.linspace(0, 1, len(words) + 2)[1:-1] for words in (source, says))
    middle = {"ha": "center", "zorder": 3, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
    for x, word in zip(above, source, strict=True):
        ax.text(x, 1, word, va="bottom", **middle)
    for slot, (x, reads, word) in enumerate(zip(below, inputs, says, strict=True)):
        ax.text(x, 0, f"{reads} →\n{word}", va="top", **middle)
        for there, weight in zip(above, cross[slot], strict=True):
            if weight > 0.02:
                line = {"linewidth": 7 * weight, "color": figures.PALETTE["red"]}
                ax.plot([x, there], [0, 1], marker="", linestyle="-", **line)
        for there, weight in zip(below[:slot], own[slot], strict=False):
            turned = np.linspace(0, np.pi, 30)
            middle_of, reach = (x + there) / 2, (x - there) / 2
            line = {"linewidth": 7 * weight, "color": figures.PALETTE["blue"]}
            ax.plot(
                middle_of + reach * np.cos(turned),
                -0.38 - 1.2 * reach * np.sin(turned),
                marker="",
                linestyle="-",
                **line,
            )
    ax.text(0, 1, "source", ha="left", va="bottom")
    ax.text(0, 0, "reads →\nsays", ha="left", va="top")
    ax.text(0, -0.62, "notes", ha="left", va="center")
    ax.set(xlim=(0, 1), ylim=(-0.85, 1.15))
    ax.axis("off")
    return fig


def mask_and_shift(slots: int = 6, *, tokens: int = 16, follows: float = 0.75, caption: str = "") -> None:
    """Show which targets each decoder slot has seen and its lowest possible loss, for three masks and three shifts.

    There are two kinds of text. One consists of throws of a die with one side per token. In the other, each token is
    followed by its successor with probability `follows`, and otherwise by a uniformly drawn token. Above each table,
    the still picture shows the lowest possible mean loss on each kind of text.

    Args:
        slots: Number of slots, four to eight.
        tokens: Number of distinct tokens, at least two.
        follows: Probability of the successor, between 0 and 1.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range.
    """
    if not (4 <= slots <= 8 and tokens >= 2 and 0 < follows < 1):
        bounds = "expected four to eight slots, at least two tokens, and a probability between 0 and 1"
        raise ValueError(f"slots, tokens, follows: {bounds}; got {slots}, {tokens} and {follows}")
    tables = [[sees(slots, shift, mask) for mask in MASKS.values()] for shift in SHIFTS.values()]
    chances = {f"dice with {tokens} sides": 0.0, f"{follows:.0%} habit".replace("%", " %"): follows}
    losses = [[[lowest(table, tokens, chance) for table in row] for row in tables] for chance in chances.values()]
    fig, axes = figures.subplots(3, 3, width=4.8, height=5.0, sharex=True, sharey=True)
    # A lighter gray would become white when the still picture is reduced to a few colors.
    colors = ListedColormap(["#C8C8C8", figures.PALETTE["blue"], figures.PALETTE["red"]])
    row, target = np.indices((slots, slots))
    for i, shift in enumerate(SHIFTS):
        for j, mask in enumerate(MASKS):
            seen = tables[i][j]
            ax = axes[i, j]
            ax.imshow(np.where(seen, np.where(target >= row, 2, 1), 0), cmap=colors, vmin=0, vmax=2)
            for at, k in np.argwhere(seen & (target >= row)):
                ax.text(k, at, "!", ha="center", va="center", color="white", fontsize=9, fontweight="bold")
            ax.set(xticks=(0, slots - 1), yticks=(0, slots - 1), xlabel="target", ylabel=f"{shift}\nslot")
            least = " | ".join(f"{np.mean(loss[i][j]):.2f}" for loss in losses)
            ax.set_title(f"{mask}\n{least}" if i == 0 else least)
            ax.grid(False)
            ax.label_outer()
    moving.show(
        "mask_and_shift",
        {
            "seen": [[_bits(table) for table in row] for row in tables],
            "losses": losses,
            "texts": list(chances),
            "top": math.log(tokens),
        },
        fig,
        alt="A table of slots and targets: which target each slot has seen, and beside it a bar, the lowest loss that "
        "the slot can reach. Mask and shift can be chosen; wrong ones show leaks at or right of the framed diagonal.",
        caption=caption,
        numbers={"inputs": [shift for shift in SHIFTS for _ in MASKS], "mask": list(MASKS) * 3}
        | {
            f"lowest mean loss, {text}": [f"{np.mean(loss):.4f}" for row in losses[at] for loss in row]
            for at, text in enumerate(chances)
        },
    )


def sees(slots: int, shift: int, mask: int) -> np.ndarray:
    """Return a boolean table (slot, target) of the targets that each slot has seen.

    Slot i sees input j if j <= i + mask. A slot always sees its own input through the residual connection. Input j is
    target j - shift.
    """
    slot, target = np.indices((slots, slots))
    place = target + shift  # index of the input that is equal to this target
    return (place < slots) & ((place <= slot + mask) | (place == slot))


def lowest(seen: np.ndarray, tokens: int, follows: float) -> list[float]:
    """Return the lowest possible loss of each slot, in nats.

    It is 0 if the slot has seen its target, and otherwise the entropy of the target given the nearest earlier target
    that the slot has seen.
    """
    losses = []
    for slot, row in enumerate(seen):
        before = np.flatnonzero(row[:slot])
        chance = 1.0 if row[slot] else follows ** (slot - before[-1]) if len(before) else 0.0
        others = (1 - chance) / tokens  # the target is drawn uniformly from all tokens
        parts = [chance + others] + [others] * (tokens - 1)
        losses.append(max(0.0, -sum(p * math.log(p) for p in parts if p > 0)))
    return losses


def _bits(table: np.ndarray) -> list[str]:
    return ["".join("01"[int(cell)] for cell in row) for row in table]
