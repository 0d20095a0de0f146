"""Questions of an examination on lesson 15."""

from __future__ import annotations

from random import Random

from companion.school.course.exam.asked import Asked, broken, number, reason


@number("15.latent")
def _(draw: Random) -> Asked:
    layers, heads = draw.choice([24, 32, 60]), draw.choice([32, 64, 128])
    rank, turned = 128 * draw.randint(2, 5), draw.choice([32, 64])
    text = (
        f"A decoder of {layers} layers keeps for each token a latent of {rank} numbers and a turned key of {turned}, "
        f"of which {heads} heads make keys of 128 numbers and the turned ones, and values of 128 numbers. How many "
        "times as much would the same heads keep in full?"
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
        f"Of {layers} layers each {local + 1}th is global, the others see a window of {window:,} tokens. How many "
        f"tokens do all layers together keep of a text of {tokens:,}?"
    )
    key = f"${groups} \\cdot {tokens} + {groups * local} \\cdot {window}$."
    return Asked(text, key, groups * tokens + groups * local * window)


reason(
    "15.rotary",
    "Latent attention makes no keys while it writes. How is that possible, why do rotary positions stand in the way, "
    "and what is done about it?",
    "The product q . (U c) is (U^T q) . c: the matrix goes to the query, once, and the latents are asked themselves; "
    "the same for the values, of which the average goes up (2). With a turn between query and matrix the query that "
    "goes down is another for each distance, so nothing is spared (1). A small key of its own, shared by all heads, is "
    "turned and kept beside the latent; its product is added to the score (1).",
)
broken(
    "15.sink",
    "This function gives attention weights with a learned sink. `scores` is (head, query, key), `sink` is (head).",
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
    "The sink is a logit: e to its power belongs into the denominator. As it is, a sink of 0 does nothing, and a "
    "negative one makes rows of more than one, or of less than nothing. (A maximum should be subtracted as well.)",
)
