"""Moving figures of multiple heads: bricks that `view` and `transpose` sort, and switches for trained heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from companion_school.study import figures
from companion_school.study.live import moving

COLORS = ("blue", "orange", "purple", "green")


def bricks(tokens: int = 4, heads: int = 3, *, caption: str = "") -> None:
    """Show how each head's part of a token's row, drawn as a brick, moves from the matrix product to the head.

    `view` followed by `transpose` sorts the bricks correctly. A direct `view` to (head, token) does not.

    Args:
        tokens: Number of tokens, 2 to 6.
        heads: Number of heads, 2 to 4.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: A number is out of range.
    """
    if not (2 <= tokens <= 6 and 2 <= heads <= 4):
        raise ValueError(f"tokens, heads: expected 2 to 6 tokens and 2 to 4 heads, got {tokens} and {heads}")
    fig, axes = figures.subplots(1, 2, width=7.6, height=0.6 + 0.62 * heads)
    slots = np.arange(tokens * heads).reshape(heads, tokens)  # the layout that a direct `view` assumes
    right = np.arange(tokens * heads).reshape(tokens, heads).T
    for ax, lies, title in zip(axes, (right, slots), ("view, then transpose", "direct view"), strict=True):
        _wall(ax, lies, heads, title)
    numbers: dict[str, list] = {"head": list(range(heads))}
    for name, lies in (("right", right), ("direct view", slots)):
        numbers |= {f"slot {s}, {name}": [f"t{b // heads} h{b % heads}" for b in lies[:, s]] for s in range(tokens)}
    moving.show(
        "bricks",
        {"tokens": tokens, "heads": heads},
        fig,
        alt="Bricks, one for each token and head, coloured by head. They stand in the rows of the tokens, lie down in "
        "one long row in memory, and are sorted into the rows of the heads. View and transpose bring each to its head; "
        "the direct view cuts the row into pieces, and most bricks lie in a wrong place.",
        caption=caption,
        numbers=numbers,
    )


def _wall(ax: Axes, lies: np.ndarray, heads: int, title: str) -> None:
    for (row, slot), brick in np.ndenumerate(lies):
        token, head = divmod(int(brick), heads)
        wrong = (head, token) != (row, slot)
        red, edge = figures.PALETTE["red"], ("--", 2.0) if wrong else ("-", 1.0)
        brick_at = Rectangle((slot - 0.45, row - 0.4), 0.9, 0.8, linestyle=edge[0], linewidth=edge[1])
        brick_at.set_facecolor((*to_rgb(figures.PALETTE[COLORS[head]]), 0.45))
        brick_at.set_edgecolor(red if wrong else "0.4")
        ax.add_patch(brick_at)
        ax.text(slot, row, f"t{token} h{head}", ha="center", va="center", fontsize=10)
    ax.set(xlim=(-0.6, lies.shape[1] - 0.4), ylim=(lies.shape[0] - 0.5, -0.5), title=title)
    ax.set(xlabel="slot of the token axis", ylabel="head", xticks=range(lies.shape[1]), yticks=range(lies.shape[0]))
    ax.grid(False)


def switchboard(
    right: Sequence[float] | torch.Tensor,
    does: Sequence[Sequence[str]],
    *,
    marks: Sequence[tuple[str, float]] = (),
    together: Sequence[int] = (),
    caption: str = "",
) -> None:
    """Show a switch for each head of a trained model, and the model's accuracy with the heads that are on.

    Args:
        right: Accuracy with every possible set of heads switched off, 2^(layers · heads) values. In set b, head u of
            layer l is off if bit l · heads + u of b is 1, so the first value is the accuracy of the whole model.
        does: What each head does, in a word or two (layer, head).
        marks: Accuracies of baselines by name, drawn as lines.
        together: Sets of several heads, numbered as in `right`; the still figure shows them below the single heads.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The layers have different numbers of heads, there are more than ten heads, `right` does not contain
            one accuracy from 0 to 1 per set, or `together` contains a number that is not a set.
    """
    names = [list(row) for row in does]
    heads = len(names[0]) if names else 0
    count = len(names) * heads
    if not 1 <= count <= 10 or any(len(row) != heads for row in names):
        raise ValueError(
            f"does: expected rows of equal length with at most ten heads, got {[len(row) for row in names]}"
        )
    shares = np.asarray(right, dtype=float)
    if shares.shape != (2**count,) or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(
            f"right: expected {2**count} fractions from 0 to 1, one for each set of heads; got {shares.shape}"
        )
    if not all(0 <= off < 2**count for off in together):
        raise ValueError(f"together: expected set indices from 0 to {2**count - 1}, got {list(together)}")
    shown = [0, *(1 << at for at in range(count)), *together]
    single = [_off(off, len(names), heads) for off in shown]
    alone = [shares[off] for off in shown]
    fig, ax = figures.subplots(width=5.0, height=0.7 + 0.22 * len(single))
    bars = ax.barh(range(len(single)), [100 * share for share in alone], color=figures.PALETTE["blue"], height=0.7)
    ax.bar_label(bars, [f"{100 * share:.0f}" for share in alone], padding=3, fontsize=9)
    for name, share in marks:
        ax.axvline(100 * share, color="0.35", linestyle="--", linewidth=1.2)
        ax.text(100 * share + 1, -0.75, name, fontsize=9, va="center")
    ax.set_yticks(range(len(single)), single)
    ax.set_xticks(range(0, 101, 20))
    ax.set(xlabel="right answers (%)", ylabel="switched off", xlim=(0, 115), ylim=(len(single) - 0.4, -1.2))
    ax.grid(False)
    moving.show(
        "switchboard",
        {"percent": np.rint(100 * shares).astype(int), "does": names, "marks": [list(mark) for mark in marks]},
        fig,
        alt="A box for each head of each layer, with what it does, and a bar of how often the model is right. Each "
        "head can be switched off, alone or with others, and the bar follows.",
        caption=caption,
        numbers={"heads": single, "right": [f"{share:.3f}" for share in alone]},
    )


def _off(off: int, layers: int, heads: int) -> str:
    """Describe the heads in the set `off` in words, such as "layer 0, heads 1 and 2"."""
    words = []
    for layer in range(layers):
        gone = [str(head) for head in range(heads) if off >> (layer * heads + head) & 1]
        if len(gone) == heads > 1:
            words.append(f"layer {layer}, all")
        elif gone:
            which = " and ".join([", ".join(gone[:-1]), gone[-1]] if len(gone) > 1 else gone)
            words.append(f"layer {layer}, head{'s' * (len(gone) > 1)} {which}")
    return "; ".join(words) or "none"
