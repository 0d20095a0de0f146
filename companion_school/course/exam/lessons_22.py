"""Examination questions on lesson 22."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("22.wide")
def _(draw: Random) -> Asked:
    narrow, times, rate = draw.choice([64, 128, 256]), draw.choice([4, 8, 16]), draw.choice([0.004, 0.01, 0.02])
    text = (
        f"A model of width {narrow} learns best with AdamW at the rate {rate}. With muP, what is the rate of a block's "
        f"matrix in a model of width {narrow * times}?"
    )
    key = (
        f"${rate} \\cdot {narrow} / {narrow * times}$: the terms of an update have the same sign, and a wider model "
        "adds up more of them."
    )
    return Asked(text, key, rate / times)


@number("22.clip")
def _(draw: Random) -> Asked:
    largest, most = draw.choice([225, 400, 900, 1600]), draw.choice([50, 64, 100])
    text = (
        f"After an update the largest score of a head is {largest}, and QK-clip allows {most}. By which factor are "
        "the weights of the head's queries multiplied if those of its keys take the same factor?"
    )
    key = f"$\\sqrt{{{most} / {largest}}}$: a score is a product of a query and a key, and each takes the square root."
    return Asked(text, key, (most / largest) ** 0.5)


reason(
    "22.muon",
    "AdamW and Muon both step against the gradient. In which sense is each of them steepest descent, what does Muon "
    "do to a gradient with one strong and many weak directions, and which parameters of a model does it leave to "
    "AdamW?",
    "It depends on how the length of an update is measured. If each element may change by at most the rate, steepest "
    "descent follows the sign of the gradient, which is close to Adam (1). If the spectral norm of the update is at "
    "most the rate, it follows the gradient's directions with all singular values equal (1). So weak directions step "
    "as far as the strong one (1). The token table, gains, biases and the head stay with AdamW, because they do not "
    "multiply a stream, or their rows do not mix (1).",
)
broken(
    "22.rounds",
    "This function brings the singular values of a matrix near 1 by five rounds of products.",
    """
def even_out(G, a=3.4445, b=-4.775, c=2.0315):
    X = G / G.abs().max()
    for _ in range(5):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X
""",
    """
def even_out(G, a=3.4445, b=-4.775, c=2.0315):
    X = G / G.norm()
    for _ in range(5):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X
""",
    "torch.manual_seed(0)\n"
    "found = torch.linalg.svdvals(even_out(torch.randn(20, 30)))\n"
    "assert 0.3 < found.min() and found.max() < 1.3",
    "The polynomial keeps singular values in its band only if they begin between 0 and 1. Dividing by the largest "
    "element does not ensure that, because the largest singular value can be far larger, and then the rounds "
    "diverge. Dividing by the square root of the sum of all squares does, because no singular value is above it.",
)
