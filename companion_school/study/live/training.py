"""Moving figures of training: teacher forcing and free running, a model as it learns, and descent into a valley."""

from __future__ import annotations

import re
import string
import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving

START, END = "<bos>", "<eos>"
LEVELS = string.digits + string.ascii_lowercase  # one character per weight, because there are thousands
LETTERS = re.compile(r"[A-Za-z]+")
LINE = 88  # number of characters per line of a model's text
RATES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.9)
FLAT, STEEP = 0.1, 2.5  # curvature of the valley along the first and second weights
VALLEY_START, STEPS = (-4.0, 1.0), 40
BAD_STEP, BAD_GRADIENT = 12, (3.0, -12.0)


def lanes(
    target: Sequence[str], *, says: Mapping[str, str], slots: int = 6, start: int | None = None, caption: str = ""
) -> None:
    """Show a decoder that sees only the last token, with teacher forcing or free running.

    With teacher forcing, each slot reads the correct previous token. In free running, each slot reads the previous
    slot's output. The reader can change the decoder's output after each token.

    Args:
        target: Two to five distinct tokens; `<eos>` is appended.
        says: Initial output after `<bos>` and after each token: one of the tokens or `<eos>`.
        slots: Number of slots in free running, from the length of the target with `<eos>` to eight.
        start: Number of slots filled initially; default: all.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are too few or too many tokens, a token occurs twice, an output is missing or unknown, or
            `slots` or `start` is out of range.
    """
    pieces = list(target)
    whole, reads = [*pieces, END], [START, *pieces]
    if not 2 <= len(pieces) <= 5 or len({START, *whole}) != len(pieces) + 2:
        raise ValueError(f"target: expected two to five different pieces besides {START} and {END}, got {pieces}")
    if list(says) != reads or not set(says.values()) <= set(whole):
        raise ValueError(f"says: expected one of {whole} for each of {reads}, got {dict(says)}")
    if not len(whole) <= slots <= 8:
        raise ValueError(f"slots: expected {len(whole)} to 8, got {slots}")
    seen = slots if start is None else start
    if not 1 <= seen <= slots:
        raise ValueError(f"start: expected 1 to {slots}, got {seen}")
    forced = [says[read] for read in reads]
    free = [says[START]]
    while len(free) < slots and free[-1] != END:
        free.append(says[free[-1]])
    forced, free = forced[:seen], free[:seen]
    fig, ax = figures.subplots(width=6.0, height=2.8)
    ax.axis("off")
    ax.set(xlim=(-1.4, slots - 0.4), ylim=(-0.5, 4.6))
    rows: list[tuple[float, str, list[str], list[str] | None]] = [
        (4.2, "should say", whole, None),
        (3.0, "forced: reads", reads[: len(forced)], None),
        (2.3, "says", forced, whole),
        (1.0, "free: reads", [START, *free[:-1]], None),
        (0.3, "says", free, whole),
    ]
    for y, name, row, right in rows:
        ax.text(-0.6, y, name, ha="right", va="center", fontsize=11)
        for slot, piece in enumerate(row):
            wrong = right is not None and right[slot : slot + 1] != [piece]
            color = figures.PALETTE["red"] if wrong else "black"
            frame = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": color}
            frame["linestyle"] = "--" if wrong else "-"
            text = piece + (" ✗" if wrong else "")
            ax.text(slot, y, text, ha="center", va="center", fontsize=11, color=color, bbox=frame)
    moving.show(
        "lanes",
        {"target": whole, "reads": reads, "says": [says[read] for read in reads], "slots": slots, "start": seen},
        fig,
        alt="Two lanes of slots under a target. In the forced lane each slot reads the right piece, in the free lane "
        "what the slot before it said. What is said after each piece can be changed, and mistakes are marked in both "
        "lanes; the first one is always in the same slot.",
        caption=caption,
        numbers={"after": reads, "the decoder says": [says[read] for read in reads]},
    )


def growing(
    moments: Mapping[int, tuple[float, str]],
    *,
    prompt: str,
    known: Collection[str],
    marks: Mapping[str, float],
    start: int | None = None,
    caption: str = "",
) -> None:
    """Show how a model continues a prompt as it learns, below the curve of its score, with a logarithmic axis.

    Unknown words are red and underlined, and characters that cannot be printed are shown as U+FFFD.

    Args:
        moments: The score in bits per byte and the continuation at each of two to ten updates, in increasing order.
        prompt: The prompt.
        known: Words of the training text, in lower case, consisting of letters only.
        marks: One to four baselines by name, in bits per byte.
        start: Update shown initially; default: the first one.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are too few or too many updates, they do not increase, there are no baselines or more than
            four, or `start` is not one of the updates.
    """
    updates = list(moments)
    if not 2 <= len(updates) <= 10 or updates != sorted(set(updates)):
        raise ValueError(f"moments: expected two to ten increasing numbers, got {updates}")
    if not 1 <= len(marks) <= 4:
        raise ValueError(f"marks: expected one to four baselines, got {len(marks)}")
    first = updates[0] if start is None else start
    if first not in updates:
        raise ValueError(f"start: expected one of the updates {updates}, got {start!r}")
    bits = [score for score, _ in moments.values()]
    texts = [_shown(f"{prompt}{text}") for _, text in moments.values()]
    rows = [_marked(text, known) for text in texts]
    at = updates.index(first)
    fig, ax = figures.subplots(width=5.6, height=3.0)
    steps = range(len(updates))
    ax.plot(steps, bits, color=figures.PALETTE["blue"], label="held-out text")
    for name, level in marks.items():
        ax.axhline(level, color="black", linestyle="--", linewidth=0.9)
        ax.text(steps[-1], level, name, ha="right", va="bottom", fontsize=9)
    ax.plot(at, bits[at], "o", color=figures.PALETTE["red"], markersize=10, label=f"update {first}")
    ax.set(xlabel="update", ylabel="bits per byte", yscale="log")
    ax.set_xticks(steps, [str(update) for update in updates])
    low, high = ax.get_ylim()
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5) if low < tick < high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(loc="lower left")
    moving.show(
        "growing",
        {
            "updates": updates, "bits": bits, "rows": rows, "start": at,
            "marks": [{"name": name, "bits": level} for name, level in marks.items()],
        },
        fig,
        alt="A curve of bits per byte that falls over the updates, across dashed lines of baselines. A handle moves a "
        "dot along it, and under the picture stands what the model writes at that moment: first any token "
        "after any other, later words and phrases. Words that the training text hardly has are underlined.",
        caption=caption,
        numbers={"update": updates, "bits per byte": [f"{score:.2f}" for score in bits], "it writes": texts},
    )  # fmt: skip


def film(
    curves: Mapping[str, Sequence[float]],
    maps: Sequence[Sequence[torch.Tensor]],
    *,
    updates: Sequence[int],
    heads: Sequence[str],
    tokens: Sequence[str],
    start: int | None = None,
    caption: str = "",
) -> None:
    """Show the accuracy of one or two models during training, above the attention maps of two heads in one of them.

    Args:
        curves: Accuracy at each moment (moment,) for one or two models, by name.
        maps: Causal attention weights of each of the two heads at each moment (query, key).
        updates: Number of updates made at each moment: four to sixteen numbers in increasing order.
        heads: Names of the two heads.
        tokens: The text that the heads read, as 2 to 20 tokens.
        start: Update shown initially; default: the last one.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The moments are too few, too many or not in increasing order, `start` is not one of them, there are
            not one or two curves and two heads, or a curve or map has the wrong size.
    """
    moments, n = list(updates), len(tokens)
    if not 4 <= len(moments) <= 16 or moments != sorted(set(moments)):
        raise ValueError(f"updates: expected four to sixteen increasing numbers, got {moments}")
    first = moments[-1] if start is None else start
    if first not in moments:
        raise ValueError(f"start: expected one of the updates {moments}, got {start!r}")
    if len(curves) not in (1, 2) or len(heads) != 2:
        raise ValueError(f"curves, heads: expected one or two curves and two heads, got {len(curves)} and {len(heads)}")
    for name, right in curves.items():
        if len(right) != len(moments) or not all(0 <= share <= 1 for share in right):
            raise ValueError(f"curves, {name}: expected {len(moments)} fractions from 0 to 1, got {list(right)}")
    shapes = {tuple(weights.shape) for moment in maps for weights in moment} | {(len(moment),) for moment in maps}
    if not 2 <= n <= 20 or len(maps) != len(moments) or shapes != {(n, n), (2,)}:
        expected = f"two maps of {n} by {n} for each of {len(moments)} moments, of at most 20 tokens"
        raise ValueError(f"maps: expected {expected}; got {len(maps)} moments and {sorted(shapes)}")
    at, below = moments.index(first), torch.ones(n, n).tril().bool()
    packed = [
        ["".join(LEVELS[round(35 * one)] for one in weights[below].tolist()) for weights in moment] for moment in maps
    ]
    moving.show(
        "film",
        {
            "updates": moments, "start": at, "heads": list(heads), "tokens": list(tokens), "maps": packed,
            "curves": [{"name": name, "right": [float(share) for share in right]} for name, right in curves.items()],
        },
        _film_still(curves, maps[at], moments, at, heads, tokens),
        alt="Curves of how often a model is right over the updates, and under them the attention maps of two heads on "
        "one text. A handle over the updates moves a dot along the curves, and the maps follow: at first the weight is "
        "spread, later it lies on few tokens.",
        caption=caption,
        numbers={"update": moments}
        | {f"right, {name}": [f"{share:.2f}" for share in right] for name, right in curves.items()},
        colors=5,
    )  # fmt: skip


def _film_still(
    curves: Mapping[str, Sequence[float]],
    maps: Sequence[torch.Tensor],
    updates: Sequence[int],
    at: int,
    heads: Sequence[str],
    tokens: Sequence[str],
) -> Figure:
    fig, (left, *right) = figures.subplots(1, 3, width=7.0, height=2.5, width_ratios=[1.2, 1, 1])
    for (name, shares), color, style in zip(curves.items(), ("blue", "red"), ("-", "--"), strict=False):
        percent = [100 * share for share in shares]
        left.plot(updates, percent, color=figures.PALETTE[color], linestyle=style, marker="", label=name)
        left.plot(updates[at], percent[at], "o", color=figures.PALETTE[color], markersize=8)
    left.set(xlabel="update", ylabel="right, of 100", ylim=(-4, 104))
    left.legend(loc="upper left", fontsize=9)
    for ax, weights, name in zip(right, maps, heads, strict=True):
        ax.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
        ax.set(title=name, xlabel="key", ylabel="query")
        ax.set_xticks(range(len(tokens)), tokens, fontsize=8)
        ax.set_yticks(range(len(tokens)), tokens, fontsize=8)
        ax.grid(False)
    return fig


def _shown(text: str) -> str:
    """Return the text on one line, with U+FFFD for unprintable characters, which untrained models may generate."""
    return "".join(c if c.isprintable() or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def _marked(text: str, known: Collection[str]) -> list[list[str]]:
    """Split a text into lines, and each line into pieces that alternate between known text and unknown words."""
    lines = []
    for line in textwrap.wrap(text, LINE):
        pieces = [""]
        for piece in re.split(r"([A-Za-z]+)", line):
            if LETTERS.fullmatch(piece) and piece.lower() not in known:
                pieces += [piece, ""]
            else:
                pieces[-1] += piece
        lines.append(pieces)
    return lines


def valley(*, rate: float = 0.2, caption: str = "") -> None:
    """Show plain gradient descent or Adam in a long, narrow valley, optionally with a bad batch and with clipping.

    The loss as a function of the two weights is (0.1 x^2 + 2.5 y^2) / 2. A bad batch produces one gradient that is many
    times as long as the others and points in a different direction.

    Args:
        rate: Initial learning rate, one of `RATES`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The rate is not in `RATES`.
    """
    if rate not in RATES:
        raise ValueError(f"rate: expected one of {RATES}, got {rate!r}")
    x, y = np.meshgrid(np.linspace(-4.6, 1.4, 120), np.linspace(-1.5, 1.5, 60))
    fig, ax = figures.subplots(width=6.6, height=3.4)
    curves = 0.5 * (FLAT * x**2 + STEEP * y**2)
    ax.contour(x, y, curves, levels=[0.1, 0.5, 1.25], colors="0.55", linewidths=0.8)
    path = [np.array(VALLEY_START)]
    for _ in range(STEPS):
        path.append(path[-1] * (1 - rate * np.array([FLAT, STEEP])))
    ax.plot(*np.array(path).T, color=figures.PALETTE["blue"], marker=".", label=f"plain descent, rate {rate:g}")
    ax.plot(0, 0, "*", color=figures.PALETTE["red"], markersize=13, linestyle="none", label="the lowest point")
    ax.set(xlabel="first weight", ylabel="second weight", xlim=(-4.6, 1.4), ylim=(-1.5, 1.5))
    ax.grid(False)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    moving.show(
        "valley",
        {
            "rates": RATES, "rate": rate, "flat": FLAT, "steep": STEEP, "start": VALLEY_START, "steps": STEPS,
            "bad": BAD_STEP, "push": BAD_GRADIENT,
        },
        fig,
        alt="A long, narrow valley in contour lines and a path of steps that goes down in it, plain descent or Adam. "
        "With a larger learning rate plain descent jumps from wall to wall and flies out; a bad batch throws it far "
        "away, unless gradients are clipped.",
        caption=caption,
        numbers={
            "step of plain descent": list(range(0, STEPS + 1, 5)),
            "first weight": [f"{point[0]:.3f}" for point in path[::5]],
            "second weight": [f"{point[1]:.3f}" for point in path[::5]],
        },
    )  # fmt: skip
