"""Exercises for lesson 12: cost and efficient attention."""

import math

import torch
import torch.nn.functional as F

from companion_school.checking.exercise import Case, exercise

# 12.1


@exercise(
    "12.1",
    "Where the square takes over",
    task="Find the lengths where attention scores cost as much as the rest",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "For n tokens the four projections cost 8 n d^2, and the scores and the sums of the values together cost 4 n^2 d.",
        "Set 4 n^2 d equal to 8 n d^2 and divide both sides by 4 n d.",
        "The feed-forward network adds 2 * 2 * n * d * 4 d = 16 n d^2 to the projections' 8 n d^2.",
    ),
)
def lengths_of_balance():
    """A layer has width $d = 512$, four projections of $d$ by $d$, and a feed-forward network of two matrices with $d_{ff} = 4d$. Nothing is
    masked, and a multiplication and an addition count as two FLOPs. At how many tokens do $QK^\\top$ and $AV$ together cost as many FLOPs as
    the four projections? At how many tokens do they cost as many FLOPs as the projections and the feed-forward network
    together? Return the two numbers as a pair of `int`s, in this order.
    """
    ### BEGIN SOLUTION
    d = 512
    projections, feed_forward = 8 * d**2, 16 * d**2  # for each token
    score = 4 * d  # for each token and key
    return projections // score, (projections + feed_forward) // score
    ### END SOLUTION


@lengths_of_balance.cases
def _(draw):
    yield Case("the two lengths", ())


@lengths_of_balance.mistake(
    "you counted one product of (query, key) with d: there are two, one for the scores and one for the weighted sum of the values"
)
def _():
    return 2048, 6144


@lengths_of_balance.mistake("you counted three projections: the output projection is the fourth")
def _():
    return 768, 2816


@lengths_of_balance.mistake("your second length counts only the feed-forward network: add the projections")
def _():
    return 1024, 2048


@lengths_of_balance.mistake("you counted one FLOP per term in the projections: each term takes two there, too")
def _():
    return 512, 1536


@lengths_of_balance.mistake("the feed-forward network is four times as wide as the stream: 16 n d^2 FLOPs")
def _():
    return 1024, 1536


@lengths_of_balance.mistake(
    "you answered in the wrong order: first comes the length where the scores cost as much as the projections"
)
def _():
    return 3072, 1024


@lengths_of_balance.variant
def _():
    return [2 * 512, 6 * 512]


@lengths_of_balance.variant
def _():
    at = [n for n in range(1, 4096) if 4 * n * n * 512 in (8 * n * 512**2, 24 * n * 512**2)]
    return tuple(at)


# 12.2


@exercise(
    "12.2",
    "A pattern with strides",
    task="Write the mask of strided sparse attention",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"tokens": (1,), "stride": lambda tokens, stride: (1, tokens)},
    hints=(
        "Compute `distance = query - key` as a (query, key) table from two `torch.arange`s, one of them as a column.",
        "A key that is not in the future has a distance of 0 or more. A near key has a distance below the stride.",
        "A far key has a distance that is a multiple of the stride. A visible key is near or far, and not in the future.",
    ),
)
def strided_mask(tokens, stride):
    """Build one mask that combines both patterns of strided attention (Child et al., 2019). Query $i$ may attend to key
    $j \\le i$ if $j$ is one of the last `stride` tokens up to and including $i$, or if $i - j$ is a multiple of
    `stride`. Return a boolean tensor (query, key), where both axes have length `tokens` and True means that the query
    may attend to the key.

    ```python
    >>> strided_mask(4, 2).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1]], dtype=torch.int32)
    ```

    ★
    - Raise a `ValueError` if `tokens < 1` or `stride < 1`.
    """
    ### BEGIN SOLUTION
    if tokens < 1 or stride < 1:
        raise ValueError(f"tokens={tokens}, stride={stride}: expected both to be at least 1")
    place = torch.arange(tokens)
    distance = place[:, None] - place[None, :]
    near = distance < stride
    far = distance % stride == 0
    return (distance >= 0) & (near | far)
    ### END SOLUTION


@strided_mask.cases
def _(draw):
    yield Case("one token sees itself", (1, 1))
    yield Case("seven tokens, stride 3", (7, 3))
    yield Case("a stride of one hides nothing of the past", (5, 1))
    yield Case("a stride longer than the text hides nothing of the past", (4, 9))
    tokens, stride = draw.whole(12, 20), draw.whole(3, 5)
    yield Case("another length and stride", (tokens, stride))
    yield Case("a stride of 0 is rejected", (5, 0), refuse=True)
    yield Case("zero tokens are rejected", (0, 3), refuse=True)
    for stride in (2, 3):
        yield Case("the same number of tokens, another stride", (7, stride))


def _distance(tokens, stride):
    if tokens < 1 or stride < 1:
        raise ValueError("expected tokens >= 1 and stride >= 1")
    place = torch.arange(tokens)
    return place[:, None] - place


@strided_mask.mistake("your mask shows the future: a query sees no key after its own")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return (distance.abs() < stride) | (distance % stride == 0)


@strided_mask.mistake("your near part is one token too narrow: a query sees `stride` tokens, including itself")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return (distance >= 0) & ((distance < stride - 1) | (distance % stride == 0))


@strided_mask.mistake("the near part is missing: a query also sees the last `stride` tokens")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return (distance >= 0) & (distance % stride == 0)


@strided_mask.mistake("the far part is missing: that is a sliding window")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return (distance >= 0) & (distance < stride)


@strided_mask.mistake(
    "those are the columns of the fixed pattern: here the distance counts, not the position of the key"
)
def _(tokens, stride):
    distance = _distance(tokens, stride)
    column = (torch.arange(tokens) % stride == stride - 1).expand(tokens, tokens)
    return (distance >= 0) & ((distance < stride) | column)


@strided_mask.mistake("you require near and far: one of the two is enough")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return (distance >= 0) & (distance < stride) & (distance % stride == 0)


@strided_mask.mistake("your mask is transposed: queries are the rows")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return ((distance >= 0) & ((distance < stride) | (distance % stride == 0))).T


@strided_mask.mistake("your mask is inverted: True means that the query may look")
def _(tokens, stride):
    distance = _distance(tokens, stride)
    return ~((distance >= 0) & ((distance < stride) | (distance % stride == 0)))


@strided_mask.mistake("a stride or a length below one must raise a ValueError")
def _(tokens, stride):
    place = torch.arange(tokens)
    distance = place[:, None] - place
    return (distance >= 0) & ((distance < stride) | (distance % max(stride, 1) == 0))


@strided_mask.variant
def _(tokens, stride):
    if min(tokens, stride) < 1:
        raise ValueError("too small")
    rows = []
    for i in range(tokens):
        rows.append([j <= i and (i - j < stride or (i - j) % stride == 0) for j in range(tokens)])
    return torch.tensor(rows)


@strided_mask.variant
def _(tokens, stride):
    if tokens < 1 or stride < 1:
        raise ValueError("too small")
    past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    near = past & ~torch.ones(tokens, tokens, dtype=torch.bool).tril(-stride)
    far = torch.zeros(tokens, tokens, dtype=torch.bool)
    for shift in range(0, tokens, stride):
        far |= torch.ones(tokens - shift, dtype=torch.bool).diag(-shift) if shift else torch.eye(tokens).bool()
    return near | far


# 12.3


@exercise(
    "12.3",
    "One tile at a time",
    task="Write the step of the online softmax",
    points=4,
    difficulty=3,
    minutes=20,
    robust={
        "scores of -2e10": "the lesson has no such scores",
    },
    excused={"dtype": "one of its correct answers always computes in float64"},
    hints=(
        "The new maximum of a row is the larger of the old one and the tile's. The sums that were taken with the old maximum are too "
        "large by a factor of e^(new - old).",
        "Multiply the old `total` and the old `mixture` by exp(largest - new). To the total add the sum of exp(scores - new), and to the "
        "mixture its product with the values.",
        "Where the new maximum is still minus infinity, subtract 0 instead: exp(-inf - 0) is 0, so nothing becomes NaN.",
    ),
    forbidden=("softmax", "log_softmax", "logsumexp", "logcumsumexp", "logaddexp"),
)
def absorb(largest, total, mixture, scores, values):
    """Perform one step of the online softmax. The tiles so far have left three results for each row: `largest` (query),
    the largest score $m$; `total` (query), $\\sum_j e^{z_j - m}$; and `mixture` (query, d_v),
    $\\sum_j e^{z_j - m} v_j$, not divided by the total. Before the first tile they are $-\\infty$, 0 and 0. Add one
    more tile, with `scores` (query, key), which are $-\\infty$ for hidden keys, and `values` (key, d_v). Return the
    results in the same form. A row without any visible key keeps $-\\infty$, 0 and 0. Scores may be as large as 1,000.

    ```python
    >>> absorb(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[4.0]]))
    (tensor([0.]), tensor([2.]), tensor([[6.]]))
    ```

    ★
    - Scores of $-2 \\cdot 10^{10}$ give the right result, too.
    - Do not change the inputs. A NaN in them must show up in the result.
    """
    ### BEGIN SOLUTION
    new = torch.maximum(largest, scores.amax(dim=1))
    zero = torch.where(new.isinf(), 0.0, new)  # in a row without a key, exp(-inf - 0) = 0
    shrink = torch.exp(largest - zero)
    weights = torch.exp(scores - zero[:, None])
    return new, shrink * total + weights.sum(dim=1), shrink[:, None] * mixture + weights @ values
    ### END SOLUTION


def _start(query, d_v):
    nothing = torch.full((query,), -math.inf, dtype=torch.float64)
    return nothing, torch.zeros(query, dtype=torch.float64), torch.zeros(query, d_v, dtype=torch.float64)


@absorb.cases
def _(draw):
    yield Case("the first tile, one query and two keys", (*_start(1, 1), draw.normal(1, 2), draw.normal(2, 1)))
    query, key, d_v = draw.sizes(3, 2, 6)

    def after(scores, values):
        return absorb.reference(*_start(len(scores), values.shape[1]), scores, values)

    first = draw.normal(query, key), draw.normal(key, d_v)
    # The second tile is one key longer. In its first row the maximum is larger than before, and in its second row it is
    # smaller.
    second = draw.normal(query, key + 1), draw.normal(key + 1, d_v)
    higher, lower = second[0].clone(), second[0].clone()
    higher += 4
    lower -= 4
    yield Case("the second tile has the larger scores", (*after(*first), higher, second[1]))
    yield Case("the second tile has the smaller scores", (*after(*first), lower, second[1]))
    hidden = second[0].clone()
    hidden[0] = -math.inf
    yield Case("a row that sees no key of the tile stays as it was", (*after(*first), hidden, second[1]))
    yield Case("a row that has seen no key keeps -inf, zero and zeros", (*_start(query, d_v), hidden, second[1]))
    yield Case("scores of a thousand", (*after(first[0] + 1000, first[1]), second[0] + 1003, second[1]))
    least = torch.full((1,), -math.inf, dtype=torch.float64)
    none = torch.zeros(1, 1, dtype=torch.float64)
    low = torch.tensor([[-2e10, -2e10]], dtype=torch.float64)
    yield Case("scores of -2e10", (least, none[0], none, low, torch.tensor([[1.0], [3.0]], dtype=torch.float64)))


def _sound(new):
    return torch.where(new.isinf(), 0.0, new)


@absorb.mistake(
    "your mixture is not rescaled: its sum was taken with the old maximum and is too large by e^(new - old)"
)
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    weights = torch.exp(scores - _sound(new)[:, None])
    shrink = torch.exp(largest - _sound(new))
    return new, shrink * total + weights.sum(1), mixture + weights @ values


@absorb.mistake("your total is not rescaled: its sum was taken with the old maximum and is too large by e^(new - old)")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    weights = torch.exp(scores - _sound(new)[:, None])
    shrink = torch.exp(largest - _sound(new))
    return new, total + weights.sum(1), shrink[:, None] * mixture + weights @ values


@absorb.mistake("neither total nor mixture is rescaled: both sums were taken with the old maximum")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    weights = torch.exp(scores - _sound(new)[:, None])
    return new, total + weights.sum(1), mixture + weights @ values


@absorb.mistake("the old maximum is lost: take the larger of the old maximum and the tile's")
def _(largest, total, mixture, scores, values):
    new = scores.amax(1)
    weights = torch.exp(scores - _sound(new)[:, None])
    shrink = torch.exp(largest - _sound(new))
    return new, shrink * total + weights.sum(1), shrink[:, None] * mixture + weights @ values


@absorb.mistake("you rescale by e^(new - old): it must be e^(old - new), which is at most one")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    weights = torch.exp(scores - _sound(new)[:, None])
    grow = torch.exp(_sound(new) - _sound(largest))
    return new, grow * total + weights.sum(1), grow[:, None] * mixture + weights @ values


@absorb.mistake("minus infinity minus minus infinity is NaN: a row that has seen no key keeps -inf, zero and zeros")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    weights = torch.exp(scores - new[:, None])
    shrink = torch.exp(largest - new)
    return new, shrink * total + weights.sum(1), shrink[:, None] * mixture + weights @ values


@absorb.mistake("you subtract no maximum: scores of 1,000 overflow")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    back = torch.where(total > 0, torch.exp(largest), 0.0)
    whole = back * total + torch.exp(scores).sum(1)
    mixed = back[:, None] * mixture + torch.exp(scores) @ values
    shrink = torch.exp(-_sound(new))
    return new, whole * shrink, mixed * shrink[:, None]


@absorb.mistake("you divided the mixture by the total: do that only at the end, after the last tile")
def _(largest, total, mixture, scores, values):
    new, whole, mixed = absorb.reference(largest, total, mixture, scores, values)
    return new, whole, mixed / torch.where(whole > 0, whole, 1.0)[:, None]


@absorb.mistake("you use one maximum for all rows: each row has its own")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax()).amax().expand(len(largest)).clone()
    weights = torch.exp(scores - _sound(new)[:, None])
    shrink = torch.exp(largest - _sound(new))
    return new, shrink * total + weights.sum(1), shrink[:, None] * mixture + weights @ values


@absorb.mistake("you return the tile's own total and mixture: add the old ones")
def _(largest, total, mixture, scores, values):
    new = torch.maximum(largest, scores.amax(1))
    weights = torch.exp(scores - _sound(new)[:, None])
    return new, weights.sum(1), weights @ values


@absorb.variant
def _(largest, total, mixture, scores, values):
    # Process one row at a time, and one key at a time within each row
    rows = []
    for m, whole, mixed, row in zip(largest.tolist(), total.tolist(), mixture, scores.tolist(), strict=True):
        for s, v in zip(row, values, strict=True):
            if s == -math.inf:
                continue
            top = max(m, s)
            whole = whole * math.exp(m - top) + math.exp(s - top)
            mixed = mixed * math.exp(m - top) + math.exp(s - top) * v
            m = top
        rows.append((m, whole, mixed))
    as_tensor = [torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in (0, 1)]
    return [*as_tensor, torch.stack([row[2] for row in rows])]


@absorb.variant
def _(largest, total, mixture, scores, values):
    # Treat the past as one more column of scores, which stands for the old total and mixture
    columns = torch.cat((largest[:, None], scores), dim=1)
    new = columns.max(dim=1).values
    e = torch.nan_to_num(torch.exp(columns - new[:, None]), nan=0.0)
    whole = torch.einsum("qk,qk->q", e[:, 1:], torch.ones_like(scores)) + e[:, 0] * total
    return new, whole, torch.einsum("qk,kv->qv", e[:, 1:], values) + e[:, :1] * mixture


# 12.4


@exercise(
    "12.4",
    "Attention without a square",
    task="Write causal linear attention with its normaliser",
    points=3,
    difficulty=2,
    minutes=15,
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "a sum of phi q and phi k around 1e-7": "components in the lesson are around 1",
        "gradients at 800 are finite": "components in the lesson are around 1",
        "large components": "components in the lesson are around 1",
    },
    hints=(
        "Write phi(q_i) . phi(k_j) where softmax attention has exp(q_i . k_j / sqrt(d_k)), and sum over the keys j up to i.",
        "phi(q_i) does not depend on j, so take it out of both sums. They become running sums of phi(k_j) v_j^T and of phi(k_j).",
        "A running sum over tokens is `torch.cumsum`, or a loop with two states, S (d_k, d_v) and y (d_k).",
    ),
    forbidden=("softmax", "scaled_dot_product_attention"),
)
def causal_linear_attention(q, k, v):
    """Compute causal linear attention (Katharopoulos et al., 2020), where $\\phi(x) = \\operatorname{elu}(x) + 1$ is
    applied to each component:

    $o_i = \\dfrac{\\sum_{j \\le i} \\phi(q_i) \\cdot \\phi(k_j) \\, v_j}{\\sum_{j \\le i} \\phi(q_i) \\cdot \\phi(k_j)}$

    `q` and `k` are (token, d_k), and `v` is (token, d_v). Return the outputs, (token, d_v). The dot products are not
    divided by $\\sqrt{d_k}$.

    ```python
    >>> causal_linear_attention(torch.zeros(2, 1), torch.zeros(2, 1), torch.tensor([[2.0], [4.0]]))
    tensor([[2.],
            [3.]])
    ```

    ★
    - Raise a `ValueError` if `q` and `k` have different shapes or if `v` has a different number of tokens.
    - Components of 800 and -800 give finite results and finite gradients.
    """
    ### BEGIN SOLUTION
    if q.shape != k.shape or len(v) != len(k):
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: expected the same number of tokens in all three"
        )
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    state = (k[:, :, None] * v[:, None, :]).cumsum(dim=0)  # (token, d_k, d_v)
    y = k.cumsum(dim=0)
    return torch.einsum("td,tdv->tv", q, state) / (q * y).sum(dim=1, keepdim=True)
    ### END SOLUTION


@causal_linear_attention.cases
def _(draw):
    yield Case("the first token gets its own value", (draw.normal(1, 2), draw.normal(1, 2), draw.normal(1, 1)))
    yield Case("two tokens", (draw.normal(2, 1), draw.normal(2, 1), draw.normal(2, 2)))
    token, d_k, d_v = draw.sizes(3, 2, 7)
    three = draw.normal(token, d_k), draw.normal(token, d_k), draw.normal(token, d_v)
    yield Case("token, d_k and d_v all different", three, gradients=True)
    yield Case("large components", (5 * three[0], 5 * three[1], three[2]))
    yield Case("fewer values than keys are rejected", (three[0], three[1], three[2][1:]), refuse=True)
    yield Case("queries of another width are rejected", (three[0][:, 1:], three[1], three[2]), refuse=True)
    tiny = three[0][1:] - 10, three[1][1:] - 6, three[2][1:]
    yield Case("a sum of phi q and phi k around 1e-7", tiny, tolerance=1e-9)
    high = torch.tensor([[800.0, -1.0], [1.0, 900.0]], dtype=torch.float64)
    yield Case("gradients at 800 are finite", (high, high.flip(0), high / 100), gradients=True)


def _checked(q, k, v):
    if q.shape != k.shape or len(v) != len(k):
        raise ValueError("expected the same number of tokens and the same d_k")
    return (q[:, None] * k[None]).sum(-1)


def _phi(x):
    return F.elu(x) + 1


@causal_linear_attention.mistake("the normaliser is missing: the weights of a row must add up to one")
def _(q, k, v):
    _checked(q, k, v)
    return (_phi(q) @ _phi(k).T).tril() @ v


@causal_linear_attention.mistake("your sums run over the future, too: token i sees no key after its own")
def _(q, k, v):
    _checked(q, k, v)
    weights = _phi(q) @ _phi(k).T
    return weights @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.mistake(
    "your normaliser sums over all keys, the future included: the weights add up to less than one"
)
def _(q, k, v):
    _checked(q, k, v)
    weights = _phi(q) @ _phi(k).T
    return weights.tril() @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.mistake("a token sees itself: your sums end one token too early")
def _(q, k, v):
    _checked(q, k, v)
    weights = (_phi(q) @ _phi(k).T).tril(-1)
    return weights @ v / weights.sum(1, keepdim=True).clamp(min=1e-9)


@causal_linear_attention.mistake("that is softmax attention: linear attention has no exponential of q . k")
def _(q, k, v):
    scores = _checked(q, k, v) / math.sqrt(q.shape[1])
    past = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    return torch.where(past, scores, -math.inf).softmax(-1) @ v


@causal_linear_attention.mistake("phi is missing: without it weights can be negative, and the normaliser zero")
def _(q, k, v):
    weights = _checked(q, k, v).tril()
    return weights @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.mistake("you left the keys as they are: phi acts on the keys as well")
def _(q, k, v):
    _checked(q, k, v)
    weights = (_phi(q) @ k.T).tril()
    return weights @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.mistake("you left the queries as they are: phi acts on the queries as well")
def _(q, k, v):
    _checked(q, k, v)
    weights = (q @ _phi(k).T).tril()
    return weights @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.mistake("phi is elu + 1: without the 1 it is negative for negative components")
def _(q, k, v):
    _checked(q, k, v)
    weights = (F.elu(q) @ F.elu(k).T).tril()
    return weights @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.mistake("phi is elu + 1, not a ReLU: negative components still count")
def _(q, k, v):
    _checked(q, k, v)
    weights = (q.relu() @ k.relu().T).tril()
    return weights @ v / weights.sum(1, keepdim=True).clamp(min=1e-9)


@causal_linear_attention.mistake("your result is detached from its inputs: it has no gradient")
def _(q, k, v):
    _checked(q, k, v)
    weights = (_phi(q) @ _phi(k).T).tril().detach()
    return weights @ v / weights.sum(1, keepdim=True)


@causal_linear_attention.variant
def _(q, k, v):
    # Compute it as a recurrent network that updates two states, one token at a time
    if q.shape != k.shape or k.shape[0] != v.shape[0]:
        raise ValueError("shapes")
    s = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype)
    z = torch.zeros(k.shape[1], dtype=v.dtype)
    out = []
    for q_i, k_i, v_i in zip(q, k, v, strict=True):
        key = torch.where(k_i > 0, k_i + 1, torch.exp(k_i.clamp(max=0)))
        query = torch.where(q_i > 0, q_i + 1, torch.exp(q_i.clamp(max=0)))
        s = s + torch.outer(key, v_i)
        z = z + key
        out.append(query @ s / (query @ z))
    return torch.stack(out)


@causal_linear_attention.variant
def _(q, k, v):
    # Use the full (query, key) table
    if q.shape != k.shape or k.shape[0] != v.shape[0]:
        raise ValueError("shapes")
    weights = torch.einsum("id,jd->ij", F.elu(q) + 1, F.elu(k) + 1) * torch.ones(len(q), len(k), dtype=q.dtype).tril()
    return (weights / weights.sum(-1, keepdim=True)) @ v
