"""Examination questions on lessons 10 to 14."""

from __future__ import annotations

import math
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason

# --- 10, generation and the KV cache


@number("10.cache")
def _(draw: Random) -> Asked:
    layers, kv, tokens = draw.choice([16, 24, 32]), draw.choice([4, 8]), 1024 * draw.randint(2, 16)
    text = (
        f"A decoder has {layers} layers, 32 heads and {kv} key-value heads of width 128. How many "
        f"bytes does the cache of "
        f"{tokens:,} tokens take in 16 bits?"
    )
    key = f"$2 \\cdot {layers} \\cdot {kv} \\cdot 128 \\cdot {tokens} \\cdot 2$: keys and values, two bytes each."
    return Asked(text, key, 2 * layers * kv * 128 * tokens * 2)


@number("10.temperature", points=2)
def _(draw: Random) -> Asked:
    ratio, temperature = draw.choice([4, 9, 16]), draw.choice([0.5, 2.0])
    text = (
        f"At temperature 1 one word is {ratio} times as likely as another. How many times as likely "
        f"is it at temperature "
        f"{temperature:g}?"
    )
    return Asked(text, f"${ratio}^{{1/{temperature:g}}}$.", ratio ** (1 / temperature))


reason(
    "10.bound",
    "A step of decoding for one user uses about a hundredth of a GPU's arithmetic. Why? And why does it take hardly "
    "longer for eight users at once, until it does?",
    "For one token every weight is read once from memory and used for one multiplication and addition: reading takes "
    "far longer than calculating (2). Eight users share the reading of the weights; the step gets longer when the "
    "caches, which are not shared, or the arithmetic take as long as the weights (2).",
)
broken(
    "10.nucleus",
    "This function keeps the fewest likeliest words that together have at least the chance `top_p`, "
    "and fills the others "
    "with 0. `chances` has shape (vocab).",
    """
def nucleus(chances, top_p):
    sorted, order = chances.sort(descending=True)
    kept = sorted.cumsum(0) < top_p
    out = torch.zeros_like(chances)
    out[order[kept]] = sorted[kept]
    return out / out.sum()
""",
    """
def nucleus(chances, top_p):
    sorted, order = chances.sort(descending=True)
    kept = sorted.cumsum(0) - sorted < top_p
    out = torch.zeros_like(chances)
    out[order[kept]] = sorted[kept]
    return out / out.sum()
""",
    "made = nucleus(torch.tensor([0.25, 0.5, 0.125, 0.125]), 0.6)\n"
    "assert torch.allclose(made, torch.tensor([1 / 3, 2 / 3, 0.0, 0.0]))\n"
    "assert nucleus(torch.tensor([0.9, 0.1]), 0.5).tolist() == [1.0, 0.0]",
    "The word that crosses `top_p` must be kept: a word stays if those before it have less. As it "
    "is, too few are kept, "
    "and none where the likeliest alone has more than `top_p`: 0 / 0 is NaN.",
)

# --- 11, mixture of experts


@number("11.active")
def _(draw: Random) -> Asked:
    width, inner = 256 * draw.randint(2, 8), 512 * draw.randint(2, 12)
    experts, top_k = draw.choice([8, 16, 32]), draw.choice([1, 2, 4])
    text = (
        f"A layer has {experts} experts, gated networks of width {width:,} and {inner:,} inside, and "
        f"a linear router; no biases. "
        f"Each token goes to {top_k}. With how many of the layer's parameters does one token calculate?"
    )
    key = (
        f"${top_k} \\cdot 3 \\cdot {width} \\cdot {inner}$, and ${width} \\cdot {experts}$ of the "
        f"router, which all tokens need."
    )
    return Asked(text, key, top_k * 3 * width * inner + width * experts)


@number("11.capacity", points=2)
def _(draw: Random) -> Asked:
    tokens, experts, top_k = 256 * draw.randint(3, 16), draw.choice([8, 16]), draw.choice([1, 2])
    factor = draw.choice([1.25, 1.5])
    text = (
        f"{tokens:,} tokens go to {top_k} of {experts} experts each. With a capacity factor of "
        f"{factor}, how many places has an "
        "expert?"
    )
    key = f"${factor} \\cdot {tokens} \\cdot {top_k} / {experts}$, rounded up."
    return Asked(text, key, math.ceil(factor * tokens * top_k / experts))


reason(
    "11.balance",
    "Without anything against it, a router often sends nearly all tokens to few experts. Which loop "
    "leads there, and how "
    "does a balancing loss break it, although the number of tokens at an expert has no gradient?",
    "An expert that gets more tokens is trained more, becomes better, and so gets more (2). The loss multiplies each "
    "expert's share of tokens, taken as a constant, with its mean chance from the router, which has "
    "a gradient: chances "
    "of crowded experts are pushed down (2).",
)
broken(
    "11.weights",
    "This function gives each token's experts and weights that add up to one. `scores` is (token, expert).",
    """
def route(scores, top_k):
    chances = torch.softmax(scores, dim=0)
    best, expert = chances.topk(top_k, dim=-1)
    return expert, best / best.sum(dim=-1, keepdim=True)
""",
    """
def route(scores, top_k):
    chances = torch.softmax(scores, dim=-1)
    best, expert = chances.topk(top_k, dim=-1)
    return expert, best / best.sum(dim=-1, keepdim=True)
""",
    "scores = torch.tensor([[3.0, 2.0, 0.0], [9.0, 2.0, 8.0]])\n"
    "assert route(scores, 1)[0].flatten().tolist() == [0, 0]",
    "The softmax runs over the tokens of the batch and not over the experts. Shapes and sums are right; but a token's "
    "experts depend on its neighbours, on later ones too, and one by one it is routed elsewhere than in a batch.",
)

# --- 12, cost and efficient attention


@number("12.days")
def _(draw: Random) -> Asked:
    billions, tokens, devices = draw.choice([1, 3, 7]), draw.choice([100, 200, 500]), draw.choice([16, 32, 64])
    share = draw.choice([0.35, 0.4, 0.5])
    text = (
        f"A model of {billions} billion parameters is trained on {tokens} billion tokens with "
        f"{devices} devices of 400 TFLOP/s "
        f"at {share:.0%} of their peak. How many days does it take, by the rule of 6 FLOPs?"
    )
    flops = 6 * billions * 1e9 * tokens * 1e9
    key = f"$6 N D = {flops:.3g}$ FLOPs, over ${devices} \\cdot 4 \\cdot 10^{{14}} \\cdot {share}$ a second."
    return Asked(text, key, flops / (devices * 4e14 * share * 86_400))


@number("12.even")
def _(draw: Random) -> Asked:
    width, gated = 512 * draw.randint(2, 10), draw.choice([2, 3, 4])
    text = (
        f"A layer has the width {width:,}, as many key-value heads as heads, and a feed-forward "
        f"network with two matrices, "
        f"{gated} times as wide inside. At how many visible keys do scores and weighted sums take as "
        f"many FLOPs for a token "
        "as all matrices together?"
    )
    key = f"$4 n d = 2 (4 + 2 \\cdot {gated}) d^2$, so $n = {2 + gated} d$."
    return Asked(text, key, (2 + gated) * width)


reason(
    "12.tiles",
    "Tiled attention calculates a little more than the plain one, and is faster. Where does the time "
    "go in the plain one, "
    "what does tiling spare, and what do the running maximum and the running sum do in it?",
    "The plain one writes all scores and weights to the device's memory and reads them again: it waits for memory (1). "
    "Tiles stay in fast memory, so that only queries, keys, values and the output pass (1). A softmax needs the whole "
    "row: with the maximum so far and the sum so far a partial result is scaled when a larger score "
    "comes, exactly (2).",
)
broken(
    "12.running",
    "This function gives the logarithm of the sum of exponentials of a list of blocks of numbers, "
    "with one block at a time.",
    """
def log_sum_exp(blocks):
    top, total = torch.tensor(float("-inf")), torch.tensor(0.0)
    for block in blocks:
        new = torch.maximum(top, block.max())
        total = total + (block - new).exp().sum()
        top = new
    return top + total.log()
""",
    """
def log_sum_exp(blocks):
    top, total = torch.tensor(float("-inf")), torch.tensor(0.0)
    for block in blocks:
        new = torch.maximum(top, block.max())
        total = total * (top - new).exp() + (block - new).exp().sum()
        top = new
    return top + total.log()
""",
    "x = torch.tensor([1.0, 2.0, 5.0, 4.0])\nassert torch.allclose(log_sum_exp(x.chunk(2)), x.logsumexp(0))",
    "When a larger number comes, what was summed so far belongs to the old maximum and must be multiplied by "
    "`(top - new).exp()`. Otherwise the result is too large, and right if the largest stands in the first block.",
)

# --- 13, one model, many names


@number("13.count")
def _(draw: Random) -> Asked:
    layers, width, vocab = draw.randint(8, 32), 256 * draw.randint(2, 8), 1000 * draw.randint(16, 64)
    text = (
        f"A decoder of LLaMA's kind has {layers} layers, the width {width:,}, as many key-value heads "
        f"as heads, gated networks "
        f"{3 * width:,} wide inside, two RMSNorms a layer and one at the end, a vocabulary of "
        f"{vocab:,}, and an output matrix of "
        "its own. How many parameters does it have?"
    )
    total = 2 * vocab * width + layers * (4 * width**2 + 9 * width**2 + 2 * width) + width
    key = f"$2 \\cdot {vocab} \\cdot {width} + {layers} \\cdot (13 \\cdot {width}^2 + 2 \\cdot {width}) + {width}$."
    return Asked(text, key, total)


@number("13.bits")
def _(draw: Random) -> Asked:
    billions, group = draw.choice([1, 3, 7, 13]), draw.choice([32, 64, 128])
    text = (
        f"{billions} billion weights are stored in 4 bits, with one number of 16 bits for each group "
        f"of {group}. How many "
        "gigabytes ($10^9$ bytes) is that?"
    )
    return Asked(text, f"$4 + 16/{group}$ bits a weight, over 8.", billions * (4 + 16 / group) / 8)


reason(
    "13.edits",
    "Name the edits that lead from GPT-2 to LLaMA, and for two of them what became better by it.",
    "Rotary positions for learned vectors; RMSNorm for LayerNorm; a gated network with SiLU for one "
    "with GELU; no biases; "
    "an output matrix of its own (in later and larger ones: fewer key-value heads). Four are enough "
    "(2). For each of two "
    "a reason, such as: scores depend on distance and no table ends the context; a norm with less to calculate; more "
    "for the same parameters; a smaller cache (2).",
)
broken(
    "13.stored",
    "GPT-2 stores its matrices as (in, out). This function puts one into a linear layer of PyTorch.",
    "def load(layer, stored):\n    with torch.no_grad():\n        layer.weight.copy_(stored)",
    "def load(layer, stored):\n    with torch.no_grad():\n        layer.weight.copy_(stored.T)",
    "layer, stored, x = torch.nn.Linear(4, 4, bias=False), torch.randn(4, 4), torch.randn(2, 4)\n"
    "load(layer, stored)\nassert torch.allclose(layer(x), x @ stored, atol=1e-6)",
    "`nn.Linear` holds (out, in) and multiplies by the transpose: copy `stored.T`. A matrix that is "
    "not square is refused "
    "for its shape; a square one, attention's output, goes in without a word, and the model writes nonsense.",
)

# --- 14, training


@number("14.rate")
def _(draw: Random) -> Asked:
    warm, steps = 100 * draw.randint(1, 5), 1000 * draw.randint(2, 8)
    at = warm + draw.choice([1, 2]) * (steps - warm) // 4
    text = (
        f"A learning rate rises to 0.001 within {warm} steps, and then falls by half a cosine to 0 at "
        f"step {steps:,}. What is it "
        f"at step {at:,}?"
    )
    share = (at - warm) / (steps - warm)
    key = f"$0.001 \\cdot (1 + \\cos(\\pi \\cdot {share:.4g})) / 2$."
    return Asked(text, key, 0.001 * (1 + math.cos(math.pi * share)) / 2)


@number("14.clip", points=2)
def _(draw: Random) -> Asked:
    a, b, norm = *draw.choice([(3, 4), (6, 8), (5, 12), (8, 15)]), draw.choice([1, 2])
    text = (
        f"All gradients of a model are $({a}, {b})$. They are clipped to a norm of {norm}. What is the first one then?"
    )
    return Asked(
        text,
        f"The norm is {math.hypot(a, b):g}; both are multiplied by ${norm}/{math.hypot(a, b):g}$.",
        norm * a / math.hypot(a, b),
    )


reason(
    "14.decay",
    "AdamW takes weight decay off the weights themselves, while decay as a term of the loss goes "
    "through Adam's division. "
    "What is the difference for a weight with large gradients, and for one with small ones? And why are the gains of "
    "norms usually left out?",
    "Through the division a weight with large gradients is decayed little, and one with small ones "
    "much, since its term is "
    "divided by the root of the mean squared gradient as well (2). In AdamW all are decayed by the "
    "same share (1). A gain "
    "is meant to be near 1 and not near 0: decay would shrink the layer's output for no reason (1).",
)
broken(
    "14.accumulate",
    "This function adds up the gradients of several equal parts of a batch; they should be those of "
    "the mean loss of the whole "
    "batch.",
    """
def accumulate(loss_of, parts):
    for part in parts:
        loss = loss_of(part)
        loss.backward()
""",
    """
def accumulate(loss_of, parts):
    for part in parts:
        loss = loss_of(part) / len(parts)
        loss.backward()
""",
    "w, x = torch.ones((), requires_grad=True), torch.tensor([1.0, 2.0, 3.0, 6.0])\n"
    "accumulate(lambda part: (w * part).mean(), x.chunk(2))\nassert w.grad.item() == 3.0",
    "Gradients are added, so they become as many times too large as there are parts: divide each part's mean by their "
    "number. Adam hides it nearly, clipping does not, and with SGD the rate is that many times as large.",
)
