"""Exercises for lesson 00: one token by hand."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 0.1


@exercise(
    "0.1",
    "What world takes of hello",
    task="Read one attention weight off a table of scores",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Each row belongs to the word that looks. Which row belongs to world, and which scores in that row may world use?",
        "The future is hidden: only the scores 1 and 0 are left. Exponentiate both.",
        "The weight of hello is its exponential divided by the sum of both.",
    ),
)
def weight_of_hello():
    """A head has computed these scores, already divided by $\\sqrt{d_k}$. Each row belongs to the word that looks, and each column to the
    word that is looked at:

    |           | hello | world |  ai  |
    |-----------|-------|-------|------|
    | **hello** |  0.3  |  1.2  | -0.5 |
    | **world** |   1   |   0   |  2   |
    | **ai**    |  0.4  |  1.5  |  0.8 |

    The model is causal: it masks later tokens. What weight does *world* give to *hello*? Return a `float` that is accurate to at least
    four decimal places.
    """
    ### BEGIN SOLUTION
    return math.exp(1) / (math.exp(1) + math.exp(0))
    ### END SOLUTION


@weight_of_hello.cases
def _(draw):
    yield Case("the weight that world gives to hello", (), tolerance=5e-5)


@weight_of_hello.mistake("the mask is missing: world may not look at ai, which comes after it")
def _():
    return math.exp(1) / (math.exp(1) + 1 + math.exp(2))


@weight_of_hello.mistake("that is the weight that world gives to itself")
def _():
    return 1 / (math.exp(1) + 1)


@weight_of_hello.mistake("you divided the score by the sum of the scores: exponentiate them first")
def _():
    return 1.0


@weight_of_hello.mistake("you divided by the square root of d_k again: these scores have already been divided by it")
def _():
    return torch.softmax(torch.tensor([1.0, 0.0]) / math.sqrt(2), dim=0)[0].item()


@weight_of_hello.mistake("your softmax runs down a column; the weights of the word that looks are in its row")
def _():
    return torch.softmax(torch.tensor([0.3, 1.0, 0.4]), dim=0)[1].item()


@weight_of_hello.mistake("you took hello as the word that looks; use the row of world")
def _():
    return 0.0


@weight_of_hello.mistake("that is the exponential of the score; divide it by the sum of the exponentials in the row")
def _():
    return math.exp(1)


@weight_of_hello.variant
def _():
    return torch.softmax(torch.tensor([1.0, 0.0, -math.inf]), dim=0)[0].item()


@weight_of_hello.variant
def _():
    return 1 / (1 + math.exp(-1))


@weight_of_hello.variant
def _():
    return 0.7311


# 0.2


@exercise(
    "0.2",
    "One row of attention",
    task="Compute the weights of one query over the words it may see",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"t": lambda q, K, t: (0, len(K) - 1)},
    exact_zero=True,
    excused={
        "dtype": "one of its correct answers always computes in float64",
        "offset": "readers write it before lesson 02 subtracts the maximum",
        "levels": "readers write it before lesson 02 subtracts the maximum",
    },
    hints=(
        "`K @ q` gives one dot product for each word. What number must these products be divided by?",
        "Divide by the square root of `len(q)`. Then use `masked_fill` to set the score of every position after `t` to minus infinity.",
        "Apply the softmax to the result. Before all that, raise a `ValueError` if `t` is not a position.",
    ),
)
def row_of_weights(q, K, t):
    """The word at position `t`, counted from 0, looks at itself and at the words before it. `q` (d_k) is its query, and
    `K` (token, d_k) holds the keys of all words; both are already rotated. Return the word's attention weights as a
    tensor (token): one weight for each word, with exactly 0 for the words after position `t`.

    ```python
    >>> row_of_weights(torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.eye(4), 1)
    tensor([0.8808, 0.1192, 0.0000, 0.0000])
    ```

    ★
    - Raise a `ValueError` if `t` is not one of 0, 1, ..., token - 1.
    - No score is above 100 or below -100, so nothing overflows.
    """
    ### BEGIN SOLUTION
    if not 0 <= t < len(K):
        raise ValueError(f"t={t}: expected a position from 0 to {len(K) - 1}")
    scores = K @ q / math.sqrt(len(q))
    hidden = torch.arange(len(K)) > t
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
    ### END SOLUTION


@row_of_weights.cases
def _(draw):
    yield Case("the second of three words", (draw.normal(2), draw.normal(3, 2), 1))
    yield Case("the first word sees only itself", (draw.normal(3), draw.normal(4, 3), 0))
    tokens, d_k = draw.sizes(2, 4, 9)
    yield Case("a word in the middle", (draw.normal(d_k), draw.normal(tokens, d_k), draw.whole(1, tokens - 2)))
    yield Case("the last word sees all words", (draw.normal(d_k), draw.normal(tokens, d_k), tokens - 1))
    yield Case("a position after the last word is rejected", (draw.normal(2), draw.normal(3, 2), 3), refuse=True)
    yield Case("a negative position is rejected", (draw.normal(2), draw.normal(3, 2), -1), refuse=True)


def _masked_softmax(scores, hidden):
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1)


@row_of_weights.mistake("the mask is missing: every word after t must get weight 0")
def _(q, K, t):
    return (K @ q / math.sqrt(len(q))).softmax(dim=-1)


@row_of_weights.mistake("the row does not add up to 1: mask the scores before the softmax, not the weights after it")
def _(q, K, t):
    return (K @ q / math.sqrt(len(q))).softmax(dim=-1).masked_fill(torch.arange(len(K)) > t, 0.0)


@row_of_weights.mistake("a hidden score of 0 still contributes e^0 = 1 to the sum: hide it with minus infinity")
def _(q, K, t):
    return (K @ q / math.sqrt(len(q))).masked_fill(torch.arange(len(K)) > t, 0.0).softmax(dim=-1)


@row_of_weights.mistake("your scores are divided by d_k, not by its square root")
def _(q, K, t):
    return _masked_softmax(K @ q / len(q), torch.arange(len(K)) > t)


@row_of_weights.mistake("your scores are not divided by the square root of d_k")
def _(q, K, t):
    return _masked_softmax(K @ q, torch.arange(len(K)) > t)


@row_of_weights.mistake(
    "your scores are divided by the square root of the number of words; use the width of a key, d_k"
)
def _(q, K, t):
    return _masked_softmax(K @ q / math.sqrt(len(K)), torch.arange(len(K)) > t)


@row_of_weights.mistake("your mask hides the word itself, which may also look at its own position t")
def _(q, K, t):
    return _masked_softmax(K @ q / math.sqrt(len(q)), torch.arange(len(K)) >= t)


@row_of_weights.mistake("your mask lets the word see the next one: the last visible position is t")
def _(q, K, t):
    return _masked_softmax(K @ q / math.sqrt(len(q)), torch.arange(len(K)) > t + 1)


@row_of_weights.mistake("your mask is the wrong way round: it hides the past and shows the future")
def _(q, K, t):
    return _masked_softmax(K @ q / math.sqrt(len(q)), torch.arange(len(K)) < t)


@row_of_weights.mistake("the zeros are missing: return one weight for each word, hidden ones included")
def _(q, K, t):
    return (K[: t + 1] @ q / math.sqrt(len(q))).softmax(dim=-1)


@row_of_weights.mistake("a t that is not a position must raise a ValueError")
def _(q, K, t):
    return _masked_softmax(K @ q / math.sqrt(len(q)), torch.arange(len(K)) > t)


@row_of_weights.variant
def _(q, K, t):
    # compute one dot product after another; the loop ends at t, so no mask is needed
    if t not in range(len(K)):
        raise ValueError(f"{t=}: expected 0 to {len(K) - 1}")
    powers = [
        math.exp(sum(a * b for a, b in zip(q.tolist(), K[s].tolist(), strict=True)) / len(q) ** 0.5)
        for s in range(t + 1)
    ]
    return torch.tensor([power / sum(powers) for power in powers] + [0.0] * (len(K) - t - 1), dtype=torch.float64)


@row_of_weights.variant
def _(q, K, t):
    if t < 0 or t >= K.shape[0]:
        raise ValueError(f"{t=}: expected the position of a word")
    row = torch.zeros(K.shape[0], dtype=K.dtype)
    row[: t + 1] = torch.softmax(torch.einsum("kd,d->k", K[: t + 1], q / math.sqrt(K.shape[1])), dim=0)
    return row


@row_of_weights.variant
def _(q, K, t):
    # use PyTorch's own attention, which returns the weights if the values are the identity matrix
    if not 0 <= t <= len(K) - 1:
        raise ValueError(f"{t=}: expected the position of a word")
    values, look = torch.eye(len(K), dtype=K.dtype), torch.arange(len(K))[None] <= t
    return torch.nn.functional.scaled_dot_product_attention(q[None], K, values, attn_mask=look)[0]


# 0.3


@exercise(
    "0.3",
    "RMSNorm of many rows",
    task="Normalise every row of a matrix, as RMSNorm does",
    points=2,
    difficulty=2,
    minutes=10,
    forbidden=("rms_norm", "RMSNorm"),
    hints=(
        "`y.square().mean(-1, keepdim=True)` is one number for each row. What is still missing before the square root?",
        "Add `eps` to it, and only then take the square root.",
        "Divide each row by that root, and multiply by the gain. A gain of length 1 would broadcast without complaint, so look at its shape first.",
    ),
)
def normalise_rows(y, gain, eps):
    """Return the RMSNorm of each row of `y` (token, d_model), equation (0.8), with the gains `gain` (d_model) and the
    constant `eps`. The result is a tensor (token, d_model). Write it yourself, without PyTorch's own RMSNorm.

    ```python
    >>> normalise_rows(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    tensor([[0.8485, 2.2627]])
    ```

    ★
    - Raise a `ValueError` if the shape of `gain` is not (d_model), because a gain of shape (1) or (d_model, 1) would
      broadcast without an error.
    - Do not change `y`. Gradients flow to `y` and `gain`.
    """
    ### BEGIN SOLUTION
    if gain.shape != y.shape[-1:]:
        raise ValueError(f"gain has shape {tuple(gain.shape)}: expected {tuple(y.shape[-1:])}")
    mean_square = y.square().mean(dim=-1, keepdim=True)
    return y / torch.sqrt(mean_square + eps) * gain
    ### END SOLUTION


@normalise_rows.cases
def _(draw):
    gain = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)
    yield Case("each row by itself, with eps inside the square root", (1 + draw.normal(2, 3), gain, 0.5))
    tokens, d_model = draw.sizes(2, 3, 9)
    yield Case("any number of rows, of any width", (draw.normal(tokens, d_model), draw.normal(d_model), 0.1))
    yield Case(
        "rows of large and small numbers",
        (draw.normal(3, 4) * torch.tensor([[1e3], [1.0], [1e-3]]), draw.normal(4), 1e-6),
    )
    yield Case("a row of zeros stays zero", (torch.zeros(1, 4, dtype=torch.float64), draw.normal(4), 1e-6))
    yield Case("gradients", (draw.normal(3, 5), draw.normal(5), 0.01), gradients=True)
    yield Case("a gain of length 1 is rejected", (draw.normal(3, 4), draw.normal(1), 0.1), refuse=True)
    yield Case("a gain of another shape is rejected", (draw.normal(3, 4), draw.normal(3, 4), 0.1), refuse=True)


@normalise_rows.mistake("you subtracted the mean: that is LayerNorm")
def _(y, gain, eps):
    return torch.nn.functional.layer_norm(y, y.shape[-1:], gain, eps=eps)


@normalise_rows.mistake("eps is outside the square root")
def _(y, gain, eps):
    return y / (y.square().mean(-1, keepdim=True).sqrt() + eps) * gain


@normalise_rows.mistake("eps is missing, so a row of zeros becomes NaN")
def _(y, gain, eps):
    return y / y.square().mean(-1, keepdim=True).sqrt() * gain


@normalise_rows.mistake("you averaged over the words; each word is normalised on its own")
def _(y, gain, eps):
    return y / (y.square().mean(0) + eps).sqrt() * gain


@normalise_rows.mistake("you averaged over the whole matrix; each word is normalised on its own")
def _(y, gain, eps):
    return y / (y.square().mean() + eps).sqrt() * gain


@normalise_rows.mistake("you took the sum of the squares; RMSNorm uses their mean")
def _(y, gain, eps):
    return y / (y.square().sum(-1, keepdim=True) + eps).sqrt() * gain


@normalise_rows.mistake("you divided each row by its length: take the mean of the squares, not their sum, and add eps")
def _(y, gain, eps):
    return torch.nn.functional.normalize(y, dim=-1) * gain


@normalise_rows.mistake("the square root is missing: you divided by the mean square")
def _(y, gain, eps):
    return y / (y.square().mean(-1, keepdim=True) + eps) * gain


@normalise_rows.mistake("the gain is missing")
def _(y, gain, eps):
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt()


@normalise_rows.mistake("you added the gain; multiply by it")
def _(y, gain, eps):
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt() + gain


@normalise_rows.mistake("you wrote into y: the caller may still need it, so work on a copy (no /=, no *=)")
def _(y, gain, eps):
    y /= (y.square().mean(-1, keepdim=True) + eps).sqrt()
    return y * gain


@normalise_rows.mistake("the square root is detached, but the gradient of y must flow through it too")
def _(y, gain, eps):
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt().detach() * gain


@normalise_rows.mistake("a gain of another shape broadcasts silently: raise a ValueError")
def _(y, gain, eps):
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * gain


@normalise_rows.variant
def _(y, gain, eps):
    if gain.shape != (y.shape[1],):
        raise ValueError("expected one gain for each column")
    rows = []
    for row in y:
        rows.append(
            torch.stack(
                [g * x / (sum(x * x for x in row) / len(row) + eps) ** 0.5 for x, g in zip(row, gain, strict=True)]
            )
        )
    return torch.stack(rows)


@normalise_rows.variant
def _(y, gain, eps):
    if gain.ndim != 1 or len(gain) != y.size(-1):
        raise ValueError(f"gain: {gain.shape}")
    inverse = torch.rsqrt(torch.einsum("td,td->t", y, y) / y.size(-1) + eps)
    return torch.diag(inverse) @ y @ torch.diag(gain)


# 0.4


@exercise(
    "0.4",
    "Any number of experts",
    task="Send one word through its best k experts and mix their outputs",
    points=3,
    difficulty=2,
    minutes=15,
    limits={"k": lambda x, k, w_r, w_1, w_2: (1, w_r.shape[1])},
    excused={
        "tie": "no two experts get the same score",
        "nan": "an expert that no word visits need not be computed",
    },
    hints=(
        "`scores, chosen = (x @ w_r).topk(k)` gives the best scores and the experts they belong to.",
        "`scores.softmax(-1)` gives the shares, because the softmax runs over the chosen scores only.",
        "Go through experts and shares together with `zip`, and add up each share times the expert's output. `w_1[e]` and `w_2[e]` belong to expert e.",
    ),
)
def mix_experts(x, k, w_r, w_1, w_2):
    """One word `x` (d_model) visits its `k` best experts, as in sitting 3 of lesson 00. Return the output of the
    mixture, a tensor (d_model). The router is `w_r` (d_model, expert). Expert $e$ has the matrices `w_1[e]` (d_model,
    d_ff) and `w_2[e]` (d_ff, d_model), with a ReLU between them. No two experts get the same score.

    ```python
    >>> mix_experts(torch.tensor([1.0]), 1, torch.tensor([[0.0, 2.0]]), torch.ones(2, 1, 1), torch.tensor([[[3.0]], [[5.0]]]))
    tensor([5.])
    ```

    ★
    - Raise a `ValueError` if `k` is not one of 1, 2, ..., expert.
    - Gradients flow to `x`, to the router and to the experts.
    """
    ### BEGIN SOLUTION
    if not 1 <= k <= w_r.shape[1]:
        raise ValueError(f"k={k}: expected a number from 1 to {w_r.shape[1]}")
    scores, chosen = (x @ w_r).topk(k)
    shares = scores.softmax(dim=-1)
    return sum(share * ((x @ w_1[e]).relu() @ w_2[e]) for share, e in zip(shares, chosen, strict=True))
    ### END SOLUTION


@mix_experts.cases
def _(draw):
    def word(d_model, experts, d_ff, k):
        matrices = draw.normal(experts, d_model, d_ff), draw.normal(experts, d_ff, d_model)
        return draw.normal(d_model), k, draw.normal(d_model, experts), *matrices

    yield Case("two of three experts", word(2, 3, 5, 2))
    yield Case("a single expert gets all the weight", word(3, 4, 2, 1))
    d_model, experts, d_ff = draw.sizes(3, 3, 7)
    yield Case("any sizes", word(d_model, experts, d_ff, draw.whole(2, experts - 1)))
    yield Case("all experts", word(2, 3, 4, 3))
    yield Case("gradients, including the router's", word(3, 5, 4, 3), gradients=True)
    yield Case("a k of 0 is rejected", word(2, 3, 4, 0), refuse=True)
    yield Case("a k above the number of experts is rejected", word(2, 3, 4, 4), refuse=True)
    yield Case("gradients when a single expert gets all the weight", word(3, 3, 9, 1), gradients=True)


def _experts(x, w_1, w_2):
    return torch.stack([(x @ a).relu() @ b for a, b in zip(w_1, w_2, strict=True)])  # (expert, d_model)


@mix_experts.mistake("your shares do not add up to 1: the softmax is over the chosen scores only")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).softmax(-1).topk(k)
    return best @ _experts(x, w_1, w_2)[chosen]


@mix_experts.mistake("you took a softmax before the choice and another one after it: one is enough")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).softmax(-1).topk(k)
    return best.softmax(-1) @ _experts(x, w_1, w_2)[chosen]


@mix_experts.mistake("all chosen experts have equal weight: the shares are missing")
def _(x, k, w_r, w_1, w_2):
    return _experts(x, w_1, w_2)[(x @ w_r).topk(k).indices].mean(0)


@mix_experts.mistake("the outputs of the chosen experts are added without their shares")
def _(x, k, w_r, w_1, w_2):
    return _experts(x, w_1, w_2)[(x @ w_r).topk(k).indices].sum(0)


@mix_experts.mistake("the raw router scores are not shares: put them through a softmax")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k)
    return best @ _experts(x, w_1, w_2)[chosen]


@mix_experts.mistake("the shares belong to other experts: keep scores and experts in the same order")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k)
    return best.softmax(-1) @ _experts(x, w_1, w_2)[chosen.flip(0)]


@mix_experts.mistake("you used every expert; use only the best k")
def _(x, k, w_r, w_1, w_2):
    return (x @ w_r).softmax(-1) @ _experts(x, w_1, w_2)


@mix_experts.mistake("you chose the experts with the lowest scores")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k, largest=False)
    return best.softmax(-1) @ _experts(x, w_1, w_2)[chosen]


@mix_experts.mistake("you took the first k experts; take the k with the best scores, and their shares")
def _(x, k, w_r, w_1, w_2):
    return (x @ w_r)[:k].softmax(-1) @ _experts(x, w_1, w_2)[:k]


@mix_experts.mistake("the ReLU between an expert's two matrices is missing")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k)
    return sum(share * (x @ w_1[e] @ w_2[e]) for share, e in zip(best.softmax(-1), chosen, strict=True))


@mix_experts.mistake("the ReLU comes after the second matrix; it belongs between the two")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k)
    return sum(share * (x @ w_1[e] @ w_2[e]).relu() for share, e in zip(best.softmax(-1), chosen, strict=True))


@mix_experts.mistake("the shares became plain numbers (detach, item or tolist): no gradient reaches the router")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k)
    return best.softmax(-1).detach() @ _experts(x, w_1, w_2)[chosen]


@mix_experts.mistake("raise a ValueError if k is below 1 or above the number of experts")
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).sort(descending=True)
    return best[:k].softmax(-1) @ _experts(x, w_1, w_2)[chosen[:k]]


@mix_experts.mistake(
    "with k = 0 your sum is empty, and with a k that is too large topk raises its own error: raise a ValueError"
)
def _(x, k, w_r, w_1, w_2):
    best, chosen = (x @ w_r).topk(k)
    return sum(share * answer for share, answer in zip(best.softmax(-1), _experts(x, w_1, w_2)[chosen], strict=True))


@mix_experts.variant
def _(x, k, w_r, w_1, w_2):
    # hide the scores of the experts that are not chosen, as a mask hides words, and run all experts
    experts = w_r.shape[1]
    if k < 1 or k > experts:
        raise ValueError(f"{k} of {experts} experts")
    r = x @ w_r
    last = r.sort(descending=True).values[k - 1]
    shares = torch.where(r >= last, r, -torch.inf).softmax(0)
    return torch.einsum("e,ef,efd->d", shares, torch.einsum("d,edf->ef", x, w_1).clamp(min=0), w_2)


@mix_experts.variant
def _(x, k, w_r, w_1, w_2):
    # apply the softmax to all scores, keep the k largest weights and divide by their sum, as in (D0.1)
    if k not in range(1, w_r.shape[-1] + 1):
        raise ValueError(f"{k=}: expected 1 to {w_r.shape[-1]} experts")
    everyone = torch.softmax(x @ w_r, dim=0)
    order = sorted(range(len(everyone)), key=lambda e: -everyone[e].item())[:k]
    total = sum(everyone[e] for e in order)
    out = torch.zeros_like(x)
    for e in order:
        inside = torch.maximum(x @ w_1[e], torch.zeros((), dtype=x.dtype))
        out = out + everyone[e] / total * (inside @ w_2[e])
    return out


# 0.5


@exercise(
    "0.5",
    "Let it write",
    task="Continue a text by always taking the most probable word",
    points=3,
    difficulty=2,
    minutes=15,
    excused={
        "tie": "no two scores are equal",
    },
    hints=(
        "Convert the words to ids. Raise a `ValueError` for an unknown word or an empty text.",
        "`table[ids].mean(dim=0).argmax().item()` is the id of the next word.",
        "Append it to the ids, repeat this `n` times, and return the words that come after the text.",
    ),
)
def continue_text(text, n, vocabulary, table):
    """In this tiny model, the scores of the next word are the *average of the rows* of `table` (vocab, vocab) that
    belong to the words so far, new words included. The words of `text` are separated by single spaces. Append the most
    probable next word `n` times, and return the new words as a list. `vocabulary` lists the words in the order of their
    ids. No two scores are equal.

    ```python
    >>> continue_text("a", 3, ["a", "b"], torch.tensor([[0.0, 1.0], [3.0, 0.0]]))
    ['b', 'a', 'a']
    ```

    ★
    - Raise a `ValueError` if the text contains no words, or a word that is not in the vocabulary, even if `n` is 0.
    """
    ### BEGIN SOLUTION
    words = text.split()
    unknown = [word for word in words if word not in vocabulary]
    if unknown or not words:
        raise ValueError(f"text={text!r}: expected one or more of {vocabulary}")
    ids = [vocabulary.index(word) for word in words]
    for _ in range(n):
        ids.append(table[ids].mean(dim=0).argmax().item())
    return [vocabulary[i] for i in ids[len(words) :]]
    ### END SOLUTION


_WORDS = ["<pad>", "hello", "boss", "happy", "the", "world", "is", "good", "new", "ai"]


def _greedy(text, n, vocabulary, table, read, grow=True):
    """Generate n words; `read` selects the ids that the model reads."""
    ids = [vocabulary.index(word) for word in text.split() if word in vocabulary]
    known, new = len(ids), []
    for _ in range(n):
        new.append(table[read(ids, known)].mean(dim=0).argmax().item())
        ids = ids + new[-1:] if grow else ids
    return [vocabulary[i] for i in new]


_ALL, _LAST, _FIRST = (lambda ids, known: ids), (lambda ids, known: ids[-1:]), (lambda ids, known: ids[:1])
_PROMPT, _WRITTEN = (lambda ids, known: ids[:known]), (lambda ids, known: ids[known:] or ids)


def _telling(draw, text, n):
    """Draw a table for which no known-wrong answer generates the same words as the correct answer."""
    while True:
        table = draw.normal(10, 10)
        right = _greedy(text, n, _WORDS, table, _ALL)
        others = [_greedy(text, n, _WORDS, table, read) for read in (_LAST, _FIRST, _PROMPT, _WRITTEN)]
        others += [_greedy(text, n, _WORDS, table.T, _ALL), _greedy(text, n, _WORDS, -table, _ALL)]
        if right not in others and others[1] != others[2] and len({*right}) > 1:
            return table


@continue_text.cases
def _(draw):
    text = "hello world ai"
    yield Case("one word", (text, 1, _WORDS, _telling(draw, text, 4)))
    yield Case("four words", (text, 4, _WORDS, _telling(draw, text, 4)))
    text = " ".join(_WORDS[i] for i in draw.shuffled(9)[: draw.whole(2, 5)] + 1)
    yield Case("another text", (text, 6, _WORDS, _telling(draw, text, 6)))
    order = draw.shuffled(10)
    shuffled = [_WORDS[i] for i in order]
    yield Case("another vocabulary", (text, 6, shuffled, _telling(draw, text, 6)[order][:, order]))
    yield Case("no new words are requested", (text, 0, _WORDS, draw.normal(10, 10)))
    yield Case("an unknown word is rejected", ("hello moon", 1, _WORDS, draw.normal(10, 10)), refuse=True)
    yield Case("an empty text is rejected", ("", 1, _WORDS, draw.normal(10, 10)), refuse=True)
    close = torch.tensor([[0.0, 1.0, 1.0 + 1e-9], [1.0, 0.0, 0.5], [0.5, 1.0, 0.0]], dtype=torch.float64)
    yield Case("two scores that differ by a billionth", ("a", 1, ["a", "b", "c"], close))
    yield Case("a text of spaces contains no word and is rejected", ("  ", 1, ["a", "b", "c"], close), refuse=True)
    yield Case("an unknown word at the beginning is rejected", ("moon a", 1, ["a", "b", "c"], close), refuse=True)


@continue_text.mistake("you never append the new word to the text, so the model answers the same question again")
def _(text, n, vocabulary, table):
    return _greedy(text, n, vocabulary, table, _PROMPT, grow=False)


@continue_text.mistake("your model reads only the last word; it should get all words so far")
def _(text, n, vocabulary, table):
    return _greedy(text, n, vocabulary, table, _LAST)


@continue_text.mistake("your model reads only the first word; it should get all words so far")
def _(text, n, vocabulary, table):
    return _greedy(text, n, vocabulary, table, _FIRST)


@continue_text.mistake("once it has written something, your model forgets the text it began with")
def _(text, n, vocabulary, table):
    return _greedy(text, n, vocabulary, table, _WRITTEN)


@continue_text.mistake("you took the columns: the row belongs to the word that was read")
def _(text, n, vocabulary, table):
    return _greedy(text, n, vocabulary, table.T, _ALL)


@continue_text.mistake("you took the least probable word")
def _(text, n, vocabulary, table):
    return _greedy(text, n, vocabulary, -table, _ALL)


@continue_text.mistake("return only the new words, without the text they continue")
def _(text, n, vocabulary, table):
    return text.split() + _greedy(text, n, vocabulary, table, _ALL)


@continue_text.mistake("return a list of words; you joined them into one text")
def _(text, n, vocabulary, table):
    return " ".join(_greedy(text, n, vocabulary, table, _ALL))


@continue_text.mistake("ids are not words: look them up in the vocabulary")
def _(text, n, vocabulary, table):
    return [vocabulary.index(word) for word in _greedy(text, n, vocabulary, table, _ALL)]


@continue_text.mistake("an unknown word is silently skipped: raise a ValueError")
def _(text, n, vocabulary, table):
    if not text:
        raise ValueError("an empty text")
    return _greedy(text, n, vocabulary, table, _ALL)


@continue_text.mistake("an empty text must raise a ValueError: the average of no rows is NaN")
def _(text, n, vocabulary, table):
    if any(word not in vocabulary for word in text.split()):
        raise ValueError("an unknown word")
    return _greedy(text, n, vocabulary, table, _ALL)


@continue_text.mistake("an unknown word raises a KeyError: raise a ValueError that says what is wrong")
def _(text, n, vocabulary, table):
    number = {word: i for i, word in enumerate(vocabulary)}
    return _greedy(" ".join(vocabulary[number[word]] for word in text.split()), n, vocabulary, table, _ALL)


@continue_text.variant
def _(text, n, vocabulary, table):
    # keep a running total of the rows, with a dictionary and plain lists
    number, rows = {word: i for i, word in enumerate(vocabulary)}, table.tolist()
    given = text.split(" ")
    if not all(word in number for word in given):
        raise ValueError("a word is missing from the vocabulary")
    total, new = [0.0] * len(rows), []
    for word in given:
        total = [a + b for a, b in zip(total, rows[number[word]], strict=True)]
    while len(new) < n:
        best = max(range(len(total)), key=total.__getitem__)
        new.append(vocabulary[best])
        total = [a + b for a, b in zip(total, rows[best], strict=True)]
    return tuple(new)


@continue_text.variant
def _(text, n, vocabulary, table):
    # multiply the table by the number of times that each word has been seen
    if not text.strip():
        raise ValueError("nothing to continue")
    count = torch.zeros(len(vocabulary), dtype=table.dtype)
    for word in text.split():
        count[vocabulary.index(word)] += 1  # list.index raises its own ValueError
    new = []
    for _ in range(n):
        best = torch.softmax(count @ table / count.sum(), dim=-1).argmax()
        count[best] += 1
        new.append(vocabulary[int(best)])
    return new


# 0.6


@exercise(
    "0.6",
    "The new word comes alone",
    task="Let a new word attend to cached keys and values, and cache its own",
    points=4,
    difficulty=3,
    minutes=20,
    excused={"dtype": "one of its correct answers always computes in float64"},
    hints=(
        "At which position is the new word, if `len(keys)` words came before it?",
        "Compute its query, key and value, and rotate the query and the key by the word's position, equation (0.3). The cached keys have already been rotated.",
        "Append its key and value to the cached ones, `torch.cat([keys, key[None]])`, and only then compute scores, weights and the average.",
    ),
)
def one_more_word(x, w_q, w_k, w_v, keys, values):
    """An attention head of width 2 has cached the `keys` (token, 2), which are already rotated, and the `values`
    (token, d_v) of the words so far. The cache may be empty. Now one more word arrives, `x` (d_model). The head's
    matrices are `w_q` and `w_k` (d_model, 2), and `w_v` (d_model, d_v). Scores are divided by $\\sqrt 2$, and a word at
    position $m$, counted from 0, is rotated by $m$ radians. Return `(out, keys, values)`: the head's output (d_v), and
    the cached keys and values, now one row longer.

    ```python
    >>> one_more_word(torch.tensor([1.0]), torch.ones(1, 2), torch.ones(1, 2), torch.tensor([[5.0]]), torch.zeros(0, 2), torch.zeros(0, 1))
    (tensor([5.]), tensor([[1., 1.]]), tensor([[5.]]))
    ```

    ★
    - Do not change the given `keys` and `values`.
    """
    ### BEGIN SOLUTION
    position = len(keys)
    c, s = math.cos(position), math.sin(position)
    rotation = torch.tensor([[c, s], [-s, c]], dtype=x.dtype)  # (0.3), transposed because these are row vectors
    query, key = x @ w_q @ rotation, x @ w_k @ rotation
    keys = torch.cat([keys, key[None]])
    values = torch.cat([values, (x @ w_v)[None]])
    weights = torch.softmax(
        keys @ query / math.sqrt(2), dim=-1
    )  # there is no mask, because the new word may see all keys
    return weights @ values, keys, values
    ### END SOLUTION


def _turned(pair, position):
    c, s = math.cos(position), math.sin(position)
    return torch.stack([pair[..., 0] * c - pair[..., 1] * s, pair[..., 0] * s + pair[..., 1] * c], dim=-1)


@one_more_word.cases
def _(draw):
    def step(d_model, d_v, tokens):
        matrices = draw.normal(d_model, 2), draw.normal(d_model, 2), draw.normal(d_model, d_v)
        return draw.normal(d_model), *matrices, draw.normal(tokens, 2), draw.normal(tokens, d_v)

    yield Case("one word is cached, and the new one is the second", step(3, 1, 1))
    yield Case("three words are cached", step(4, 3, 3))
    d_model, d_v, tokens = draw.sizes(3, 3, 9)
    yield Case("any sizes", step(d_model, d_v, tokens))
    yield Case("nothing is cached yet", step(3, 4, 0))
    yield Case("forty words are cached", step(3, 2, 40))


_ROOT = math.sqrt(2)


def _collected(query, keys, values, scale=_ROOT):
    return torch.softmax(keys @ query / scale, dim=-1) @ values


def _step(x, w_q, w_k, w_v, keys, values, *, query_at=0, key_at=0, value_at=None, scale=_ROOT):
    """Compute the step, rotating query and key to positions relative to the new word's; None leaves them unrotated."""
    n = len(keys)
    query = x @ w_q if query_at is None else _turned(x @ w_q, n + query_at)
    key = x @ w_k if key_at is None else _turned(x @ w_k, n + key_at)
    keys, values = torch.cat([keys, key[None]]), torch.cat([values, (x @ w_v)[None]])
    return _collected(query, keys, values, scale), keys, values


@one_more_word.mistake(
    "your code puts the new word at position 0, but it comes after the cached words, at position len(keys)"
)
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, query_at=None, key_at=None)


@one_more_word.mistake("the new word's position is one too high: count from 0")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, query_at=1, key_at=1)


@one_more_word.mistake("the new word's position is one too low: that is the position of the last cached word")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, query_at=-1, key_at=-1)


@one_more_word.mistake("only the query is rotated; the new key must be rotated too, before it is cached")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, key_at=None)


@one_more_word.mistake("only the key is rotated; the query must be rotated too")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, query_at=None)


@one_more_word.mistake("you rotated in the wrong direction: look at the signs in equation (0.3)")
def _(x, w_q, w_k, w_v, keys, values):
    n = len(keys)
    return _step(x, w_q, w_k, w_v, keys, values, query_at=-2 * n, key_at=-2 * n)


@one_more_word.mistake("the cached keys are rotated a second time")
def _(x, w_q, w_k, w_v, keys, values):
    places = torch.arange(len(keys) + 1).tolist()
    new = torch.cat([keys, (x @ w_k)[None]])
    keys = torch.stack([_turned(key, place) for key, place in zip(new, places, strict=True)])
    values = torch.cat([values, (x @ w_v)[None]])
    return _collected(_turned(x @ w_q, places[-1]), keys, values), keys, values


@one_more_word.mistake("the new word must also look at itself: include its own key and value among those that it sees")
def _(x, w_q, w_k, w_v, keys, values):
    _, more_keys, more_values = _step(x, w_q, w_k, w_v, keys, values)
    return _collected(_turned(x @ w_q, len(keys)), keys, values), more_keys, more_values


@one_more_word.mistake("the new key and value are not cached, so the next word will not find this one")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values)[0], keys, values


@one_more_word.mistake("the new key and value are in front of the cached ones; they belong after them")
def _(x, w_q, w_k, w_v, keys, values):
    out, keys, values = _step(x, w_q, w_k, w_v, keys, values)
    return out, keys.roll(1, dims=0), values.roll(1, dims=0)


@one_more_word.mistake("the scores are not divided by the square root of 2")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, scale=1.0)


@one_more_word.mistake("the scores are divided by 2, not by its square root")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_q, w_k, w_v, keys, values, scale=2.0)


@one_more_word.mistake("the query and the key are computed with each other's matrices")
def _(x, w_q, w_k, w_v, keys, values):
    return _step(x, w_k, w_q, w_v, keys, values)


@one_more_word.variant
def _(x, w_q, w_k, w_v, keys, values):
    # use complex numbers, where a rotation is multiplication by e^(i m)
    turn = torch.polar(torch.ones(()).double(), torch.tensor(float(len(keys))).double())
    query = torch.view_as_real(torch.view_as_complex(x @ w_q) * turn)
    key = torch.view_as_real(torch.view_as_complex(x @ w_k) * turn)
    keys, values = torch.vstack([keys, key]), torch.vstack([values, x @ w_v])
    return torch.nn.functional.scaled_dot_product_attention(query[None], keys, values)[0], keys, values


@one_more_word.variant
def _(x, w_q, w_k, w_v, keys, values):
    # use plain Python numbers; the word's score with itself is computed unrotated, because rotation does not change it
    m = keys.shape[0]
    a, b = (x @ w_q).tolist()
    q = (a * math.cos(m) - b * math.sin(m), a * math.sin(m) + b * math.cos(m))
    scores = [(q[0] * k0 + q[1] * k1) / 2**0.5 for k0, k1 in keys.tolist()] + [float((x @ w_q) @ (x @ w_k)) / 2**0.5]
    powers = [math.exp(score - max(scores)) for score in scores]
    rows = [*values, x @ w_v]
    out = sum(power / sum(powers) * row for power, row in zip(powers, rows, strict=True))
    c, d = (x @ w_k).tolist()
    key = torch.tensor([[c * math.cos(m) - d * math.sin(m), c * math.sin(m) + d * math.cos(m)]], dtype=torch.float64)
    return [out, torch.cat((keys, key), 0), torch.stack(rows)]
