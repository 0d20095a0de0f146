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
        f"A head has one pair, which is rotated by {degrees} degrees per position. Before rotation, the query is "
        f"$({a}, 0)$ and the key is $(0, {b})$. The query is at position {at} and the key at {at - apart}. What is "
        "their score, unscaled?"
    )
    key = (
        f"The angle between them is $90 - {apart} \\cdot {degrees}$ degrees, because the query is rotated by {apart} "
        f"more positions. ${a} \\cdot {b} \\cdot \\cos({90 - apart * degrees}^\\circ)$."
    )
    return Asked(text, key, a * b * math.cos(math.radians(90 - apart * degrees)))


@number("5.slow")
def _(draw: Random) -> Asked:
    width, base, context = draw.choice([64, 128]), draw.choice([10_000, 500_000]), draw.choice([512, 1024, 2048])
    slow = sum(2 * math.pi * base ** (2 * pair / width) > context for pair in range(width // 2))
    text = (
        f"A head has width {width} and base {base:,}. How many of its {width // 2} pairs do not make a full turn "
        f"within {context:,} positions?"
    )
    key = (
        f"These are the pairs with $2\\pi \\cdot {base}^{{2c/{width}}} > {context}$, so $c > \\frac{{{width}}}{{2}} "
        f"\\ln(\\frac{{{context}}}{{2\\pi}}) / \\ln {base}$; {slow} of the numbers from 0 to {width // 2 - 1} are "
        "larger. An answer that is off by one loses a point."
    )
    return Asked(text, key, slow)


reason(
    "5.kept",
    "A program caches rotated keys, and drops the oldest half of them when its memory is full. It then numbers the "
    "remaining tokens from 0 again, also for new queries, but leaves the cached keys as they are. What goes wrong, "
    "and what are two ways to correct it?",
    "The cached keys were rotated by their old positions, but new queries are rotated by small ones, so every distance "
    "between them is off by the number of dropped tokens and may even be negative (2). Continue to count with the old "
    "positions, because a score depends only on the distance, or rotate the cached keys back by the number of "
    "dropped tokens (2).",
)
broken(
    "5.half",
    "This function rotates pairs in the half layout, which pairs the first half of a head's components with the "
    "second half.",
    """
def turn(x, angle):
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * cos + b * sin], dim=-1)
""",
    "return torch.cat([a * cos - b * sin, a * cos + b * sin], dim=-1)",
    "return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)",
    "x = torch.randn(3, 6, dtype=torch.float64)\nangle = torch.randn(3, 3, dtype=torch.float64)\n"
    "assert torch.allclose(turn(x, angle).norm(dim=-1), x.norm(dim=-1))",
    "The second half is $a \\sin + b \\cos$. As it is, this is not a rotation: lengths change with the position, so "
    "scores depend on positions instead of distances. A test is that the length must not change.",
)

# --- 06, feed-forward, norms, residuals


@number("6.gated", points=2)
def _(draw: Random) -> Asked:
    inner = 768 * draw.randint(2, 20)
    text = (
        f"A feed-forward network with two matrices has the hidden width {inner:,}. It is replaced by a gated network "
        "with three matrices and the same number of parameters (no biases). What is the hidden width of the gated "
        "network?"
    )
    return Asked(text, f"$2 d \\cdot {inner} = 3 d \\cdot x$, so it is two thirds.", inner * 2 // 3)


@number("6.rms")
def _(draw: Random) -> Asked:
    a, b, gain = draw.randint(1, 6), draw.randint(7, 12), draw.choice([0.5, 1.5, 2])
    text = (
        f"RMSNorm with the gain {gain} for each component and $\\varepsilon = 0$ gets $({a}, -{b})$. "
        f"What is its first output?"
    )
    key = f"${gain} \\cdot {a} / \\sqrt{{({a * a} + {b * b}) / 2}}$; no mean is subtracted."
    return Asked(text, key, gain * a / math.sqrt((a * a + b * b) / 2))


reason(
    "6.before",
    "With the norm before each part, a gradient can reach the first layer from the last without being scaled by a "
    "norm on the way. Why, and why is this not true with the norm after the sum?",
    "Before: $x + f(\\text{norm}(x))$ has the derivative $1 + \\dots$. The product of these ones over all layers is "
    "a path where nothing is scaled (2). After: $\\text{norm}(x + f(x))$ passes every gradient through each norm, "
    "which divides by the size of the sum. These factors multiply over the layers (2).",
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
    "spread = x.var(dim=-1, keepdim=True)",
    "spread = x.var(dim=-1, keepdim=True, correction=0)",
    "x = torch.randn(4, 5, dtype=torch.float64)\n"
    "assert torch.allclose(layer_norm(x), torch.nn.functional.layer_norm(x, (5,)))",
    "By default `var` divides by $n - 1$, but a layer norm divides by $n$. Outputs are too small by the factor "
    "$\\sqrt{(n-1)/n}$. This is hard to see in a wide model, but every output of a loaded model is slightly wrong.",
)

# --- 07, the encoder


@number("7.filler")
def _(draw: Random) -> Asked:
    lengths = [draw.randint(5, 60) for _ in range(4)]
    text = (
        f"Four texts of {', '.join(map(str, lengths[:3]))} and {lengths[3]} tokens are in one batch, padded to the "
        "longest. What share of all scores of full self-attention, including rows and columns of padding, belongs "
        "to two real tokens of a text?"
    )
    share = sum(n * n for n in lengths) / (4 * max(lengths) ** 2)
    return Asked(text, f"The sum of the squares over $4 \\cdot {max(lengths)}^2$.", share)


@number("7.reach", points=2)
def _(draw: Random) -> Asked:
    window, apart = draw.choice([4, 8, 16]), draw.randint(70, 200)
    text = (
        f"In every layer of an encoder a token sees itself and {window} tokens on either side. After how many layers "
        f"can a token depend on one that is {apart} tokens away?"
    )
    return Asked(text, f"{window} tokens per layer: ${apart}/{window}$, rounded up.", math.ceil(apart / window))


reason(
    "7.write",
    "Why can a trained encoder, which sees the whole text, not simply write text word by word as a decoder does? "
    "Name what is missing in its training and what in its computation.",
    "In training it saw the following words, so it never had to predict a word only from those before it (2). In the "
    "computation, a new word changes the rows of all earlier words in every layer, so nothing can be cached, and the "
    "words that were already written would have had other states (2).",
)
broken(
    "7.pool",
    "This function returns the mean of the real rows of each text. `x` is (batch, token, d_model), and `real` (batch, "
    "token) is true for real tokens.",
    """
def pooled(x, real):
    kept = x * real[..., None]
    return kept.mean(dim=1)
""",
    "return kept.mean(dim=1)",
    "return kept.sum(dim=1) / real.sum(dim=1, keepdim=True)",
    "x = torch.ones(2, 4, 3)\nreal = torch.tensor([[True, True, False, False], [True] * 4])\n"
    "assert torch.equal(pooled(x, real), torch.ones(2, 3))",
    "`mean` divides by the number of positions, including padding. So the vector of a text gets shorter the more "
    "padding its row has, and it depends on the batch. Divide by the number of real tokens.",
)

# --- 08, decoder and cross-attention


@number("8.seen")
def _(draw: Random) -> Asked:
    target, source = draw.randint(6, 30), draw.randint(31, 60)
    text = (
        f"An encoder-decoder translates {source} tokens into {target}. How many visible pairs of a query and a key "
        "does one decoder layer have, in both of its attention layers and for one head?"
    )
    key = (
        f"${target} \\cdot {target + 1} / 2$ in the causal triangle, and ${target} \\cdot {source}$ in cross-attention."
    )
    return Asked(text, key, target * (target + 1) // 2 + target * source)


@number("8.layer")
def _(draw: Random) -> Asked:
    width = 64 * draw.randint(4, 16)
    text = (
        f"A decoder layer of an encoder-decoder has the width {width:,}, a feed-forward network with four times that "
        "hidden width, and no biases. How many parameters do its matrices have?"
    )
    key = "Four square matrices for each of two attentions, and $2 \\cdot 4$ for the network: $16\\, d^2$."
    return Asked(text, key, 16 * width**2)


reason(
    "8.once",
    "A translation is written token by token. Which keys and values of a decoder layer are computed once for the "
    "whole translation, which once for each token, and why can both be cached?",
    "Those of cross-attention are computed once, because they come from the encoder's output, which does not change "
    "during the translation (2). Those of self-attention are computed once for each target token when it is written. "
    "They can be cached because the causal mask prevents later tokens from changing an earlier state (2).",
)
broken(
    "8.triangle",
    "This function returns which keys (columns) each query (row) of a decoder may see.",
    "def causal(tokens):\n    return torch.ones(tokens, tokens).tril(-1).bool()",
    "return torch.ones(tokens, tokens).tril(-1).bool()",
    "return torch.ones(tokens, tokens).tril().bool()",
    "assert causal(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]",
    "A token may see itself, but `tril(-1)` hides the diagonal. The first token sees nothing, so its softmax is NaN or "
    "an even average over all tokens, depending on how the mask is applied. Use `tril()`.",
)

# --- 09, teacher forcing


@number("9.unbroken")
def _(draw: Random) -> Asked:
    percent, length = draw.choice([95, 97, 98, 99]), draw.choice([20, 30, 50])
    text = (
        f"Given the right words before it, a model gets each next word right with a probability of {percent} %, "
        f"independently. With what probability does it write {length} words without a mistake?"
    )
    return Asked(text, f"$0.{percent}^{{{length}}}$.", (percent / 100) ** length)


@number("9.mean")
def _(draw: Random) -> Asked:
    a, b = draw.randint(2, 6), draw.randint(14, 30)
    x, y = draw.choice([1.0, 1.5, 2.0]), draw.choice([3.0, 3.5, 4.0])
    text = (
        f"A batch contains two texts. One has {a} targets with a mean loss of {x}, and the other has {b} targets "
        f"with a mean loss of {y}. Padding is ignored. What is the mean loss per target?"
    )
    return Asked(
        text, f"$({a} \\cdot {x} + {b} \\cdot {y}) / {a + b}$, not the mean of the means.", (a * x + b * y) / (a + b)
    )


reason(
    "9.alone",
    "The loss of a model on unseen texts is low, but what it writes by itself falls apart after a few sentences. Why "
    "is this not a contradiction, and how would you measure what matters here?",
    "The loss is measured after right words. When it writes by itself, the model continues its own words, which "
    "soon differ from all training texts, and mistakes add up (2). Let it write freely from the beginnings of "
    "unseen texts and measure the result: exact matches, a task's score, or the position at which it leaves the "
    "right text (2).",
)
broken(
    "9.shift",
    "This is the loss of a decoder. `ids` is (batch, token), and `model` returns logits (batch, token, vocab).",
    """
def loss(model, ids):
    logits = model(ids[:, :-1])
    targets = ids[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
""",
    "targets = ids[:, :-1]",
    "targets = ids[:, 1:]",
    "ids = torch.tensor([[0, 1, 2, 3]])\n"
    "follow = lambda ids: 50.0 * torch.nn.functional.one_hot((ids + 1) % 4, 4).double()\n"
    "assert loss(follow, ids) < 1e-6",
    "The targets are the next words, `ids[:, 1:]`. As it is, the model has to repeat the word that it has just read: "
    "the loss quickly falls to nearly 0, and the model writes one word again and again.",
)
