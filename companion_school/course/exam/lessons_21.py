"""Examination questions on lesson 21."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("21.credit", points=2)
def _(draw: Random) -> Asked:
    scale = draw.choice([2, 4, 5])
    one, two = ([draw.randint(-4, 4) for _ in range(2)] for _ in range(2))
    gain, apart = [draw.choice([1, 2]) for _ in range(2)], [draw.choice([-3, -1, 1, 3]) for _ in range(2)]
    text = (
        f"Two parts write ({one[0]}, {one[1]}) and ({two[0]}, {two[1]}) to the stream of a token. The last RMSNorm "
        f"divides their sum by {scale} and has the gain ({gain[0]}, {gain[1]}). The rows of two words in the table "
        f"differ by ({apart[0]}, {apart[1]}). How much of their gap is due to the first part?"
    )
    key = f"$({gain[0]} \\cdot {apart[0]} \\cdot {one[0]} + {gain[1]} \\cdot {apart[1]} \\cdot {one[1]}) / {scale}$."
    return Asked(text, key, sum(g * a * w for g, a, w in zip(gain, apart, one, strict=True)) / scale)


@number("21.share")
def _(draw: Random) -> Asked:
    run, lent = -draw.randint(2, 8), draw.randint(4, 12)
    patched = draw.randint(run + 1, lent - 1)
    text = (
        f"The gap between two words is {run} in the text that is run and {lent} in another one. With one part patched "
        f"in from the run on the other text, it is {patched}. What is the share of this part?"
    )
    key = f"$({patched} - ({run})) / ({lent} - ({run}))$."
    return Asked(text, key, (patched - run) / (lent - run))


reason(
    "21.control",
    "A probe of the middle layer of a trained model predicts for 93 % of unseen texts whether the text is about a "
    "girl. The authors conclude that the model has computed this and uses it. What two things are missing?",
    "A control: the same probe on an untrained model, or with labels that cannot be known, may be right as often, "
    "because the input can be read from any mixture of it (1). The difference is the selectivity (1). And an "
    "intervention: information that can be read need not be used (1). Patch or change it there, and see whether the "
    "answer changes (1).",
)
broken(
    "21.frozen",
    "This function splits the gap between two words into what each part wrote, `writes` (part, d_model), before a last "
    "RMSNorm without a gain. `direction` (d_model) is the difference of the two words' rows.",
    """
def credit(writes, direction):
    u = writes
    r = u.square().mean(dim=-1, keepdim=True).sqrt()
    return (writes / r) @ direction
""",
    """
def credit(writes, direction):
    u = writes.sum(dim=0)
    r = u.square().mean(dim=-1, keepdim=True).sqrt()
    return (writes / r) @ direction
""",
    "got = credit(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([2.0, -1.0]))\n"
    "assert torch.allclose(got, torch.tensor([2**0.5, 0.0]))",
    "The norm divides the whole stream by one number. This number is computed from the sum and frozen, so it is the "
    "same for every part. If each part is normed by itself, the parts do not add up to the gap.",
)
