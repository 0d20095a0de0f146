"""Examination questions on lesson 19."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("19.bytes")
def _(draw: Random) -> Asked:
    rows, group = draw.choice([1024, 2048, 4096]), draw.choice([32, 64, 128])
    columns, bits, zero = group * draw.randint(8, 32), draw.choice([3, 4, 8]), draw.choice([0, 4, 8])
    text = (
        f"A matrix of {rows} rows and {columns} columns is kept in {bits} bits a number. Every {group} neighbours of a "
        f"row share a scale of 16 bits and a zero point of {zero} bits. How many bytes does it take?"
    )
    key = f"${rows} \\cdot {columns} \\cdot ({bits} + (16 + {zero})/{group}) / 8$."
    return Asked(text, key, rows * columns * (bits + (16 + zero) / group) / 8)


@number("19.makes_up", points=2)
def _(draw: Random) -> Asked:
    together, first, second = draw.choice([0.5, 0.6, 0.75]), draw.choice([0.3, 0.4, 0.45]), draw.choice([0.2, 0.25])
    text = (
        f"Two inputs of a layer have the mean square 1 each, and the mean of their product is {together}. A row has "
        f"the weights {first} and {second} for them; the step is 1. GPTQ rounds the first weight to 0. To what does it "
        "move the second before rounding it?"
    )
    key = f"${second} + {together} \\cdot {first}$: what the first has lost, as far as the second input can say it."
    return Asked(text, key, second + together * first)


reason(
    "19.muon",
    "AdamW and Muon both step against the gradient. In which sense is each of them the steepest way down, what does "
    "Muon do to a gradient with one strong and many weak directions, and which parameters of a model does it leave to "
    "AdamW?",
    "Steepest depends on what is called the length of an update: if each number is at most the rate, it is the sign "
    "of the gradient, near to Adam (1); if no row may get longer by more than the rate, the spectral norm, it is the "
    "gradient's directions with all singular values equal (1). So weak directions step as far as the strong one (1). "
    "The table of tokens, gains, biases and the head stay with AdamW: they do not multiply a stream, or rows do not mix"
    " (1).",
)
broken(
    "19.groups",
    "This function rounds each group of a row to `bits` bits, with a step of its own (absmax).",
    """
def rounded(W, bits, group):
    parts = W.reshape(-1, group)
    step = parts.abs().amax() / (2 ** (bits - 1) - 1)
    return ((parts / step).round() * step).reshape(W.shape)
""",
    """
def rounded(W, bits, group):
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((parts / step).round() * step).reshape(W.shape)
""",
    "W = torch.tensor([[0.7, 0.3, 70.0, 10.0]])\n"
    "assert torch.allclose(rounded(W, 4, 2), torch.tensor([[0.7, 0.3, 70.0, 10.0]]))",
    "The step is that of the whole matrix. One outlier then makes all groups coarse; the largest number of each group "
    "must be taken, along the group's axis, and kept as an axis.",
)
