"""Examination questions on lessons 17 and 18."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("17.table")
def _(draw: Random) -> Asked:
    tables, wide, kv_heads = draw.choice([16, 32, 48]), draw.choice([64, 128]), draw.choice([2, 4, 8])
    head = draw.choice([64, 128, 256])
    text = (
        f"A linear layer stores {tables} tables of {wide} rows and {wide} columns. A full attention layer caches a "
        f"key and a value of {head} elements for each of {kv_heads} heads and each token. After how many tokens does "
        "the full layer store as many elements as the linear one? (The number need not be an integer.)"
    )
    key = f"${tables} \\cdot {wide}^2 / ({kv_heads} \\cdot 2 \\cdot {head})$."
    return Asked(text, key, tables * wide**2 / (kv_heads * 2 * head))


@number("17.written", points=2)
def _(draw: Random) -> Asked:
    old, new = draw.randint(2, 9), draw.randint(10, 20)
    decay, strength = draw.choice([0.5, 0.8, 0.9]), draw.choice([0.25, 0.5, 0.75])
    text = (
        f"In a layer with the gated delta rule, a key of length 1 reads {old} from the table. A token arrives with "
        f"this key, the value {new}, the decay {decay} and the write strength {strength}. What does the key read "
        "afterwards?"
    )
    key = f"$(1 - {strength}) \\cdot {decay} \\cdot {old} + {strength} \\cdot {new}$."
    return Asked(text, key, (1 - strength) * decay * old + strength * new)


reason(
    "17.chunks",
    "What a token of the delta rule writes depends on the table before it. Why can a chunk of tokens still be "
    "computed at once, and what is passed from one chunk to the next?",
    "The table is a sum of keys times corrected values, so what a token reads with its key is a sum over the "
    "corrected values before it, weighted with products of keys, which are all known (2). This is a triangular "
    "system of linear equations (1). Only the table is passed from chunk to chunk, and what each key reads from it "
    "is subtracted from the value first (1).",
)
broken(
    "17.delta",
    "This function performs one step of the delta rule with a decay. `S` is (d_k, d_v), `k` has length 1.",
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
    "The strength must multiply the whole difference. As it is, the old value is subtracted completely, however weak "
    "the write, and a strength of 0 erases what is stored under the key instead of leaving it unchanged.",
)


@number("18.tokens")
def _(draw: Random) -> Asked:
    rate, guesses, cost = draw.choice([0.6, 0.7, 0.8, 0.9]), draw.randint(2, 6), draw.choice([0.05, 0.1, 0.2])
    text = (
        f"Each guess of a draft is accepted with probability {rate}, independently of the others. A pass verifies "
        f"{guesses} guesses, each of which takes {cost} times as long as a pass, and passes take as long as without "
        "guesses. By which factor does the draft increase the tokens per second?"
    )
    key = f"$(1 - {rate}^{{{guesses + 1}}}) / ((1 - {rate})(1 + {guesses} \\cdot {cost}))$."
    return Asked(text, key, (1 - rate ** (guesses + 1)) / ((1 - rate) * (1 + guesses * cost)))


@number("18.blocks", points=2)
def _(draw: Random) -> Asked:
    slots, texts = draw.choice([8, 16, 32]), draw.randint(5, 40)
    prefix, more = slots * draw.randint(10, 40) + draw.randint(1, slots - 1), draw.randint(20, 200)
    text = (
        f"A cache has blocks of {slots} tokens. {texts} texts begin with the same {prefix:,} tokens, and each "
        f"continues with {more} tokens of its own, which differ from the first one on. How many blocks do they take "
        "if full blocks of equal beginnings are stored once?"
    )
    shared = prefix // slots
    key = (
        f"${shared}$ blocks are shared, and each of the ${texts}$ texts has ${prefix + more - shared * slots}$ more "
        "tokens."
    )
    return Asked(text, key, shared + texts * -(-(prefix + more - shared * slots) // slots))


reason(
    "18.exact",
    "A model samples its tokens, and a draft with a very different distribution guesses for it. Why does the text "
    "still have the model's distribution, what does the quality of the draft decide, and how would you test such a "
    "program?",
    "A guess is accepted with min(1, p / q), so a token is accepted with total probability min(p, q). After a "
    "rejection, whose probability is what is missing to one, the token is drawn from max(0, p - q). Together this "
    "gives p (2). The draft decides how often guesses stay, which means the speed (1). A single text always looks "
    "fine, so compare the counts of many draws with p, by chi-square (1).",
)
broken(
    "18.seats",
    "This function returns the time when each text is done with continuous batching. All texts wait from the "
    "beginning, and in each step every text that has a seat writes a token.",
    """
def done_at(lengths, seats):
    waiting, left, done, now = list(range(len(lengths))), {}, {}, 0
    while waiting or left:
        free = 0 if left else seats
        for text in waiting[:free]:
            left[text] = lengths[text]
        waiting = waiting[free:]
        now += 1
        for text in list(left):
            left[text] -= 1
            if left[text] == 0:
                done[text] = now
                del left[text]
    return [done[text] for text in range(len(lengths))]
""",
    """
def done_at(lengths, seats):
    waiting, left, done, now = list(range(len(lengths))), {}, {}, 0
    while waiting or left:
        free = seats - len(left)
        for text in waiting[:free]:
            left[text] = lengths[text]
        waiting = waiting[free:]
        now += 1
        for text in list(left):
            left[text] -= 1
            if left[text] == 0:
                done[text] = now
                del left[text]
    return [done[text] for text in range(len(lengths))]
""",
    "assert done_at([4, 1, 2, 3], 2) == [4, 1, 3, 6]\nassert done_at([2, 2], 5) == [2, 2]",
    "Texts take seats only when all seats are free, which is static batching. A free seat must be filled in the next "
    "step.",
)
