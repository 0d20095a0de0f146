"""Moving figure of a shrinking KV cache: values cached per token and layer, and memory per text."""

from __future__ import annotations

from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving

TOKENS = (1024, 4096, 16384, 65536, 131072)
CARD = 80
"""Memory in gigabytes of the GPU that is drawn for comparison."""


def leaves(
    *, layers: int, heads: int, d_head: int, d_v: int, groups: int, latent: tuple[int, int], caption: str = ""
) -> None:
    """Show the KV cache of multi-head, grouped-query, multi-query and latent attention.

    The figure shows how many values a layer caches per token, and how many gigabytes (10⁹ bytes) the cache of a text
    takes up with two bytes per value.

    Args:
        layers: Number of layers.
        heads: Number of query heads, a multiple of 32.
        d_head: Width of a key.
        d_v: Width of a value.
        groups: Number of key heads in grouped-query attention: 2, 4 or 8.
        latent: Widths of the latent vector and of the rotated key that is cached with it.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: A size is out of range.
    """
    if min(layers, heads, d_head, d_v, *latent) < 1 or heads % 32 or groups not in (2, 4, 8):
        raise ValueError(
            f"heads={heads}, groups={groups}: expected heads to be a multiple of 32, groups to be 2, 4 or 8, and all "
            "other sizes to be at least 1"
        )
    each = d_head + d_v
    rank, turned = latent
    said = {
        "MHA": (32, heads * each, f"a key and a value for each of {heads} heads"),
        "GQA": (groups, groups * each, f"a key and a value for each of {groups} groups"),
        "MQA": (1, each, "one key and one value for all heads"),
        "MLA": (1, rank + turned, f"a latent of {rank} numbers and a key of {turned}"),
    }
    kinds = [dict(zip(("name", "boxes", "numbers", "said"), (name, *told), strict=True)) for name, told in said.items()]
    numbers = {name: count for name, (_, count, _) in said.items()}
    moving.show(
        "leaves",
        {"kinds": kinds, "heads": heads, "layers": layers, "tokens": TOKENS, "card": CARD},
        _still(numbers, layers),
        alt="A row of query heads, and below it what a layer keeps of a token: a box for each head, for each group of "
        "heads, or one for all, from which with latent attention a key of each head can be made. Below it a bar of the "
        "gigabytes that a text fills, beside a card of 80.",
        caption=caption,
        numbers={
            "cached by a layer": list(numbers),
            "elements per token": [f"{count:,}" for count in numbers.values()],
            **{
                f"GB, {tokens:,} tokens": [f"{2 * layers * count * tokens / 1e9:.2f}" for count in numbers.values()]
                for tokens in (TOKENS[0], TOKENS[-1])
            },
        },
    )


def _still(numbers: dict[str, int], layers: int) -> Figure:
    """Draw a bar for the gigabytes that the longest text requires with each kind of attention."""
    fig, ax = figures.subplots(width=7.2, height=2.7)
    filled = [2 * layers * count * TOKENS[-1] / 1e9 for count in numbers.values()]
    ax.barh(range(len(filled)), filled, color=figures.PALETTE["blue"], height=0.6)
    plain = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for row, (gigabytes, count) in enumerate(zip(filled, numbers.values(), strict=True)):
        ax.text(
            gigabytes * 1.08,
            row,
            f"{count:,} numbers, {gigabytes:,.1f} GB",
            va="center",
            fontsize=9.5,
            zorder=3,
            bbox=plain,
        )
    ax.axvline(CARD, color="black", linestyle="--", marker="", linewidth=1.2, zorder=2)
    ax.annotate(
        f"a card of {CARD} GB", (CARD, 1), (0, 3), ("data", "axes fraction"), "offset points", ha="center", fontsize=9
    )
    ax.set_yticks(range(len(filled)), list(numbers))
    ax.invert_yaxis()
    ax.set(xscale="log", xlim=(1, 20_000), xlabel=f"gigabytes for {TOKENS[-1]:,} tokens", ylabel="cached by a layer")
    ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.minorticks_off()
    ax.grid(False, axis="y")
    return fig
