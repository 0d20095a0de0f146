"""Exercises of lesson 16: the block of today."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 16.1


@exercise(
    "16.1",
    "How large can a score become?",
    task="Bound a normed score, and cap another, with a pencil",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "What is the length of a normed vector of 64 components, before its gain?",
        "Take two vectors of length 8 in the same direction and divide their dot product by the square root of 64.",
        "A gain of 2 makes every key twice as long. The second number is 20 tanh(40 / 20), and tanh 2 = 0.9640.",
    ),
)
def two_bounds():
    """A head has 64 components and uses QK-norm, with a gain of 1 in every component of the queries and 2 in every
    component of the keys. How large can a score become if nothing else limits it? And what does a cap of 20 turn a
    score of 40 into? Return both values as a pair of `float`s, in this order, accurate to at least three decimal
    places.
    """
    ### BEGIN SOLUTION
    return 1 * 2 * math.sqrt(64), 20 * math.tanh(40 / 20)
    ### END SOLUTION


@two_bounds.cases
def _(draw):
    yield Case("the largest score, and the capped one", (), tolerance=5e-4)


@two_bounds.mistake("the first number is q · k: it still has to be divided by the square root of 64")
def _():
    return 128.0, 20 * math.tanh(2)


@two_bounds.mistake("the gain of the keys is missing in your first number: it makes each of them twice as long")
def _():
    return 8.0, 20 * math.tanh(2)


@two_bounds.mistake("a normed vector has a mean square of 1, not a length of 1: with 64 components, its length is 8")
def _():
    return 2 / 8, 20 * math.tanh(2)


@two_bounds.mistake("each gain counts once: gains of 1 and 2 make a score twice as large")
def _():
    return 32.0, 20 * math.tanh(2)


@two_bounds.mistake("the cap is soft: it is not a hard limit, and a score never quite reaches 20")
def _():
    return 16.0, 20.0


@two_bounds.mistake("your second number is between -1 and 1: multiply by the cap again")
def _():
    return 16.0, math.tanh(2)


@two_bounds.variant
def _():
    q = torch.ones(64, dtype=torch.float64)
    return [(q @ (2 * q) / 8).item(), 20 * (math.exp(4) - 1) / (math.exp(4) + 1)]


@two_bounds.variant
def _():
    return 16.0, 19.281


# 16.2


@exercise(
    "16.2",
    "Scores held in check",
    task="Compute scores with QK-norm and a cap",
    points=3,
    difficulty=2,
    minutes=15,
    limits={"cap": (0,)},
    right={
        "gradients": "its result goes into a model that learns",
    },
    robust={
        "a row of zeros": "no query in the lesson is zero",
        "vectors a million times as large": "norms exist for vectors that grow, and other cases already test the idea",
    },
    hints=(
        "As in lesson 06, divide a row by the square root of its mean square plus eps, then multiply by the gain.",
        "Normalize queries and keys row by row. Then compute q k^T and divide it by the square root of d_head.",
        "The cap comes last: cap * tanh(scores / cap).",
    ),
)
def held_scores(q, k, gain_q, gain_k, eps, cap):
    """Return the scores (query, key) of one head with QK-norm and a cap. `q` is (query, d_head) and `k` is (key, d_head). Divide every row by
    the square root of its mean square plus `eps`, and multiply it by the gain (d_head) of the queries or of the keys.
    Then compute the dot products, divide them by $\\sqrt{d_k}$, and apply the soft cap of (16.4).

    ```python
    >>> held_scores(torch.tensor([[3.0, 3.0]]), torch.tensor([[5.0, 5.0]]), torch.ones(2), torch.ones(2), 0.0, 10.0)
    tensor([[1.4049]])
    ```

    ★
    - Raise a `ValueError` unless `cap > 0`.
    - A row of zeros gives scores of 0 if `eps > 0`.
    """
    ### BEGIN SOLUTION
    if not cap > 0:
        raise ValueError(f"cap={cap}: expected a number above 0")
    q = q / (q.square().mean(-1, keepdim=True) + eps).sqrt() * gain_q
    k = k / (k.square().mean(-1, keepdim=True) + eps).sqrt() * gain_k
    return cap * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / cap)
    ### END SOLUTION


@held_scores.cases
def _(draw):
    one = torch.ones(2, dtype=torch.float64)
    yield Case("one query and one key", (draw.normal(1, 2), draw.normal(1, 2), one, one, 0.01, 10.0))
    queries, keys, wide = draw.sizes(3, 3, 9)
    q, k = 3 * draw.normal(queries, wide), draw.normal(keys, wide) + 1
    gains = 1 + draw.uniform(wide), 2 + draw.uniform(wide)
    yield Case("any sizes, and gains", (q, k, *gains, 0.1, 3.0))
    yield Case("vectors a million times as large", (1e6 * q, 1e6 * k, *gains, 1e-6, 30.0))
    yield Case("small vectors, for which eps matters", (0.1 * q, 0.1 * k, *gains, 0.5, 1.5))
    yield Case("the gradients", (q, k, *gains, 0.1, 2.0), gradients=True)
    yield Case("a row of zeros", (torch.cat((q, 0 * q[:1])), k, *gains, 0.1, 3.0))
    yield Case("a cap of 0 is rejected", (q, k, *gains, 0.1, 0.0), refuse=True)
    yield Case("a cap below 0 is rejected", (q, k, *gains, 0.1, -2.0), refuse=True)


def _normed(x, gain, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def _cap(scores, cap):
    if not cap > 0:
        raise ValueError("expected cap > 0")
    return cap * torch.tanh(scores / cap)


@held_scores.mistake("queries and keys are not normalized: divide each row by the square root of its mean square")
def _(q, k, gain_q, gain_k, eps, cap):
    return _cap((q * gain_q) @ (k * gain_k).mT / q.shape[-1] ** 0.5, cap)


@held_scores.mistake("you normalize only the queries, not the keys")
def _(q, k, gain_q, gain_k, eps, cap):
    return _cap(_normed(q, gain_q, eps) @ (k * gain_k).mT / q.shape[-1] ** 0.5, cap)


@held_scores.mistake("the gains are missing: after the norm, each component is multiplied by its own gain")
def _(q, k, gain_q, gain_k, eps, cap):
    return _cap(_normed(q, 1, eps) @ _normed(k, 1, eps).mT / q.shape[-1] ** 0.5, cap)


@held_scores.mistake("you used the gain of the queries for both")
def _(q, k, gain_q, gain_k, eps, cap):
    return _cap(_normed(q, gain_q, eps) @ _normed(k, gain_q, eps).mT / q.shape[-1] ** 0.5, cap)


@held_scores.mistake("the square root of d_head is missing: normed scores are divided by it, too")
def _(q, k, gain_q, gain_k, eps, cap):
    return _cap(_normed(q, gain_q, eps) @ _normed(k, gain_k, eps).mT, cap)


@held_scores.mistake(
    "you divide by the length of a row: use the mean of the squares under the square root, not the sum"
)
def _(q, k, gain_q, gain_k, eps, cap):
    wide = q.shape[-1]
    q, k = (x / (x.square().sum(-1, keepdim=True) + eps).sqrt() * g for x, g in ((q, gain_q), (k, gain_k)))
    return _cap(q @ k.mT / wide**0.5, cap)


@held_scores.mistake("you added eps outside the square root: add it to the mean square")
def _(q, k, gain_q, gain_k, eps, cap):
    q, k = (x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * g for x, g in ((q, gain_q), (k, gain_k)))
    return _cap(q @ k.mT / q.shape[-1] ** 0.5, cap)


@held_scores.mistake("that is a layer norm: do not subtract the mean of a row")
def _(q, k, gain_q, gain_k, eps, cap):
    q, k = (_normed(x - x.mean(-1, keepdim=True), g, eps) for x, g in ((q, gain_q), (k, gain_k)))
    return _cap(q @ k.mT / q.shape[-1] ** 0.5, cap)


@held_scores.mistake("the cap is missing: scores s become cap * tanh(s / cap)")
def _(q, k, gain_q, gain_k, eps, cap):
    _cap(q, cap)
    return _normed(q, gain_q, eps) @ _normed(k, gain_k, eps).mT / q.shape[-1] ** 0.5


@held_scores.mistake("your cap is a hard limit, so there is no gradient beyond it: use a tanh")
def _(q, k, gain_q, gain_k, eps, cap):
    _cap(q, cap)
    return (_normed(q, gain_q, eps) @ _normed(k, gain_k, eps).mT / q.shape[-1] ** 0.5).clamp(-cap, cap)


@held_scores.mistake("you forgot to divide the scores by the cap inside the tanh")
def _(q, k, gain_q, gain_k, eps, cap):
    _cap(q, cap)
    return cap * torch.tanh(_normed(q, gain_q, eps) @ _normed(k, gain_k, eps).mT / q.shape[-1] ** 0.5)


@held_scores.mistake("a cap that is not above 0 must be rejected with a ValueError")
def _(q, k, gain_q, gain_k, eps, cap):
    return cap * torch.tanh(_normed(q, gain_q, eps) @ _normed(k, gain_k, eps).mT / q.shape[-1] ** 0.5 / cap)


@held_scores.variant
def _(q, k, gain_q, gain_k, eps, cap):
    # Use PyTorch's own norm, and a sigmoid instead of tanh
    if cap <= 0:
        raise ValueError("cap must be positive")
    wide = q.shape[-1:]
    q = torch.nn.functional.rms_norm(q, wide, gain_q, eps)
    k = torch.nn.functional.rms_norm(k, wide, gain_k, eps)
    s = torch.einsum("qd,kd->qk", q, k) * wide[0] ** -0.5
    return cap * (2 * torch.sigmoid(2 * s / cap) - 1)


@held_scores.variant
def _(q, k, gain_q, gain_k, eps, cap):
    # Compute the dot products first, and then divide them by the root mean squares of the rows
    if not cap > 0:
        raise ValueError(f"{cap=}")
    products = (q * gain_q * gain_k) @ k.T
    size_q, size_k = (x.pow(2).mean(1).add(eps).sqrt() for x in (q, k))
    return torch.tanh(products / torch.outer(size_q, size_k) / (math.sqrt(q.shape[1]) * cap)) * cap


# 16.3


@exercise(
    "16.3",
    "Heads that may keep silent",
    task="Gate the outputs of heads, with one gate for each head or for each component",
    points=3,
    difficulty=2,
    minutes=15,
    right={
        "gradients": "its result goes into a model that learns",
    },
    hints=(
        "The gates are sigmoids of x @ w_gate, so they lie between 0 and 1. There is one for each token and head, or for each token and component.",
        "The number of columns of `w_gate` tells you which of the two it is: head or head * d_v.",
        "Reshape the gates to (token, head, 1) or (token, head, d_v), multiply, and flatten the last two axes.",
    ),
)
def gated_heads(x, heads, w_gate):
    """`heads` (token, head, d_v) holds the outputs of an attention layer's heads, and `x` (token, d_model) is the
    layer's input. Return the concatenated outputs, (token, head * d_v), each multiplied by its gate $\\sigma(x W)$,
    where $W$ is `w_gate`. If `w_gate` is (d_model, head), each head has one gate for all its components. If it is
    (d_model, head * d_v), every component has its own gate, with the heads one after another.

    ```python
    >>> gated_heads(torch.ones(1, 1), torch.tensor([[[4.0, 8.0]]]), torch.zeros(1, 1))
    tensor([[2., 4.]])
    ```

    ★
    - Raise a `ValueError` if `w_gate` has any other shape.
    """
    ### BEGIN SOLUTION
    tokens, count, d_v = heads.shape
    if w_gate.ndim != 2 or w_gate.shape[0] != x.shape[1] or w_gate.shape[1] not in (count, count * d_v):
        raise ValueError(f"w_gate of shape {tuple(w_gate.shape)}: expected (d_model, head) or (d_model, head * d_v)")
    gates = (x @ w_gate).sigmoid().view(tokens, count, -1)
    return (heads * gates).flatten(1)
    ### END SOLUTION


@gated_heads.cases
def _(draw):
    tokens, count, d_v, d_model = draw.sizes(4, 2, 7)
    x, heads = draw.normal(tokens, d_model), draw.normal(tokens, count, d_v)
    by_head, by_number = draw.normal(d_model, count), draw.normal(d_model, count * d_v)
    yield Case("one token, one head", (draw.normal(1, 3), draw.normal(1, 1, 2), draw.normal(3, 1)))
    yield Case("a gate for each head", (x, heads, by_head))
    yield Case("a gate for each component", (x, heads, by_number))
    yield Case("closed gates", (x.abs(), heads, -1000 * by_head.abs() - 100))
    yield Case("the gradients", (x, heads, by_number), gradients=True)
    yield Case("a gate for each token is rejected", (x, heads, draw.normal(d_model, count * d_v + 1)), refuse=True)
    yield Case("a different d_model is rejected", (x, heads, draw.normal(d_model + 1, count)), refuse=True)


def _fits(x, heads, w_gate):
    wide = heads.shape[1], heads.shape[1] * heads.shape[2]
    if w_gate.ndim != 2 or w_gate.shape[0] != x.shape[1] or w_gate.shape[1] not in wide:
        raise ValueError("w_gate: expected one column per head or per component of the heads")
    return x @ w_gate


@gated_heads.mistake("the sigmoid is missing: a gate is between 0 and 1")
def _(x, heads, w_gate):
    return (heads * _fits(x, heads, w_gate).view(*heads.shape[:2], -1)).flatten(1)


@gated_heads.mistake("that is a softmax, whose gates add up to one; all heads may be open or closed at the same time")
def _(x, heads, w_gate):
    return (heads * _fits(x, heads, w_gate).softmax(-1).view(*heads.shape[:2], -1)).flatten(1)


@gated_heads.mistake("your gate is a SiLU, which also multiplies by its own input")
def _(x, heads, w_gate):
    z = _fits(x, heads, w_gate)
    return (heads * (z * z.sigmoid()).view(*heads.shape[:2], -1)).flatten(1)


@gated_heads.mistake("your gates are inverted: 1 lets a head through, and 0 silences it")
def _(x, heads, w_gate):
    return (heads * (-_fits(x, heads, w_gate)).sigmoid().view(*heads.shape[:2], -1)).flatten(1)


@gated_heads.mistake("you add the gate: multiply by it, so that it can silence a head")
def _(x, heads, w_gate):
    return (heads + _fits(x, heads, w_gate).sigmoid().view(*heads.shape[:2], -1)).flatten(1)


@gated_heads.mistake("you separated the components of a head: flatten the axes head and d_v in this order")
def _(x, heads, w_gate):
    gates = _fits(x, heads, w_gate).sigmoid().view(*heads.shape[:2], -1)
    return (heads * gates).transpose(1, 2).flatten(1)


@gated_heads.mistake("if there is a gate for each component, use it: you took the mean of each head's gates")
def _(x, heads, w_gate):
    gates = _fits(x, heads, w_gate).sigmoid().view(*heads.shape[:2], -1).mean(-1, keepdim=True)
    return (heads * gates).flatten(1)


@gated_heads.mistake("a w_gate with any other shape must be rejected with a ValueError")
def _(x, heads, w_gate):
    wide = min(heads.shape[1] * heads.shape[2], w_gate.shape[1])
    z = x[:, : len(w_gate)] @ w_gate[: x.shape[1], :wide]
    return (heads.flatten(1)[:, :wide] * z.sigmoid()) if wide != heads.shape[1] else gated_heads(x, heads, w_gate)


@gated_heads.variant
def _(x, heads, w_gate):
    # Process one head at a time
    count, d_v = heads.shape[1:]
    if w_gate.shape not in ((x.shape[1], count), (x.shape[1], count * d_v)):
        raise ValueError(f"expected one gate for each head or component, got shape {w_gate.shape}")
    each, said = w_gate.shape[1] // count, []
    for h in range(count):
        said.append(heads[:, h] * torch.sigmoid(x @ w_gate[:, h * each : (h + 1) * each]))
    return torch.cat(said, dim=1)


@gated_heads.variant
def _(x, heads, w_gate):
    # Expand the gates to one per component first
    count, d_v = heads.shape[1:]
    if w_gate.shape[0] != x.shape[-1] or w_gate.shape[-1] not in {count, count * d_v}:
        raise ValueError("bad w_gate")
    spread = w_gate if w_gate.shape[1] == count * d_v else w_gate.repeat_interleave(d_v, dim=1)
    return heads.reshape(len(heads), -1) / (1 + (-(x @ spread)).exp())


# 16.4


@exercise(
    "16.4",
    "A router of 2024",
    task="Route by sigmoids, groups and a bias, as DeepSeek-V3 does",
    points=5,
    difficulty=3,
    minutes=20,
    exact_zero=True,
    limits={
        "groups": lambda logits, bias, groups, top_groups, k, scale: (1, logits.shape[-1] // 2),
        "top_groups": lambda logits, bias, groups, top_groups, k, scale: (1, groups),
        "k": lambda logits, bias, groups, top_groups, k, scale: (1, top_groups * logits.shape[-1] // max(groups, 1)),
    },
    excused={
        "tie": "no two scores of a token are equal",
        "dtype": "comparisons happen in the dtype of the scores, and rounding may change a choice",
        "other": "with a NaN bias the choice is undefined",
        "nan": "NaN scores have no order",
    },
    hints=(
        "Let s = logits.sigmoid(). Every choice uses s + bias, and the score of a group is the sum of its two largest values.",
        "Set the experts of closed groups to -inf, and take the top k of the rest.",
        "For the chosen experts, take s without the bias, divide it by its sum over these experts, and multiply by scale. Scatter the results into zeros.",
    ),
)
def grouped_weights(logits, bias, groups, top_groups, k, scale):
    """Return each expert's share, (token, expert), computed with (16.11) and (16.12), or 0 where the expert is not
    chosen. `logits` is (token, expert) and `bias` is (expert). Consecutive experts form `groups` groups of equal size.
    A group's score is the sum of its two largest values of score plus bias. Only the `top_groups` best groups remain
    open, and the `k` best experts in them are chosen. Shares add up to `scale`. No two scores are equal.

    ```python
    >>> grouped_weights(torch.tensor([[0.0, 0.0, 9.0, -9.0]]), torch.tensor([0.1, 0.0, 0.0, 0.0]), 2, 1, 1, 2.0)
    tensor([[2., 0., 0., 0.]])
    ```

    ★
    - Raise a `ValueError` if the groups are unequal or have fewer than two experts, or if `top_groups` or `k` is larger
      than the number to choose from.
    """
    ### BEGIN SOLUTION
    experts = logits.shape[-1]
    if not 1 <= groups <= experts // 2 or experts % groups:
        raise ValueError(f"groups={groups}: expected {experts} experts in equal groups of two or more")
    if not 1 <= top_groups <= groups or not 1 <= k <= top_groups * experts // groups:
        raise ValueError(
            f"top_groups={top_groups}, k={k}: expected at least 1 of each, and no more than the groups or experts available"
        )
    s = logits.sigmoid()
    choice = (s + bias).view(len(s), groups, -1)
    best = choice.topk(2, dim=-1).values.sum(-1).topk(top_groups, dim=-1).indices
    shut = torch.ones(len(s), groups, dtype=torch.bool).scatter(1, best, False)
    chosen = choice.masked_fill(shut[..., None], -math.inf).flatten(1).topk(k, dim=-1).indices
    weights = s.gather(1, chosen)
    return torch.zeros_like(s).scatter(1, chosen, scale * weights / weights.sum(-1, keepdim=True))
    ### END SOLUTION


@grouped_weights.cases
def _(draw):
    yield Case("one group of two", (draw.normal(1, 4), 0.1 * draw.normal(4), 2, 1, 1, 1.0))
    logits, bias = draw.normal(9, 12), 0.3 * draw.normal(12)
    yield Case("several experts, without a bias", (logits, 0 * bias, 3, 2, 3, 1.0))
    yield Case("a bias changes the choice", (logits, bias, 4, 2, 3, 1.0))
    yield Case("a bias and a factor", (logits, bias, 4, 2, 4, 2.5))
    yield Case("a single group of all experts", (logits, bias, 1, 1, 5, 1.5))
    yield Case("all experts of a group", (logits, bias, 3, 1, 4, 1.0))
    tokens, size = draw.whole(5, 8), draw.whole(3, 5)
    more = draw.normal(tokens, 4 * size)
    yield Case("any sizes", (more, 0.5 * draw.normal(4 * size), 4, draw.whole(2, 3), draw.whole(2, size), 2.5))
    yield Case("a large negative bias for every expert", (logits, bias - 9, 4, 2, 3, 1.0))
    yield Case("the gradients", (logits, bias, 4, 2, 3, 2.5), gradients=True)
    yield Case("unequal groups are rejected", (logits, bias, 5, 2, 3, 1.0), refuse=True)
    yield Case("groups of one are rejected", (logits, bias, 12, 2, 2, 1.0), refuse=True)
    yield Case("zero groups are rejected", (logits, bias, 3, 0, 1, 1.0), refuse=True)
    yield Case("too many groups are rejected", (logits, bias, 3, 4, 3, 1.0), refuse=True)
    yield Case("more experts than the open groups have are rejected", (logits, bias, 3, 1, 5, 1.0), refuse=True)


def _asked(logits, groups, top_groups, k):
    experts = logits.shape[-1]
    wrong = not 1 <= groups <= experts // 2 or experts % groups or not 1 <= top_groups <= groups
    if wrong or not 1 <= k <= top_groups * experts // groups:
        raise ValueError("bad groups")


def _routed(logits, bias, groups, top_groups, k, scale, s=None, best_of=2, weigh=None, closed=-math.inf, choose=None):
    _asked(logits, groups, top_groups, k)
    s = logits.sigmoid() if s is None else s
    by = (s + bias if choose is None else choose).view(len(s), groups, -1)
    score = by.topk(best_of, dim=-1).values.sum(-1)
    shut = torch.ones(len(s), groups, dtype=torch.bool).scatter(1, score.topk(top_groups).indices, False)
    chosen = by.masked_fill(shut[..., None], closed).flatten(1).topk(k).indices
    weights = (s if weigh is None else weigh).gather(1, chosen)
    return torch.zeros_like(s).scatter(1, chosen, scale * weights / weights.sum(-1, keepdim=True))


@grouped_weights.mistake("your shares contain the bias: it affects only the choice, and the shares use s without it")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale, weigh=logits.sigmoid() + bias)


@grouped_weights.mistake("the bias is missing from your choice")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, 0 * bias, groups, top_groups, k, scale)


@grouped_weights.mistake("you score each group by its best expert only: take the sum of the two best")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale, best_of=1)


@grouped_weights.mistake("you score each group by all its experts: take the sum of the two best")
def _(logits, bias, groups, top_groups, k, scale):
    _asked(logits, groups, top_groups, k)
    return _routed(logits, bias, groups, top_groups, k, scale, best_of=logits.shape[-1] // groups)


@grouped_weights.mistake("you leave all groups open: experts outside the best groups must not be chosen")
def _(logits, bias, groups, top_groups, k, scale):
    _asked(logits, groups, top_groups, k)
    return _routed(logits, bias, groups, groups, k, scale)


@grouped_weights.mistake("you give closed groups the score 0, which beats negative scores: use -inf")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale, closed=0.0)


@grouped_weights.mistake("that is a softmax over the experts: each expert has its own sigmoid")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale, s=logits.softmax(-1))


@grouped_weights.mistake("your weights are a softmax of the chosen scores: divide the sigmoids by their sum")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale, weigh=logits.sigmoid().exp())


@grouped_weights.mistake("your weights are not divided by their sum")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale).gt(0) * logits.sigmoid() * scale


@grouped_weights.mistake("the factor is missing: the weights of a token add up to `scale`")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, 1.0)


@grouped_weights.mistake("the experts of a group are consecutive: you grouped every `groups`-th expert")
def _(logits, bias, groups, top_groups, k, scale):
    _asked(logits, groups, top_groups, k)
    order = torch.arange(logits.shape[-1]).view(-1, groups).T.flatten()
    return _routed(logits[:, order], bias[order], groups, top_groups, k, scale)[:, order.argsort()]


@grouped_weights.mistake("add the bias to the sigmoids, not to the logits")
def _(logits, bias, groups, top_groups, k, scale):
    return _routed(logits, bias, groups, top_groups, k, scale, choose=(logits + bias).sigmoid())


@grouped_weights.mistake("invalid groups must be rejected with a ValueError")
def _(logits, bias, groups, top_groups, k, scale):
    experts, groups = logits.shape[-1], max(groups, 1)
    while experts % groups or experts // groups < 2:
        groups -= 1
    top_groups = min(max(top_groups, 1), groups)
    k = min(max(k, 1), top_groups * experts // groups)
    return _routed(logits, bias, groups, top_groups, k, scale)


@grouped_weights.variant
def _(logits, bias, groups, top_groups, k, scale):
    # Process one token at a time, with sorted lists
    experts = logits.shape[1]
    if groups < 1 or experts % groups or experts // groups < 2:
        raise ValueError("unequal groups")
    size = experts // groups
    if not (1 <= top_groups <= groups and 1 <= k <= top_groups * size):
        raise ValueError("too many")
    rows = []
    for z in logits:
        s = torch.sigmoid(z)
        by = (s + bias).tolist()
        worth = {g: sum(sorted(by[g * size : (g + 1) * size])[-2:]) for g in range(groups)}
        open_ = sorted(worth, key=lambda g: -worth[g])[:top_groups]
        inside = [e for g in open_ for e in range(g * size, (g + 1) * size)]
        chosen = sorted(inside, key=lambda e: -by[e])[:k]
        total = sum(s[e] for e in chosen)
        rows.append(torch.stack([scale * s[e] / total if e in chosen else 0 * s[e] for e in range(experts)]))
    return torch.stack(rows)


@grouped_weights.variant
def _(logits, bias, groups, top_groups, k, scale):
    # Use ranks, and masks in place of indices
    tokens, experts = logits.shape
    if not 1 <= groups <= experts // 2 or experts % groups or top_groups not in range(1, groups + 1):
        raise ValueError(f"{groups=}, {top_groups=}")
    if not 1 <= k <= top_groups * (experts // groups):
        raise ValueError(f"{k=}")
    s = 1 / (1 + torch.exp(-logits))
    by = s + bias
    worth = by.view(tokens, groups, -1).sort(-1, descending=True).values[..., :2].sum(-1)
    group_rank = worth.argsort(1, descending=True).argsort(1)
    is_open = (group_rank < top_groups).repeat_interleave(experts // groups, dim=1)
    rank = torch.where(is_open, by, -math.inf).argsort(1, descending=True).argsort(1)
    weights = torch.where(rank < k, s, 0.0)
    return scale * weights / weights.sum(1, keepdim=True)


# 16.5


@exercise(
    "16.5",
    "Rotate a part",
    task="Rotate a part of each head, and leave the rest",
    points=3,
    difficulty=2,
    minutes=15,
    hints=(
        "Rotate int(share * d_head) components, and append the others unchanged.",
        "Pair j is rotated by position / base ** (2 * j / w), where w is the rotated width.",
        "The pairs are (0, w / 2), (1, w / 2 + 1), and so on. The row number is the position.",
    ),
)
def turn_part(x, share, base):
    """**Partial rotary.** `x` (token, d_head) holds the queries of one head, with row $i$ at position $i$. Rotate the first $w$ =
    `int(share * d_head)` components in the half layout: components $j$ and $j + w/2$ form pair $j$, which is rotated by
    $i / \\text{base}^{2j/w}$. The other components do not change.

    ```python
    >>> turn_part(torch.ones(2, 4), 0.5, 10.0)
    tensor([[ 1.0000,  1.0000,  1.0000,  1.0000],
            [-0.3012,  1.3818,  1.0000,  1.0000]])
    ```

    ★
    - Raise a `ValueError` if the rotated width is odd or 0.
    """
    ### BEGIN SOLUTION
    wide = int(share * x.shape[-1])
    if wide < 2 or wide % 2:
        raise ValueError(f"share={share}: expected an even number of components to rotate, got {wide}")
    half = wide // 2
    pair = torch.arange(half, dtype=x.dtype)
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] / base ** (2 * pair / wide)
    a, b, rest = x[:, :half], x[:, half:wide], x[:, wide:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1)
    ### END SOLUTION


@turn_part.cases
def _(draw):
    yield Case("one of two pairs", (draw.normal(2, 4), 0.5, 10.0))
    yield Case("a quarter, as in Qwen3-Next", (draw.normal(6, 16), 0.25, 10000.0))
    yield Case("the whole head", (draw.normal(5, 8), 1.0, 100.0))
    yield Case("three quarters", (draw.normal(7, 8), 0.75, 100.0))
    yield Case("any length", (draw.normal(draw.whole(3, 9), 12), 0.5, 50.0))
    yield Case("an odd width is rejected", (draw.normal(3, 6), 0.5, 10.0), refuse=True)
    yield Case("a width of 0 is rejected", (draw.normal(3, 4), 0.1, 10.0), refuse=True)


def _wide(x, share):
    wide = int(share * x.shape[-1])
    if wide < 2 or wide % 2:
        raise ValueError(f"{wide} components to rotate: expected an even number of at least 2")
    return wide


def _turned(x, wide, base, over=None, sign=1, pairs=False, first=0, from_end=False):
    if from_end:
        return torch.cat((x[:, : x.shape[1] - wide], _turned(x[:, x.shape[1] - wide :], wide, base)), 1)
    half = wide // 2
    exponent = 2 * torch.arange(half, dtype=x.dtype) / (wide if over is None else over)
    angle = sign * (first + torch.arange(len(x), dtype=x.dtype)[:, None]) / base**exponent
    a, b = (x[:, :wide:2], x[:, 1:wide:2]) if pairs else (x[:, :half], x[:, half:wide])
    one, two = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    front = torch.stack((one, two), -1).flatten(1) if pairs else torch.cat((one, two), 1)
    return torch.cat((front, x[:, wide:]), 1)


@turn_part.mistake("you rotated all components: only the first int(share * d_head) are rotated")
def _(x, share, base):
    _wide(x, share)
    return _turned(x, x.shape[1], base)


@turn_part.mistake("you compute the frequencies from d_head: use the rotated width")
def _(x, share, base):
    return _turned(x, _wide(x, share), base, over=x.shape[1])


@turn_part.mistake("you rotated in the wrong direction: a cos - b sin in the first half, a sin + b cos in the second")
def _(x, share, base):
    return _turned(x, _wide(x, share), base, sign=-1)


@turn_part.mistake("your pairs are neighbours: in the half layout, component j is paired with j + w / 2")
def _(x, share, base):
    return _turned(x, _wide(x, share), base, pairs=True)


@turn_part.mistake("positions start at 0: the first row is not rotated at all")
def _(x, share, base):
    return _turned(x, _wide(x, share), base, first=1)


@turn_part.mistake("you rotated the last components: rotate the first ones, and append the rest")
def _(x, share, base):
    return _turned(x, _wide(x, share), base, from_end=True)


@turn_part.mistake("the exponent is 2j / w: the 2 is missing")
def _(x, share, base):
    wide = _wide(x, share)
    return _turned(x, wide, base, over=2 * wide)


@turn_part.mistake("the components that are not rotated are lost: append them unchanged")
def _(x, share, base):
    wide = _wide(x, share)
    return torch.cat((_turned(x, wide, base)[:, :wide], 0 * x[:, wide:]), 1)


@turn_part.mistake("a width that cannot be divided into pairs must be rejected with a ValueError")
def _(x, share, base):
    wide = int(share * x.shape[-1]) // 2 * 2
    return _turned(x, wide, base) if wide else x.clone()


@turn_part.variant
def _(x, share, base):
    # Rotate with complex numbers
    wide = int(x.shape[1] * share)
    if wide == 0 or wide % 2 == 1:
        raise ValueError(f"{wide} components to rotate: expected an even number of at least 2")
    half = wide // 2
    pairs = torch.complex(x[:, :half].contiguous(), x[:, half:wide].contiguous())
    omega = torch.tensor([base ** (-j / half) for j in range(half)], dtype=x.dtype)
    angle = torch.outer(torch.arange(len(x), dtype=x.dtype), omega)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag, x[:, wide:]), dim=1)


@turn_part.variant
def _(x, share, base):
    # Process one element at a time
    d = x.shape[1]
    wide = int(share * d)
    if wide < 2 or wide % 2:
        raise ValueError(f"{wide} components")
    rows = x.tolist()
    for i, row in enumerate(rows):
        for j in range(wide // 2):
            angle = i * base ** (-2 * j / wide)
            a, b = row[j], row[j + wide // 2]
            row[j] = a * math.cos(angle) - b * math.sin(angle)
            row[j + wide // 2] = a * math.sin(angle) + b * math.cos(angle)
    return torch.tensor(rows, dtype=x.dtype)


# 16.6


@exercise(
    "16.6",
    "What a card says",
    task="Compute how many parameters and cached elements a config.json describes",
    points=4,
    difficulty=2,
    minutes=20,
    hints=(
        "An attention layer has d * head_dim * (2 * heads + 2 * kv_heads) parameters. The cache stores keys and values.",
        "The first layers have one dense network each. The others have num_experts + shared networks, and a router with d * num_experts parameters.",
        "For the active parameters, count num_experts_per_tok + shared networks. The whole router counts in both numbers.",
    ),
)
def card_numbers(card):
    """`card` is a `config.json`, read as a dictionary with the fields shown in the example. Return three `int`s: the
    number of all parameters, the number of parameters active for a token, and the number of elements cached per token.
    The networks are gated. Count tables and matrices, but not norms or biases. Both tables count as active in full.
    The first `first_k_dense_replace` layers have a dense network of width `intermediate_size`. If `tie_word_embeddings`
    is true, one table is both the embedding and the output matrix.

    ```python
    >>> card_numbers({"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    ...     "head_dim": 4, "intermediate_size": 6, "moe_intermediate_size": 3, "num_experts": 4, "num_experts_per_tok": 2,
    ...     "n_shared_experts": 1, "first_k_dense_replace": 1, "tie_word_embeddings": False})
    (540, 468, 16)
    ```

    ★
    - Raise a `ValueError` that names a missing field.
    """
    ### BEGIN SOLUTION
    fields = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size "
    )
    fields += "moe_intermediate_size num_experts num_experts_per_tok n_shared_experts first_k_dense_replace tie_word_embeddings"
    for name in fields.split():
        if name not in card:
            raise ValueError(f"{name}: this field is missing from the card")
    vocab, d, layers, heads, kv_heads, wide, d_ff, small, experts, visited, shared, plain, tied = (
        card[name] for name in fields.split()
    )
    both = (1 if tied else 2) * vocab * d + layers * d * wide * (2 * heads + 2 * kv_heads) + plain * 3 * d * d_ff
    total, active = (
        both + (layers - plain) * ((count + shared) * 3 * d * small + d * experts) for count in (experts, visited)
    )
    return total, active, layers * kv_heads * 2 * wide
    ### END SOLUTION


_CARD = {
    "vocab_size": 10,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 6,
    "moe_intermediate_size": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
_LARGE = dict(
    zip(_CARD, (151552, 4096, 46, 96, 8, 128, 10944, 1408, 128, 8, 1, 1, False), strict=True)
)  # the sizes of GLM-4.5-Air, without its biases


@card_numbers.cases
def _(draw):
    yield Case("a small card", (_CARD,))
    yield Case("one table for both ends", (_CARD | {"tie_word_embeddings": True},))
    yield Case("no dense layer and no shared expert", (_CARD | {"first_k_dense_replace": 0, "n_shared_experts": 0},))
    yield Case("heads that are wider than d / heads", (_CARD | {"head_dim": 9, "num_attention_heads": 3},))
    sizes = draw.sizes(5, 2, 9)
    names = "hidden_size", "head_dim", "moe_intermediate_size", "intermediate_size", "num_hidden_layers"
    yield Case("any sizes", (_CARD | dict(zip(names, sizes, strict=True)) | {"num_experts": 16, "vocab_size": 33},))
    yield Case("a card with 100 billion parameters", (_LARGE,))
    for name in ("head_dim", "n_shared_experts", "tie_word_embeddings"):
        less = {field: value for field, value in _CARD.items() if field != name}
        yield Case(f"a card without {name} is rejected", (less,), refuse=True, says=name)


def _count(card, ends=None, width=None, router=None, plain=None, matrices=3, kept=2, shared=None, active_shared=None):
    for name in _CARD:
        if name not in card:
            raise ValueError(f"{name} is missing")
    d, layers = card["hidden_size"], card["num_hidden_layers"]
    wide = card["head_dim"] if width is None else width
    first = card["first_k_dense_replace"] if plain is None else plain
    rest = (ends or (1 if card["tie_word_embeddings"] else 2)) * card["vocab_size"] * d
    rest += layers * d * wide * 2 * (card["num_attention_heads"] + card["num_key_value_heads"])
    rest += first * matrices * d * card["intermediate_size"]
    more = card["n_shared_experts"] if shared is None else shared
    small = matrices * d * card["moe_intermediate_size"]
    router = d * card["num_experts"] if router is None else router
    total = rest + (layers - first) * ((card["num_experts"] + more) * small + router)
    visited = card["num_experts_per_tok"] + (more if active_shared is None else active_shared)
    return (
        total,
        rest + (layers - first) * (visited * small + router),
        kept * layers * card["num_key_value_heads"] * wide,
    )


@card_numbers.mistake("you counted one table: there are two unless tie_word_embeddings is true")
def _(card):
    return _count(card, ends=1)


@card_numbers.mistake("if tie_word_embeddings is true, one table serves both ends: count it once")
def _(card):
    return _count(card, ends=2)


@card_numbers.mistake("the router is missing: hidden_size parameters for each expert, in the layers that have experts")
def _(card):
    return _count(card, router=0)


@card_numbers.mistake("the card has head_dim: it may differ from hidden_size / num_attention_heads")
def _(card):
    _count(card)
    return _count(card, width=card["hidden_size"] // card["num_attention_heads"])


@card_numbers.mistake("the first layers have no experts, but one dense network each")
def _(card):
    return _count(card, plain=0)


@card_numbers.mistake("the shared experts are missing: they belong to all parameters and to the active ones")
def _(card):
    return _count(card, shared=0)


@card_numbers.mistake("every token visits the shared experts: they are active, too")
def _(card):
    return _count(card, active_shared=0)


@card_numbers.mistake("you counted two matrices per network: a gated one has three")
def _(card):
    return _count(card, matrices=2)


@card_numbers.mistake("the cache stores a key and a value for each head, so it has twice as many elements")
def _(card):
    return _count(card, kept=1)


@card_numbers.mistake("query heads are not cached: count the heads of keys and values")
def _(card):
    total, active, kept = _count(card)
    return total, active, kept * card["num_attention_heads"] // card["num_key_value_heads"]


@card_numbers.mistake("the router scores all experts, so all its parameters are active, too")
def _(card):
    total, active, kept = _count(card)
    layers = card["num_hidden_layers"] - card["first_k_dense_replace"]
    return total, active - layers * card["hidden_size"] * (card["num_experts"] - card["num_experts_per_tok"]), kept


@card_numbers.mistake("raise a ValueError that names the missing field")
def _(card):
    return _count({**_CARD, "tie_word_embeddings": False} | card)


@card_numbers.variant
def _(card):
    # Count one layer at a time, and one matrix at a time within it
    for name in _CARD:
        if card.get(name) is None:
            raise ValueError(f"the card has no {name}")
    d = card["hidden_size"]
    total = active = card["vocab_size"] * d
    if not card["tie_word_embeddings"]:
        total, active = 2 * total, 2 * active
    kept = 0
    for layer in range(card["num_hidden_layers"]):
        queries, keys = (card["head_dim"] * card[f"num_{name}_heads"] for name in ("attention", "key_value"))
        kept += keys + keys
        both = 2 * d * queries + 2 * d * keys
        if layer < card["first_k_dense_replace"]:
            total += both + 3 * d * card["intermediate_size"]
            active += both + 3 * d * card["intermediate_size"]
            continue
        network = 3 * d * card["moe_intermediate_size"]
        both += d * card["num_experts"] + card["n_shared_experts"] * network
        total += both + card["num_experts"] * network
        active += both + card["num_experts_per_tok"] * network
    return [total, active, kept]


@card_numbers.variant
def _(card):
    try:
        d, layers, first = card["hidden_size"], card["num_hidden_layers"], card["first_k_dense_replace"]
        ends = card["vocab_size"] * d * (2 - bool(card["tie_word_embeddings"]))
        pairs = card["head_dim"] * (card["num_attention_heads"] + card["num_key_value_heads"])
        network, experts = 3 * d * card["moe_intermediate_size"], card["num_experts"]
        idle = (experts - card["num_experts_per_tok"]) * network * (layers - first)
        mixed = (experts + card["n_shared_experts"]) * network + experts * d
        total = ends + 2 * d * layers * pairs + 3 * d * card["intermediate_size"] * first + mixed * (layers - first)
        return total, total - idle, 2 * card["num_key_value_heads"] * card["head_dim"] * layers
    except KeyError as error:
        raise ValueError(f"missing: {error}") from None
