"""Questions of an examination on lesson 18."""

from __future__ import annotations

from random import Random

from companion.school.course.exam.asked import Asked, broken, number, reason


@number("18.tokens")
def _(draw: Random) -> Asked:
    rate, guesses, cost = draw.choice([0.6, 0.7, 0.8, 0.9]), draw.randint(2, 6), draw.choice([0.05, 0.1, 0.2])
    text = (
        f"Each guess of a draft is accepted with the chance {rate}, whatever became of the others. A pass judges "
        f"{guesses} guesses, each of which takes {cost} times as long as a pass; the passes take as long as without "
        "guesses. How many times as many tokens a second does the model write with the draft?"
    )
    key = f"$(1 - {rate}^{{{guesses + 1}}}) / ((1 - {rate})(1 + {guesses} \\cdot {cost}))$."
    return Asked(text, key, (1 - rate ** (guesses + 1)) / ((1 - rate) * (1 + guesses * cost)))


@number("18.blocks", points=2)
def _(draw: Random) -> Asked:
    slots, texts = draw.choice([8, 16, 32]), draw.randint(5, 40)
    prefix, more = slots * draw.randint(10, 40) + draw.randint(1, slots - 1), draw.randint(20, 200)
    text = (
        f"A cache has blocks of {slots} tokens. {texts} texts begin with the same {prefix:,} tokens, and each "
        f"goes on with {more} tokens of its own, different from the first on. How many blocks do they take if full "
        "blocks of equal beginnings are kept once?"
    )
    shared = prefix // slots
    key = f"${shared}$ shared; each of ${texts}$ texts has ${prefix + more - shared * slots}$ tokens more."
    return Asked(text, key, shared + texts * -(-(prefix + more - shared * slots) // slots))


reason(
    "18.exact",
    "A model draws its tokens, and a draft of quite another taste guesses for it. Why does the text still have the "
    "model's distribution, what does the draft's taste decide, and how would you test such a program?",
    "A guess is accepted with min(1, p / q), so a token comes by acceptance with min(p, q); a refusal, whose chance is "
    "what is missing in all, is mended from max(0, p - q): together p (2). The draft decides how often guesses stay: "
    "the speed (1). Texts one by one look fine; counts of many draws must be compared with p, by chi-square (1).",
)
broken(
    "18.seats",
    "This function gives the time at which each text is done, with continuous batching: all wait from the beginning, "
    "and in each step every text that has a seat writes a token.",
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
    "Texts sit down only when all seats are free: that is static batching. A seat is to be filled in the step after.",
)
