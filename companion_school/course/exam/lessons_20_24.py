"""Examination questions on lessons 20 to 24."""

from __future__ import annotations

import math
from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason

# --- 20, from completing to answering


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
    "moved = (now - start).mean(dim=-1)",
    "moved = (now - start).sum(dim=-1)",
    "now = torch.tensor([[[-1.0, -1.0], [-3.0, 0.0]]])\n"
    "got = loss(now, torch.zeros_like(now), 1.0)\n"
    "assert torch.allclose(got, torch.tensor(0.31326), atol=1e-4)",
    "The probability of an answer is the product of its tokens' probabilities, so its logarithm is a sum. A mean "
    "makes the loss depend on the length of the answers, and here even on the padding.",
)

# --- 21, looking inside


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
        f"in from the run on the other text, the gap is {patched}. What is the share of this part?"
    )
    key = f"$({patched} - ({run})) / ({lent} - ({run}))$."
    return Asked(text, key, (patched - run) / (lent - run))


reason(
    "21.control",
    "A probe of the middle layer of a trained model predicts for 93 % of unseen texts whether the text is about a "
    "girl. The authors conclude that the model has computed this and uses it. What two things are missing?",
    "One is a control: the same probe on an untrained model, or with labels that cannot be known, may be right as "
    "often, because the input can be read from any mixture of it (1). The difference is the selectivity (1). The "
    "other is an intervention: information that can be read need not be used (1). Patch or change it there, and see "
    "whether the answer changes (1).",
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
    "u = writes",
    "u = writes.sum(dim=0)",
    "got = credit(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([2.0, -1.0]))\n"
    "assert torch.allclose(got, torch.tensor([2**0.5, 0.0]))",
    "The norm divides the whole stream by one number. This number is computed from the sum and frozen, so it is the "
    "same for every part. If each part is normalized by itself, the parts do not add up to the gap.",
)

# --- 22, better steps


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
        f"After an update the largest score of a head is {largest}, and QK-clip allows {most}. By what factor are "
        "the weights of the head's queries multiplied if those of its keys take the same factor?"
    )
    key = f"$\\sqrt{{{most} / {largest}}}$: a score is a product of a query and a key, and each takes the square root."
    return Asked(text, key, (most / largest) ** 0.5)


reason(
    "22.muon",
    "AdamW and Muon both step against the gradient. In what sense is each of them steepest descent, what does Muon "
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
    "X = G / G.abs().max()",
    "X = G / G.norm()",
    "torch.manual_seed(0)\n"
    "found = torch.linalg.svdvals(even_out(torch.randn(20, 30)))\n"
    "assert 0.3 < found.min() and found.max() < 1.3",
    "The polynomial keeps singular values in its band only if they begin between 0 and 1. Dividing by the largest "
    "element does not ensure that, because the largest singular value can be far larger, and then the rounds "
    "diverge. Dividing by the square root of the sum of all squares does, because no singular value is above it.",
)

# --- 23, how large should it be?


@number("23.night")
def _(draw: Random) -> Asked:
    billions, each = draw.choice([1, 3, 7, 13]), draw.choice([20, 100, 200])
    devices, tera = draw.choice([8, 64, 256]), draw.choice([200, 300, 400])
    text = (
        f"A model of {billions} billion parameters reads {each} tokens per parameter. How many days does its training "
        f"take on {devices} GPUs, each of which computes {tera} trillion operations per second?"
    )
    key = (
        f"Six operations for each parameter and token: $6 \\cdot {billions} \\cdot 10^9 \\cdot {each * billions} "
        "\\cdot "
        f"10^9$, divided by ${devices} \\cdot {tera} \\cdot 10^{{12}} \\cdot 86400$."
    )
    return Asked(text, key, 6 * billions * each * billions * 1e18 / (devices * tera * 1e12 * 86_400))


@number("23.crossing", points=2)
def _(draw: Random) -> Asked:
    large, read = draw.choice([2, 4, 8, 16]), draw.choice([40, 60, 100])
    small, longer = large // 2, read * draw.choice([3, 4, 5])
    text = (
        f"A model of {large} billion parameters that has read {read} billion tokens is as good as one of {small} "
        "billion "
        f"parameters that has read {longer} billion tokens. After how many billion written tokens has the smaller one "
        "taken fewer operations in all?"
    )
    key = (
        f"Training: $6 \\cdot {large} \\cdot {read}$ and $6 \\cdot {small} \\cdot {longer}$. Writing takes 2 "
        "operations for "
        f"each parameter and token: divide the difference by $2 \\cdot ({large} - {small})$."
    )
    return Asked(text, key, 3 * (small * longer - large * read) / (large - small))


reason(
    "23.floor",
    "A scaling law is fitted to twenty small runs with a floor of 1, and another law with a floor of 2 fits them "
    "equally well. What do the two laws agree on, what do they disagree on, and which single further run would tell "
    "them apart?",
    "They agree on the score of a model near the fitted ones, and nearly on the best size for a budget (1). They "
    "predict different scores far away, where the fractions have become small and the floor is most of the rest (1). "
    "A run of the recommended size would tell them apart if it reads many times as many tokens as the others (1). It "
    "needs the same schedule and new text, because the law assumes that tokens are new (1).",
)
broken(
    "23.valley",
    "This function finds the best of several sizes for a compute budget. `law(parameters, tokens)` is the score.",
    """
def best_size(compute, sizes, law):
    tokens = compute / sizes
    return sizes[law(sizes, tokens).argmin()]
""",
    "tokens = compute / sizes",
    "tokens = compute / (6 * sizes)",
    "sizes = torch.tensor([1.0, 2.0, 4.0, 8.0])\n"
    "assert best_size(24.0, sizes, lambda parameters, tokens: 1 / parameters + 1 / tokens) == 2.0",
    "A parameter costs six operations for each token, two forward and four backward. Without the 6 a model seems to "
    "read six times as much text as the budget pays for, so the size that is chosen is too large.",
)

# --- 24, what should a model read?


@number("24.link")
def _(draw: Random) -> Asked:
    tenths, rows, bands = draw.choice([5, 6, 7, 8]), draw.choice([2, 3, 4]), draw.choice([3, 5, 8])
    text = (
        f"MinHash signatures are cut into {bands} bands of {rows} rows. With what probability is a pair of texts with "
        f"a Jaccard similarity of 0.{tenths} linked?"
    )
    key = (
        f"A band agrees with probability $0.{tenths}^{{{rows}}}$, and the pair is missed if all {bands} bands fail: "
        f"$1 - (1 - 0.{tenths}^{{{rows}}})^{{{bands}}}$."
    )
    return Asked(text, key, 1 - (1 - (tenths / 10) ** rows) ** bands)


@number("24.jaccard", points=2)
def _(draw: Random) -> Asked:
    words, edits = draw.choice([104, 154, 204]), draw.choice([2, 4, 6])
    runs = words - 4
    text = (
        f"In a text of {words} words, no shingle of five words occurs twice. In a copy, {edits} words are replaced by "
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
    "second = min(order(shingle, seed + 1) for shingle in other)",
    "second = min(order(shingle, seed) for shingle in other)",
    "order = lambda shingle, seed: (shingle * 7919 + seed * 104729 + shingle * seed * 31) % 1009\n"
    "assert estimate({1, 2, 3}, {1, 2, 3}, order, 20) == 1",
    "The minima of two sets agree with the probability of their similarity only if both are taken in the same order. "
    "Here the second set is put into a different order, so even equal sets hardly ever agree.",
)
