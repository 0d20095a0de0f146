"""Exercises of lesson 15: the shrinking cache."""

import math

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, exercise

# 15.1


@exercise(
    "15.1",
    "What a text leaves behind",
    task="Count the bytes of a cache with local and global layers",
    points=1,
    difficulty=1,
    minutes=8,
    limits={
        "tokens": (1, 16),
        "global_layers": (0,),
        "local_layers": (0,),
        "window": (1,),
        "numbers": (1,),
        "bits": (1,),
    },
    hints=(
        "How many tokens of the text does a global layer store, and how many does a local layer store?",
        "Add up the tokens stored in all layers. Each token has `numbers` elements, and each element `bits` bits.",
        "A byte has 8 bits, and a partial byte counts as a whole one: `-(-bits // 8)` rounds up.",
    ),
)
def cache_bytes(tokens, global_layers, local_layers, window, numbers, bits):
    """A text of `tokens` tokens is cached. Each global layer stores all tokens, and each local layer stores only the
    last `window`. Per token, a layer stores `numbers` elements of `bits` bits each. How many bytes do all layers store
    together, rounded up at the end? Return an `int`.

    ```python
    >>> cache_bytes(10, 1, 2, 4, 6, 8)
    108
    ```

    ★
    - Raise a `ValueError` if either number of layers is below 0, or any other argument is below 1.
    """
    ### BEGIN SOLUTION
    if min(tokens, window, numbers, bits) < 1 or min(global_layers, local_layers) < 0:
        raise ValueError("expected both numbers of layers to be at least 0 and every other argument to be at least 1")
    kept = global_layers * tokens + local_layers * min(tokens, window)
    return -(-kept * numbers * bits // 8)
    ### END SOLUTION


@cache_bytes.cases
def _(draw):
    yield Case("one global layer stores everything", (7, 1, 0, 4, 3, 8))
    yield Case("one local layer stores a window", (7, 0, 1, 4, 3, 8))
    yield Case("a text shorter than the window", (3, 1, 5, 16, 4, 16))
    yield Case("elements of four bits", (9, 2, 1, 4, 5, 4))
    tokens, window = draw.whole(60, 90), draw.whole(8, 20)
    yield Case("other sizes", (tokens, draw.whole(1, 3), draw.whole(4, 6), window, 2 * draw.whole(5, 9), 16))
    yield Case("half a byte is rounded up, and only once", (3, 1, 0, 2, 1, 4))
    yield Case("zero tokens are rejected", (0, 1, 1, 4, 3, 8), refuse=True)
    yield Case("a negative number of layers is rejected", (4, -1, 1, 4, 3, 8), refuse=True)
    yield Case("a window of 0 is rejected", (4, 1, 1, 0, 3, 8), refuse=True)
    yield Case("zero elements are rejected", (4, 1, 1, 4, 0, 8), refuse=True)
    yield Case("zero bits are rejected", (4, 1, 1, 4, 3, 0), refuse=True)


def _sizes(tokens, global_layers, local_layers, window, numbers, bits):
    if min(tokens, window, numbers, bits) < 1 or min(global_layers, local_layers) < 0:
        raise ValueError("expected both numbers of layers to be at least 0 and every other argument to be at least 1")


@cache_bytes.mistake("a local layer stores no more than its window, however long the text is")
def _(tokens, global_layers, local_layers, window, numbers, bits):
    _sizes(tokens, global_layers, local_layers, window, numbers, bits)
    return math.ceil((global_layers + local_layers) * tokens * numbers * bits / 8)


@cache_bytes.mistake("a text shorter than the window stores only its own tokens")
def _(tokens, global_layers, local_layers, window, numbers, bits):
    _sizes(tokens, global_layers, local_layers, window, numbers, bits)
    return math.ceil((global_layers * tokens + local_layers * window) * numbers * bits / 8)


@cache_bytes.mistake("you counted bits: a byte has 8 of them")
def _(tokens, global_layers, local_layers, window, numbers, bits):
    _sizes(tokens, global_layers, local_layers, window, numbers, bits)
    return (global_layers * tokens + local_layers * min(tokens, window)) * numbers * bits


@cache_bytes.mistake("round the number of bytes up at the end: you rounded it down")
def _(tokens, global_layers, local_layers, window, numbers, bits):
    _sizes(tokens, global_layers, local_layers, window, numbers, bits)
    return (global_layers * tokens + local_layers * min(tokens, window)) * numbers * bits // 8


@cache_bytes.mistake("you counted keys and values twice: `numbers` already includes both")
def _(tokens, global_layers, local_layers, window, numbers, bits):
    _sizes(tokens, global_layers, local_layers, window, numbers, bits)
    return 2 * math.ceil((global_layers * tokens + local_layers * min(tokens, window)) * numbers * bits / 8)


@cache_bytes.mistake("a negative number of layers, or any other argument below 1, must be rejected with a ValueError")
def _(tokens, global_layers, local_layers, window, numbers, bits):
    return math.ceil((global_layers * tokens + local_layers * min(tokens, window)) * numbers * bits / 8)


@cache_bytes.variant
def _(tokens, global_layers, local_layers, window, numbers, bits):
    if any(x < 1 for x in (tokens, window, numbers, bits)) or global_layers < 0 or local_layers < 0:
        raise ValueError("too small")
    lengths = [tokens] * global_layers + [tokens if tokens < window else window] * local_layers
    whole, rest = divmod(sum(lengths) * numbers * bits, 8)
    return whole + (rest > 0)


@cache_bytes.variant
def _(tokens, global_layers, local_layers, window, numbers, bits):
    _sizes(tokens, global_layers, local_layers, window, numbers, bits)
    near = sum(1 for t in range(tokens) if tokens - t <= window)
    return (numbers * bits * (global_layers * tokens + local_layers * near) + 7) // 8


# 15.2


@exercise(
    "15.2",
    "Ask the latents",
    task="Write a step of latent attention that computes no keys or values",
    points=3,
    difficulty=2,
    minutes=15,
    right={"gradients": "its result goes into a model that learns"},
    hints=(
        "A score is q . (U_k c) = (U_k^T q) . c. For all heads at once: `torch.einsum('hd,hdr->hr', q, U_k)`.",
        "Compute the scores, divide them by the square root of the width of q, and take the softmax over the tokens. The weights are (head, token).",
        "Average the latents with the weights, (head, rank), and only then multiply by U_v.",
    ),
)
def ask_latents(q, c, U_k, U_v):
    """Compute one step of latent attention without positions. `q` (head, d_k) holds the queries of the newest token,
    `c` (token, rank) holds the cached latents, and `U_k` (head, d_k, rank) and `U_v` (head, d_v, rank) are the matrices
    that would compute keys and values from the latents. Return the heads' outputs, (head, d_v), without computing any
    key or value. Divide the scores by $\\sqrt{d_k}$.

    ```python
    >>> ask_latents(torch.tensor([[0.0]]), torch.tensor([[1.0], [3.0]]), torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    tensor([[2.]])
    ```

    ★
    - Raise a `ValueError` if widths, ranks or numbers of heads do not match, or if `c` is empty.
    - Scores of a million must not cause an overflow.
    - Use less memory than the keys of all heads would take up.
    """
    ### BEGIN SOLUTION
    heads, d_k = q.shape
    if U_k.shape != (heads, d_k, c.shape[1]) or (U_v.shape[0], U_v.shape[2]) != (heads, c.shape[1]) or len(c) == 0:
        raise ValueError(f"q {tuple(q.shape)}, c {tuple(c.shape)}, U_k {tuple(U_k.shape)}, U_v {tuple(U_v.shape)}")
    asks = torch.einsum("hd,hdr->hr", q, U_k)
    weights = torch.softmax(asks @ c.T / d_k**0.5, dim=-1)
    return torch.einsum("hr,hvr->hv", weights @ c, U_v)
    ### END SOLUTION


@ask_latents.cases
def _(draw):
    yield Case("a single token in the cache", (draw.normal(1, 2), draw.normal(1, 3), *_up(draw, 1, 2, 1, 3)))
    heads, d_k, d_v, rank, token = draw.sizes(5, 2, 8)
    given = draw.normal(heads, d_k), draw.normal(token, rank), *_up(draw, heads, d_k, d_v, rank)
    yield Case("five sizes, all different", given, gradients=True)
    q, c, U_k, U_v = given
    yield Case("a wider head with a smaller rank", (draw.normal(2, 7), draw.normal(5, 2), *_up(draw, 2, 7, 3, 2)))
    yield Case("scores of a million", (1e6 * q, c, U_k, U_v), robust="the lesson has no such scores")
    long = draw.normal(8, 8), draw.normal(4000, 4), *_up(draw, 8, 8, 8, 4)
    yield Case("no memory for the keys of all heads", long, room=1_400_000, layout=False)
    yield Case("a rank that does not match is rejected", (q, c[:, 1:], U_k, U_v), refuse=True)
    yield Case("queries of a different width are rejected", (q[:, 1:], c, U_k, U_v), refuse=True)
    yield Case("value matrices for fewer heads are rejected", (q, c, U_k, U_v[1:]), refuse=True)
    yield Case("an empty cache is rejected", (q, c[:0], U_k, U_v), refuse=True)


def _up(draw, heads, d_k, d_v, rank):
    return draw.normal(heads, d_k, rank), draw.normal(heads, d_v, rank)


def _fits(q, c, U_k, U_v):
    if U_k.shape != (*q.shape, c.shape[1]) or (U_v.shape[0], U_v.shape[2]) != (len(q), c.shape[1]) or len(c) == 0:
        raise ValueError("sizes do not match")


def _step(q, c, U_k, U_v, width):
    _fits(q, c, U_k, U_v)
    weights = torch.softmax(torch.einsum("hd,hdr->hr", q, U_k) @ c.T / width**0.5, dim=-1)
    return torch.einsum("hr,hvr->hv", weights @ c, U_v)


@ask_latents.mistake(
    "you divide by the square root of the rank: use d_k, the width of the keys that you do not compute"
)
def _(q, c, U_k, U_v):
    return _step(q, c, U_k, U_v, c.shape[1])


@ask_latents.mistake("the scores are not divided by the square root of d_k")
def _(q, c, U_k, U_v):
    return _step(q, c, U_k, U_v, 1)


@ask_latents.mistake("your softmax runs over the heads: each head's weights over the tokens add up to one")
def _(q, c, U_k, U_v):
    _fits(q, c, U_k, U_v)
    weights = torch.softmax(torch.einsum("hd,hdr->hr", q, U_k) @ c.T / q.shape[1] ** 0.5, dim=0)
    return torch.einsum("hr,hvr->hv", weights @ c, U_v)


@ask_latents.mistake("you use the matrices of head 0 for every head: each head has its own")
def _(q, c, U_k, U_v):
    _fits(q, c, U_k, U_v)
    weights = torch.softmax(torch.einsum("hd,dr->hr", q, U_k[0]) @ c.T / q.shape[1] ** 0.5, dim=-1)
    return torch.einsum("hr,vr->hv", weights @ c, U_v[0])


@ask_latents.mistake(
    "the result is right, but you compute all keys and values: multiply the query by U_k instead, which saves their memory"
)
def _(q, c, U_k, U_v):
    _fits(q, c, U_k, U_v)
    keys, values = torch.einsum("hdr,tr->htd", U_k, c), torch.einsum("hvr,tr->htv", U_v, c)
    weights = torch.softmax((keys @ q[:, :, None])[..., 0] / q.shape[1] ** 0.5, dim=-1)
    return (weights[:, None] @ values)[:, 0]


@ask_latents.mistake("you take exponentials without subtracting the maximum: scores of a million overflow")
def _(q, c, U_k, U_v):
    _fits(q, c, U_k, U_v)
    powers = torch.exp(torch.einsum("hd,hdr->hr", q, U_k) @ c.T / q.shape[1] ** 0.5)
    return torch.einsum("hr,hvr->hv", powers / powers.sum(-1, keepdim=True) @ c, U_v)


@ask_latents.mistake("sizes that do not match, and an empty `c`, must be rejected with a ValueError")
def _(q, c, U_k, U_v):
    width = min(q.shape[1], U_k.shape[1])
    rank, heads = min(c.shape[1], U_k.shape[2]), min(len(q), len(U_v))
    down = torch.einsum("hd,hdr->hr", q[:heads, :width], U_k[:heads, :width, :rank])
    weights = torch.softmax(down @ c[:, :rank].T / q.shape[1] ** 0.5, dim=-1)
    return torch.einsum("hr,hvr->hv", weights @ c[:, :rank], U_v[:heads, :, :rank])


@ask_latents.variant
def _(q, c, U_k, U_v):
    # Process one head at a time, with products of matrices and vectors
    _fits(q, c, U_k, U_v)
    out = []
    for query, down, up in zip(q, U_k, U_v, strict=True):
        weights = torch.softmax(c @ (down.T @ query) / math.sqrt(len(query)), dim=0)
        out.append(up @ (weights @ c))
    return torch.stack(out)


@ask_latents.variant
def _(q, c, U_k, U_v):
    # Compute it as multi-query attention, with one key head that also serves as the value head
    _fits(q, c, U_k, U_v)
    asks = (q[:, None] @ U_k)[:, 0]
    z = asks @ c.mT * q.shape[1] ** -0.5
    powers = (z - z.amax(-1, keepdim=True)).exp()
    return (U_v @ (powers @ c / powers.sum(-1, keepdim=True))[:, :, None])[..., 0]


# 15.3


@exercise(
    "15.3",
    "The nearest of a smaller rank",
    task="Squeeze the keys and values of a layer into fewer elements",
    points=2,
    difficulty=2,
    minutes=12,
    limits={"rank": lambda key, value, rank: (1, key.shape[1], len(key) + len(value))},
    excused={
        "tie": "directions with equal singular values may be cut in either order",
        "nan": "a decomposition of NaN need not return",
    },
    hints=(
        "Keys and values come from one latent, so stack the two matrices into one, and truncate the stack.",
        "`torch.linalg.svd(W, full_matrices=False)` gives U, S, V with W = U diag(S) V. Keep the first `rank` of each.",
        "Multiply the three factors again, and split the rows after those of the keys.",
    ),
)
def squeeze(key, value, rank):
    """`key` (d_k, d_model) and `value` (d_v, d_model) are the matrices that compute all keys and all values of a token. Return two matrices of
    the same shapes whose stack has a rank of at most `rank`, so that keys and values can be computed from one latent of
    `rank` elements. Of all such pairs, return the one closest to the given matrices, which is the pair with the
    smallest sum of squared differences from them.

    ```python
    >>> squeeze(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 1)
    (tensor([[3., 0.]]), tensor([[0., 0.]]))
    ```

    ★
    - Raise a `ValueError` if the rank is below 1, or if `d_model` differs between the matrices.
    - A rank above that of the matrices changes nothing.
    """
    ### BEGIN SOLUTION
    if rank < 1 or key.shape[1] != value.shape[1]:
        raise ValueError(
            f"rank={rank}, key {tuple(key.shape)}, value {tuple(value.shape)}: expected a rank of at least 1 and the same d_model"
        )
    left, carried, right = torch.linalg.svd(torch.cat([key, value]), full_matrices=False)
    near = left[:, :rank] * carried[:rank] @ right[:rank]
    return near[: len(key)], near[len(key) :]
    ### END SOLUTION


@squeeze.cases
def _(draw):
    yield Case("one of two directions", (torch.diag(torch.tensor([5.0, 2.0]).double())[:1], draw.normal(2, 2) / 9, 1))
    d_k, d_v, d_model = 5, 3, 6
    given = draw.normal(d_k, d_model), draw.normal(d_v, d_model)
    yield Case("keys and values of different widths", (*given, 3))
    yield Case("values that are larger than keys", (given[0], 4 * given[1], 2))
    yield Case("the full rank changes nothing", (*given, 6))
    yield Case(
        "a rank above the full rank changes nothing", (*given, 40), robust="no layer stores more than the full rank"
    )
    yield Case("a wide stream", (draw.normal(2, 9), draw.normal(2, 9), 3))
    yield Case("a rank of 0 is rejected", (*given, 0), refuse=True)
    yield Case("matrices that differ in d_model are rejected", (given[0], given[1][:, 1:], 2), refuse=True)
    d_k, d_v, d_model = draw.sizes(3, 33, 50)
    yield Case(LARGE, (draw.normal(d_k, d_model), draw.normal(d_v, d_model), draw.whole(2, 20)))


def _near(matrix, rank):
    left, carried, right = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank] * carried[:rank] @ right[:rank]


def _pair(key, value, rank):
    if rank < 1 or key.shape[1] != value.shape[1]:
        raise ValueError("expected a rank of at least 1 and the same d_model")
    return torch.cat([key, value])


@squeeze.mistake("you squeezed keys and values separately, so together they need two latents")
def _(key, value, rank):
    _pair(key, value, rank)
    return _near(key, rank), _near(value, rank)


@squeeze.mistake(
    "you kept the directions with the smallest singular values: the decomposition sorts them with the largest first"
)
def _(key, value, rank):
    left, carried, right = torch.linalg.svd(_pair(key, value, rank), full_matrices=False)
    near = left[:, -rank:] * carried[-rank:] @ right[-rank:]
    return near[: len(key)], near[len(key) :]


@squeeze.mistake("the singular values are missing: multiply each direction by its singular value")
def _(key, value, rank):
    left, _, right = torch.linalg.svd(_pair(key, value, rank), full_matrices=False)
    near = left[:, :rank] @ right[:rank]
    return near[: len(key)], near[len(key) :]


@squeeze.mistake(
    "you cut rows and columns of the matrix: the nearest matrix of a given rank keeps directions, not entries"
)
def _(key, value, rank):
    near = torch.zeros_like(_pair(key, value, rank))
    near[:, :rank] = torch.cat([key, value])[:, :rank]
    return near[: len(key)], near[len(key) :]


@squeeze.mistake("you return the two matrices in the wrong order, or split them at the wrong row")
def _(key, value, rank):
    near = _near(_pair(key, value, rank), rank)
    return near[: len(value)], near[len(value) :]


@squeeze.mistake("a rank below 1, or matrices that differ in d_model, must be rejected with a ValueError")
def _(key, value, rank):
    width = min(key.shape[1], value.shape[1])
    near = _near(torch.cat([key[:, :width], value[:, :width]]), max(rank, 1))
    return near[: len(key)], near[len(key) :]


@squeeze.variant
def _(key, value, rank):
    # Project the rows of both matrices onto the strongest directions of the stack
    both = _pair(key, value, rank)
    right = torch.linalg.svd(both, full_matrices=False).Vh[:rank]
    return key @ right.T @ right, value @ right.T @ right


@squeeze.variant
def _(key, value, rank):
    # Add up outer products of two vectors
    left, carried, right = torch.linalg.svd(_pair(key, value, rank), full_matrices=True)
    kept = range(min(rank, len(carried)))
    near = sum(
        (carried[i] * torch.outer(left[:, i], right[i]) for i in kept), torch.zeros_like(torch.cat([key, value]))
    )
    return near[: len(key)], near[len(key) :]


# 15.4


@exercise(
    "15.4",
    "Who sits in which slot?",
    task="Find which token each slot of a rolling cache holds",
    points=2,
    difficulty=2,
    minutes=8,
    limits={"tokens": lambda tokens, window: (0, window), "window": (1,)},
    hints=(
        "Token t is written into slot t % window and overwrites what was there.",
        "A slot holds the last token that was written into it.",
        "If no token has reached a slot, it holds -1.",
    ),
)
def slots_of(tokens, window):
    """The tokens 0, 1, 2, ..., `tokens` - 1 were written into a rolling cache with `window` slots, token $t$ into slot
    $t \\bmod \\text{window}$. Return a list of `window` integers: the token that each slot now holds, or -1 for an
    empty slot.

    ```python
    >>> slots_of(6, 4)
    [4, 5, 2, 3]
    ```

    ★
    - Raise a `ValueError` for a negative number of tokens or a window below 1.
    """
    ### BEGIN SOLUTION
    if tokens < 0 or window < 1:
        raise ValueError(f"tokens={tokens}, window={window}: expected tokens >= 0 and window >= 1")
    held = [-1] * window
    for t in range(max(0, tokens - window), tokens):
        held[t % window] = t
    return held
    ### END SOLUTION


@slots_of.cases
def _(draw):
    yield Case("one slot holds the last token", (5, 1))
    yield Case("nothing was written: all slots are empty", (0, 3))
    yield Case("slots that no token has reached are empty", (2, 5))
    yield Case("exactly full", (4, 4))
    yield Case("one token more than fits", (5, 4))
    yield Case("several rounds", (draw.whole(20, 40), draw.whole(3, 7)))
    yield Case("a negative number of tokens is rejected", (-1, 3), refuse=True)
    yield Case("a window of 0 is rejected", (3, 0), refuse=True)


def _ring(tokens, window):
    if tokens < 0 or window < 1:
        raise ValueError("expected at least 0 tokens and a window of at least 1")


@slots_of.mistake("those are the last tokens in order, but a token stays in its slot until it is overwritten")
def _(tokens, window):
    _ring(tokens, window)
    last = list(range(max(0, tokens - window), tokens))
    return last + [-1] * (window - len(last))


@slots_of.mistake("your cache keeps its first tokens: a new token must overwrite the oldest")
def _(tokens, window):
    _ring(tokens, window)
    return [t if t < tokens else -1 for t in range(window)]


@slots_of.mistake("an empty slot holds -1, not token 0")
def _(tokens, window):
    _ring(tokens, window)
    held = [0] * window
    for t in range(tokens):
        held[t % window] = t
    return held


@slots_of.mistake("you wrote one token too many: the last one is tokens - 1")
def _(tokens, window):
    _ring(tokens, window)
    held = [-1] * window
    for t in range(tokens + 1):
        held[t % window] = t
    return held


@slots_of.mistake("a negative number of tokens, or a window below 1, must raise a ValueError")
def _(tokens, window):
    held = [-1] * window
    for t in range(tokens if window > 0 else 0):
        held[t % window] = t
    return held


@slots_of.variant
def _(tokens, window):
    _ring(tokens, window)
    found = []
    for slot in range(window):
        written = [t for t in range(tokens) if t % window == slot]
        found.append(written[-1] if written else -1)
    return found


@slots_of.variant
def _(tokens, window):
    if tokens < 0 or window < 1:
        raise ValueError("too few")
    newest = tokens - 1
    back = [(newest - slot) % window for slot in range(window)]
    return [newest - far if newest - far >= 0 else -1 for far in back]


# 15.5


@exercise(
    "15.5",
    "A way to say nothing",
    task="Write attention weights with a learned sink",
    points=2,
    difficulty=2,
    minutes=12,
    right={"gradients": "the sink is learned"},
    robust={"scores of 1,000": "the lesson has no such scores"},
    hints=(
        "In each row, the sink is the score of one more key, which has no value. Use `torch.cat` to append it to the scores as a last column.",
        "Take the softmax over keys and sink together, then drop the last column. Its weight goes to no token.",
        "`sink` is (head): add axes and expand it to (head, query, 1).",
    ),
)
def with_sink(scores, sink):
    """Compute equation (15.14). `scores` (head, query, key) are scaled and are $-\\infty$ where a query may not attend.
    `sink` (head) holds one learned logit per head. Return the attention weights, (head, query, key). Each row is a
    softmax over its keys *and* its head's sink, but the sink's own weight is left out, so each row adds up to less than 1.
    (DeepSeek-V4 and gpt-oss do this; lesson 16 says why.)

    ```python
    >>> with_sink(torch.tensor([[[0.0, 0.0]]]), torch.tensor([0.0]))
    tensor([[[0.3333, 0.3333]]])
    ```

    ★
    - Raise a `ValueError` if `sink` does not have exactly one element for each head.
    - Scores of a thousand must not cause an overflow, and if a query may not attend to anything, its row is all zeros.
    """
    ### BEGIN SOLUTION
    if sink.shape != scores.shape[:1]:
        raise ValueError(f"sink {tuple(sink.shape)}: expected one number for each of {len(scores)} heads")
    column = sink[:, None, None].expand(*scores.shape[:2], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    ### END SOLUTION


@with_sink.cases
def _(draw):
    yield Case("one key beside a sink", (draw.normal(1, 1, 1), draw.normal(1)))
    head, query, key = draw.sizes(3, 2, 6)
    scores, sink = draw.normal(head, query, key), draw.normal(head)
    yield Case("three sizes, all different", (scores, sink), gradients=True)
    yield Case("as many heads as queries", (draw.normal(3, 3, 4), draw.normal(3)))
    yield Case("as many heads as keys", (draw.normal(3, 2, 3), draw.normal(3)))
    hidden = scores.masked_fill(torch.ones(query, key).triu(1).bool(), -math.inf)
    yield Case("hidden keys get weight 0", (hidden, sink))
    yield Case(
        "a row in which every key is hidden", (torch.full((1, 1, 3), -math.inf).double(), draw.normal(1)), robust="rare"
    )
    yield Case("scores of 1,000", (scores + 1000, sink + 999))
    yield Case("a sink far below the scores has no effect", (scores, sink - 60))
    yield Case("one sink for two heads is rejected", (draw.normal(2, 3, 4), draw.normal(1)), refuse=True)
    yield Case("a sink for each query is rejected", (draw.normal(2, 3, 4), draw.normal(3)), refuse=True)


def _sinks(scores, sink):
    if sink.shape != scores.shape[:1]:
        raise ValueError("expected one number for each head")


@with_sink.mistake("the sink is missing from the denominator: your rows add up to one")
def _(scores, sink):
    _sinks(scores, sink)
    return torch.softmax(scores, dim=-1)


@with_sink.mistake("the sink's own weight is still there: drop its column")
def _(scores, sink):
    _sinks(scores, sink)
    column = sink[:, None, None].expand(*scores.shape[:2], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)


@with_sink.mistake("the sink is a logit: the denominator needs its exponential, not the sink itself")
def _(scores, sink):
    _sinks(scores, sink)
    top = scores.amax(-1, keepdim=True).clamp(min=-1e300)
    powers = torch.exp(scores - top)
    return powers / (powers.sum(-1, keepdim=True) + sink[:, None, None] * torch.exp(-top))


@with_sink.mistake("you use the sink of head 0 for all heads: each head has its own")
def _(scores, sink):
    _sinks(scores, sink)
    column = sink[:1, None, None].expand(*scores.shape[:2], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


@with_sink.mistake("you take exponentials without subtracting a maximum: scores of 1,000 overflow")
def _(scores, sink):
    _sinks(scores, sink)
    powers = scores.exp()
    return powers / (powers.sum(-1, keepdim=True) + sink.exp()[:, None, None])


@with_sink.mistake("a sink that does not have one number for each head must be rejected with a ValueError")
def _(scores, sink):
    one = sink.mean().expand(len(scores)) if sink.shape != scores.shape[:1] else sink
    column = one[:, None, None].expand(*scores.shape[:2], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


@with_sink.variant
def _(scores, sink):
    # Treat the sink as a gate on the row: softmax times sigmoid(log-sum-exp - sink)
    _sinks(scores, sink)
    whole = scores.logsumexp(-1, keepdim=True)
    weights = torch.exp(scores - torch.logaddexp(whole, sink[:, None, None].expand_as(whole)))
    return weights


@with_sink.variant
def _(scores, sink):
    _sinks(scores, sink)
    sinks = sink[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sinks)
    powers = (scores - top).exp()
    return powers / (powers.sum(-1, keepdim=True) + (sinks - top).exp())


# 15.6


@exercise(
    "15.6",
    "Keys in a few bits",
    task="Round keys to integers of a few bits, with one scale for each key",
    points=3,
    difficulty=3,
    minutes=15,
    limits={"bits": (2,)},
    excused={
        "tie": "a half may be rounded either way",
        "levels": "keys of equal size may differ in the last step",
    },
    robust={"a key of zeros stays zeros": "a trained layer has no such keys"},
    hints=(
        "With b bits, sign included, use the integers from -(2^(b-1) - 1) to 2^(b-1) - 1. Call the largest one `top`.",
        "The scale of a key is its largest absolute value divided by `top`. Divide by it and round.",
        "To read a key back, multiply the integers by the scale. A key of zeros has the scale 0, so divide it by 1 instead.",
    ),
)
def quantised_scores(q, keys, bits):
    """`keys` (key, d) are stored as integers of $b$ = `bits` bits, from $-(2^{b-1} - 1)$ to $2^{b-1} - 1$. Each key has one scale, its largest
    absolute value divided by $2^{b-1} - 1$. Each entry is divided by the scale and rounded to the nearest integer.
    Return the scores (key) of the query `q` (d): its dot products with the restored keys (integer times scale), without
    further scaling.

    ```python
    >>> quantised_scores(torch.tensor([1.0, 1.0]), torch.tensor([[3.0, 1.1]]), 3)
    tensor([4.])
    ```

    ★
    - Raise a `ValueError` for fewer than 2 bits, or if the query does not have the width of the keys.
    - A key of zeros remains all zeros.
    """
    ### BEGIN SOLUTION
    if bits < 2 or q.shape != keys.shape[1:]:
        raise ValueError(
            f"bits={bits}, q {tuple(q.shape)}, keys {tuple(keys.shape)}: expected at least 2 bits and equal widths"
        )
    top = 2 ** (bits - 1) - 1
    largest = keys.abs().amax(dim=1)
    scale = torch.where(largest == 0, 1.0, largest / top)
    whole = (keys / scale[:, None]).round()
    return (whole @ q) * scale
    ### END SOLUTION


@quantised_scores.cases
def _(draw):
    q = torch.tensor([1.0, 2.0, -1.0]).double()
    keys = torch.tensor([[7.0, 3.2, -1.1], [-14.0, 2.3, 3.9]]).double()
    yield Case("two keys, four bits", (q, keys, 4))
    yield Case("with two bits, only -1, 0 and 1 remain", (q, keys, 2))
    yield Case("a key ten times as large", (q, keys * torch.tensor([[1.0], [10.0]]).double(), 3))
    key, d = draw.sizes(2, 3, 8)
    wide = _apart(draw, key, d)
    yield Case("other sizes", (draw.normal(d), wide, 5))
    yield Case("eight bits", (draw.normal(d), wide, 8))
    yield Case("as many keys as components", (draw.normal(4), _apart(draw, 4, 4), 4))
    yield Case("a key of zeros stays zeros", (q, torch.cat([keys, 0 * keys[:1]]), 4))
    yield Case("one bit is rejected", (q, keys, 1), refuse=True)
    yield Case("a query of a different width is rejected", (q[1:], keys, 4), refuse=True)


def _apart(draw, key, d):
    """Draw keys whose entries, scaled to at most 8 bits, are never halfway between two integers."""
    whole = draw.wholes(-126, 127, key, d).double() + 0.2 * draw.uniform(key, d)
    whole[:, 0] = 127.0
    return whole / 40


def _bits(q, keys, bits):
    if bits < 2 or q.shape != keys.shape[1:]:
        raise ValueError("expected at least 2 bits and equal widths")


def _scales(keys, top):
    largest = keys.abs().amax(dim=1, keepdim=True)
    return torch.where(largest == 0, 1.0, largest / top)


@quantised_scores.mistake("you use one scale for all keys, so a small key beside a large one is rounded to zero")
def _(q, keys, bits):
    _bits(q, keys, bits)
    scale = _scales(keys.reshape(1, -1), 2 ** (bits - 1) - 1)
    return (keys / scale).round() @ q * scale[0]


@quantised_scores.mistake("divide by 2^(bits - 1) - 1, the largest integer; you divide by one more")
def _(q, keys, bits):
    _bits(q, keys, bits)
    scale = _scales(keys, 2 ** (bits - 1))
    return (keys / scale).round() @ q * scale[:, 0]


@quantised_scores.mistake("the scale is missing when you restore the keys: multiply each integer by it")
def _(q, keys, bits):
    _bits(q, keys, bits)
    return (keys / _scales(keys, 2 ** (bits - 1) - 1)).round() @ q


@quantised_scores.mistake("you truncate: round to the nearest integer")
def _(q, keys, bits):
    _bits(q, keys, bits)
    scale = _scales(keys, 2 ** (bits - 1) - 1)
    return (keys / scale).trunc() @ q * scale[:, 0]


@quantised_scores.mistake("nothing is rounded: those are the scores of the keys themselves")
def _(q, keys, bits):
    _bits(q, keys, bits)
    return keys @ q


@quantised_scores.mistake("your scale ignores the size of negative entries: take the largest absolute value")
def _(q, keys, bits):
    _bits(q, keys, bits)
    largest = keys.amax(dim=1, keepdim=True)
    scale = torch.where(largest == 0, 1.0, largest / (2 ** (bits - 1) - 1))
    return (keys / scale).round() @ q * scale[:, 0]


@quantised_scores.mistake("a key of zeros gives 0 / 0, but it must stay zeros")
def _(q, keys, bits):
    _bits(q, keys, bits)
    scale = keys.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (keys / scale).round() @ q * scale[:, 0]


@quantised_scores.mistake("fewer than 2 bits, and a query of a different width, must be rejected with a ValueError")
def _(q, keys, bits):
    width = min(len(q), keys.shape[1])
    scale = _scales(keys, max(2 ** (bits - 1) - 1, 1))
    return (keys / scale).round()[:, :width] @ q[:width] * scale[:, 0]


@quantised_scores.variant
def _(q, keys, bits):
    # Restore the keys first, one key at a time
    _bits(q, keys, bits)
    top = 2 ** (bits - 1) - 1
    scores = []
    for key in keys:
        scale = key.abs().max() / top
        back = torch.zeros_like(key) if scale == 0 else torch.round(key / scale) * scale
        scores.append(back @ q)
    return torch.stack(scores)


@quantised_scores.variant
def _(q, keys, bits):
    _bits(q, keys, bits)
    scale = _scales(keys, 2 ** (bits - 1) - 1)
    return torch.einsum("kd,d->k", (keys / scale + 0.5).floor() * scale, q)
