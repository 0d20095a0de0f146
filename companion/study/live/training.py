"""Moving figures of training: a decoder that reads what is right, beside one that reads what it said itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from companion.study import figures
from companion.study.live import moving

START, END = "<bos>", "<eos>"


def lanes(
    target: Sequence[str], *, says: Mapping[str, str], slots: int = 6, start: int | None = None, caption: str = ""
) -> None:
    """A decoder that looks at the last piece only, once teacher-forced and once running free.

    In the forced lane each slot reads the right piece before it; in the free lane, what the slot before has said. What
    the decoder says after each piece can be changed.

    target    two to five different pieces; `<eos>` is added behind them
    says      what is said at first after `<bos>` and after each piece: one of the pieces, or `<eos>`
    slots     how many slots the free lane may fill, as many as the target has with its `<eos>`, to eight
    start     how many slots are filled at first; all if it is not given
    caption   the sentence under the figure, with its number

    Raises ValueError for another number of pieces or one that occurs twice, for a piece after which nothing or another
    piece is said, and for slots or a start that cannot be.
    """
    pieces = list(target)
    whole, reads = [*pieces, END], [START, *pieces]
    if not 2 <= len(pieces) <= 5 or len({START, *whole}) != len(pieces) + 2:
        raise ValueError(f"target: expected two to five different pieces besides {START} and {END}, got {pieces}")
    if list(says) != reads or not set(says.values()) <= set(whole):
        raise ValueError(f"says: expected for each of {reads} one of {whole}, got {dict(says)}")
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
        (4.2, "shall say", whole, None),
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
