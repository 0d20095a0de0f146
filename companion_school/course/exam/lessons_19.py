"""Examination questions on lesson 19."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("19.bytes")
def _(draw: Random) -> Asked:
    rows, group = draw.choice([1024, 2048, 4096]), draw.choice([32, 64, 128])
    columns, bits, zero = group * draw.randint(8, 32), draw.choice([3, 4, 8]), draw.choice([0, 4, 8])
    text = (
        f"A matrix of {rows} rows and {columns} columns is stored in {bits} bits per element. Each {group} "
        f"neighbouring elements of a row share a scale of 16 bits and a zero point of {zero} bits. How many bytes "
        "does it take?"
    )
    key = f"${rows} \\cdot {columns} \\cdot ({bits} + (16 + {zero})/{group}) / 8$."
    return Asked(text, key, rows * columns * (bits + (16 + zero) / group) / 8)


@number("19.makes_up", points=2)
def _(draw: Random) -> Asked:
    together, first, second = draw.choice([0.5, 0.6, 0.75]), draw.choice([0.3, 0.4, 0.45]), draw.choice([0.2, 0.25])
    text = (
        f"Two inputs of a layer have the mean square 1 each, and the mean of their product is {together}. A row has "
        f"the weights {first} and {second} for them, and the step is 1. GPTQ rounds the first weight to 0. To which "
        "value does it move the second before rounding it?"
    )
    key = (
        f"${second} + {together} \\cdot {first}$: the loss of the first weight, as far as the second input can "
        "compensate for it."
    )
    return Asked(text, key, second + together * first)


reason(
    "19.straight",
    "In quantization-aware training a model computes with weights of 4 bits. Why would it learn nothing with the "
    "true derivative of rounding, what does the straight-through estimator do instead, and why are the weights still "
    "stored in 16 or 32 bits?",
    "Rounding is a staircase whose derivative is 0 nearly everywhere, so every gradient would be 0 (1). The backward "
    "pass treats rounding as the identity: the weight gets the gradient of the rounded weight (1). An update is far "
    "smaller than the step from one level to the next (1). With more bits such updates add up until the level "
    "changes, but with weights stored in 4 bits each of them would be rounded away (1).",
)
broken(
    "19.groups",
    "This function rounds each group of a row to `bits` bits, with its own step (absmax).",
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
    "The step is that of the whole matrix, so one outlier makes all groups coarse. Take the largest absolute value "
    "of each group, along the group's axis, with `keepdim=True`.",
)
