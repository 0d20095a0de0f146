"""Examination questions on lesson 25."""

from __future__ import annotations

from math import comb
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("25.questions")
def _(draw: Random) -> Asked:
    share, points = draw.choice([50, 60, 70, 80, 90]), draw.choice([1, 2, 4])
    text = (
        f"A model is right on about {share} % of all questions of some kind. How many questions are needed for a "
        f"standard error of {points} percentage points?"
    )
    key = (
        f"The variance of one answer is ${share / 100} \\cdot {1 - share / 100:.1f}$, and the standard error is the "
        f"square root of the variance divided by the questions. So divide the variance by ${points / 100}^2$."
    )
    return Asked(text, key, share * (100 - share) / points**2)


@number("25.paired")
def _(draw: Random) -> Asked:
    wins, losses = draw.choice([5, 6, 7, 8]), draw.choice([0, 1, 2])
    count = draw.choice([100, 200, 300])
    text = (
        f"Two models answer the same {count} questions. Only the first is right on {wins} of them, and only the second "
        f"on {losses}. What is the two-sided p-value of McNemar's exact test?"
    )
    ways = sum(comb(wins + losses, heads) for heads in range(wins, wins + losses + 1))
    key = (
        f"Only the {wins + losses} questions where they differ count, as tosses of a coin. "
        f"{ways} of ${2 ** (wins + losses)}$ outcomes have {wins} heads or more, and as many have {wins} tails or more."
    )
    return Asked(text, key, 2 * ways / 2 ** (wins + losses))


reason(
    "25.overlap",
    "Two models score 71 % and 74 % on the same 500 questions, with 95 % intervals from 67 to 75 and from 70 to 78. "
    "Does it follow that the difference may be due to luck? What would you compute?",
    "It does not follow (1). Each interval says how far a score may be from its own true share, and both models "
    "share much of this luck, because they answer the same questions (1). Count the questions that exactly one "
    "model answers right, because the others say nothing about the difference (1). Compute the paired interval or "
    "McNemar's test from these counts: with few such questions, for example 25 against 10, the difference is clear, "
    "and with many, for example 85 against 70, it is not (1).",
)
broken(
    "25.choose",
    "This function picks the choice with the best log-likelihood per byte. `nats` has the sum for each choice.",
    """
def take(choices, nats):
    scores = [one * len(text.encode()) for text, one in zip(choices, nats)]
    return scores.index(max(scores))
""",
    """
def take(choices, nats):
    scores = [one / len(text.encode()) for text, one in zip(choices, nats)]
    return scores.index(max(scores))
""",
    'assert take(["ab", "abcdefgh"], [-2.0, -4.0]) == 1\nassert take(["ab", "abcd"], [-2.0, -5.0]) == 0',
    "Multiplied by its bytes, the sum of a long choice becomes even more negative, so the shortest choice is nearly "
    "always picked. Per byte means divided by the number of bytes.",
)
