"""Examination questions on lessons 00 to 04."""

from __future__ import annotations

import math
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason

# --- 00, one token by hand


@number("0.chance")
def _(draw: Random) -> Asked:
    a, b = draw.sample(range(2, 10), 2)
    text = (
        f"A model has three words. Their logits are $0$, $\\ln {a}$ and $\\ln {b}$. What is the "
        f"chance of the third word?"
    )
    return Asked(text, f"The exponentials are 1, {a} and {b}: ${b} / {1 + a + b}$.", b / (1 + a + b))


@number("0.loss", points=2)
def _(draw: Random) -> Asked:
    share = draw.choice([4, 5, 8, 10, 16, 20, 25, 50])
    text = f"A model gives the word that comes the chance $1/{share}$. What is its loss on this word, in nats?"
    return Asked(text, f"$-\\ln(1/{share}) = \\ln {share}$. In bits it would be another number.", math.log(share))


reason(
    "0.rows",
    "In a model without positions and without a mask, one word of a text is replaced by another. Which rows of the "
    "state change behind the embedding, which behind the first attention, and why?",
    "Behind the embedding only the row of that word: each row depends on its own word (2). Behind "
    "attention all rows, in "
    "general: each is a weighted average over all words, and the new word takes part in every average (2).",
)
broken(
    "0.next",
    "This function takes logits of shape (token, vocab) and gives the id of the word that comes after the text.",
    "def next_word(logits):\n    return logits.argmax(dim=0)[-1]",
    "def next_word(logits):\n    return logits[-1].argmax()",
    "logits = torch.tensor([[5.0, 1.0, 0.0], [0.0, 2.0, 3.0]])\nassert int(next_word(logits)) == 2",
    "The largest is looked for along the tokens: for each word the place where it is likeliest, and of these the last "
    "word's. One sees an id that is never larger than the number of tokens. `logits[-1].argmax()`.",
)

# --- 01, tokens and embeddings


@number("1.tied", points=2)
def _(draw: Random) -> Asked:
    vocab, width = 1000 * draw.randint(20, 130), 128 * draw.randint(4, 32)
    text = (
        f"A model has a vocabulary of {vocab:,} and a width of {width:,}. How many parameters are "
        f"saved, if the output's "
        "matrix is the embedding's table (no biases)?"
    )
    return Asked(text, f"One matrix of {vocab:,} times {width:,}.", vocab * width)


@number("1.vocabulary", points=2)
def _(draw: Random) -> Asked:
    merges, special = 500 * draw.randint(4, 60), draw.randint(2, 9)
    text = (
        f"A byte-level BPE tokenizer has learned {merges:,} merges and has {special} special tokens. How large is its "
        "vocabulary?"
    )
    return Asked(text, f"256 bytes, {merges:,} merges and {special} special tokens.", 256 + merges + special)


reason(
    "1.unknown",
    "A tokenizer that begins with bytes needs no token for unknown words. Why? And what does it cost to write a "
    "language that its training text did not have?",
    "Every text is a sequence of bytes, and all 256 are in the vocabulary, so that any text can be "
    "cut, at worst byte by "
    "byte (2). Merges were learned on other texts, so few apply: more tokens for a word, so a shorter context, more "
    "steps and a higher price for the same text (2).",
)
broken(
    "1.merge",
    "This function replaces each pair (a, b) in a list of ids by the id `new`, from left to right.",
    """
def merge(ids, a, b, new):
    out, at = [], 0
    while at < len(ids):
        if ids[at : at + 2] == [a, b]:
            out.append(new)
            at += 1
        else:
            out.append(ids[at])
            at += 1
    return out
""",
    """
def merge(ids, a, b, new):
    out, at = [], 0
    while at < len(ids):
        if ids[at : at + 2] == [a, b]:
            out.append(new)
            at += 2
        else:
            out.append(ids[at])
            at += 1
    return out
""",
    "assert merge([1, 2, 3, 1, 2], 1, 2, 9) == [9, 3, 9] and merge([1, 1, 1], 1, 1, 9) == [9, 1]",
    "Behind a pair that was found it must go on by two. As it is, the second id of each pair is written once more: the "
    "list gets no shorter, and decoding says letters twice.",
)

# --- 02, scaled dot-product attention


@number("2.variance")
def _(draw: Random) -> Asked:
    width, a, b = draw.choice([32, 64, 96, 128, 256]), draw.choice([0.5, 2, 3]), draw.choice([0.25, 4, 5])
    text = (
        f"The {width} components of a query have mean 0 and variance {a}, those of a key mean 0 and "
        f"variance {b}; all are "
        "independent. Their product is divided by the square root of the width, and the result is the score. "
        "What is the variance of the score?"
    )
    key = (
        f"The variance of a term is ${a} \\cdot {b}$, of the sum {width} times that; the root divides "
        f"it by {width} again."
    )
    return Asked(text, key, a * b)


@number("2.average")
def _(draw: Random) -> Asked:
    a, b = draw.sample(range(2, 9), 2)
    values = [draw.randint(-9, 9) for _ in range(3)]
    text = (
        f"A query has the scaled scores $0$, $\\ln {a}$ and $\\ln {b}$ with three keys, whose values are the numbers "
        f"{values[0]}, {values[1]} and {values[2]}. The last key is behind a mask. What is the output?"
    )
    key = f"The weights are $1/{1 + a}$, ${a}/{1 + a}$ and 0."
    return Asked(text, key, (values[0] + a * values[1]) / (1 + a))


reason(
    "2.root",
    "A colleague divides scores by $d_k$ and not by its root. What becomes of the weights of wide "
    "heads at the start of "
    "training, and what can training do about it?",
    "A score has the size of the root of $d_k$; divided by $d_k$ it shrinks like $1/\\sqrt{d_k}$, so "
    "that all weights are "
    "nearly equal: attention is a plain average (3). Training can make queries and keys larger; "
    "nothing is lost in what "
    "can be expressed, the start is worse (1).",
)
broken(
    "2.mask",
    "Here `mask` is true where a query (row) may look at a key (column).",
    """
def weights(scores, mask):
    scores = scores.masked_fill(~mask, 0.0)
    return torch.softmax(scores, dim=-1)
""",
    """
def weights(scores, mask):
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1)
""",
    "made = weights(torch.zeros(2, 4), torch.tensor([[True, True, False, False]]))\n"
    "assert made[:, 2:].abs().max() == 0",
    "A score of 0 is a score like any other: its exponential is 1, so the hidden key has a weight, often a large one. "
    "Rows add up to one, so that it does not show there; but the output changes with what is hidden. Fill with minus "
    "infinity.",
)

# --- 03, multi-head attention


@number("3.parameters")
def _(draw: Random) -> Asked:
    head, heads = draw.choice([64, 80, 96, 128]), draw.choice([8, 16, 32])
    shared = draw.choice([2, 4])
    width, kv = head * heads, heads // shared
    text = (
        f"An attention layer of width {width:,} has {heads} heads and {kv} key-value heads, each "
        f"{head} wide, and no biases. "
        "How many parameters does it have?"
    )
    key = f"Queries and output: {width:,} times {width:,} each; keys and values: {width:,} times {kv * head:,} each."
    return Asked(text, key, 2 * width**2 + 2 * width * kv * head)


@number("3.sorted", points=2)
def _(draw: Random) -> Asked:
    heads, head, at = draw.choice([6, 8, 12]), draw.choice([16, 24, 32]), draw.randint(40, 350)
    text = (
        f"A state of width {heads * head} is cut into {heads} heads of {head}, by `view(batch, token, "
        f"{heads}, {head})`. "
        f"Heads and components count from 0. In which head is component {at % (heads * head)}?"
    )
    at %= heads * head
    return Asked(
        text, f"Each head holds {head} components that stand together: the whole part of {at}/{head}.", at // head
    )


reason(
    "3.heads",
    "A layer of fixed width gets twice as many heads, each half as wide. What happens to its number "
    "of parameters, to the "
    "FLOPs of its scores, and to what a single head can tell apart? Say why in each case.",
    "Parameters stay: the matrices have the layer's width on both sides (1). The FLOPs of the scores "
    "stay: twice as many "
    "dot products of half the length (1). A head's scores have half the rank: they compare fewer directions; in return "
    "the layer has twice as many patterns of weights (2).",
)
broken(
    "3.split",
    "This function cuts a state of shape (batch, token, d_model) into heads, (batch, head, token, d_head).",
    """
def split(x, heads):
    batch, token, width = x.shape
    return x.view(batch, heads, token, width // heads)
""",
    """
def split(x, heads):
    batch, token, width = x.shape
    return x.view(batch, token, heads, width // heads).transpose(1, 2)
""",
    "x = torch.arange(24).view(1, 3, 8)\nassert split(x, 2)[0, 1, 0].tolist() == [4, 5, 6, 7]",
    "The shape is right and the numbers are not: a head gets components of other tokens, so a mask "
    "no longer hides what "
    "it should. `view` to (batch, token, head, d_head), then `transpose(1, 2)`.",
)

# --- 04, sinusoidal positions


@number("4.wavelength")
def _(draw: Random) -> Asked:
    width, base = draw.choice([8, 16, 32]), draw.choice([100, 1000, 10000])
    pair = draw.randint(1, width // 2 - 1)
    text = (
        f"Waves have a width of {width} and the base {base:,}. After how many positions does pair "
        f"{pair} (from 0) come round?"
    )
    return Asked(text, f"$2\\pi \\cdot {base}^{{{2 * pair}/{width}}}$.", 2 * math.pi * base ** (2 * pair / width))


@number("4.product")
def _(draw: Random) -> Asked:
    at, apart = draw.randint(3, 40), draw.randint(1, 3)
    text = (
        f"Waves have a width of 4 and the base 100. What is the dot product of the waves at positions "
        f"{at} and {at + apart}?"
    )
    key = f"It depends on the distance alone: $\\cos {apart} + \\cos({apart}/10)$, angles in radians."
    return Asked(text, key, math.cos(apart) + math.cos(apart / 10))


reason(
    "4.order",
    "A model has no positions at all. With a full view, shuffling the text shuffles its outputs and "
    "changes nothing else. "
    "Why? And why is that no longer so with a causal mask?",
    "Scores compare contents, and a weighted sum has no order: outputs go along with their words "
    "(2). With a causal mask "
    "each word sees those before it, so that the set over which it averages depends on its place: the number of words "
    "it sees can be read from the average (2).",
)
broken(
    "4.speeds",
    "This function gives the angles of waves of a width, (token, pair); the last pair should be slowest, near 1/base.",
    """
def angles(tokens, width, base=10000.0):
    pair = torch.arange(width // 2, dtype=torch.float64)
    speed = base ** (-pair / width)
    return torch.arange(tokens)[:, None] * speed
""",
    """
def angles(tokens, width, base=10000.0):
    pair = torch.arange(width // 2, dtype=torch.float64)
    speed = base ** (-2 * pair / width)
    return torch.arange(tokens)[:, None] * speed
""",
    "assert abs(angles(2, 4)[1, 1].item() - 0.01) < 1e-9",
    "The exponent is $-2c/d$. As it is, speeds end at $1/\\sqrt{\\text{base}}$: every wave is short, "
    "and places far apart "
    "look alike.",
)
