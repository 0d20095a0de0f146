"""Examination questions on lesson 20."""

from __future__ import annotations

import math
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("20.adapter")
def _(draw: Random) -> Asked:
    wide, high, rank = draw.choice([512, 1024, 2048]), draw.choice([1536, 3072, 6144]), draw.choice([4, 8, 16])
    text = (
        f"A matrix of {wide} rows and {high} columns is frozen, and an adapter of rank {rank} is added to it (LoRA). "
        "How many times as many parameters does the matrix have as the adapter?"
    )
    key = f"${wide} \\cdot {high} / ({rank} \\cdot ({wide} + {high}))$."
    return Asked(text, key, wide * high / (rank * (wide + high)))


@number("20.pass", points=2)
def _(draw: Random) -> Asked:
    drawn, tries = draw.randint(8, 12), draw.randint(2, 4)
    right = draw.randint(1, 4)
    text = (
        f"For one question {drawn} answers were sampled, and {right} of them are right. What is the unbiased estimate "
        f"of the probability that at least one of {tries} answers is right?"
    )
    key = f"$1 - \\binom{{{drawn - right}}}{{{tries}}} / \\binom{{{drawn}}}{{{tries}}}$."
    return Asked(text, key, 1 - math.comb(drawn - right, tries) / math.comb(drawn, tries))


reason(
    "20.hacking",
    "A model is trained by a policy gradient with the reward of an automatic checker. The reward rises as hoped, but "
    "users complain. What may have happened, how would you find out, and how does a KL penalty help?",
    "The checker has a loophole: it rewards something that was not intended, and training amplifies whatever is "
    "rewarded (1). Compare with a second measure that is not rewarded, and read the answers with the highest reward "
    "(2). A penalty on the divergence from the initial model keeps the model near answers for which the reward was "
    "right, but it also costs reward (1).",
)
broken(
    "20.pairs",
    "This function computes the loss of DPO. `now` and `start` are (pair, 2, token): the log probabilities of the "
    "tokens of a good answer (0) and a bad one (1), from the model and from the model before training, with zeros "
    "after the end of each answer.",
    """
def loss(now, start, tau):
    moved = (now - start).mean(dim=-1)
    margin = tau * (moved[:, 0] - moved[:, 1])
    return -torch.nn.functional.logsigmoid(margin).mean()
""",
    """
def loss(now, start, tau):
    moved = (now - start).sum(dim=-1)
    margin = tau * (moved[:, 0] - moved[:, 1])
    return -torch.nn.functional.logsigmoid(margin).mean()
""",
    "now = torch.tensor([[[-1.0, -1.0], [-3.0, 0.0]]])\n"
    "got = loss(now, torch.zeros_like(now), 1.0)\n"
    "assert torch.allclose(got, torch.tensor(0.31326), atol=1e-4)",
    "The probability of an answer is the product of its tokens' probabilities, so its logarithm is a sum. A mean "
    "makes the loss depend on the length of the answers, and here even on the padding.",
)
