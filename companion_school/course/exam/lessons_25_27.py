"""Examination questions on lessons 25 to 27."""

from __future__ import annotations

from math import comb
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason

# --- 25, how good is it?


@number("25.questions")
def _(draw: Random) -> Asked:
    share, points = draw.choice([50, 60, 70, 80, 90]), draw.choice([1, 2, 4])
    text = (
        f"A model is right on about {share} % of all questions of some kind. How many questions are needed for a "
        f"standard error of {points} percentage points?"
    )
    key = (
        f"The variance of one answer is ${share / 100} \\cdot {1 - share / 100:.1f}$, and the standard error is the "
        f"square root of the variance divided by the number of questions. So divide the variance by ${points / 100}^2$."
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
    "scores = [one * len(text.encode()) for text, one in zip(choices, nats)]",
    "scores = [one / len(text.encode()) for text, one in zip(choices, nats)]",
    'assert take(["ab", "abcdefgh"], [-2.0, -4.0]) == 1\nassert take(["ab", "abcd"], [-2.0, -5.0]) == 0',
    "Multiplied by its number of bytes, the sum of a long choice becomes even more negative, so the shortest choice is "
    "nearly always picked. Per byte means divided by the number of bytes.",
)

# --- 26, more than one chip


@number("26.ring")
def _(draw: Random) -> Asked:
    billions, processes = draw.choice([3, 7, 13, 70]), draw.choice([4, 8, 16, 64])
    wide, gigabytes = draw.choice([2, 4]), draw.choice([25, 50, 450])
    text = (
        f"{processes} GPUs all-reduce the gradient of a model with {billions} billion parameters on a ring. Each "
        f"element takes {wide} bytes, and each GPU sends {gigabytes} GB ($10^9$ bytes each) per second. How many "
        "seconds does this take, ignoring latency?"
    )
    key = (
        f"Reduce-scatter and all-gather: each sends $2 \\cdot \\frac{{{processes - 1}}}{{{processes}}}$ of "
        f"{billions * wide} GB, divided by {gigabytes} GB per second."
    )
    return Asked(text, key, 2 * (processes - 1) / processes * billions * wide / gigabytes)


@number("26.bubble", points=2)
def _(draw: Random) -> Asked:
    stages, micro, percent = draw.choice([4, 8, 16]), draw.choice([8, 16, 24]), draw.choice([10, 20])
    text = (
        f"A pipeline with {stages} equally fast stages runs {micro} micro-batches in each update. By what percentage "
        "does the time of an update shrink if the same batch is cut into as many micro-batches as are needed for a "
        f"bubble of {percent} %? (A micro-batch's time is proportional to its size. Their number need not be whole.)"
    )
    key = (
        "The work of a stage takes the same time as before, and its share of the time is 1 minus the bubble. The "
        f"old bubble is ${stages - 1} / ({micro} + {stages - 1})$. So the new time is $(1 - \\text{{old bubble}}) / "
        f"(1 - {percent / 100})$ of the old one, and the answer is 1 minus this, in percent."
    )
    old = (stages - 1) / (micro + stages - 1)
    return Asked(text, key, 100 * (1 - (1 - old) / (1 - percent / 100)))


reason(
    "26.mesh",
    "A model is trained on servers with eight GPUs each. Inside a server each GPU sends 450 GB per second, and "
    "between servers 50. Say where you would put tensor parallelism, pipeline parallelism and data parallelism, and "
    "for each of them what it sends and whether this can overlap with computation.",
    "Tensor parallelism goes inside a server. It needs two all-reduces of the stream per layer in the forward pass "
    "and two in the backward pass, and the next product needs their result, so hardly anything overlaps (1). "
    "Pipeline parallelism goes across servers. It sends the stream of a micro-batch between neighbouring stages, "
    "which is little, and its cost is the bubble (1). Data parallelism also goes across servers. It sends the "
    "gradient once per update (1), which overlaps with the backward pass if each chip has enough tokens, whatever "
    "the number of parameters (1).",
)
broken(
    "26.scatter",
    "`columns` (process, part, number) holds the initial data of each process. The function simulates a "
    "reduce-scatter on a ring: in each step a process sends a parcel to the next one, which adds its own part. At "
    "the end process `rank` should hold the sum of part `rank`.",
    """
def reduce_scatter(columns):
    n = len(columns)
    parcels = [columns[rank, rank - 1] for rank in range(n)]
    for step in range(1, n):
        arrived = [parcels[rank - 1] for rank in range(n)]
        parcels = [arrived[rank] + columns[rank, (rank - step) % n] for rank in range(n)]
    return torch.stack(parcels)
""",
    "parcels = [arrived[rank] + columns[rank, (rank - step) % n] for rank in range(n)]",
    "parcels = [arrived[rank] + columns[rank, (rank - step - 1) % n] for rank in range(n)]",
    "columns = torch.arange(24.0).view(3, 4, 2)[:, :3]\nassert torch.equal(reduce_scatter(columns), columns.sum(0))",
    "The parcel that arrives after `step` steps began `step` processes to the left, with the part whose index is one "
    "below that process's, so it holds part rank - step - 1. The process has to add its own copy of this part. With "
    "rank - step it adds a different part, and the sums mix several parts.",
)

# --- 27, from start to finish


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
    "You need the score of the short model after as many further updates on as many tokens, with the same learning "
    "rates (1), because training by itself may have improved it (1). And you need the score by position in the text, "
    "before and after (1), because a longer context can "
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
    "chosen = [at % every == 0 for at in range(len(texts))]",
    "chosen = [group[at] % every == 0 for at in range(len(texts))]",
    "texts, group = ['a', 'b', 'c', 'a!'], [0, 1, 2, 0]\n"
    "train, test = divided(texts, group, every=2)\n"
    "assert test == ['a', 'c', 'a!'] and train == ['b']",
    "The index of a text says nothing about its copies, so a copy of a test text can end up in the training set. All "
    "texts of a group must be on one side: decide by the group's index, or keep one text of each group before you "
    "divide.",
)
