"""Examination questions on lessons 15 and 16."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("15.latent")
def _(draw: Random) -> Asked:
    layers, heads = draw.choice([24, 32, 60]), draw.choice([32, 64, 128])
    rank, turned = 128 * draw.randint(2, 5), draw.choice([32, 64])
    text = (
        f"A decoder of {layers} layers caches for each token a latent of {rank} elements and a rotated key of "
        f"{turned}. From these, {heads} heads compute keys of 128 elements plus the rotated ones, and values of 128 "
        "elements. How many times as much would the same heads cache in full?"
    )
    full = heads * (128 + turned + 128)
    key = f"${heads} \\cdot (128 + {turned} + 128) / ({rank} + {turned})$; the layers cancel."
    return Asked(text, key, full / (rank + turned))


@number("15.local", points=2)
def _(draw: Random) -> Asked:
    groups, window = draw.choice([4, 6, 8]), 512 * draw.randint(1, 4)
    local, tokens = draw.choice([3, 5]), 16384 * draw.randint(2, 6)
    layers = groups * (local + 1)
    text = (
        f"Of {layers} layers, one in {local + 1} is global, and the others see a window of {window:,} tokens. How "
        f"many tokens do all layers together cache for a text of {tokens:,}?"
    )
    key = f"${groups} \\cdot {tokens} + {groups * local} \\cdot {window}$."
    return Asked(text, key, groups * tokens + groups * local * window)


reason(
    "15.rotary",
    "Latent attention computes no keys during generation. How is that possible, why do rotary positions prevent it, "
    "and what is done about that?",
    "The product q . (U c) is (U^T q) . c: the matrix is applied to the query once, which then attends to the "
    "latents directly. In the same way, U is applied to the average of the latents instead of to each value (2). "
    "With a rotation between query and matrix, the projected query is different for each distance, so nothing is "
    "saved (1). A small separate key, shared by all heads, is rotated and cached beside the latent, and its product "
    "is added to the score (1).",
)
broken(
    "15.sink",
    "This function returns attention weights with a learned sink. `scores` is (head, query, key), `sink` is (head).",
    """
def weights(scores, sink):
    powers = scores.exp()
    total = powers.sum(-1, keepdim=True) + sink[:, None, None]
    return powers / total
""",
    """
def weights(scores, sink):
    powers = scores.exp()
    total = powers.sum(-1, keepdim=True) + sink[:, None, None].exp()
    return powers / total
""",
    "made = weights(torch.zeros(1, 1, 2), torch.zeros(1))\nassert torch.allclose(made, torch.full((1, 1, 2), 1 / 3))\n"
    "assert weights(torch.zeros(1, 1, 2), torch.tensor([-3.0])).sum() < 1",
    "The sink is a logit, so its exponential belongs in the denominator. As it is, a sink of 0 does nothing, and a "
    "negative one makes rows that sum to more than one, or to a negative number. (A maximum should be subtracted as "
    "well.)",
)


@number("16.bound")
def _(draw: Random) -> Asked:
    width = draw.choice([64, 96, 128, 256])
    of_q, of_k = draw.randint(10, 25) / 10, draw.randint(10, 25) / 10
    text = (
        f"Queries and keys of {width} components go through RMS norms. No gain of the queries' norm is above {of_q}, "
        f"and none of the keys' norm is above {of_k}. What is the largest possible scaled score?"
    )
    key = (
        f"Normed rows have the length $\\sqrt{{{width}}}$ times a gain: ${of_q} \\cdot {of_k} \\cdot "
        f"\\sqrt{{{width}}}$."
    )
    return Asked(text, key, of_q * of_k * width**0.5)


@number("16.met", points=2)
def _(draw: Random) -> Asked:
    width, hidden = 512 * draw.randint(2, 8), 128 * draw.randint(4, 12)
    experts, visited, shared = draw.choice([32, 64, 128]), draw.randint(4, 8), draw.randint(1, 2)
    text = (
        f"A layer of width {width:,} has {experts} routed experts and {shared} shared ones, each a SwiGLU network "
        f"with {hidden:,} hidden units, and a router without a bias that chooses {visited}. How many parameters of "
        "its networks and router does one token use?"
    )
    key = f"$({visited} + {shared}) \\cdot 3 \\cdot {width} \\cdot {hidden} + {width} \\cdot {experts}$."
    return Asked(text, key, (visited + shared) * 3 * width * hidden + width * experts)


reason(
    "16.gate",
    "A head does not find what it looks for. What must it do in a plain layer, what does an output gate allow "
    "instead, and why does a softmax alone not allow it?",
    "The weights of a row add up to one, so some value is always taken: a head with nothing to add puts its weight "
    "on a token whose value is small, often the first one, a sink (2). A gate multiplies the head's output by a "
    "sigmoid of the layer's input, which can be near zero for this token, whatever the weights are (2).",
)
broken(
    "16.bias",
    "This function chooses `k` experts by `scores` (token, expert) plus the `bias` that balances loads, and returns "
    "the chosen experts and their shares.",
    """
def shares(scores, bias, k):
    best = (scores + bias).topk(k, dim=-1)
    chosen = best.values
    return best.indices, chosen / chosen.sum(-1, keepdim=True)
""",
    """
def shares(scores, bias, k):
    best = (scores + bias).topk(k, dim=-1)
    chosen = scores.gather(-1, best.indices)
    return best.indices, chosen / chosen.sum(-1, keepdim=True)
""",
    "scores, bias = torch.tensor([[0.6, 0.2, 0.2]]), torch.tensor([0.0, 0.0, 1.0])\n"
    "at, made = shares(scores, bias, 2)\n"
    "assert at.tolist() == [[2, 0]] and torch.allclose(made, torch.tensor([[0.25, 0.75]]))",
    "The bias decides which experts are chosen, not how much they count: shares are computed from the scores without "
    "it. As it is, the bias that balances the load changes the output.",
)
