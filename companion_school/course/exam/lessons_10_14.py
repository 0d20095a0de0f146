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
        f"A decoder has {layers} layers, 32 heads and {kv} key-value heads of width 128. How many bytes does the "
        f"cache of {tokens:,} tokens take with 16 bits per element?"
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
    "A decoding step for one user uses about a hundredth of a GPU's arithmetic. Why? And why does a step for eight "
    "users at once take hardly any longer, and when is that no longer true?",
    "For one token, every weight is read once from memory and used for one multiplication and addition, and reading "
    "takes far longer than computing (2). Eight users share the reading of the weights. The step gets longer when "
    "the caches, which are not shared, or the arithmetic take as long as reading the weights (2).",
)
broken(
    "10.nucleus",
    "This function keeps the smallest set of most probable words whose total probability is at least `top_p`, and "
    "sets the others to 0. `chances` (vocab) holds the probabilities.",
    """
def nucleus(chances, top_p):
    sorted, order = chances.sort(descending=True)
    kept = sorted.cumsum(0) < top_p
    out = torch.zeros_like(chances)
    out[order[kept]] = sorted[kept]
    return out / out.sum()
""",
    "kept = sorted.cumsum(0) < top_p",
    "kept = sorted.cumsum(0) - sorted < top_p",
    "made = nucleus(torch.tensor([0.25, 0.5, 0.125, 0.125]), 0.6)\n"
    "assert torch.allclose(made, torch.tensor([1 / 3, 2 / 3, 0.0, 0.0]))\n"
    "assert nucleus(torch.tensor([0.9, 0.1]), 0.5).tolist() == [1.0, 0.0]",
    "The word that brings the sum to `top_p` must stay: a word stays if the sum before it is less. As it is, too "
    "few stay, and none at all if the most probable word by itself reaches `top_p`; then 0 / 0 gives NaN.",
)

# --- 11, mixture of experts


@number("11.active")
def _(draw: Random) -> Asked:
    width, inner = 256 * draw.randint(2, 8), 512 * draw.randint(2, 12)
    experts, top_k = draw.choice([8, 16, 32]), draw.choice([1, 2, 4])
    text = (
        f"A layer has {experts} experts, which are gated networks of width {width:,} and hidden width {inner:,}, and "
        f"a linear router. There are no biases. Each token visits {top_k} experts. How many of the layer's parameters "
        "does one token use?"
    )
    key = (
        f"${top_k} \\cdot 3 \\cdot {width} \\cdot {inner}$ for the experts, and ${width} \\cdot {experts}$ for the "
        "router, which every token uses."
    )
    return Asked(text, key, top_k * 3 * width * inner + width * experts)


@number("11.capacity", points=2)
def _(draw: Random) -> Asked:
    tokens, experts, top_k = 256 * draw.randint(3, 16), draw.choice([8, 16]), draw.choice([1, 2])
    factor = draw.choice([1.25, 1.5])
    text = (
        f"{tokens:,} tokens go to {top_k} of {experts} experts each. With a capacity factor of {factor}, how many "
        "slots does an expert have?"
    )
    key = f"${factor} \\cdot {tokens} \\cdot {top_k} / {experts}$, rounded up."
    return Asked(text, key, math.ceil(factor * tokens * top_k / experts))


reason(
    "11.balance",
    "Without a countermeasure, a router often sends nearly all tokens to a few experts. Which feedback loop leads "
    "there, and how does a balancing loss break it, although the number of tokens at an expert has no gradient?",
    "An expert that gets more tokens is trained more, becomes better, and so gets more (2). The loss multiplies each "
    "expert's share of tokens, taken as a constant, by its mean probability from the router, which has a gradient, "
    "so the probabilities of crowded experts are pushed down (2).",
)
broken(
    "11.weights",
    "This function returns each token's experts and weights that add up to one. `scores` is (token, expert).",
    """
def route(scores, top_k):
    chances = torch.softmax(scores, dim=0)
    best, expert = chances.topk(top_k, dim=-1)
    return expert, best / best.sum(dim=-1, keepdim=True)
""",
    "chances = torch.softmax(scores, dim=0)",
    "chances = torch.softmax(scores, dim=-1)",
    "scores = torch.tensor([[3.0, 2.0, 0.0], [9.0, 2.0, 8.0]])\n"
    "assert route(scores, 1)[0].flatten().tolist() == [0, 0]",
    "The softmax runs over the tokens of the batch instead of the experts. Shapes and sums are right, but a token's "
    "experts depend on the other tokens, including later ones, and a token by itself is routed differently than in a "
    "batch.",
)

# --- 12, cost and efficient attention


@number("12.days")
def _(draw: Random) -> Asked:
    billions, tokens, devices = draw.choice([1, 3, 7]), draw.choice([100, 200, 500]), draw.choice([16, 32, 64])
    share = draw.choice([0.35, 0.4, 0.5])
    text = (
        f"A model of {billions} billion parameters is trained on {tokens} billion tokens with {devices} devices of "
        f"400 TFLOP/s at {share:.0%} of their peak. How many days does it take by the rule of 6 FLOPs per parameter "
        "and token?"
    )
    flops = 6 * billions * 1e9 * tokens * 1e9
    key = f"$6 N D = {flops:.3g}$ FLOPs, over ${devices} \\cdot 4 \\cdot 10^{{14}} \\cdot {share}$ per second."
    return Asked(text, key, flops / (devices * 4e14 * share * 86_400))


@number("12.even")
def _(draw: Random) -> Asked:
    width, gated = 512 * draw.randint(2, 10), draw.choice([2, 3, 4])
    text = (
        f"A layer has the width {width:,}, as many key-value heads as heads, and a feed-forward network with two "
        f"matrices and {gated} times that hidden width. At how many visible keys do scores and weighted sums take as "
        "many FLOPs per token as all matrices together?"
    )
    key = f"$4 n d = 2 (4 + 2 \\cdot {gated}) d^2$, so $n = {2 + gated} d$."
    return Asked(text, key, (2 + gated) * width)


reason(
    "12.tiles",
    "Tiled attention computes slightly more than plain attention, but it is faster. Where does plain attention spend "
    "its time, what does tiling avoid, and what are the running maximum and the running sum for?",
    "Plain attention writes all scores and weights to the device's memory and reads them again, so it waits for "
    "memory (1). Tiles stay in fast memory, so only queries, keys, values and the output are transferred (1). A "
    "softmax needs the whole row. With the maximum so far and the sum so far, partial results can be rescaled "
    "exactly when a larger score comes (2).",
)
broken(
    "12.running",
    "This function returns the logarithm of the sum of the exponentials of the numbers in a list of blocks, one "
    "block at a time.",
    """
def log_sum_exp(blocks):
    top, total = torch.tensor(float("-inf")), torch.tensor(0.0)
    for block in blocks:
        new = torch.maximum(top, block.max())
        total = total + (block - new).exp().sum()
        top = new
    return top + total.log()
""",
    "total = total + (block - new).exp().sum()",
    "total = total * (top - new).exp() + (block - new).exp().sum()",
    "x = torch.tensor([1.0, 2.0, 5.0, 4.0])\nassert torch.allclose(log_sum_exp(x.chunk(2)), x.logsumexp(0))",
    "When a larger number comes, the sum so far belongs to the old maximum and must be multiplied by `(top - "
    "new).exp()`. Otherwise the result is too large unless the largest number is in the first block.",
)

# --- 13, one model, many names


@number("13.count")
def _(draw: Random) -> Asked:
    layers, width, vocab = draw.randint(8, 32), 256 * draw.randint(2, 8), 1000 * draw.randint(16, 64)
    text = (
        f"A decoder of LLaMA's kind has {layers} layers, the width {width:,}, as many key-value heads as heads, gated "
        f"networks with hidden width {3 * width:,}, two RMSNorms per layer and one at the end, a vocabulary of "
        f"{vocab:,}, and a separate output matrix. How many parameters does it have?"
    )
    total = 2 * vocab * width + layers * (4 * width**2 + 9 * width**2 + 2 * width) + width
    key = f"$2 \\cdot {vocab} \\cdot {width} + {layers} \\cdot (13 \\cdot {width}^2 + 2 \\cdot {width}) + {width}$."
    return Asked(text, key, total)


@number("13.bits")
def _(draw: Random) -> Asked:
    billions, group = draw.choice([1, 3, 7, 13]), draw.choice([32, 64, 128])
    text = (
        f"{billions} billion weights are stored in 4 bits each, with one 16-bit scale for each group of {group}. How "
        "many gigabytes ($10^9$ bytes) is that?"
    )
    return Asked(text, f"$4 + 16/{group}$ bits per weight, divided by 8.", billions * (4 + 16 / group) / 8)


reason(
    "13.edits",
    "Name the changes that lead from GPT-2 to LLaMA, and for two of them what they improve.",
    "Rotary positions instead of learned vectors; RMSNorm instead of LayerNorm; a gated network with SiLU instead of "
    "one with GELU; no biases; a separate output matrix (in later and larger models: fewer key-value heads). Four "
    "are enough (2). A reason for each of two, such as: scores depend on distance, and no table limits the context; "
    "the norm is cheaper; more quality for the same parameters; a smaller cache (2).",
)
broken(
    "13.stored",
    "GPT-2 stores its matrices as (in, out). This function copies one into a linear layer of PyTorch.",
    "def load(layer, stored):\n    with torch.no_grad():\n        layer.weight.copy_(stored)",
    "layer.weight.copy_(stored)",
    "layer.weight.copy_(stored.T)",
    "layer, stored, x = torch.nn.Linear(4, 4, bias=False), torch.randn(4, 4), torch.randn(2, 4)\n"
    "load(layer, stored)\nassert torch.allclose(layer(x), x @ stored, atol=1e-6)",
    "`nn.Linear` holds (out, in) and multiplies by the transpose: copy `stored.T`. If a matrix is not square, PyTorch "
    "rejects its shape. A square one, such as attention's output matrix, is silently accepted, and the model writes "
    "nonsense.",
)

# --- 14, training


@number("14.rate")
def _(draw: Random) -> Asked:
    warm, steps = 100 * draw.randint(1, 5), 1000 * draw.randint(2, 8)
    at = warm + draw.choice([1, 2]) * (steps - warm) // 4
    text = (
        f"A learning rate rises to 0.001 within {warm} steps, and then falls to 0 at step {steps:,} along half a "
        f"cosine. What is it at step {at:,}?"
    )
    share = (at - warm) / (steps - warm)
    key = f"$0.001 \\cdot (1 + \\cos(\\pi \\cdot {share:.4g})) / 2$."
    return Asked(text, key, 0.001 * (1 + math.cos(math.pi * share)) / 2)


@number("14.clip", points=2)
def _(draw: Random) -> Asked:
    a, b, norm = *draw.choice([(3, 4), (6, 8), (5, 12), (8, 15)]), draw.choice([1, 2])
    text = (
        f"The gradient of a model is $({a}, {b})$. It is clipped to a norm of {norm}. What is its first element after "
        "clipping?"
    )
    return Asked(
        text,
        f"The norm is {math.hypot(a, b):g}; both elements are multiplied by ${norm}/{math.hypot(a, b):g}$.",
        norm * a / math.hypot(a, b),
    )


reason(
    "14.decay",
    "AdamW applies weight decay directly to the weights, while decay as a term of the loss goes through Adam's "
    "division. What is the difference for a weight with large gradients, and for one with small ones? And why are "
    "the gains of norms usually excluded?",
    "Through the division, a weight with large gradients decays little and one with small gradients much, because "
    "the decay term is also divided by the square root of the mean squared gradient (2). In AdamW all weights decay "
    "by the same fraction (1). A gain should be near 1, not near 0, so decay would shrink the layer's output for no "
    "good reason (1).",
)
broken(
    "14.accumulate",
    "This function adds up the gradients of several equal parts of a batch. The result should be the gradient of the "
    "mean loss of the whole batch.",
    """
def accumulate(loss_of, parts):
    for part in parts:
        loss = loss_of(part)
        loss.backward()
""",
    "loss = loss_of(part)",
    "loss = loss_of(part) / len(parts)",
    "w, x = torch.ones((), requires_grad=True), torch.tensor([1.0, 2.0, 3.0, 6.0])\n"
    "accumulate(lambda part: (w * part).mean(), x.chunk(2))\nassert w.grad.item() == 3.0",
    "Gradients are added, so they become too large by a factor of the number of parts: divide each part's mean by "
    "that number. Adam nearly hides the mistake, but clipping does not, and with SGD the learning rate is effectively "
    "larger by that factor.",
)
