"""Moving figures of training with rewards: the pull of a reward, and the advantages within a group (lesson 20)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving

TEMPERATURES = (0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0, 10.0)


def pulled(start: Sequence[float], rewards: Sequence[float], temperature: float) -> list[float]:
    """Return the probabilities that maximize the mean reward minus `temperature` times the KL divergence from `start`.

    The probabilities are start * exp(reward / temperature), normalized (Rafailov et al. 2023, equation 4).
    """
    most = max(rewards)
    weights = [p * math.exp((reward - most) / temperature) for p, reward in zip(start, rewards, strict=True)]
    return [weight / sum(weights) for weight in weights]


def pull(
    start: Sequence[float],
    judges: Mapping[str, Sequence[float]],
    *,
    words: Sequence[str],
    temperature: float = 1.0,
    caption: str = "",
) -> None:
    """Show how far a reward pulls a model away from its starting point at different temperatures.

    Args:
        start: Probability of each answer before training, above 0.
        judges: The rewards that each judge gives to the answers, by the judge's name.
        words: Two to six answers.
        temperature: Initial value of the slider, one of `TEMPERATURES`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are not two to six answers, the probabilities or rewards do not match them, the probabilities
            do not add up to 1, or the temperature is not in `TEMPERATURES`.
    """
    if not 2 <= len(words) <= 6 or len(start) != len(words):
        raise ValueError(f"start, words: expected probabilities for 2 to 6 answers; got {len(start)} and {len(words)}")
    if min(start) <= 0 or not math.isclose(sum(start), 1, abs_tol=1e-6):
        raise ValueError(f"start: expected positive probabilities that sum to 1; got {list(start)}")
    if not judges or any(len(rewards) != len(words) for rewards in judges.values()):
        raise ValueError(f"judges: expected a reward for each of {len(words)} answers; got {dict(judges)}")
    if temperature not in TEMPERATURES:
        raise ValueError(f"temperature: expected one of {TEMPERATURES}; got {temperature}")
    first = next(iter(judges))
    after = pulled(start, judges[first], temperature)
    moving.show(
        "pull",
        {
            "start": list(start),
            "judges": [list(rewards) for rewards in judges.values()],
            "names": list(judges),
            "words": list(words),
            "temperatures": TEMPERATURES,
            "tau": temperature,
        },
        _pulled(start, after, judges[first], words),
        alt="For each answer a dashed box, its chance at the start, and a blue bar beside it, its chance after the "
        "pull of the reward. Answers with a high reward have grown, the others have shrunk.",
        caption=caption,
        numbers={
            "answer": list(words),
            "probability at the start": [f"{p:.2f}" for p in start],
            **{f"reward by {name}": [f"{reward:.1f}" for reward in rewards] for name, rewards in judges.items()},
            f"probability by {first} at temperature {temperature:g}": [f"{p:.2f}" for p in after],
        },
    )


def _pulled(start: Sequence[float], after: Sequence[float], rewards: Sequence[float], words: Sequence[str]) -> Figure:
    """Draw a pair of bars for each answer: its probability before and after training."""
    fig, ax = figures.subplots(width=7.2, height=3.0)
    at = range(len(words))
    box = {"color": "white", "edgecolor": "black", "linestyle": "--", "linewidth": 1}
    ax.bar([x - 0.19 for x in at], start, 0.34, label="the start", **box)
    ax.bar([x + 0.19 for x in at], after, 0.34, color=figures.PALETTE["blue"], label="after the pull")
    for x, (before, now) in enumerate(zip(start, after, strict=True)):
        ax.text(x - 0.19, before + 0.015, f"{before:.2f}", ha="center", fontsize=8)
        ax.text(x + 0.19, now + 0.015, f"{now:.2f}", ha="center", fontsize=8)
    ax.set_xticks(at, [f"{word}\nreward {reward:.1f}" for word, reward in zip(words, rewards, strict=True)])
    ax.set(ylabel="probability", xlabel="answer", ylim=(0, 1.35 * max(*start, *after)))
    ax.legend(loc="upper center", ncol=2, fontsize=8)
    ax.grid(False, axis="x")
    return fig


def advantages(right: int, size: int, *, divided: bool) -> tuple[float, float]:
    """Return the advantages of right and wrong answers in a group, for rewards of 1 and 0.

    Args:
        right: Number of right answers in the group.
        size: Number of answers in the group.
        divided: Whether to divide the advantages by the standard deviation of the rewards.
    """
    share = right / size
    deviation = math.sqrt(share * (1 - share))
    if deviation == 0:
        return 0.0, 0.0
    by = deviation if divided else 1.0
    return (1 - share) / by, -share / by


def group(
    *, size: int = 8, count: int = 2, right: int = 7, wrong: Sequence[int] = (3, 7, 9), caption: str = ""
) -> None:
    """Show the advantages of a group of answers to a question, and how strongly each of their tokens is pushed.

    Args:
        size: Number of answers, 2 to 10.
        count: Initial number of right answers.
        right: Length of a right answer in tokens, 1 to 99.
        wrong: Lengths of the wrong answers in tokens, 1 to 99, used in turn.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range.
    """
    if not 2 <= size <= 10 or not 0 <= count <= size:
        raise ValueError(
            f"size, count: expected 2 to 10 answers and at most as many right ones; got {size} and {count}"
        )
    if not wrong or not all(1 <= length <= 99 for length in (right, *wrong)):
        raise ValueError(f"right, wrong: expected lengths of 1 to 99 tokens; got {right} and {list(wrong)}")
    won = [i < count for i in range(size)]
    lengths = [right if good else wrong[i % len(wrong)] for i, good in enumerate(won)]
    up, down = advantages(count, size, divided=True)
    gains = [up if good else down for good in won]
    pushes = [gain / length for gain, length in zip(gains, lengths, strict=True)]
    moving.show(
        "group",
        {"size": size, "count": count, "right": right, "wrong": list(wrong)},
        _group(won, lengths, gains, pushes),
        alt="Above, a bar for each answer of a group: right answers have a positive advantage, wrong ones a smaller "
        "negative one. Below, the push of each of its tokens: of the wrong answers short ones have the longest bars.",
        caption=caption,
        numbers={
            "answer": ["right" if good else "wrong" for good in won],
            "tokens": [str(length) for length in lengths],
            "advantage": [f"{gain:.2f}" for gain in gains],
            "push of a token": [f"{push:.3f}" for push in pushes],
        },
    )


def _group(won: Sequence[bool], lengths: Sequence[int], gains: Sequence[float], pushes: Sequence[float]) -> Figure:
    fig, axes = figures.subplots(2, 1, width=7.2, height=4.2)
    colors = [figures.PALETTE["blue" if good else "orange"] for good in won]
    for ax, values, title in zip(axes, (gains, pushes), ("advantage", "push of a token"), strict=True):
        ax.bar(range(len(won)), values, 0.6, color=colors, edgecolor="black", linewidth=0.5)
        ax.axhline(0, color="black", linewidth=0.8, marker="")
        names = [f"{'right' if good else 'wrong'}, {length}" for good, length in zip(won, lengths, strict=True)]
        ax.set_xticks(range(len(won)), names, fontsize=8)
        ax.set(ylabel=title, xlabel="answer, and its tokens")
        ax.grid(False, axis="x")
    return fig
