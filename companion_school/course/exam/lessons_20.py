"""Examination questions on lesson 20."""

from __future__ import annotations

import math
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("20.adapter")
def _(draw: Random) -> Asked:
    wide, high, rank = draw.choice([512, 1024, 2048]), draw.choice([1536, 3072, 6144]), draw.choice([4, 8, 16])
    text = (
        f"A matrix of {wide} rows and {high} columns is frozen, and an adapter of rank {rank} stands beside it "
        "(LoRA). How many times as many numbers has the matrix as the adapter?"
    )
    key = f"${wide} \\cdot {high} / ({rank} \\cdot ({wide} + {high}))$."
    return Asked(text, key, wide * high / (rank * (wide + high)))


@number("20.pass", points=2)
def _(draw: Random) -> Asked:
    drawn, tries = draw.randint(8, 12), draw.randint(2, 4)
    right = draw.randint(1, 4)
    text = (
        f"To one question {drawn} answers were drawn, and {right} of them are right. What is the unbiased estimate of"
        f" how often at least one of {tries} answers is right?"
    )
    key = f"$1 - \\binom{{{drawn - right}}}{{{tries}}} / \\binom{{{drawn}}}{{{tries}}}$."
    return Asked(text, key, 1 - math.comb(drawn - right, tries) / math.comb(drawn, tries))


reason(
    "20.hacking",
    "A model is trained by a policy gradient with a checker's reward. The reward rises as hoped, and users complain."
    " What may have happened, how would you find it, and how does a KL penalty help?",
    "The checker has a hole: it pays for something that is not what was meant, and what is paid is pushed up (1). "
    "Hold a second measure against it that is not paid, and read the answers that are paid best (2). A penalty on "
    "the divergence from the start keeps the model near answers for which the reward was right; it costs reward as "
    "well (1).",
)
broken(
    "20.pairs",
    "This function computes the loss of DPO. `now` and `start` are (pair, 2, token): the log chances of the tokens "
    "of a good answer (0) and a bad one (1), by the model and by the one it began as, with zeros behind each "
    "answer's end.",
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
    "The chance of an answer is the product of its tokens' chances, so its logarithm is a sum. A mean makes the loss"
    " depend on how long the answers, and here even the fillers, are.",
)
