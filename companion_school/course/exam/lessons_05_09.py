"""Examination questions on lessons 05 to 09."""

from __future__ import annotations

import math
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason

# --- 05, rotary positions


@number("5.turn")
def _(draw: Random) -> Asked:
    a, b, degrees = draw.randint(2, 5), draw.randint(2, 5), draw.choice([10, 15, 20])
    at, apart = draw.randint(5, 30), draw.randint(1, 4)
    text = (
        f"A head has one pair that turns by {degrees} degrees for each position. Unturned, the query "
        f"is $({a}, 0)$ and the "
        f"key $(0, {b})$. The query stands at position {at}, the key at {at - apart}. What is their score, unscaled?"
    )
    key = (
        f"Between them it is $90 - {apart} \\cdot {degrees}$ degrees: the query is turned {apart} times further. "
        f"${a} \\cdot {b} \\cdot \\cos({90 - apart * degrees}^\\circ)$."
    )
    return Asked(text, key, a * b * math.cos(math.radians(90 - apart * degrees)))


@number("5.slow")
def _(draw: Random) -> Asked:
    width, base, context = draw.choice([64, 128]), draw.choice([10_000, 500_000]), draw.choice([512, 1024, 2048])
    slow = sum(2 * math.pi * base ** (2 * pair / width) > context for pair in range(width // 2))
    text = (
        f"A head is {width} wide, its base is {base:,}. How many of its {width // 2} pairs do not "
        f"come round once within "
        f"{context:,} positions?"
    )
    key = (
        f"Those with $2\\pi \\cdot {base}^{{2c/{width}}} > {context}$, so "
        f"$c > \\frac{{{width}}}{{2}} \\ln(\\frac{{{context}}}{{2\\pi}}) / \\ln {base}$; {slow} of the numbers up to "
        f"{width // 2 - 1} are larger. One off, by the end that is counted, loses a point."
    )
    return Asked(text, key, slow)


reason(
    "5.kept",
    "A program keeps turned keys, and drops the oldest half of them when its memory is full. It then "
    "numbers the tokens "
    "that are left from 0 again, for new queries too, and leaves the kept keys as they are. What "
    "goes wrong, and what are "
    "two ways to put it right?",
    "Kept keys were turned by their old positions, new queries by small ones: every distance between "
    "them is off by the "
    "number of dropped tokens, even negative (2). Go on counting with the old positions, since a score needs the "
    "distance alone; or turn kept keys back by the number that was dropped (2).",
)
broken(
    "5.half",
    "This function turns pairs in the half layout: the first halves of a head's components with the second ones.",
    """
def turn(x, angle):
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * cos + b * sin], dim=-1)
""",
    """
def turn(x, angle):
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
""",
    "x = torch.randn(3, 6, dtype=torch.float64)\nangle = torch.randn(3, 3, dtype=torch.float64)\n"
    "assert torch.allclose(turn(x, angle).norm(dim=-1), x.norm(dim=-1))",
    "The second half is $a \\sin + b \\cos$. As it is, this is no rotation: lengths change with the "
    "position, so scores "
    "depend on places and not on distances. A test: the length must stay.",
)

# --- 06, feed-forward, norms, residuals


@number("6.gated", points=2)
def _(draw: Random) -> Asked:
    inner = 768 * draw.randint(2, 20)
    text = (
        f"A feed-forward network with two matrices is {inner:,} wide inside. It is replaced by a "
        f"gated one with three, and "
        "its number of parameters must stay (no biases). How wide is the gated one inside?"
    )
    return Asked(text, f"$2 d \\cdot {inner} = 3 d \\cdot x$: two thirds.", inner * 2 // 3)


@number("6.rms")
def _(draw: Random) -> Asked:
    a, b, gain = draw.randint(1, 6), draw.randint(7, 12), draw.choice([0.5, 1.5, 2])
    text = (
        f"RMSNorm with the gain {gain} for each component and $\\varepsilon = 0$ gets $({a}, -{b})$. "
        f"What is its first output?"
    )
    key = f"${gain} \\cdot {a} / \\sqrt{{({a * a} + {b * b}) / 2}}$; no mean is taken off."
    return Asked(text, key, gain * a / math.sqrt((a * a + b * b) / 2))


reason(
    "6.before",
    "With the norm before each part, a gradient gets from the last layer to the first without being "
    "scaled by any norm on "
    "the way. Why is that so, and why is it not so with the norm after the sum?",
    "Before: $x + f(\\text{norm}(x))$ has the derivative $1 + \\dots$; the 1 of every layer "
    "multiplies to a way on which "
    "nothing is scaled (2). After: $\\text{norm}(x + f(x))$ passes every gradient through each norm, "
    "which divides by the "
    "size of the sum; over the layers these factors multiply (2).",
)
broken(
    "6.spread",
    "This is a layer norm without gain and bias.",
    """
def layer_norm(x, eps=1e-5):
    mean = x.mean(dim=-1, keepdim=True)
    spread = x.var(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(spread + eps)
""",
    """
def layer_norm(x, eps=1e-5):
    mean = x.mean(dim=-1, keepdim=True)
    spread = x.var(dim=-1, keepdim=True, correction=0)
    return (x - mean) / torch.sqrt(spread + eps)
""",
    "x = torch.randn(4, 5, dtype=torch.float64)\n"
    "assert torch.allclose(layer_norm(x), torch.nn.functional.layer_norm(x, (5,)))",
    "`var` divides by $n - 1$ unless it is told otherwise; a layer norm divides by $n$. Outputs are too small by "
    "$\\sqrt{(n-1)/n}$: hardly seen in a wide model, and a loaded one is off a little everywhere.",
)

# --- 07, the encoder


@number("7.filler")
def _(draw: Random) -> Asked:
    lengths = [draw.randint(5, 60) for _ in range(4)]
    text = (
        f"Four texts of {', '.join(map(str, lengths[:3]))} and {lengths[3]} tokens stand in one "
        f"batch, filled up to the longest. "
        "Which share of the scores of full self-attention, filler's rows and columns counted, "
        "belongs to two real tokens "
        "of a text?"
    )
    share = sum(n * n for n in lengths) / (4 * max(lengths) ** 2)
    return Asked(text, f"The sum of the squares over $4 \\cdot {max(lengths)}^2$.", share)


@number("7.reach", points=2)
def _(draw: Random) -> Asked:
    window, apart = draw.choice([4, 8, 16]), draw.randint(70, 200)
    text = (
        f"In every layer of an encoder a token sees itself and {window} tokens on either side. How "
        f"many layers does it take "
        f"until a token can depend on one that stands {apart} tokens away?"
    )
    return Asked(text, f"{window} tokens a layer: ${apart}/{window}$, rounded up.", math.ceil(apart / window))


reason(
    "7.write",
    "Why can a trained encoder with a full view not simply write text, word after word, as a decoder "
    "does? Name what is "
    "missing in its training and what in its computation.",
    "In training it saw the words that come, so it never had to predict a next word from those before it alone (2). In "
    "computation a new word changes the rows of all words before it, in every layer: nothing that was computed can be "
    "kept, and what was written would have had other states (2).",
)
broken(
    "7.pool",
    "This function gives the mean of the real rows of each text. `x` is (batch, token, d_model), "
    "`real` (batch, token), "
    "true for real tokens.",
    """
def pooled(x, real):
    kept = x * real[..., None]
    return kept.mean(dim=1)
""",
    """
def pooled(x, real):
    kept = x * real[..., None]
    return kept.sum(dim=1) / real.sum(dim=1, keepdim=True)
""",
    "x = torch.ones(2, 4, 3)\nreal = torch.tensor([[True, True, False, False], [True] * 4])\n"
    "assert torch.equal(pooled(x, real), torch.ones(2, 3))",
    "`mean` divides by the number of places, filler among them: the vector of a text gets the shorter, the more filler "
    "stands beside it, and depends on its batch. Divide by the number of real tokens.",
)

# --- 08, decoder and cross-attention


@number("8.seen")
def _(draw: Random) -> Asked:
    target, source = draw.randint(6, 30), draw.randint(31, 60)
    text = (
        f"An encoder-decoder translates {source} tokens into {target}. How many pairs of a query and "
        f"a key that it may see "
        "has one decoder layer, in both of its attentions and for one head?"
    )
    key = f"${target} \\cdot {target + 1} / 2$ in the triangle, and ${target} \\cdot {source}$ across."
    return Asked(text, key, target * (target + 1) // 2 + target * source)


@number("8.layer")
def _(draw: Random) -> Asked:
    width = 64 * draw.randint(4, 16)
    text = (
        f"A decoder layer of an encoder-decoder has the width {width:,}, a feed-forward network four "
        f"times as wide inside, "
        "and no biases. How many parameters do its matrices have?"
    )
    key = "Four square matrices for each of two attentions, and $2 \\cdot 4$ for the network: $16\\, d^2$."
    return Asked(text, key, 16 * width**2)


reason(
    "8.once",
    "A translation is written token by token. Which keys and values of a decoder layer are computed once for the whole "
    "translation, which once for each token, and why may both be kept?",
    "Cross-attention's come from the encoder's output, which does not change while it is written: once (2). Those of "
    "self-attention belong to target tokens: once each, when it is written; they may be kept, since the causal mask "
    "keeps later tokens from changing an earlier state (2).",
)
broken(
    "8.triangle",
    "This function says which key (column) a query (row) of a decoder may see.",
    "def causal(tokens):\n    return torch.ones(tokens, tokens).tril(-1).bool()",
    "def causal(tokens):\n    return torch.ones(tokens, tokens).tril().bool()",
    "assert causal(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]",
    "A token may see itself; `tril(-1)` hides the diagonal. The first row sees nothing: its softmax is NaN, or an even "
    "average over all, by how the mask is applied. `tril()`.",
)

# --- 09, teacher forcing


@number("9.unbroken")
def _(draw: Random) -> Asked:
    percent, length = draw.choice([95, 97, 98, 99]), draw.choice([20, 30, 50])
    text = (
        f"Given the right words before it, a model gets each next word right with a chance of "
        f"{percent} %, independently. "
        f"With what chance does it write {length} words without a mistake?"
    )
    return Asked(text, f"$0.{percent}^{{{length}}}$.", (percent / 100) ** length)


@number("9.mean")
def _(draw: Random) -> Asked:
    a, b = draw.randint(2, 6), draw.randint(14, 30)
    x, y = draw.choice([1.0, 1.5, 2.0]), draw.choice([3.0, 3.5, 4.0])
    text = (
        f"Two texts stand in a batch. One has {a} targets and a mean loss of {x} on them, the other "
        f"{b} and {y}; filler is "
        "ignored. What is the mean loss of a target?"
    )
    return Asked(
        text, f"$({a} \\cdot {x} + {b} \\cdot {y}) / {a + b}$, not the mean of the means.", (a * x + b * y) / (a + b)
    )


reason(
    "9.alone",
    "The loss on texts that a model has not seen is low, and yet what it writes by itself falls apart after some "
    "sentences. Why is that no contradiction, and how would you measure what matters here?",
    "The loss is taken behind right words; by itself the model writes behind its own, which soon are "
    "such as no text of "
    "the training has, and mistakes add up (2). Let it write freely from the beginnings of unseen "
    "texts and measure the "
    "result: exact matches, a task's score, or where it leaves the right text (2).",
)
broken(
    "9.shift",
    "This is the loss of a decoder; `ids` is (batch, token), and `model` gives logits, (batch, token, vocab).",
    """
def loss(model, ids):
    logits = model(ids[:, :-1])
    targets = ids[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
""",
    """
def loss(model, ids):
    logits = model(ids[:, :-1])
    targets = ids[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
""",
    "ids = torch.tensor([[0, 1, 2, 3]])\n"
    "follow = lambda ids: 50.0 * torch.nn.functional.one_hot((ids + 1) % 4, 4).double()\n"
    "assert loss(follow, ids) < 1e-6",
    "Targets are the words that come, `ids[:, 1:]`. As it is, the model has to repeat the word it "
    "just read: the loss goes "
    "to nearly 0 in no time, and what it writes is one word again and again.",
)
