"""Examination questions on lesson 23."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("23.night")
def _(draw: Random) -> Asked:
    billions, each = draw.choice([1, 3, 7, 13]), draw.choice([20, 100, 200])
    devices, tera = draw.choice([8, 64, 256]), draw.choice([200, 300, 400])
    text = (
        f"A model of {billions} billion parameters reads {each} tokens per parameter. How many days does its training "
        f"take on {devices} GPUs, each of which computes {tera} trillion operations per second?"
    )
    key = (
        f"Six operations for each parameter and token: $6 \\cdot {billions} \\cdot 10^9 \\cdot {each * billions} "
        "\\cdot "
        f"10^9$, divided by ${devices} \\cdot {tera} \\cdot 10^{{12}} \\cdot 86400$."
    )
    return Asked(text, key, 6 * billions * each * billions * 1e18 / (devices * tera * 1e12 * 86_400))


@number("23.crossing", points=2)
def _(draw: Random) -> Asked:
    large, read = draw.choice([2, 4, 8, 16]), draw.choice([40, 60, 100])
    small, longer = large // 2, read * draw.choice([3, 4, 5])
    text = (
        f"A model of {large} billion parameters that has read {read} billion tokens is as good as one of {small} "
        "billion "
        f"parameters that has read {longer} billion tokens. After how many billion written tokens has the smaller one "
        "taken fewer operations in all?"
    )
    key = (
        f"Training: $6 \\cdot {large} \\cdot {read}$ and $6 \\cdot {small} \\cdot {longer}$. Writing takes 2 "
        "operations for "
        f"each parameter and token: divide the difference by $2 \\cdot ({large} - {small})$."
    )
    return Asked(text, key, 3 * (small * longer - large * read) / (large - small))


reason(
    "23.floor",
    "A scaling law is fitted to twenty small runs with a floor of 1, and another law with a floor of 2 fits them "
    "equally well. What do the two laws agree on, what do they disagree on, and which single further run tells them "
    "apart?",
    "They agree on the score of a model near the fitted ones, and nearly on the best size for a budget (1). They "
    "predict different scores far away, where the fractions have become small and the floor is most of the rest (1). "
    "A run of the recommended size that reads many times the tokens of the others (1), with the same schedule and on "
    "new text, because the law assumes that tokens are new (1).",
)
broken(
    "23.valley",
    "This function finds the best of several sizes for a compute budget. `law(parameters, tokens)` is the score.",
    """
def best_size(compute, sizes, law):
    tokens = compute / sizes
    return sizes[law(sizes, tokens).argmin()]
""",
    """
def best_size(compute, sizes, law):
    tokens = compute / (6 * sizes)
    return sizes[law(sizes, tokens).argmin()]
""",
    "sizes = torch.tensor([1.0, 2.0, 4.0, 8.0])\n"
    "assert best_size(24.0, sizes, lambda parameters, tokens: 1 / parameters + 1 / tokens) == 2.0",
    "A parameter costs six operations for each token, two forward and four backward. Without the 6 a model seems to "
    "read six times as much text as the budget pays for, so the size that is chosen is too large.",
)
