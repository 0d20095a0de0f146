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
        f"A model has three words. Their logits are $0$, $\\ln {a}$ and $\\ln {b}$. What is the probability of the "
        "third word?"
    )
    return Asked(text, f"The exponentials are 1, {a} and {b}: ${b} / {1 + a + b}$.", b / (1 + a + b))


@number("0.loss", points=2)
def _(draw: Random) -> Asked:
    share = draw.choice([4, 5, 8, 10, 16, 20, 25, 50])
    text = f"A model gives the next word the probability $1/{share}$. What is its loss on this word, in nats?"
    return Asked(text, f"$-\\ln(1/{share}) = \\ln {share}$. In bits the number would be different.", math.log(share))


reason(
    "0.rows",
    "In a model without positions and without a mask, one word of a text is replaced by another. Which rows of the "
    "state change after the embedding, which after the first attention layer, and why?",
    "After the embedding only the row of that word changes, because each row depends only on its own word (2). After "
    "attention, in general, all rows change, because each is a weighted average over all words, and the new word is "
    "part of every average (2).",
)
broken(
    "0.next",
    "This function takes logits of shape (token, vocab) and returns the id of the word that follows the text.",
    "def next_word(logits):\n    return logits.argmax(dim=0)[-1]",
    "return logits.argmax(dim=0)[-1]",
    "return logits[-1].argmax()",
    "logits = torch.tensor([[5.0, 1.0, 0.0], [0.0, 2.0, 3.0]])\nassert int(next_word(logits)) == 2",
    "The maximum is taken along the tokens, which gives, for each word, the position where it is most probable. `[-1]` "
    "then picks this position for the last word of the vocabulary, so the id is always smaller than the number of "
    "tokens. Write `logits[-1].argmax()`.",
)

# --- 01, tokens and embeddings


@number("1.tied", points=2)
def _(draw: Random) -> Asked:
    vocab, width = 1000 * draw.randint(20, 130), 128 * draw.randint(4, 32)
    text = (
        f"A model has a vocabulary of {vocab:,} and a width of {width:,}. How many parameters are saved if the output "
        "matrix is the embedding table (no biases)?"
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
    "language that was not in its training text?",
    "Every text is a sequence of bytes, and all 256 are in the vocabulary, so any text can be cut, at worst byte by "
    "byte (2). The merges were learned on other texts, so few apply. The same text takes more tokens, which means a "
    "shorter context, more steps and a higher price (2).",
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
    "at += 1",
    "at += 2",
    "assert merge([1, 2, 3, 1, 2], 1, 2, 9) == [9, 3, 9] and merge([1, 1, 1], 1, 1, 9) == [9, 1]",
    "After a pair is found, the position must move by two. As it is, the second id of each pair is written again: "
    "the list does not get shorter, and decoding repeats letters.",
)

# --- 02, scaled dot-product attention


@number("2.variance")
def _(draw: Random) -> Asked:
    width, a, b = draw.choice([32, 64, 96, 128, 256]), draw.choice([0.5, 2, 3]), draw.choice([0.25, 4, 5])
    text = (
        f"The {width} components of a query have mean 0 and variance {a}, and those of a key have mean 0 and "
        f"variance {b}. All are independent. Their dot product is divided by the square root of the width, which "
        "gives the score. What is the variance of the score?"
    )
    key = (
        f"The variance of a term is ${a} \\cdot {b}$, and that of the sum is {width} times as large. Dividing the "
        f"sum by the square root of the width divides the variance by {width} again."
    )
    return Asked(text, key, a * b)


@number("2.average")
def _(draw: Random) -> Asked:
    a, b = draw.sample(range(2, 9), 2)
    values = [draw.randint(-9, 9) for _ in range(3)]
    text = (
        f"A query has the scaled scores $0$, $\\ln {a}$ and $\\ln {b}$ with three keys, whose values are the numbers "
        f"{values[0]}, {values[1]} and {values[2]}. The last key is masked. What is the output?"
    )
    key = f"The weights are $1/{1 + a}$, ${a}/{1 + a}$ and 0."
    return Asked(text, key, (values[0] + a * values[1]) / (1 + a))


reason(
    "2.root",
    "A colleague divides scores by $d_k$ instead of its square root. What happens to the weights of wide heads at "
    "the start of training, and what can training do about it?",
    "A score is about as large as the square root of $d_k$. Divided by $d_k$ it shrinks like $1/\\sqrt{d_k}$, so all "
    "weights are nearly equal, and attention is a plain average (3). Training can make queries and keys larger. The "
    "layer can still express the same functions, but it starts from a worse point (1).",
)
broken(
    "2.mask",
    "Here `mask` is true where a query (row) may look at a key (column).",
    """
def weights(scores, mask):
    scores = scores.masked_fill(~mask, 0.0)
    return torch.softmax(scores, dim=-1)
""",
    "scores = scores.masked_fill(~mask, 0.0)",
    'scores = scores.masked_fill(~mask, float("-inf"))',
    "made = weights(torch.zeros(2, 4), torch.tensor([[True, True, False, False]]))\n"
    "assert made[:, 2:].abs().max() == 0",
    "A score of 0 is a score like any other. Its exponential is 1, so the hidden key has a weight, often a large "
    "one. The mistake does not show in the sums, because rows still add up to one, but the output changes with the "
    "hidden tokens. Fill with minus infinity.",
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
        f"A state of width {heads * head} is cut into {heads} heads of width {head} by `view(batch, token, "
        f"{heads}, {head})`. "
        f"Heads and components are counted from 0. In which head is component {at % (heads * head)}?"
    )
    at %= heads * head
    return Asked(
        text,
        f"Each head holds {head} neighbouring components, so the head is the integer part of {at}/{head}.",
        at // head,
    )


reason(
    "3.heads",
    "A layer of fixed width gets twice as many heads, each half as wide. What happens to its number of parameters, "
    "to the FLOPs of its scores, and to what a single head can distinguish? Say why in each case.",
    "The number of parameters stays the same, because the matrices have the layer's width on both sides (1). The "
    "FLOPs of the scores stay the same: there are twice as many dot products of half the length (1). A head's scores "
    "have half the rank, so they compare fewer directions. In return, the layer has twice as many patterns of "
    "weights (2).",
)
broken(
    "3.split",
    "This function cuts a state of shape (batch, token, d_model) into heads, (batch, head, token, d_head).",
    """
def split(x, heads):
    batch, token, width = x.shape
    return x.view(batch, heads, token, width // heads)
""",
    "return x.view(batch, heads, token, width // heads)",
    "return x.view(batch, token, heads, width // heads).transpose(1, 2)",
    "x = torch.arange(24).view(1, 3, 8)\nassert split(x, 2)[0, 1, 0].tolist() == [4, 5, 6, 7]",
    "The shape is right but the entries are wrong: a head gets components of other tokens, so a mask no longer hides "
    "what it should. Use `view` to (batch, token, head, d_head), then `transpose(1, 2)`.",
)

# --- 04, sinusoidal positions


@number("4.wavelength")
def _(draw: Random) -> Asked:
    width, base = draw.choice([8, 16, 32]), draw.choice([100, 1000, 10000])
    pair = draw.randint(1, width // 2 - 1)
    text = (
        f"Waves have a width of {width} and the base {base:,}. After how many positions has pair {pair} (counted from "
        "0) made a full turn?"
    )
    return Asked(text, f"$2\\pi \\cdot {base}^{{{2 * pair}/{width}}}$.", 2 * math.pi * base ** (2 * pair / width))


@number("4.product")
def _(draw: Random) -> Asked:
    at, apart = draw.randint(3, 40), draw.randint(1, 3)
    text = (
        f"Waves have a width of 4 and the base 100. What is the dot product of the waves at positions "
        f"{at} and {at + apart}?"
    )
    key = f"It depends only on the distance: $\\cos {apart} + \\cos({apart}/10)$, angles in radians."
    return Asked(text, key, math.cos(apart) + math.cos(apart / 10))


reason(
    "4.order",
    "A model has no positions at all. Without a mask, shuffling the text shuffles its outputs in the same way and "
    "changes nothing else. Why? And why is this no longer true with a causal mask?",
    "Scores compare contents, and a weighted sum has no order, so outputs move together with their words (2). With a "
    "causal mask each word sees only the words before it, so the set that it averages over depends on its position. "
    "The average reveals how many words it sees (2).",
)
broken(
    "4.speeds",
    "This function returns the angles (token, pair) of waves of a given width. The last pair should be the slowest, "
    "with a speed near 1/base.",
    """
def angles(tokens, width, base=10000.0):
    pair = torch.arange(width // 2, dtype=torch.float64)
    speed = base ** (-pair / width)
    return torch.arange(tokens)[:, None] * speed
""",
    "speed = base ** (-pair / width)",
    "speed = base ** (-2 * pair / width)",
    "assert abs(angles(2, 4)[1, 1].item() - 0.01) < 1e-9",
    "The exponent must be $-2c/d$. As it is, the slowest speed is $1/\\sqrt{\\text{base}}$. Every wave is short, and "
    "positions far apart look alike.",
)
