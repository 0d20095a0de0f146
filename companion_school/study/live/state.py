"""Moving figure of writing to and reading from a state matrix, with four update rules (lesson 17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from companion_school.study import figures
from companion_school.study.live import moving

RULES = ("adds", "adds and fades", "delta rule", "delta rule and fades")


def rewritten(
    keys: Mapping[str, Sequence[float]],
    values: Sequence[str],
    writes: Sequence[tuple[str, str]],
    *,
    decay: float,
    caption: str = "",
) -> None:
    """Show the state, with d_k rows and one column per value, after each write, and the values that each key reads.

    The rules are addition and the delta rule, both with and without a decay before every write.

    Args:
        keys: Key vectors of 2 to 4 names, each with norm 1.
        values: Names of the 2 to 4 columns; a value is 1 in its own column and 0 elsewhere.
        writes: At most 8 pairs (key, value), in the order in which they are written.
        decay: Factor by which the rules with decay multiply the whole state before each write.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are too few or too many keys, values or writes, the keys do not have norm 1 or have different
            widths, a write uses an unknown name, or the decay is not between 0 and 1.
    """
    K = _keys(keys)
    _fit(keys, values, writes, decay)
    states = {rule: _states(K, list(keys), list(values), writes, rule, decay) for rule in RULES}
    last = [
        {key: value for key, value in writes[:done]} for done in range(len(writes) + 1)
    ]  # if a key is written to twice, the last value counts
    reads = {rule: [K @ state for state in tables] for rule, tables in states.items()}
    moving.show(
        "rewritten",
        {
            "names": list(keys),
            "values": list(values),
            "writes": [list(pair) for pair in writes],
            "rules": list(RULES),
            "states": [states[rule] for rule in RULES],
            "reads": [reads[rule] for rule in RULES],
            "last": [[list(values).index(now[key]) if key in now else -1 for key in keys] for now in last],
        },
        _still(reads, list(keys), list(values), last[-1]),
        alt="A table of numbers that pairs of a name and a colour are written into, one after the other, and for each "
        "name three bars, what it reads there. Where a name came twice, by adding it reads both colours, and by the "
        "delta rule only the later one.",
        caption=caption,
        numbers={"name": list(keys), "written last": [last[-1].get(key, "nothing") for key in keys]}
        | {
            f"{rule} reads": [
                ", ".join(f"{value} {x:.2f}" for value, x in zip(values, row, strict=True)) for row in reads[rule][-1]
            ]
            for rule in RULES
        },
        colors=8,
    )


def _keys(keys: Mapping[str, Sequence[float]]) -> np.ndarray:
    if not 2 <= len(keys) <= 4 or len({len(key) for key in keys.values()}) != 1:
        raise ValueError(f"keys: expected 2 to 4 of equal width, got {dict(keys)!r}")
    K = np.array(list(keys.values()), dtype=float)
    if not np.allclose(np.square(K).sum(1), 1):
        raise ValueError(
            f"keys: expected each of length 1, got lengths {np.sqrt(np.square(K).sum(1)).round(3).tolist()}"
        )
    return K


def _fit(
    keys: Mapping[str, Sequence[float]], values: Sequence[str], writes: Sequence[tuple[str, str]], decay: float
) -> None:
    if not 2 <= len(values) <= 4:
        raise ValueError(f"values: expected 2 to 4, got {len(values)}")
    if not 1 <= len(writes) <= 8 or any(key not in keys or value not in values for key, value in writes):
        raise ValueError(f"writes: expected 1 to 8 pairs of named keys and values, got {list(writes)}")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay: expected a number from 0 to 1, got {decay!r}")


def _states(
    K: np.ndarray, names: list[str], values: list[str], writes: Sequence[tuple[str, str]], rule: str, decay: float
) -> list[np.ndarray]:
    tables = [np.zeros((K.shape[1], len(values)))]
    for name, value in writes:
        k, v = K[names.index(name)], np.eye(len(values))[values.index(value)]
        old = tables[-1] * (decay if "fades" in rule else 1)
        tables.append(old + np.outer(k, v - k @ old if "delta" in rule else v))
    return tables


def _still(
    reads: dict[str, list[np.ndarray]], names: list[str], values: list[str], last: dict[str, str]
) -> figures.Figure:
    """For each rule, draw the values that each key reads after the last write. The bar for the most recently written
    value is hatched."""
    fig, axes = figures.subplots(1, 4, width=8.0, height=2.5, sharey=True)
    colors, wide = [figures.PALETTE[name] for name in ("red", "blue", "green", "orange")], 0.8 / len(values)
    for ax, (rule, rows) in zip(axes, reads.items(), strict=True):
        for column, value in enumerate(values):
            at = [row + (column - (len(values) - 1) / 2) * wide for row in range(len(names))]
            bars = ax.bar(at, rows[-1][:, column], width=wide, color=colors[column], label=value)
            for bar, name in zip(bars, names, strict=True):
                if last.get(name) == value:
                    bar.set(hatch="//", edgecolor="black")
        ax.axhline(0, color="black", linewidth=0.8, marker="")
        ax.set_xticks(range(len(names)), names)
        ax.set(title=rule, xlabel="read with the key of")
        ax.grid(False)
    axes[0].set_ylabel("what it reads")
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high + 0.45 * (high - low))  # room for the legend
    axes[0].legend(loc="upper left", fontsize=8)
    return fig
