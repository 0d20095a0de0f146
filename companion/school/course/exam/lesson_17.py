"""Questions of an examination on lesson 17."""

from __future__ import annotations

from random import Random

from companion.school.course.exam.asked import Asked, broken, number, reason


@number("17.table")
def _(draw: Random) -> Asked:
    tables, wide, kv_heads = draw.choice([16, 32, 48]), draw.choice([64, 128]), draw.choice([2, 4, 8])
    head = draw.choice([64, 128, 256])
    text = (
        f"A linear layer keeps {tables} tables of {wide} rows and {wide} columns. A full layer beside it keeps a key "
        f"and a value of {head} numbers for each of {kv_heads} heads and token. After how many tokens has the full "
        "layer kept as many numbers as the linear one? (It need not be a whole number.)"
    )
    key = f"${tables} \\cdot {wide}^2 / ({kv_heads} \\cdot 2 \\cdot {head})$."
    return Asked(text, key, tables * wide**2 / (kv_heads * 2 * head))


@number("17.written", points=2)
def _(draw: Random) -> Asked:
    old, new = draw.randint(2, 9), draw.randint(10, 20)
    decay, strength = draw.choice([0.5, 0.8, 0.9]), draw.choice([0.25, 0.5, 0.75])
    text = (
        f"Under a key of length 1 a table reads {old}. A token comes with this key, the value {new}, the decay {decay} "
        f"and the write strength {strength}, in a layer with the gated delta rule. What does the key read afterwards?"
    )
    key = f"$(1 - {strength}) \\cdot {decay} \\cdot {old} + {strength} \\cdot {new}$."
    return Asked(text, key, (1 - strength) * decay * old + strength * new)


reason(
    "17.chunks",
    "What a token of the delta rule writes depends on the table before it. Why can a chunk of tokens be computed at "
    "once all the same, and what goes from one chunk to the next?",
    "The table is a sum of keys times corrected values, so what a token finds under its key is a sum over the "
    "corrected values before it, weighted with products of keys, which are all known (2). That is a triangular system "
    "of linear equations (1). From chunk to chunk goes the table alone, whose answer under each key is subtracted from "
    "the value first (1).",
)
broken(
    "17.delta",
    "This function makes one step of the delta rule with a decay. `S` is (d_k, d_v), `k` has length 1.",
    """
def step(S, q, k, v, decay, strength):
    S = decay * S
    S = S + torch.outer(k, strength * v - S.T @ k)
    return S.T @ q, S
""",
    """
def step(S, q, k, v, decay, strength):
    S = decay * S
    S = S + torch.outer(k, strength * (v - S.T @ k))
    return S.T @ q, S
""",
    "k, v = torch.tensor([1.0, 0.0]), torch.tensor([6.0])\n"
    "read, S = step(torch.tensor([[4.0], [1.0]]), k, k, v, 1.0, 0.5)\n"
    "assert torch.allclose(read, torch.tensor([5.0])) and torch.allclose(S[1], torch.tensor([1.0]))",
    "The strength belongs to all that is missing. As it is, the old answer is taken away whole, however weak the "
    "write, and a strength of 0 erases what stands under the key in place of leaving it.",
)
