"""Exercises for lesson 02: scaled dot-product attention."""

import math
from itertools import product

import torch

from companion_school.checking.exercise import Case, exercise

# 2.1


@exercise(
    "2.1",
    "One weight with a pencil",
    task="Work out one attention weight from three scores",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Divide all three scores by 2, the square root of the four components of a query.",
        "Exponentiate: what are the three numbers?",
        "What fraction of their sum is the first one?",
    ),
)
def weight_of_cat():
    """In the lesson's first example the scores of "it" for "cat", "slept" and "it" are 4, 0 and 0, before the division by $\\sqrt{d_k} = 2$.
    Suppose the score for "slept" were 4 instead of 0. What weight would "it" then give to "cat"? Return a `float` that
    is accurate to at least four decimal places.
    """
    ### BEGIN SOLUTION
    return math.exp(2) / (math.exp(2) + math.exp(2) + 1)
    ### END SOLUTION


@weight_of_cat.cases
def _(draw):
    yield Case("the weight of cat", (), tolerance=5e-5)


@weight_of_cat.mistake("your scores are not divided by the square root of d_k")
def _():
    return math.exp(4) / (2 * math.exp(4) + 1)


@weight_of_cat.mistake("your scores are divided by d_k, not by its square root")
def _():
    return math.exp(1) / (2 * math.exp(1) + 1)


@weight_of_cat.mistake("you divided the scores by their sum: exponentiate them first")
def _():
    return 0.5


@weight_of_cat.mistake("that is the weight with the old scores (4, 0, 0)")
def _():
    return math.exp(2) / (math.exp(2) + 2)


@weight_of_cat.mistake("that is the weight of the third word, not of cat")
def _():
    return 1 / (2 * math.exp(2) + 1)


@weight_of_cat.variant
def _():
    return torch.softmax(torch.tensor([4.0, 4.0, 0.0]) / 2, dim=-1)[0].item()


@weight_of_cat.variant
def _():
    return 0.4683


# 2.2


@exercise(
    "2.2",
    "The right scale",
    task="Find the divisor that gives a score variance one for any mean and standard deviation",
    points=2,
    difficulty=2,
    minutes=10,
    robust={
        "a mean far above the standard deviation": "a formula that is correct on paper can lose all its digits at such a mean",
    },
    hints=(
        "Which line of equation (D2.2) is the last one that assumes neither mean zero nor variance one?",
        "Substitute sigma_q = sigma_k = std and mu_q = mu_k = mean into it.",
        "A divisor divides the variance by its square.",
    ),
)
def right_scale(d_k, mean, std):
    """$q$ and $k$ have `d_k` components each. All these components are independent, with mean `mean` and standard
    deviation `std`. By what number must $q \\cdot k$ be divided so that its variance is one? Return a `float`.

    ```python
    >>> right_scale(9, 0.0, 2.0)
    12.0
    ```

    ★
    - Raise a `ValueError` for `d_k < 1` or `std <= 0`.
    - The result stays precise if the mean is far above the standard deviation, such as 30,000 and 0.001.
    """
    ### BEGIN SOLUTION
    if d_k < 1 or std <= 0:
        raise ValueError(f"d_k={d_k}, std={std}: expected d_k >= 1 and std > 0")
    return math.sqrt(d_k * (std**4 + 2 * std**2 * mean**2))
    ### END SOLUTION


@right_scale.cases
def _(draw):
    yield Case("standard components", (draw.whole(3, 9), 0.0, 1.0))
    yield Case("a standard deviation other than one", (3, 0.0, 2.0))
    yield Case("a mean other than zero", (3, 0.5, 1.0))
    d_k = draw.whole(5, 40)
    yield Case("any values of both", (d_k, -0.3 - draw.uniform(1).item(), 1.3 + draw.uniform(1).item()))
    yield Case("a single component", (1, 0.5, 1.5))
    yield Case("zero components are rejected", (0, 0.0, 1.0), refuse=True)
    yield Case("a standard deviation of zero is rejected", (4, 0.0, 0.0), refuse=True)
    yield Case("a mean far above the standard deviation", (64, 3e4, 1e-3))
    yield Case("a mean as small as the standard deviation", (3, 5e-3, 1e-2))


@right_scale.mistake("that is the square root of d_k, which is right only for mean 0 and standard deviation 1")
def _(d_k, mean, std):
    return math.sqrt(d_k)


@right_scale.mistake("you divide by d_k, not by its square root: a divisor divides the variance by its square")
def _(d_k, mean, std):
    return float(d_k)


@right_scale.mistake("that is the variance; divide by its square root")
def _(d_k, mean, std):
    return d_k * (std**4 + 2 * std**2 * mean**2)


@right_scale.mistake("the mean is left out: it adds 2 mean^2 std^2 to the variance of each product")
def _(d_k, mean, std):
    return math.sqrt(d_k) * std**2


@right_scale.mistake("you used only the query's mean: the key has one, too")
def _(d_k, mean, std):
    return math.sqrt(d_k * (std**4 + std**2 * mean**2))


@right_scale.mistake("a standard deviation is not a variance: square std first")
def _(d_k, mean, std):
    return math.sqrt(d_k * (std**2 + 2 * std * mean**2))


@right_scale.mistake("invalid sizes must raise a ValueError")
def _(d_k, mean, std):
    return math.sqrt(abs(d_k) * (std**4 + 2 * std**2 * mean**2))


@right_scale.variant
def _(d_k, mean, std):
    # compute the variance of one product from the four equally likely pairs of mean +- std
    if d_k < 1 or std <= 0:
        raise ValueError("expected d_k >= 1 and std > 0")
    products = [a * b for a, b in product((mean - std, mean + std), repeat=2)]
    centre = sum(products) / 4
    return (d_k * sum((product - centre) ** 2 for product in products) / 4) ** 0.5


@right_scale.variant
def _(d_k, mean, std):
    if not (d_k >= 1 and std > 0):
        raise ValueError(f"got {d_k=}, {std=}")
    return math.sqrt(d_k) * std * math.hypot(std, math.sqrt(2) * mean)


# 2.3


@exercise(
    "2.3",
    "A softmax that can hide",
    task="Write a masked softmax that survives empty rows and scores of 1,000",
    points=3,
    difficulty=2,
    minutes=15,
    forbidden=("softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"),
    exact_zero=True,
    robust={
        "scores of -2e10 are visible, small weights survive, and a hidden NaN has no effect": "no lesson has such scores",
    },
    hints=(
        "Before anything else, write minus infinity wherever the query may not look.",
        "Subtract each row's maximum. In an empty row the maximum is minus infinity, and minus infinity minus itself is NaN: subtract 0 there instead.",
        "Exponentiate, and divide by the row's sum, or by 1 where the sum is 0.",
    ),
)
def visible_softmax(scores, may_look):
    """Write a softmax with a mask. The `scores` (query, key) are already scaled. `may_look` is boolean, has the same
    shape, and is True where a query may look. Return the weights. Each row adds up to one, except that a row whose keys
    are all hidden is all zeros. Hidden keys get exactly 0, whatever their scores are. Scores of 1,000 or -1,000 do not
    overflow. Do not use PyTorch's softmax.

    ```python
    >>> visible_softmax(torch.tensor([[0.0, 5.0, 0.0]]), torch.tensor([[True, False, True]]))
    tensor([[0.5000, 0.0000, 0.5000]])
    ```

    ★
    - Scores of $-2 \\cdot 10^{10}$ are ordinary scores, and a hidden NaN changes nothing.
    - Raise a `ValueError` if `may_look` is not boolean or does not have the shape of `scores`.
    """
    ### BEGIN SOLUTION
    if may_look.dtype != torch.bool or may_look.shape != scores.shape:
        raise ValueError(
            f"may_look: expected a boolean tensor of shape {tuple(scores.shape)}, "
            f"got {may_look.dtype} of shape {tuple(may_look.shape)}"
        )
    z = scores.masked_fill(~may_look, -math.inf)
    top = z.max(dim=-1, keepdim=True).values
    e = (z - top.masked_fill(top == -math.inf, 0.0)).exp()
    total = e.sum(dim=-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1.0)
    ### END SOLUTION


@visible_softmax.cases
def _(draw):
    look = torch.tensor([[True, True, False], [True, True, True]])
    yield Case("hidden keys get 0, and the rest of the row adds up to one", (draw.normal(2, 3), look))
    queries, keys = draw.sizes(2, 3, 8)
    many = draw.uniform(queries, keys) > 0.4
    many[:, 0] = True
    yield Case("any pattern of visible keys", (draw.normal(queries, keys), many))
    yield Case("scores near 1000", (1000 + draw.normal(2, 3), look))
    yield Case("the result has the dtype of the scores", (draw.normal(2, 3, dtype=torch.float32), look))
    loud = draw.normal(2, 3)
    loud[0, 2] = 900.0
    yield Case("no hidden score has any influence", (loud, look))
    none = torch.tensor([[True, False, True], [False, False, False]])
    yield Case("a row that sees nothing is all zeros", (draw.normal(2, 3), none))
    yield Case("a mask that is not boolean is rejected", (draw.normal(2, 3), look.double()), refuse=True)
    yield Case("a mask of another shape is rejected", (draw.normal(2, 3), look[:1]), refuse=True)
    low = torch.tensor([[-2e10, -2e10, 0.0], [0.0, -30.0, math.nan]], dtype=torch.float64)
    look = torch.tensor([[True, True, False], [True, True, False]])
    yield Case("scores of -2e10 are visible, small weights survive, and a hidden NaN has no effect", (low, look))
    yield Case("a mask with one more axis is rejected", (low, look[None]), refuse=True)
    yield Case(
        "a mask with the same number of elements but another shape is rejected", (low, look.reshape(3, 2)), refuse=True
    )


def _refuse(scores, may_look):
    if may_look.dtype != torch.bool or may_look.shape != scores.shape:
        raise ValueError("may_look must be boolean and have the shape of the scores")


@visible_softmax.mistake("your mask comes after the softmax: hidden scores are still in the denominator")
def _(scores, may_look):
    return torch.softmax(scores, dim=-1) * may_look


@visible_softmax.mistake(
    "you multiplied the scores by the mask: a hidden score of 0 still contributes e^0 = 1 to the sum"
)
def _(scores, may_look):
    return torch.softmax(scores * may_look, dim=-1)


@visible_softmax.mistake("your mask is inverted: True means that a key may be seen")
def _(scores, may_look):
    return torch.softmax(scores.masked_fill(may_look, -math.inf), dim=-1)


@visible_softmax.mistake("your softmax runs over the queries; each row is a distribution over the keys")
def _(scores, may_look):
    return torch.softmax(scores.masked_fill(~may_look, -math.inf), dim=0).nan_to_num(0.0)


@visible_softmax.mistake("you did not subtract the row's maximum: e^1000 is infinite")
def _(scores, may_look):
    e = scores.exp() * may_look
    return e / e.sum(dim=-1, keepdim=True)


@visible_softmax.mistake("a row that sees nothing becomes NaN: 0 divided by 0")
def _(scores, may_look):
    return torch.softmax(scores.masked_fill(~may_look, -math.inf), dim=-1)


@visible_softmax.mistake("a finite fill such as -1e9 gives a row that sees nothing equal weights instead of zeros")
def _(scores, may_look):
    return torch.softmax(scores.masked_fill(~may_look, -1e9), dim=-1)


@visible_softmax.mistake("a mask that is not boolean or has the wrong shape must raise a ValueError")
def _(scores, may_look):
    look = may_look.bool().expand_as(scores)
    return torch.softmax(scores.masked_fill(~look, -math.inf), dim=-1).nan_to_num(0.0)


@visible_softmax.variant
def _(scores, may_look):
    # process one row at a time, over the visible keys only
    _refuse(scores, may_look)
    out = torch.zeros_like(scores)
    for i, row in enumerate(may_look):
        seen = row.nonzero()[:, 0]
        if len(seen):
            e = (scores[i, seen] - scores[i, seen].max()).exp()
            out[i, seen] = e / e.sum()
    return out


@visible_softmax.variant
def _(scores, may_look):
    # find each row's largest visible score by replacing hidden scores with the lowest finite value
    _refuse(scores, may_look)
    z = torch.where(may_look, scores, torch.finfo(scores.dtype).min)
    e = torch.where(may_look, (z - z.amax(-1, keepdim=True)).exp(), 0.0)
    return e / e.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


@visible_softmax.variant
def _(scores, may_look):
    _refuse(scores, may_look)
    shift = torch.where(may_look, scores, -torch.inf).amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    share = torch.where(may_look, (scores - shift).clamp_max(0.0), -torch.inf).exp()
    return share.div(share.sum(-1, keepdim=True)).where(may_look, torch.zeros_like(scores))


# 2.4


@exercise(
    "2.4",
    "The gradient under a mask",
    task="Compute the gradients of masked attention, without autograd",
    points=4,
    difficulty=3,
    minutes=20,
    forbidden=("grad", "backward", "vjp", "jacobian", "scaled_dot_product_attention"),
    robust={
        "visible scores far below zero, and a hidden score above them": "a correct Jacobian fails with scores of a million",
    },
    hints=(
        "The mask changes only the weights A, so apply it when you compute them.",
        "Equations (D2.10), (D2.11) and (D2.12) hold for any A. What does (D2.12) give where a weight is 0?",
        "Do not forget the 1 / sqrt(d_k) of equation (D2.13), for queries and for keys.",
    ),
)
def masked_gradients(q, k, v, may_look, g):
    """Return `(dq, dk, dv)`, the gradients of a loss $L$ with respect to `q` (query, d_k), `k` (key, d_k) and `v` (key,
    d_v), through masked attention. `may_look` (query, key) is boolean, is True where a query may look, and has at least
    one True in every row. `g` (query, d_v) is $\\partial L / \\partial O$. Do not use autograd. Ask yourself which line
    of the derivation the mask changes.

    ```python
    >>> masked_gradients(torch.ones(1, 1), torch.ones(2, 1), torch.tensor([[3.0], [5.0]]), torch.tensor([[True, False]]), torch.ones(1, 1))
    (tensor([[0.]]), tensor([[0.],
            [0.]]), tensor([[1.],
            [0.]]))
    ```

    ★
    - Visible scores far below zero give correct gradients, even if hidden scores are higher.
    """
    ### BEGIN SOLUTION
    scale = math.sqrt(q.shape[1])
    a = torch.softmax((q @ k.T / scale).masked_fill(~may_look, -math.inf), dim=-1)
    dz = a * (g @ v.T - (g * (a @ v)).sum(dim=-1, keepdim=True))  # a hidden key has a = 0, so its dz is 0
    return dz @ k / scale, dz.T @ q / scale, a.T @ g
    ### END SOLUTION


@masked_gradients.cases
def _(draw):
    d_k, d_v = 4, 3
    look = torch.tensor([[True, False], [True, True]])
    yield Case(
        "two queries, two keys",
        (draw.normal(2, d_k), draw.normal(2, d_k), draw.normal(2, d_v), look, draw.normal(2, d_v)),
    )
    queries, keys, d_k, d_v = draw.sizes(4, 3, 9)
    look = draw.uniform(queries, keys) > 0.3
    look[:, -1] = True
    inputs = (
        draw.normal(queries, d_k),
        draw.normal(keys, d_k),
        draw.normal(keys, d_v),
        look,
        draw.normal(queries, d_v),
    )
    yield Case("queries, keys, d_k and d_v all different", inputs)
    query = torch.tensor([[1e6, 0.0]], dtype=torch.float64)
    keys = torch.tensor([[-1e6, 0.0], [-1e6, 1.0], [0.0, 3.0]], dtype=torch.float64)
    value = torch.tensor([[1.0, 0.5, 2.0], [2.0, -1.0, 1.0], [9.0, 7.0, 8.0]], dtype=torch.float64)
    seen = torch.tensor([[True, True, False]])
    yield Case("visible scores far below zero, and a hidden score above them", (query, keys, value, seen, value[:1]))


def _weights(q, k, may_look, scale):
    return torch.softmax((q @ k.T / scale).masked_fill(~may_look, -math.inf), dim=-1)


def _backward(q, k, v, a, g):
    return a * (g @ v.T - (g * (a @ v)).sum(dim=-1, keepdim=True))


@masked_gradients.mistake("dq and dk are too large by a factor of sqrt(d_k): the scores were divided by it")
def _(q, k, v, may_look, g):
    a = _weights(q, k, may_look, math.sqrt(q.shape[1]))
    dz = _backward(q, k, v, a, g)
    return dz @ k, dz.T @ q, a.T @ g


@masked_gradients.mistake("the mask is not in the weights: you differentiated attention without it")
def _(q, k, v, may_look, g):
    scale = math.sqrt(q.shape[1])
    a = torch.softmax(q @ k.T / scale, dim=-1)
    dz = _backward(q, k, v, a, g)
    return dz @ k / scale, dz.T @ q / scale, a.T @ g


@masked_gradients.mistake("you left out the second term of the softmax's Jacobian: subtract the row's average of dA")
def _(q, k, v, may_look, g):
    scale = math.sqrt(q.shape[1])
    a = _weights(q, k, may_look, scale)
    dz = a * (g @ v.T)
    return dz @ k / scale, dz.T @ q / scale, a.T @ g


@masked_gradients.mistake("your weights are computed without the division by the square root of d_k")
def _(q, k, v, may_look, g):
    scale = math.sqrt(q.shape[1])
    a = _weights(q, k, may_look, 1.0)
    dz = _backward(q, k, v, a, g)
    return dz @ k / scale, dz.T @ q / scale, a.T @ g


@masked_gradients.mistake("your weights are divided by d_k, not by its square root")
def _(q, k, v, may_look, g):
    a = _weights(q, k, may_look, q.shape[1])
    dz = _backward(q, k, v, a, g)
    return dz @ k / q.shape[1], dz.T @ q / q.shape[1], a.T @ g


@masked_gradients.mistake("the mask comes after the softmax: hidden scores are still in the denominator")
def _(q, k, v, may_look, g):
    scale = math.sqrt(q.shape[1])
    a = torch.softmax(q @ k.T / scale, dim=-1)
    da = (g @ v.T) * may_look
    dz = a * (da - (da * a).sum(dim=-1, keepdim=True))
    return dz @ k / scale, dz.T @ q / scale, (a * may_look).T @ g


@masked_gradients.variant
def _(q, k, v, may_look, g):
    # process one query at a time, with the Jacobian diag(a) - a a^T written out
    root = q.shape[1] ** 0.5
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for i in range(len(q)):
        seen = may_look[i].nonzero()[:, 0]
        a = torch.softmax(k[seen] @ q[i] / root, dim=0)
        jacobian = torch.diag(a) - torch.outer(a, a)
        dz = jacobian @ (v[seen] @ g[i])
        dq[i] = dz @ k[seen] / root
        dk[seen] += torch.outer(dz, q[i]) / root
        dv[seen] += torch.outer(a, g[i])
    return dq, dk, dv


@masked_gradients.variant
def _(q, k, v, may_look, g):
    z = (torch.einsum("qd,kd->qk", q, k) * q.shape[1] ** -0.5).masked_fill(~may_look, -torch.inf)
    e = torch.where(may_look, (z - z.amax(1, keepdim=True)).exp(), 0.0)
    a = e / e.sum(1, keepdim=True)
    da = torch.einsum("qe,ke->qk", g, v)
    ds = a * (da - torch.einsum("qk,qk->q", a, da)[:, None]) * q.shape[1] ** -0.5
    return [torch.einsum("qk,kd->qd", ds, k), torch.einsum("qk,qd->kd", ds, q), torch.einsum("qk,qe->ke", a, g)]


# 2.5


@exercise(
    "2.5",
    "The triangle in the right corner",
    task="Build a causal mask for fewer queries than keys",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"keys": lambda queries, keys: (queries,), "queries": (1,)},
    hints=(
        "At which key's position is query 0 if the last query is at the last key's position?",
        "`tril(diagonal=c)` also keeps the first c diagonals above the main one.",
        "Start from zeros, and write minus infinity outside the triangle.",
    ),
)
def causal_mask(queries, keys):
    """Return the causal mask that is added to scaled scores: a tensor (query, key) of 0 and $-\\infty$, for `queries` queries and `keys`
    keys. The last query is at the position of the last key, and each query sees the key at its own position and all keys before it.

    ```python
    >>> causal_mask(2, 3)
    tensor([[0., 0., -inf],
            [0., 0., 0.]])
    ```

    ★
    - The result is `float32`.
    - Raise a `ValueError` for `queries < 1` or `queries > keys`.
    """
    ### BEGIN SOLUTION
    if not 1 <= queries <= keys:
        raise ValueError(f"queries={queries}, keys={keys}: expected 1 <= queries <= keys")
    may_look = torch.ones(queries, keys, dtype=torch.bool).tril(diagonal=keys - queries)
    return torch.zeros(queries, keys).masked_fill(~may_look, -math.inf)
    ### END SOLUTION


@causal_mask.cases
def _(draw):
    yield Case("as many queries as keys", (3, 3))
    yield Case("one query at the end sees every key", (1, 4))
    yield Case("more keys than queries: the last query is at the last key", (2, 5))
    queries = draw.whole(2, 6)
    yield Case("any sizes", (queries, queries + draw.whole(1, 5)))
    yield Case("zero queries are rejected", (0, 3), refuse=True)
    yield Case("more queries than keys are rejected", (4, 3), refuse=True)


def _filled(may_look):
    return torch.zeros(may_look.shape).masked_fill(~may_look, -math.inf)


@causal_mask.mistake(
    "your triangle sits in the top left corner: with more keys than queries it must end at the last key"
)
def _(queries, keys):
    return _filled(torch.ones(queries, keys, dtype=torch.bool).tril())


@causal_mask.mistake(
    "your causal mask hides the token itself: the diagonal is off by one, and row 0 of a square mask sees nothing"
)
def _(queries, keys):
    return _filled(torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1))


@causal_mask.mistake("your causal mask lets a token see the one after it: the diagonal is off by one")
def _(queries, keys):
    return _filled(torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries + 1))


@causal_mask.mistake("your mask is transposed: it hides the past and shows the future")
def _(queries, keys):
    return _filled(torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries))


@causal_mask.mistake("that is a mask of ones and zeros; a mask that is added must hold 0 and minus infinity")
def _(queries, keys):
    return torch.ones(queries, keys).tril(keys - queries)


@causal_mask.mistake("your mask is inverted: it should be 0 where a key may be seen, and minus infinity elsewhere")
def _(queries, keys):
    return _filled(~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries))


@causal_mask.mistake("a finite number still lets hidden keys in when the scores are large: use minus infinity")
def _(queries, keys):
    return _filled(torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)).clamp_min(-1e9)


@causal_mask.mistake("invalid sizes must raise a ValueError")
def _(queries, keys):
    return _filled(torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries))


@causal_mask.variant
def _(queries, keys):
    if queries < 1 or queries > keys:
        raise ValueError("expected 1 <= queries <= keys")
    mask = torch.zeros(queries, keys)
    for query in range(queries):
        for key in range(keys):
            if key > query + keys - queries:
                mask[query, key] = -math.inf
    return mask


@causal_mask.variant
def _(queries, keys):
    if queries < 1 or queries > keys:
        raise ValueError(f"{queries} queries and {keys} keys")
    return torch.full((queries, keys), -math.inf).triu(keys - queries + 1)


@causal_mask.variant
def _(queries, keys):
    if not 0 < queries <= keys:
        raise ValueError(f"{queries=}, {keys=}: expected 1 <= queries <= keys")
    place = torch.arange(keys - queries, keys)[:, None]
    return torch.where(torch.arange(keys)[None] <= place, 0.0, -torch.inf)
