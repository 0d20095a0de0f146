"""Examination questions on lesson 27."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("27.dollars")
def _(draw: Random) -> Asked:
    dollars, price = draw.choice([100, 500, 1000, 5000]), draw.choice([2, 2.5, 4])
    share, each = draw.choice([0.3, 0.4, 0.5]), draw.choice([20, 100])
    text = (
        f"A GPU with a peak of $10^{{15}}$ operations per second reaches a share of {share} of it and costs {price} "
        f"dollars an hour. You have {dollars} dollars, and the model reads {each} tokens per parameter. How many "
        "million parameters can it have?"
    )
    key = (
        f"${dollars} / {price} \\cdot 3600 \\cdot {share} \\cdot 10^{{15}}$ operations are $6 \\cdot {each}$ times the "
        "square of the parameters."
    )
    return Asked(text, key, (dollars / price * 3600 * share * 1e15 / (6 * each)) ** 0.5 / 1e6)


@number("27.energy")
def _(draw: Random) -> Asked:
    watts, hours, cents = draw.choice([40, 60, 90]), draw.choice([3, 5, 8]), draw.choice([20, 30, 40])
    text = (
        f"A laptop draws {watts} watts while it trains for {hours} hours. What does that cost, in cents, if a "
        f"kilowatt-hour costs {cents} cents?"
    )
    key = f"${watts} \\cdot {hours} / 1000$ kilowatt-hours, times {cents}."
    return Asked(text, key, watts * hours / 1000 * cents)


reason(
    "27.control",
    "A model with a context of 64 tokens scores 0.48 bits per byte. You interpolate its positions to 256, train it for "
    "40 more updates and measure 0.40. Which two further measurements do you need before you may say that the longer "
    "context helped, and what does each of them rule out?",
    "The short model after as many further updates on as many tokens, with the same learning rates (1): training "
    "alone may have improved it (1). The score by position in the text, before and after (1): a longer context can "
    "only help where a token has more than 64 others before it, so a gain in the first 64 has another cause (1).",
)
broken(
    "27.split",
    "This function divides texts into a training set and a test set. Near-duplicates must be on the same side. "
    "`group` gives for each text the index of the first text in its group.",
    """
def divided(texts, group, every=10):
    chosen = [at % every == 0 for at in range(len(texts))]
    test = [text for text, one in zip(texts, chosen, strict=True) if one]
    train = [text for text, one in zip(texts, chosen, strict=True) if not one]
    return train, test
""",
    """
def divided(texts, group, every=10):
    chosen = [group[at] % every == 0 for at in range(len(texts))]
    test = [text for text, one in zip(texts, chosen, strict=True) if one]
    train = [text for text, one in zip(texts, chosen, strict=True) if not one]
    return train, test
""",
    "texts, group = ['a', 'b', 'c', 'a!'], [0, 1, 2, 0]\n"
    "train, test = divided(texts, group, every=2)\n"
    "assert test == ['a', 'c', 'a!'] and train == ['b']",
    "The index of a text says nothing about its copies, so a copy of a test text can end up in the training set. All "
    "texts of a group must be on one side: decide by the group's index, or keep one text of each group before you "
    "divide.",
)
