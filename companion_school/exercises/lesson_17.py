"""Exercises of lesson 17: a memory in place of a cache."""

import math

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, exercise

# 17.1


@exercise(
    "17.1",
    "What a hybrid keeps",
    task="Count the bytes that a model with tables and a cache stores for a text",
    points=1,
    difficulty=1,
    minutes=8,
    limits={"tokens": (0,), "layers": (1,), "every": (1,)},
    hints=(
        "Which layers have full attention? With `every=4` they are the fourth, the eighth, ..., so there are `layers // every` of them.",
        "A full layer stores `kv_heads * (d_k + d_v)` elements per token, and a linear one `tables * d_k * d_v` in all.",
        "Cached elements and table elements may have different sizes, so multiply each part by its own bytes.",
    ),
)
def hybrid_bytes(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    """In a model with `layers` layers, the last layer in each group of `every` layers has full attention. For each
    token and each of its `kv_heads` heads, such a layer caches a key with `d_k` elements and a value with `d_v`
    elements, of `cached` bytes each. Each of the remaining layers stores `tables` tables with `d_k` rows and `d_v`
    columns, whose elements take `kept` bytes each. How many bytes does the model store after `tokens` tokens? Return an
    `int`.

    ```python
    >>> hybrid_bytes(10, 4, 4, 1, 2, 3, 5, 2, 4)
    520
    ```

    ★
    - Raise a `ValueError` if `tokens` is negative, or `layers` or `every` is below 1.
    """
    ### BEGIN SOLUTION
    if tokens < 0 or layers < 1 or every < 1:
        raise ValueError(
            f"tokens={tokens}, layers={layers}, every={every}: expected tokens >= 0, layers >= 1 and every >= 1"
        )
    full = layers // every
    return full * tokens * kv_heads * (d_k + d_v) * cached + (layers - full) * tables * d_k * d_v * kept
    ### END SOLUTION


@hybrid_bytes.cases
def _(draw):
    yield Case("one group of four", (10, 4, 4, 1, 2, 3, 5, 2, 4))
    yield Case("Qwen3-Next's layers", (1000, 48, 4, 2, 32, 6, 7, 2, 4))
    yield Case("layers that do not fill the last group", (9, 11, 4, 2, 3, 2, 4, 2, 4))
    yield Case("only full attention", (7, 5, 1, 2, 3, 4, 2, 1, 4))
    yield Case("only tables", (7, 3, 8, 2, 3, 4, 2, 2, 2))
    yield Case("no token yet: the tables already take memory", (0, 8, 4, 2, 3, 4, 5, 2, 4))
    yield Case("other sizes", (draw.whole(50, 90), 12, 3, *draw.sizes(4, 2, 9), 2, 4))
    yield Case("a negative number of tokens is rejected", (-1, 4, 4, 1, 2, 3, 5, 2, 4), refuse=True)
    yield Case("zero layers are rejected", (4, 0, 4, 1, 2, 3, 5, 2, 4), refuse=True)
    yield Case("groups of 0 layers are rejected", (4, 4, 0, 1, 2, 3, 5, 2, 4), refuse=True)


def _groups(tokens, layers, every):
    if tokens < 0 or layers < 1 or every < 1:
        raise ValueError("expected tokens >= 0, layers >= 1 and every >= 1")
    return layers // every


@hybrid_bytes.mistake("your tables grow with the text, but a table is as large after a thousand tokens as after one")
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    full = _groups(tokens, layers, every)
    rest = (layers - full) * tables * d_k * d_v * kept
    return full * tokens * kv_heads * (d_k + d_v) * cached + rest * tokens


@hybrid_bytes.mistake(
    "you swapped the two kinds: one layer in each group of `every` has full attention, and the others have tables"
)
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    linear = _groups(tokens, layers, every)
    return (layers - linear) * tokens * kv_heads * (d_k + d_v) * cached + linear * tables * d_k * d_v * kept


@hybrid_bytes.mistake("if the last layers do not fill a group, no full layer follows them: round down")
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    _groups(tokens, layers, every)
    full = -(-layers // every)
    return full * tokens * kv_heads * (d_k + d_v) * cached + (layers - full) * tables * d_k * d_v * kept


@hybrid_bytes.mistake("a table has d_k rows and d_v columns, so it has d_k * d_v elements, not d_k + d_v")
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    full = _groups(tokens, layers, every)
    return full * tokens * kv_heads * (d_k + d_v) * cached + (layers - full) * tables * (d_k + d_v) * kept


@hybrid_bytes.mistake("you counted only the keys: the cache stores d_k + d_v elements per head and token")
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    full = _groups(tokens, layers, every)
    return full * tokens * kv_heads * d_k * cached + (layers - full) * tables * d_k * d_v * kept


@hybrid_bytes.mistake("you used `cached` for the tables: their elements take `kept` bytes")
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    full = _groups(tokens, layers, every)
    return (full * tokens * kv_heads * (d_k + d_v) + (layers - full) * tables * d_k * d_v) * cached


@hybrid_bytes.mistake(
    "a negative number of tokens, and `layers` or `every` below 1, must be rejected with a ValueError"
)
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    full = layers // max(every, 1)
    return full * tokens * kv_heads * (d_k + d_v) * cached + (layers - full) * tables * d_k * d_v * kept


@hybrid_bytes.variant
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    # Count one layer at a time
    if min(layers, every) < 1 or tokens < 0:
        raise ValueError("too small")
    total = 0
    for layer in range(1, layers + 1):
        total += kv_heads * tokens * cached * (d_k + d_v) if layer % every == 0 else kept * tables * d_v * d_k
    return total


@hybrid_bytes.variant
def _(tokens, layers, every, kv_heads, tables, d_k, d_v, cached, kept):
    _groups(tokens, layers, every)
    kinds = [(layer + 1) % every == 0 for layer in range(layers)]
    of_cache, of_table = cached * kv_heads * (d_k * tokens + d_v * tokens), kept * tables * d_k * d_v
    return sum(kinds) * of_cache + (len(kinds) - sum(kinds)) * of_table


# 17.2


@exercise(
    "17.2",
    "Write what is missing",
    task="Write one step of the gated delta rule, for all heads",
    points=3,
    difficulty=2,
    minutes=15,
    right={"gradients": "its answer goes into a model that learns"},
    hints=(
        "Let the table fade first: multiply each head's table by its decay. All later steps use the faded table.",
        "The table returns `torch.einsum('hkv,hk->hv', S, k)` for the key. The missing part is v minus this value.",
        "Add the outer product of the key and the missing part, times the strength. Only then read with q.",
    ),
)
def delta_step(S, q, k, v, decay, write):
    """Process one token in a gated delta layer. `S` (head, d_k, d_v) is the state before the token, `q` and `k` are (head, d_k), `v` is (head, d_v),
    and `decay` and `write` are (head). First the state fades, then the delta rule writes with strength `write`, and then `q` reads the new state.
    Return a pair: the values that `q` reads, (head, d_v), and the new state.

    ```python
    >>> one, half = torch.ones(1, 1), torch.tensor([0.5])
    >>> delta_step(torch.full((1, 1, 1), 4.0), one, one, torch.full((1, 1), 6.0), half, half)
    (tensor([[4.]]), tensor([[[4.]]]))
    ```

    ★
    - Do not change the given state, because the caller may still need it.
    - Raise a `ValueError` if the numbers of heads or the widths do not match.
    """
    ### BEGIN SOLUTION
    if S.shape != (*k.shape, v.shape[1]) or q.shape != k.shape or not len(k) == len(v) == len(decay) == len(write):
        raise ValueError(
            f"S {tuple(S.shape)}, q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: do not match"
        )
    S = decay[:, None, None] * S
    missing = v - torch.einsum("hkv,hk->hv", S, k)
    S = S + k[:, :, None] * (write[:, None] * missing)[:, None]
    return torch.einsum("hkv,hk->hv", S, q), S
    ### END SOLUTION


@delta_step.cases
def _(draw):
    heads, d_k, d_v = draw.sizes(3, 2, 7)
    given = _token(draw, heads, d_k, d_v)
    yield Case("one head", _token(draw, 1, 2, 3))
    yield Case("three sizes, all different", given)
    yield Case("the gradients", given, gradients=True)
    S, q, k, v, decay, write = given
    yield Case("a closed gate", (S, q, k, v, 0 * decay, write))
    yield Case(
        "a strength of 2, which reflects what the table holds for the key",
        (S, q, k / k.norm(dim=-1, keepdim=True), 0 * v, 0 * decay + 1, 0 * write + 2),
    )
    yield Case("nothing is written", (S, q, k, v, decay, 0 * write))
    yield Case("values for fewer heads are rejected", (S, q, k, v[:-1], decay, write), refuse=True)
    yield Case("a key of a different width is rejected", (S, q, k[:, 1:], v, decay, write), refuse=True)
    yield Case("a decay for fewer heads is rejected", (S, q, k, v, decay[:-1], write), refuse=True)


def _token(draw, heads, d_k, d_v):
    rows = draw.normal(heads, d_k, d_v), draw.normal(heads, d_k), draw.normal(heads, d_k), draw.normal(heads, d_v)
    return *rows, draw.uniform(heads), draw.uniform(heads)


def _step(S, q, k, v, decay, write, *, look="faded", read="after", erase=1.0, fades=True):
    if S.shape != (*k.shape, v.shape[1]) or q.shape != k.shape or not len(k) == len(v) == len(decay) == len(write):
        raise ValueError("sizes do not match")
    faded = decay[:, None, None] * S if fades else S
    found = torch.einsum("hkv,hk->hv", faded if look == "faded" else S, k)
    new = faded + k[:, :, None] * (write[:, None] * (v - erase * found))[:, None]
    return torch.einsum("hkv,hk->hv", new if read == "after" else faded, q), new


@delta_step.mistake("you add the value: write what is missing, which is v minus what the key reads")
def _(S, q, k, v, decay, write):
    return _step(S, q, k, v, decay, write, erase=0.0)


@delta_step.mistake("you looked the key up before the state faded: look it up in the faded table")
def _(S, q, k, v, decay, write):
    return _step(S, q, k, v, decay, write, look="before")


@delta_step.mistake("a token reads what it has written itself: write first, then read with q")
def _(S, q, k, v, decay, write):
    return _step(S, q, k, v, decay, write, read="before")


@delta_step.mistake("the state does not fade: multiply each head's table by its decay")
def _(S, q, k, v, decay, write):
    return _step(S, q, k, v, decay, write, fades=False)


@delta_step.mistake("the write strength is missing")
def _(S, q, k, v, decay, write):
    return _step(S, q, k, v, decay, 0 * write + 1)


@delta_step.mistake("you also let the new write fade, but the decay applies only to the old state")
def _(S, q, k, v, decay, write):
    _, new = _step(S, q, k, v, decay, write)
    new = decay[:, None, None] * S + decay[:, None, None] * (new - decay[:, None, None] * S)
    return torch.einsum("hkv,hk->hv", new, q), new


@delta_step.mistake("you read with the key: a token reads with its query, q")
def _(S, q, k, v, decay, write):
    _, new = _step(S, q, k, v, decay, write)
    return torch.einsum("hkv,hk->hv", new, k), new


@delta_step.mistake("return the pair in this order: the result of reading, then the new state")
def _(S, q, k, v, decay, write):
    return _step(S, q, k, v, decay, write)[::-1]


@delta_step.mistake("you changed the given state: create a new one")
def _(S, q, k, v, decay, write):
    read, new = _step(S.clone(), q, k, v, decay, write)
    with torch.no_grad():
        S.copy_(new)
    return read, new


@delta_step.mistake("sizes that do not match must be rejected with a ValueError")
def _(S, q, k, v, decay, write):
    heads, wide = min(map(len, (S, v, decay, write))), k.shape[1]
    return _step(S[:heads, :wide], q[:heads, :wide], k[:heads], v[:heads], decay[:heads], write[:heads])


@delta_step.variant
def _(S, q, k, v, decay, write):
    # Process one head at a time, with the matrix of equation (17.7)
    if len({len(x) for x in (S, q, k, v, decay, write)}) > 1 or S.shape[1:] != (k.shape[1], v.shape[1]):
        raise ValueError("sizes do not match")
    reads, states = [], []
    for one in range(len(S)):
        keeps = torch.eye(k.shape[1], dtype=k.dtype) - write[one] * torch.outer(k[one], k[one])
        states.append(keeps @ S[one] * decay[one] + write[one] * torch.outer(k[one], v[one]))
        reads.append(q[one] @ states[-1])
    return torch.stack(reads), torch.stack(states)


@delta_step.variant
def _(S, q, k, v, decay, write):
    # Use matrix products with one-row matrices
    if S.shape != (len(q), q.shape[1], v.shape[1]) or k.shape != q.shape or len(v) != len(q):
        raise ValueError("sizes do not match")
    if len(decay) != len(q) or len(write) != len(q):
        raise ValueError("heads")
    a, b = decay.view(-1, 1, 1), write.view(-1, 1, 1)
    there = k[:, None] @ S * a
    new = a * S + b * k[:, :, None] @ (v[:, None] - there)
    return (q[:, None] @ new)[:, 0], new


# 17.3


@exercise(
    "17.3",
    "A triangle in place of a loop",
    task="Build a chunk's triangular system, and solve it for the values that the tokens write",
    points=4,
    difficulty=3,
    minutes=20,
    right={"gradients": "its answer goes into a model that learns"},
    excused={
        "levels": "with keys of very different lengths, no method solves the triangular system to many digits",
        "offset": "the same happens with long keys that are nearly equal",
    },
    hints=(
        "Begin without decay. T is write[t] * (k[t] @ k[j]) below the diagonal, and the right-hand side is write * (v - k @ S).",
        "By the time token t reads, what token j wrote has faded by decay[j + 1] * ... * decay[t], and the old table has faded by decay[0] * ... * decay[t].",
        "`torch.linalg.solve_triangular(T, right, upper=False, unitriangular=True)` assumes ones on the diagonal.",
    ),
)
def corrected_values(S, k, v, decay, write):
    """One head of a gated delta layer reads a chunk of tokens. `S` (d_k, d_v) is the table before the chunk, `k` is
    (token, d_k), `v` is (token, d_v), and `decay` and `write` are (token), with all elements above 0. Return a pair:
    the matrix $T$ (token, token) of (17.11), with decay as in (17.12), and the corrected values $\\tilde v_t$ (token,
    d_v) that the tokens write. $T$ is zero on and above the diagonal. For a chunk of one token, it is a 1×1 matrix that
    contains 0.

    ```python
    >>> k, two = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]]), torch.ones(3)
    >>> corrected_values(torch.zeros(2, 1), k, torch.tensor([[5.0], [10.0], [2.0]]), two, two)[1]
    tensor([[ 5.0000],
            [ 7.0000],
            [-7.2000]])
    ```

    ★
    - Raise a `ValueError` if the numbers of tokens or the widths do not match.
    """
    ### BEGIN SOLUTION
    if S.shape != (k.shape[1], v.shape[1]) or not len(k) == len(v) == len(decay) == len(write):
        raise ValueError(f"S {tuple(S.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: do not match")
    log = decay.log().cumsum(0)
    fade, since = (log[:, None] - log).exp(), log.exp()
    T = (write[:, None] * fade * (k @ k.mT)).tril(-1)
    right = write[:, None] * (v - since[:, None] * (k @ S))
    return T, torch.linalg.solve_triangular(T, right, upper=False, unitriangular=True)
    ### END SOLUTION


@corrected_values.cases
def _(draw):
    yield Case("one token", _chunk(draw, 1, 3, 2))
    token, d_k, d_v = draw.sizes(3, 3, 8)
    S, k, v, decay, write = _chunk(draw, token, d_k, d_v)
    yield Case("no decay, an empty table", (0 * S, k, v, 0 * decay + 1, write))
    yield Case("no decay", (S, k, v, 0 * decay + 1, write))
    yield Case("any chunk", (S, k, v, decay, write))
    yield Case("a longer chunk", _chunk(draw, 30, 6, 4))
    yield Case("the gradients", (S, k, v, decay, write), gradients=True)
    yield Case("fewer values are rejected", (S, k, v[1:], decay, write), refuse=True)
    yield Case("a table of a different width is rejected", (S[1:], k, v, decay, write), refuse=True)
    yield Case("fewer strengths are rejected", (S, k, v, decay, write[1:]), refuse=True)


def _chunk(draw, token, d_k, d_v):
    k = draw.normal(token, d_k)
    k = k / k.norm(dim=-1, keepdim=True)
    return (
        draw.normal(d_k, d_v),
        k,
        draw.normal(token, d_v),
        0.5 + draw.uniform(token) / 2,
        0.2 + 0.8 * draw.uniform(token),
    )


def _system(S, k, v, decay, write, *, between="after", old=True, rows=True, diagonal=-1, start="own", right=True):
    if S.shape != (k.shape[1], v.shape[1]) or not len(k) == len(v) == len(decay) == len(write):
        raise ValueError("sizes do not match")
    log = decay.log().cumsum(0)
    fade = {"after": (log[:, None] - log), "from": log[:, None] - log + decay.log(), "none": 0 * (log[:, None] - log)}
    since = {"own": log.exp(), "before": (log - decay.log()).exp(), "none": 0 * log + 1}[start]
    strength = write[:, None] if rows else write
    T = (strength * fade[between].exp() * (k @ k.mT)).tril(diagonal)
    there = since[:, None] * (k @ S) if old else 0
    solved = torch.linalg.solve_triangular(
        T.tril(-1), (write[:, None] if right else 1) * (v - there), upper=False, unitriangular=True
    )
    return T, solved


@corrected_values.mistake(
    "your T is not zero on the diagonal, but a token does not see its own write; the diagonal of ones comes from I"
)
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, diagonal=0)


@corrected_values.mistake("in T, multiply row t by the strength of its token, write[t]")
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, rows=False)


@corrected_values.mistake(
    "the decays are missing from your T: what token j wrote has faded by decay[j + 1] to decay[t] at token t"
)
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, between="none")


@corrected_values.mistake(
    "token j's own decay comes before it writes: between j and t the factors begin with decay[j + 1]"
)
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, between="from")


@corrected_values.mistake("the table from before the chunk is missing: subtract what the key reads from it")
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, old=False)


@corrected_values.mistake(
    "the table from before the chunk must fade: at token t it has faded by all decays up to decay[t]"
)
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, start="none")


@corrected_values.mistake("you left out decay[t]: the table has already faded by it when token t reads")
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, start="before")


@corrected_values.mistake("the strength is missing from the right-hand side: multiply by write[t]")
def _(S, k, v, decay, write):
    return _system(S, k, v, decay, write, right=False)


@corrected_values.mistake(
    "these are the right-hand sides: you did not solve the system, so tokens of the chunk do not see each other's writes"
)
def _(S, k, v, decay, write):
    T, solved = _system(S, k, v, decay, write)
    return T, solved + T @ solved


@corrected_values.mistake("sizes that do not match must be rejected with a ValueError")
def _(S, k, v, decay, write):
    token, wide = min(map(len, (k, v, decay, write))), min(len(S), k.shape[1])
    return _system(S[:wide], k[:token, :wide], v[:token], decay[:token], write[:token])


@corrected_values.variant
def _(S, k, v, decay, write):
    # Process one token at a time, and update the table
    if S.shape[0] != k.shape[1] or S.shape[1] != v.shape[1] or len({len(x) for x in (k, v, decay, write)}) > 1:
        raise ValueError("sizes do not match")
    rows, solved, table = [], [], S
    for t in range(len(k)):
        heard, faded = [], decay.new_ones(())
        for j in range(t, -1, -1):
            heard.append(write[t] * faded * (k[t] * k[j]).sum() if j < t else 0 * write[t])
            faded = faded * decay[j]
        rows.append(torch.stack(heard[::-1] + [0 * write[t]] * (len(k) - t - 1)))
        table = decay[t] * table
        solved.append(write[t] * (v[t] - k[t] @ table))
        table = table + torch.outer(k[t], solved[t])
    return torch.stack(rows), torch.stack(solved)


@corrected_values.variant
def _(S, k, v, decay, write):
    # Use the inverse of I + T, and multiply decays instead of adding their logarithms
    tokens = len(k)
    if S.shape != (k.shape[1], v.shape[1]) or [len(v), len(decay), len(write)] != [tokens] * 3:
        raise ValueError("sizes do not match")
    fade = torch.stack(
        [
            torch.stack([decay[j + 1 : t + 1].prod() if j <= t else 0 * decay[0] for j in range(tokens)])
            for t in range(tokens)
        ]
    )
    T = torch.tril(torch.einsum("t,tj,td,jd->tj", write, fade, k, k), -1)
    right = torch.diag(write) @ (v - torch.cumprod(decay, 0)[:, None] * (k @ S))
    return T, torch.linalg.inv(torch.eye(tokens, dtype=k.dtype) + T) @ right


# 17.4


@exercise(
    "17.4",
    "Know your neighbour",
    task="Write a short convolution that continues where it stopped",
    points=3,
    difficulty=2,
    minutes=15,
    right={"gradients": "its answer goes into a model that learns"},
    hints=(
        "Put `before` in front of the new tokens. Then every new token has all its neighbours.",
        "weight[:, 0] is for the token itself, weight[:, 1] for the one before it, and so on.",
        "The next call needs the last `width - 1` rows of `before` and `x` together.",
    ),
)
def short_convolution(x, weight, before):
    """`x` (token, channel) holds the newest rows of a text, and `before` (width - 1, channel) holds the rows right before them (zeros where
    the text begins). `weight` is (channel, width). Channel $c$ of a new row becomes $\\sum_s \\text{weight}[c, s]\\, x_{t-s}[c]$, a sum over the row
    itself and the `width - 1` rows before it. Return a pair: the new rows, (token, channel), and the rows that the next call needs as `before`,
    (width - 1, channel). There may be fewer new tokens than `width - 1`, or only one.

    ```python
    >>> mixed, kept = short_convolution(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 10.0]]), torch.tensor([[5.0]]))
    >>> mixed.T, kept
    (tensor([[51., 12.]]), tensor([[2.]]))
    ```

    ★
    - Raise a `ValueError` if the numbers of channels or the widths do not match.
    """
    ### BEGIN SOLUTION
    width = weight.shape[1]
    if before.shape != (width - 1, x.shape[1]) or len(weight) != x.shape[1]:
        raise ValueError(
            f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, before {tuple(before.shape)}: channels or widths do not match"
        )
    rows = torch.cat([before, x])
    mixed = sum(weight[:, s] * rows[width - 1 - s : len(rows) - s] for s in range(width))
    return mixed, rows[len(rows) - width + 1 :].clone()
    ### END SOLUTION


@short_convolution.cases
def _(draw):
    token, channel, width = 7, *draw.sizes(2, 2, 5)
    x, weight, before = draw.normal(token, channel), draw.normal(channel, width), draw.normal(width - 1, channel)
    yield Case("two tokens", (draw.normal(2, 1), draw.normal(1, 2), draw.normal(1, 1)))
    yield Case("the beginning of a text", (x, weight, 0 * before))
    yield Case("a text that continues", (x, weight, before))
    yield Case("one token", (x[:1], draw.normal(channel, 4), draw.normal(3, channel)))
    yield Case("fewer tokens than are stored", (x[:2], draw.normal(channel, 6), draw.normal(5, channel)))
    yield Case("width 1 stores nothing", (x, draw.normal(channel, 1), draw.normal(0, channel)))
    yield Case("the gradients", (x, weight, before), gradients=True)
    yield Case("a different number of channels is rejected", (x, weight[1:], before), refuse=True)
    yield Case("too few stored rows are rejected", (x, weight, before[1:]), refuse=True)


def _convolved(x, weight, before, *, flip=False, first=0, keep=None):
    width = weight.shape[1]
    if before.shape != (width - 1, x.shape[1]) or len(weight) != x.shape[1]:
        raise ValueError("sizes do not match")
    rows = torch.cat([before, x])
    used = weight.flip(1) if flip else weight
    mixed = sum(used[:, s] * rows[width - 1 - s : len(rows) - s] for s in range(first, width))
    return mixed, rows[len(rows) - (width - 1 if keep is None else keep) :].clone()


@short_convolution.mistake("weight[:, 0] is for the token itself: your weights are in reverse order")
def _(x, weight, before):
    return _convolved(x, weight, before, flip=True)


@short_convolution.mistake("you do not use `before`, but the first new tokens have neighbours too")
def _(x, weight, before):
    return _convolved(x, weight, 0 * before)[0], _convolved(x, weight, before)[1]


@short_convolution.mistake("you return the old rows: the next call needs the newest rows")
def _(x, weight, before):
    return _convolved(x, weight, before)[0], before.clone()


@short_convolution.mistake("you return mixed rows for the next call, but it needs the input rows")
def _(x, weight, before):
    mixed, _ = _convolved(x, weight, before)
    rows = torch.cat([before, mixed])
    return mixed, rows[len(rows) - len(before) :].clone()


@short_convolution.mistake("a token's neighbours come before it, but you use the tokens after it")
def _(x, weight, before):
    _, kept = _convolved(x, weight, before)
    rows = torch.cat([x, 0 * before])
    return sum(weight[:, s] * rows[s : s + len(x)] for s in range(weight.shape[1])), kept


@short_convolution.mistake("each channel has its own weights and does not see other channels")
def _(x, weight, before):
    _, kept = _convolved(x, weight, before)
    rows = torch.cat([before, x]).mean(1, keepdim=True)
    width = weight.shape[1]
    return sum(weight[:, s] * rows[width - 1 - s : len(rows) - s] for s in range(width)), kept


@short_convolution.mistake("if there are fewer new tokens than `width - 1`, some of the old rows are needed again")
def _(x, weight, before):
    mixed, _ = _convolved(x, weight, before)
    last = x[max(len(x) - len(before), 0) :]
    return mixed, torch.cat([0 * before[: len(before) - len(last)], last])


@short_convolution.mistake("channels or widths that do not match must be rejected with a ValueError")
def _(x, weight, before):
    wide, width = min(x.shape[1], len(weight)), min(weight.shape[1], len(before) + 1)
    return _convolved(x[:, :wide], weight[:wide, :width], before[len(before) - width + 1 :, :wide])


@short_convolution.variant
def _(x, weight, before):
    # Use PyTorch's convolution, whose weights go from the oldest row to the newest
    channels, width = weight.shape
    if before.shape != (width - 1, channels) or x.shape[1] != channels:
        raise ValueError("sizes do not match")
    rows = torch.cat([before, x])
    mixed = torch.nn.functional.conv1d(rows.T[None], weight.flip(1)[:, None], groups=channels)[0].T
    return mixed, rows[len(x) :].clone()


@short_convolution.variant
def _(x, weight, before):
    # Process one token at a time, with a rolling list of rows
    if len(weight) != x.shape[1] or before.shape != (weight.shape[1] - 1, x.shape[1]):
        raise ValueError("sizes do not match")
    kept, out = list(before), []
    for row in x:
        near = [row, *kept[::-1]]
        out.append(sum(weight[:, s] * near[s] for s in range(len(near))))
        kept = [*kept, row][1:] if kept else []
    return torch.stack(out), torch.stack(kept) if kept else before.clone()


# 17.5


@exercise(
    "17.5",
    "Never across texts",
    task="Compute how far each write has faded in a row of several texts",
    points=2,
    difficulty=2,
    minutes=12,
    robust={"a closed gate": "the lesson's decays are above 0"},
    hints=(
        "Entry (t, j) is the product of decay[j + 1] to decay[t]. On the diagonal the product is empty: 1.",
        "It is 0 where j comes after t, and where the two tokens belong to different texts.",
        "A decay of 0 has no logarithm, so go through the tokens. Row t is row t - 1 times decay[t], with a 1 at position t.",
    ),
)
def faded(decay, text):
    """`decay` (token) holds a layer's decays, from 0 to 1, for a row of tokens that contains several texts, one after
    another. `text` (token) gives the text of each token as an integer: tokens of the same text share the same integer.
    Return the matrix (token, token) that says what fraction of token $j$'s write is left when token $t$ reads. Each
    entry is the product of the decays after $j$ up to $t$, or 0 if $j$ comes later than $t$ or belongs to another text.

    ```python
    >>> faded(torch.tensor([0.9, 0.5, 0.2, 0.1]), torch.tensor([0, 0, 0, 1]))
    tensor([[1.0000, 0.0000, 0.0000, 0.0000],
            [0.5000, 1.0000, 0.0000, 0.0000],
            [0.1000, 0.2000, 1.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 1.0000]])
    ```

    ★
    - A decay of 0 cuts off what was written before it, but it makes no other entry 0, infinite or NaN.
    - Raise a `ValueError` if `decay` and `text` have different lengths.
    """
    ### BEGIN SOLUTION
    if decay.shape != text.shape:
        raise ValueError(
            f"decay {tuple(decay.shape)}, text {tuple(text.shape)}: expected one decay and one text index per token"
        )
    rows, row = [], torch.zeros_like(decay)
    for t in range(len(decay)):
        row = row * decay[t] * (text == text[t])
        row = torch.where(torch.arange(len(decay)) == t, torch.ones_like(row), row)
        rows.append(row)
    return torch.stack(rows)
    ### END SOLUTION


@faded.cases
def _(draw):
    ids = torch.tensor
    decay = 0.3 + 0.7 * draw.uniform(9)
    yield Case("one token", (decay[:1], ids([3])))
    yield Case("one text", (decay, ids([0] * 9)))
    yield Case("two texts", (decay, ids([0] * 4 + [1] * 5)))
    yield Case("texts of one token", (decay, ids([4, 7, 7, 2, 2, 2, 9, 1, 1])))
    yield Case("nothing fades", (0 * decay + 1, ids([0] * 5 + [1] * 4)))
    shut = decay.clone()
    shut[3], shut[6] = 0, 0
    yield Case("a closed gate", (shut, ids([0] * 9)))
    yield Case("a decay for fewer tokens is rejected", (decay[1:], ids([0] * 9)), refuse=True)
    token = draw.whole(33, 50)
    yield Case(LARGE, (0.8 + 0.2 * draw.uniform(token), draw.wholes(0, 3, token).sort().values))


def _left(decay, text, *, first=1, last=1, across=False, later=False):
    if decay.shape != text.shape:
        raise ValueError("expected one decay and one text index per token")
    n = len(decay)
    out = torch.zeros(n, n, dtype=decay.dtype)
    for t in range(n):
        for j in range(n if later else t + 1):
            if across or text[t] == text[j]:
                a, b = min(t, j), max(t, j)
                out[t, j] = decay[a + first : b + last].prod()
    return out


@faded.mistake("a token's own decay comes before it writes, so the product begins after j")
def _(decay, text):
    return _left(decay, text, first=0)


@faded.mistake("when token t reads, the table has already faded at t, so the product includes decay[t]")
def _(decay, text):
    return _left(decay, text, last=0)


@faded.mistake("a token must not read from another text")
def _(decay, text):
    return _left(decay, text, across=True)


@faded.mistake("a token must not read from tokens after it")
def _(decay, text):
    return _left(decay, text, later=True)


@faded.mistake("you swapped rows and columns: row t is for what token t reads")
def _(decay, text):
    return _left(decay, text).T.contiguous()


@faded.mistake("a decay of 0 has no logarithm: entries after it must not become infinite or NaN")
def _(decay, text):
    _left(decay, text)
    log = decay.log().cumsum(0)
    return (log[:, None] - log).exp().tril() * (text[:, None] == text)


@faded.mistake("a `decay` and a `text` of different lengths must be rejected with a ValueError")
def _(decay, text):
    n = min(len(decay), len(text))
    return _left(decay[:n], text[:n])


@faded.variant
def _(decay, text):
    # Compute the products one entry at a time
    if len(decay) != len(text):
        raise ValueError("lengths")
    rows = []
    for t in range(len(decay)):
        row = [0.0] * len(decay)
        left = 1.0
        for j in range(t, -1, -1):
            if text[j] != text[t]:
                break
            row[j], left = left, left * decay[j].item()
        rows.append(row)
    return torch.tensor(rows, dtype=decay.dtype)


@faded.variant
def _(decay, text):
    # Compute all columns at once, as running products of ones and decays
    if decay.shape != text.shape:
        raise ValueError("shapes")
    n = len(decay)
    after = torch.arange(n)[:, None] > torch.arange(n)
    factors = torch.where(after, decay[:, None].expand(n, n), torch.ones(n, n, dtype=decay.dtype))
    seen = (text[:, None] == text) & torch.ones(n, n, dtype=torch.bool).tril()
    return factors.cumprod(0) * seen


# 17.6


@exercise(
    "17.6",
    "The longest number",
    task="Find the longest text that a state can copy",
    points=2,
    difficulty=3,
    minutes=12,
    limits={"numbers": (0,), "bits": (0,), "symbols": (2,)},
    hints=(
        "How many different states are there? Each element of the state has 2 ** bits possible values.",
        "How many different texts of n symbols are there? No two of them may lead to the same state.",
        "Find the largest n with symbols ** n <= 2 ** (numbers * bits). Python's integers are exact; logarithms are not.",
    ),
)
def longest_copy(numbers, bits, symbols):
    """A model reads a text over an alphabet of `symbols` different symbols, and stores only a state of `numbers` elements with `bits` bits each.
    Then it has to reproduce the text from this state. Return the largest length, an `int`, for which this is possible
    for *every* text of that length. The result must be exact even if a power of `symbols` equals the number of states
    or exceeds it by one.

    ```python
    >>> longest_copy(2, 5, 10)
    3
    ```

    ★
    - Raise a `ValueError` if `symbols` is below 2, or `numbers` or `bits` is negative.
    """
    ### BEGIN SOLUTION
    if symbols < 2 or numbers < 0 or bits < 0:
        raise ValueError(
            f"numbers={numbers}, bits={bits}, symbols={symbols}: expected numbers >= 0, bits >= 0 and symbols >= 2"
        )
    states, length, texts = 2 ** (numbers * bits), 0, 1
    while texts * symbols <= states:
        length, texts = length + 1, texts * symbols
    return length
    ### END SOLUTION


@longest_copy.cases
def _(draw):
    yield Case("ten bits hold three digits", (2, 5, 10))
    yield Case("as many states as texts", (3, 4, 8))
    yield Case("one text too many", (1, 1, 3))
    yield Case("an empty state holds nothing", (0, 16, 10))
    yield Case("symbols of one bit", (7, 9, 2))
    yield Case("a table of 8 by 8", (64, 16, 10))
    yield Case("very large powers", (26, 8, 4))
    yield Case("other sizes", (draw.whole(20, 60), draw.whole(8, 16), draw.whole(11, 40)))
    yield Case("one symbol is rejected", (2, 5, 1), refuse=True)
    yield Case("a negative number of elements is rejected", (-1, 5, 10), refuse=True)
    yield Case("a negative number of bits is rejected", (2, -5, 10), refuse=True)


def _states(numbers, bits, symbols):
    if symbols < 2 or numbers < 0 or bits < 0:
        raise ValueError("too few")
    return numbers * bits


def _most(states, symbols):
    length = 0
    while symbols ** (length + 1) <= states:
        length += 1
    return length


@longest_copy.mistake("you rounded up, but there are more texts of this length than states")
def _(numbers, bits, symbols):
    return math.ceil(_states(numbers, bits, symbols) / math.log2(symbols))


@longest_copy.mistake("an element of `bits` bits has 2 ** bits values, not `bits` values")
def _(numbers, bits, symbols):
    _states(numbers, bits, symbols)
    return _most(max(bits, 1) ** numbers, symbols)


@longest_copy.mistake("a symbol takes log2(symbols) bits, not one")
def _(numbers, bits, symbols):
    return _states(numbers, bits, symbols)


@longest_copy.mistake(
    "a symbol need not take a whole number of bits: two digits share seven bits, although one digit needs four"
)
def _(numbers, bits, symbols):
    return _states(numbers, bits, symbols) // (symbols - 1).bit_length()


@longest_copy.mistake("use the logarithm to base 2, because you count bits")
def _(numbers, bits, symbols):
    return int(_states(numbers, bits, symbols) / math.log(symbols))


@longest_copy.mistake("copying still works with exactly as many texts as states: you required fewer texts")
def _(numbers, bits, symbols):
    states, length = 2 ** _states(numbers, bits, symbols), 0
    while symbols ** (length + 1) < states:
        length += 1
    return length


@longest_copy.mistake(
    "fewer than two symbols, and a negative number of elements or bits, must be rejected with a ValueError"
)
def _(numbers, bits, symbols):
    return _most(2 ** max(numbers * bits, 0), symbols) if symbols > 1 else 0


@longest_copy.variant
def _(numbers, bits, symbols):
    # Divide the number of states repeatedly
    if symbols < 2 or min(numbers, bits) < 0:
        raise ValueError("too few")
    left, length = 1 << numbers * bits, 0
    while left >= symbols:
        left //= symbols
        length += 1
    return length


@longest_copy.variant
def _(numbers, bits, symbols):
    # Use bisection
    if symbols <= 1 or numbers < 0 or bits < 0:
        raise ValueError("too few")
    states, low, high = pow(2, numbers * bits), 0, numbers * bits + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if symbols**middle <= states else (low, middle)
    return low
