"""Moving figures of model families: the steps from GPT-2 to LLaMA and Mixtral, and what fits in GPU memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from companion.config.model import ModelConfig
from companion.costs import account
from companion_school.study import figures
from companion_school.study.live import moving

TEXTS = (1, 4, 16, 64, 256)
SAID = {"head": "output head", "network": "gate", "keys": "grouped queries"}
# For each part that an edit can change, a function that describes this part of a model in a word or two
CHOICES: dict[str, Callable[[dict[str, Any]], str]] = {
    "positions": lambda step: "rotary" if step["rotary"] else "table",
    "norm": lambda step: "RMSNorm" if step["rms"] else "LayerNorm",
    "biases": lambda step: "biases" if step["bias"] else "none",
    "network": lambda step: "gated" if step["gate"] else "plain",
    "head": lambda step: "tied" if step["tied"] else "own head",
    "keys": lambda step: f"{step['kv']} key heads" if step["kv"] < step["heads"] else f"{step['kv']}",
    "experts": lambda step: f"{step['visited']} of {step['experts']}" if step["experts"] > 1 else "1 network",
}
TOKENS = (1024, 4096, 16384, 65536, 131072)


def edits(models: Mapping[str, Sequence[tuple[str, ModelConfig]]], *, caption: str = "") -> None:
    """Show how edits change a decoder's diagram, its total and active parameters, and its cache.

    Args:
        models: For each choice of sizes, the models before the first edit and after every edit, as pairs (name,
            configuration), with the same edits for all sizes. The name of an intermediate model may be empty.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The sequences have different lengths or fewer than two models, a model is not a decoder, or an edit
            changes nothing that the diagram shows.
    """
    walks = {size: list(steps) for size, steps in models.items()}
    lengths = {len(steps) for steps in walks.values()}
    if len(lengths) != 1 or lengths == {1}:
        raise ValueError(
            f"models: expected sequences of equal length for two or more models, got lengths {sorted(lengths)}"
        )
    for name, config in (step for steps in walks.values() for step in steps):
        if config.stack != "decoder":
            raise ValueError(f"models: expected decoders, got {name!r} with stack={config.stack!r}")
    told = {size: list(_told(steps)) for size, steps in walks.items()}
    first = next(iter(told))
    steps = told[first]
    said = [", ".join(SAID.get(part, part) for part in step["changed"]) or step["name"] for step in steps]
    fig = _still(steps, said)
    moving.show(
        "edits",
        {"sizes": [{"name": size, "steps": steps} for size, steps in told.items()]},
        fig,
        alt="A decoder as a diagram: tables below and above, and between them a layer with norms, heads and a network. "
        "With each edit a part of it changes: positions, norms, biases, the gate, the output head, grouped "
        "queries, experts. Bars beside it show how many numbers each part has.",
        caption=caption,
        colors=8,  # three colors for the bars and five for the text
        numbers=[
            (
                f"sizes of {size}",
                {
                    "edit": said,
                    "parameters": [f"{step['total']:,}" for step in walked],
                    "active parameters": [f"{step['active']:,}" for step in walked],
                    "KV cache per token": [f"{step['cache']:,}" for step in walked],
                },
            )
            for size, walked in told.items()
        ],
    )


def _still(steps: Sequence[dict[str, Any]], said: Sequence[str]) -> Figure:
    """Draw each model's number of parameters in millions as a bar, labeled with what the edit changed."""
    fig, ax = figures.subplots(width=6.2, height=2.9)
    rows, totals = [f"0: {said[0]}"], [step["total"] / 1e6 for step in steps]
    for at, (before, after) in enumerate(itertools.pairwise(steps), start=1):
        moved = [f"{says(before)} → {says(after)}" for part, says in CHOICES.items() if part in after["changed"]]
        rows.append(f"{at}: {', '.join(moved) or said[at]}")
    room = 1.25 * sorted(totals)[-2]  # cut off the longest bar (the experts) so that the others stay visible
    left = [0.0] * len(steps)
    for part, (label, color) in enumerate((("tables", "orange"), ("attention", "blue"), ("networks", "green"))):
        sizes = [step["where"][part] / 1e6 for step in steps]
        ax.barh(range(len(steps)), sizes, left=left, color=figures.PALETTE[color], label=label)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    for row, total in enumerate(totals):
        cut = total > room
        place = {"ha": "right" if cut else "left", "color": "white" if cut else "black", "va": "center", "fontsize": 9}
        ax.text(min(total, room) * 0.99 if cut else total, row, f"{total:,.0f} →" if cut else f" {total:,.0f}", **place)
    ax.set_yticks(range(len(steps)), rows, fontsize=9)
    ax.invert_yaxis()
    ax.grid(False)
    ax.set(xlabel="millions of parameters", ylabel="edit", xlim=(0, room), xticks=[])
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=3)
    return fig


def _told(steps: Sequence[tuple[str, ModelConfig]]) -> Iterator[dict[str, Any]]:
    """Yield the script's data for each model of a sequence. Raise `ValueError` if an edit changes nothing."""
    before = steps[0][1]
    for at, (name, config) in enumerate(steps):
        changed = _changed(before, config)
        if at and not changed:
            raise ValueError(
                f"models: expected a visible change in each step, but step {at}, {name!r}, changes nothing"
            )
        count, sizes, moe = account.parameters(config), config.sizes, config.moe
        where = [
            count.embedding + count.positions + count.head,
            count.attention,
            count.feed_forward,
            count.norms + count.router,
        ]
        yield {
            "name": name, "changed": changed, "rotary": config.positions.kind == "rotary",
            "rms": config.norm.kind == "rms", "bias": config.attention.bias, "gate": _gated(config),
            "hidden": config.feed_forward.d_ff, "width": config.d_model, "tied": config.embedding.tied,
            "heads": sizes.heads, "kv": sizes.kv_heads, "layers": config.layers,
            "experts": moe.experts if moe else 1, "visited": moe.top_k if moe else 1,
            "total": count.total, "active": count.active, "where": where,
            "cache": account.cache_bytes(config, 1) // 4,
        }  # fmt: skip
        before = config


def _gated(config: ModelConfig) -> bool:
    return config.feed_forward.activation == "swiglu"


def _changed(before: ModelConfig, after: ModelConfig) -> list[str]:
    """Return the parts of the diagram in which two models differ."""
    pairs = {
        "positions": (before.positions.kind, after.positions.kind),
        "norm": (before.norm.kind, after.norm.kind),
        "biases": (
            (before.attention.bias, before.feed_forward.bias),
            (after.attention.bias, after.feed_forward.bias),
        ),
        "network": (before.feed_forward.activation, after.feed_forward.activation),
        "head": (before.embedding.tied, after.embedding.tied),
        "keys": (before.sizes.kv_heads, after.sizes.kv_heads),
        "hidden": (before.feed_forward.d_ff, after.feed_forward.d_ff),
        "experts": (before.moe, after.moe),
    }
    found = [part for part, (old, new) in pairs.items() if old != new]
    return [part for part in found if part != "hidden" or "network" not in found]


def memory(
    models: Mapping[str, ModelConfig],
    *,
    cards: Mapping[str, float],
    start: str,
    texts: Sequence[int] = TEXTS,
    tokens: Sequence[int] = TOKENS,
    caption: str = "",
) -> None:
    """Show how many gigabytes (10⁹ bytes) a decoder needs for its weights, for generation and for training.

    The figure compares these amounts with the memory of GPUs. Generation needs memory for the weights and for the KV
    caches of all texts in the batch. Training needs sixteen bytes per parameter (see `account.train_bytes`), not
    counting activations.

    Args:
        models: Decoders by name.
        cards: Memory of each GPU in gigabytes, by GPU name, in increasing order.
        start: Name of the first model shown.
        texts: Batch sizes on the slider.
        tokens: Numbers of tokens per text on the slider.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: A model is not a decoder, `start` is not among the models, or the values of `cards` are not positive
            and increasing.
    """
    for name, config in models.items():
        if config.stack != "decoder":
            raise ValueError(f"models: expected decoders, got {name!r} with stack={config.stack!r}")
    if start not in models:
        raise ValueError(f"start: expected one of {', '.join(models)}, got {start!r}")
    room = list(cards.values())
    if not room or room[0] <= 0 or room != sorted(set(room)):
        raise ValueError(f"cards: expected positive memory sizes in gigabytes, in increasing order, got {room}")
    counts = {name: account.parameters(config).total for name, config in models.items()}
    each = {name: account.cache_bytes(config, 1) // 4 for name, config in models.items()}
    hold = {name: 2 * count / 1e9 for name, count in counts.items()}
    one = {name: hold[name] + 2 * tokens[0] * each[name] / 1e9 for name in models}
    train = {name: 16 * count / 1e9 for name, count in counts.items()}
    fig, ax = figures.subplots(width=7.2, height=3.8)
    looks = ("hold", hold, "blue", "o"), ("write one text", one, "green", "D"), ("train", train, "red", "s")
    for level, (label, needs, color, marker) in zip((-0.22, 0, 0.22), looks, strict=True):  # otherwise they overlap
        look = {"color": figures.PALETTE[color], "marker": marker, "linestyle": "none", "markersize": 7}
        ax.plot([needs[name] for name in models], [row + level for row in range(len(models))], label=label, **look)
    for row in range(1, len(models)):
        ax.axhline(row - 0.5, color="0.8", marker="", linewidth=0.8)
    for card, gigabytes in cards.items():
        ax.axvline(gigabytes, color="black", linestyle="--", marker="", linewidth=1.2, zorder=1)
        above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 9}
        ax.annotate(f"{card}\n{gigabytes:g}", (gigabytes, 1), xycoords=("data", "axes fraction"), **above)
    ax.set_yticks(range(len(models)), list(models))
    ax.set(xscale="log", xlabel="gigabytes", ylabel="model", ylim=(len(models) - 0.5, -0.5))
    ticks = [step * 10**power for power in range(-3, 6) for step in (1, 3)]
    ticks = [tick for tick in ticks if min(hold.values()) / 2 < tick < 2 * max(train.values())]
    ax.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    ax.minorticks_off()
    ax.grid(False, axis="y")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    moving.show(
        "memory",
        {
            "models": [{"name": name, "millions": counts[name] / 1e6, "each": each[name]} for name in models],
            "cards": [{"name": name, "gb": gigabytes} for name, gigabytes in cards.items()],
            "start": list(models).index(start), "texts": list(texts), "tokens": list(tokens),
        },
        fig,
        alt="Three dots on a scale of gigabytes, for a model that is held, that writes, and that is trained; dashed "
        "lines mark the memory of cards. More texts or longer ones move the second dot to the right, another model "
        "or more bytes for a number move all, and training lies far to the right of holding.",
        caption=caption,
        numbers={
            "model": list(models),
            "parameters": [f"{count:,}" for count in counts.values()],
            "GB to hold (2 bytes)": [f"{gigabytes:,.1f}" for gigabytes in hold.values()],
            "GB to train": [f"{gigabytes:,.1f}" for gigabytes in train.values()],
            "elements cached per token": [f"{numbers:,}" for numbers in each.values()],
        },
    )  # fmt: skip
