"""Examination questions on lesson 24."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("24.link")
def _(draw: Random) -> Asked:
    tenths, rows, bands = draw.choice([5, 6, 7, 8]), draw.choice([2, 3, 4]), draw.choice([3, 5, 8])
    text = (
        f"MinHash signatures are cut into {bands} bands of {rows} rows. With what probability is a pair of texts with "
        f"a Jaccard similarity of 0.{tenths} linked?"
    )
    key = (
        f"A band agrees with $0.{tenths}^{{{rows}}}$, and the pair is missed if all {bands} bands fail: "
        f"$1 - (1 - 0.{tenths}^{{{rows}}})^{{{bands}}}$."
    )
    return Asked(text, key, 1 - (1 - (tenths / 10) ** rows) ** bands)


@number("24.jaccard", points=2)
def _(draw: Random) -> Asked:
    words, edits = draw.choice([104, 154, 204]), draw.choice([2, 4, 6])
    runs = words - 4
    text = (
        f"A text of {words} words has only different shingles of five words. In a copy {edits} words are replaced by "
        "words that occur nowhere else. The replaced words are far from each other and from both ends. What is the "
        "Jaccard similarity of text and copy?"
    )
    key = (
        f"There are {words} - 4 = {runs} shingles. Each replaced word changes the five that contain it: {5 * edits} "
        f"are lost and as many are new. So {runs - 5 * edits} are in both, and {runs + 5 * edits} in either."
    )
    return Asked(text, key, (runs - 5 * edits) / (runs + 5 * edits))


reason(
    "24.filter",
    "A laboratory adds a quality classifier whose good examples are encyclopedia articles. Its model's score on "
    "held-out encyclopedia articles improves at the same compute. Why does this not show that the text has become "
    "better, and what would you measure in addition?",
    "A classifier keeps what resembles its good examples (1), so the training text has become more like the test, "
    "which is of the same kind (1). Measure held-out text of the kinds that the classifier may have thrown away, such "
    "as dialogue, stories or code, at the same compute and from several starts, and count how much of each kind was "
    "kept (1).",
)
broken(
    "24.minhash",
    "This function estimates the Jaccard similarity of two sets of shingles. `order(shingle, seed)` returns a number "
    "that looks random.",
    """
def estimate(one, other, order, hashes):
    agree = 0
    for seed in range(hashes):
        first = min(order(shingle, seed) for shingle in one)
        second = min(order(shingle, seed + 1) for shingle in other)
        agree += first == second
    return agree / hashes
""",
    """
def estimate(one, other, order, hashes):
    agree = 0
    for seed in range(hashes):
        first = min(order(shingle, seed) for shingle in one)
        second = min(order(shingle, seed) for shingle in other)
        agree += first == second
    return agree / hashes
""",
    "order = lambda shingle, seed: (shingle * 7919 + seed * 104729 + shingle * seed * 31) % 1009\n"
    "assert estimate({1, 2, 3}, {1, 2, 3}, order, 20) == 1",
    "The minima of two sets agree with the probability of their similarity only if both are taken in the same order. "
    "Here the second set is put into another order, so even equal sets hardly ever agree.",
)
