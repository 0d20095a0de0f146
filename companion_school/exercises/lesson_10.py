"""Exercises for lesson 10: generation and the KV cache."""

import math

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, Group, exercise

# 10.1


@exercise(
    "10.1",
    "How large is the cache?",
    task="Count the bytes of a model's KV cache",
    points=1,
    difficulty=1,
    minutes=5,
    robust={
        "more bytes than a float can represent exactly": "no memory is that large",
    },
    hints=(
        "How many elements does one slot of one layer hold, for one key-value head?",
        "How many such slots are there in all layers, heads, texts and tokens?",
        "(10.9) gives the bytes of one token of one text. Reject a bad `kv_heads` before you compute.",
    ),
)
def cache_size_in_bytes(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    """Return the number of bytes that the keys and values in a model's cache take up. The model has `layers` layers,
    `heads` query heads and `kv_heads` key-value heads, with keys of width `d_k` and values of width `d_v` per head. The
    cache holds `batch` texts of `tokens` tokens each, and an element takes `number` bytes.

    ```python
    >>> cache_size_in_bytes(2, 4, 1, 8, 8, 1, 10, 2)
    640
    ```

    ★
    - Raise a `ValueError` if `kv_heads` does not divide `heads`.
    - The result is an `int`, exact beyond $2^{53}$.
    """
    ### BEGIN SOLUTION
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: expected a divisor of heads={heads}")
    return layers * kv_heads * (d_k + d_v) * batch * tokens * number
    ### END SOLUTION


@cache_size_in_bytes.cases
def _(draw):
    yield Case("one layer, one head, one token", (1, 1, 1, 3, 2, 1, 1, 2))
    yield Case("one layer, one text, a few tokens", (1, 1, 1, 3, 2, 1, 7, 4))
    layers, kv_heads, batch, tokens = draw.sizes(4, 2, 9)
    yield Case("as many key heads as query heads", (layers, kv_heads, kv_heads, 6, 5, batch, tokens, 2))
    d_k, d_v = draw.sizes(2, 10, 20)
    yield Case(
        "three query heads share one key-value head", (layers, 3 * kv_heads, kv_heads, d_k, d_v, batch, tokens, 2)
    )
    yield Case("3 key-value heads for 4 query heads are rejected", (3, 4, 3, 6, 5, 7, 11, 2), refuse=True)
    yield Case("more key-value heads than query heads are rejected", (3, 2, 4, 6, 5, 7, 11, 2), refuse=True)
    yield Case("more bytes than a float can represent exactly", (1, 1, 1, 2**53, 1, 1, 1, 1))


@cache_size_in_bytes.mistake("you counted query heads; the cache holds key-value heads only")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * heads * (d_k + d_v) * batch * tokens * number


@cache_size_in_bytes.mistake("a value is d_v wide, not d_k")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * 2 * d_k * batch * tokens * number


@cache_size_in_bytes.mistake("a key is d_k wide, not d_v")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * 2 * d_v * batch * tokens * number


@cache_size_in_bytes.mistake("the values are missing: a slot holds a key and a value")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * d_k * batch * tokens * number


@cache_size_in_bytes.mistake("you counted twice: d_k + d_v already covers a key and a value")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * 2 * (d_k + d_v) * batch * tokens * number


@cache_size_in_bytes.mistake("you left out the batch: every text has its own cache")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * (d_k + d_v) * tokens * number


@cache_size_in_bytes.mistake("you left out the layers: every layer has its own cache")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return kv_heads * (d_k + d_v) * batch * tokens * number


@cache_size_in_bytes.mistake("you counted elements, not bytes: multiply by the bytes of an element")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * (d_k + d_v) * batch * tokens


@cache_size_in_bytes.mistake("queries are not cached, because old queries are never used again")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * (heads * d_k + kv_heads * (d_k + d_v)) * batch * tokens * number


@cache_size_in_bytes.mistake("that is the size for one token; the cache holds all tokens")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * (d_k + d_v) * batch * number


@cache_size_in_bytes.mistake("a number of key-value heads that does not divide the query heads must raise a ValueError")
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    return layers * kv_heads * (d_k + d_v) * batch * tokens * number


@cache_size_in_bytes.variant
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    # create the tensors on the meta device, which stores no data, and read their sizes
    if heads % kv_heads != 0:
        raise ValueError("query heads cannot be divided evenly")
    shapes = [(batch, kv_heads, tokens, width) for _ in range(layers) for width in (d_k, d_v)]
    return sum(torch.empty(shape, device="meta").numel() for shape in shapes) * number


@cache_size_in_bytes.variant
def _(layers, heads, kv_heads, d_k, d_v, batch, tokens, number):
    if heads // kv_heads * kv_heads != heads:
        raise ValueError(f"{kv_heads} does not divide {heads}")
    of_keys = math.prod((layers, batch, kv_heads, tokens, d_k, number))
    of_values = math.prod((layers, batch, kv_heads, tokens, d_v, number))
    return of_keys + of_values


# 10.2


@exercise(
    "10.2",
    "The cached step",
    task="Write one step of attention with a cache",
    points=4,
    difficulty=2,
    minutes=20,
    robust={
        "scores in the thousands": "scores of the lesson are around 1",
    },
    hints=(
        "`x[:, None] @ w_q` broadcasts (batch, 1, 1, d_model) against (head, d_model, d_k) and gives (batch, head, 1, d_k).",
        "Append with `torch.cat(..., dim=2)`, which makes new tensors and does not change the old ones.",
        "Compute the scores, divide by the square root of d_k, take the softmax over the last axis, and multiply by the "
        "values. Compare `keys.shape[2]` with `values.shape[2]` before anything else.",
    ),
)
def cached_step(x, w_q, w_k, w_v, keys, values):
    """Compute one step of one attention layer, and return `(out, keys, values)`, which are $o_i$, $K$ and $V$ of (10.1)
    and (10.2). `x` (batch, 1, d_model) is the newest slot; `w_q` and `w_k` are (head, d_model, d_k), and `w_v` is
    (head, d_model, d_v). `keys` (batch, head, slot, d_k) and `values` (batch, head, slot, d_v) are the cache, and slot
    may be 0. The newest slot comes last. `out` is (batch, head, 1, d_v), because heads are not merged. Nothing is
    rotated.

    ```python
    >>> cached_step(torch.tensor([[[1.0]]]), *[torch.tensor([[[2.0]]])] * 3, torch.zeros(1, 1, 0, 1), torch.zeros(1, 1, 0, 1))
    (tensor([[[[2.]]]]), tensor([[[[2.]]]]), tensor([[[[2.]]]]))
    ```

    ★
    - Raise a `ValueError` if `keys` and `values` have different numbers of slots.
    - Do not change the old `keys` and `values`. Scores in the thousands do not overflow.
    """
    ### BEGIN SOLUTION
    if keys.shape[2] != values.shape[2]:
        raise ValueError(f"{keys.shape[2]} keys and {values.shape[2]} values: expected the same number of slots")
    x = x[:, None]
    keys = torch.cat((keys, x @ w_k), dim=2)
    values = torch.cat((values, x @ w_v), dim=2)
    weights = torch.softmax(x @ w_q @ keys.transpose(2, 3) / math.sqrt(keys.shape[3]), dim=-1)
    return weights @ values, keys, values
    ### END SOLUTION


@cached_step.cases
def _(draw):
    def step(batch, heads, d, d_k, d_v, slots):
        return (
            draw.normal(batch, 1, d),
            draw.normal(heads, d, d_k),
            draw.normal(heads, d, d_k),
            draw.normal(heads, d, d_v),
            draw.normal(batch, heads, slots, d_k),
            draw.normal(batch, heads, slots, d_v),
        )

    yield Case("the first token: nothing is cached yet", step(1, 1, 3, 2, 2, 0))
    yield Case("one text, one head, one slot in the cache", step(1, 1, 4, 3, 2, 1))
    batch, heads, d, d_k, d_v, slots = draw.sizes(6, 2, 9)
    arguments = step(batch, heads, d, d_k, d_v, slots)
    yield Case("batch, head, slot, d_k and d_v all different", arguments)
    yield Case("scores in the thousands", (1000 * arguments[0], *arguments[1:]))
    yield Case("fewer values than keys are rejected", (*arguments[:5], arguments[5][:, :, 1:]), refuse=True)


def _projected(x, w_q, w_k, w_v):
    return x[:, None] @ w_q, x[:, None] @ w_k, x[:, None] @ w_v


def _longer(keys, values, k, v):
    return torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)


@cached_step.mistake("the softmax is missing: these are scores, not weights")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return q @ keys.mT / math.sqrt(k.shape[-1]) @ values, keys, values


@cached_step.mistake("your scores are not divided by the square root of d_k")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ keys.mT, dim=-1) @ values, keys, values


@cached_step.mistake("your scores are divided by d_k, not by its square root")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ keys.mT / k.shape[-1], dim=-1) @ values, keys, values


@cached_step.mistake("your scores are divided by the square root of d_v; the sum runs over d_k components")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ keys.mT / math.sqrt(v.shape[-1]), dim=-1) @ values, keys, values


@cached_step.mistake("your scores are divided by the square root of d_model; each head has d_k components")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ keys.mT / math.sqrt(x.shape[-1]), dim=-1) @ values, keys, values


@cached_step.mistake("the new token must see itself: append first, then attend")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    out = torch.softmax(q @ keys.mT / math.sqrt(k.shape[-1]), dim=-1) @ values
    return out, *_longer(keys, values, k, v)


@cached_step.mistake("your softmax runs over the queries: there is one, so all weights are 1")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ keys.mT / math.sqrt(k.shape[-1]), dim=2) @ values, keys, values


@cached_step.mistake(
    "with a causal flag, a single query sees only the first key, so you get the first value back; use no mask"
)
def _(x, w_q, w_k, w_v, keys, values):
    _, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return values[:, :, :1], keys, values


@cached_step.mistake("the newest slot comes last: you put it before the old ones")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(k, v, keys, values)
    return torch.softmax(q @ keys.mT / math.sqrt(k.shape[-1]), dim=-1) @ values, keys, values


@cached_step.mistake(
    "keys and values are swapped in your attention: scores use the keys, and the weights average the values"
)
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ values.mT / math.sqrt(q.shape[-1]), dim=-1) @ keys, keys, values


@cached_step.mistake("the new key is computed with w_q, which gives the query")
def _(x, w_q, w_k, w_v, keys, values):
    q, _, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, q, v)
    return torch.softmax(q @ keys.mT / math.sqrt(q.shape[-1]), dim=-1) @ values, keys, values


@cached_step.mistake("the newest slot sees only itself: attend to the cached slots, too")
def _(x, w_q, w_k, w_v, keys, values):
    _, k, v = _projected(x, w_q, w_k, w_v)
    return v, *_longer(keys, values, k, v)


@cached_step.mistake("you return only the new key and value; return the whole cache, or the next step has no past")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    return torch.softmax(q @ keys.mT / math.sqrt(k.shape[-1]), dim=-1) @ values, k, v


@cached_step.mistake("you return the cache unchanged: the newest slot is not in it, and the next step will miss it")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    longer, longer_values = _longer(keys, values, k, v)
    return torch.softmax(q @ longer.mT / math.sqrt(k.shape[-1]), dim=-1) @ longer_values, keys, values


@cached_step.mistake("your exponentials overflow: subtract the largest score, or use torch.softmax")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    keys, values = _longer(keys, values, k, v)
    e = (q @ keys.mT / math.sqrt(k.shape[-1])).exp()
    return e / e.sum(-1, keepdim=True) @ values, keys, values


@cached_step.mistake("a cache with more keys than values must raise a ValueError")
def _(x, w_q, w_k, w_v, keys, values):
    q, k, v = _projected(x, w_q, w_k, w_v)
    slots = min(keys.shape[2], values.shape[2])
    keys, values = _longer(keys[:, :, :slots], values[:, :, :slots], k, v)
    return torch.softmax(q @ keys.mT / math.sqrt(k.shape[-1]), dim=-1) @ values, keys, values


@cached_step.variant
def _(x, w_q, w_k, w_v, keys, values):
    # fill a preallocated cache, and use PyTorch's operator without its causal flag
    batch, heads, slots, d_k = keys.shape
    if values.shape[2] != slots:
        raise ValueError("expected as many keys as values")
    new_keys = keys.new_empty(batch, heads, slots + 1, d_k)
    new_values = values.new_empty(batch, heads, slots + 1, values.shape[3])
    new_keys[:, :, :slots], new_values[:, :, :slots] = keys, values
    new_keys[:, :, slots] = torch.einsum("bd,hde->bhe", x[:, 0], w_k)
    new_values[:, :, slots] = torch.einsum("bd,hde->bhe", x[:, 0], w_v)
    q = torch.einsum("bnd,hde->bhne", x, w_q)
    return torch.nn.functional.scaled_dot_product_attention(q, new_keys, new_values), new_keys, new_values


@cached_step.variant
def _(x, w_q, w_k, w_v, keys, values):
    # process one text and one head at a time, and add up the values slot by slot
    if keys.shape[-2] != values.shape[-2]:
        raise ValueError(f"{keys.shape} and {values.shape}")
    outs, all_keys, all_values = [], [], []
    for b in range(x.shape[0]):
        for h in range(w_q.shape[0]):
            q, k, v = x[b, 0] @ w_q[h], x[b, 0] @ w_k[h], x[b, 0] @ w_v[h]
            old = [*keys[b, h], k]
            scores = torch.stack([q @ key for key in old]) / len(q) ** 0.5
            e = (scores - scores.max()).exp()
            outs.append(
                sum(weight * value for weight, value in zip(e / e.sum(), [*values[b, h], v], strict=True))[None]
            )
            all_keys.append(torch.stack(old))
            all_values.append(torch.stack([*values[b, h], v]))
    shape = x.shape[0], w_q.shape[0]
    return [torch.stack(parts).unflatten(0, shape) for parts in (outs, all_keys, all_values)]


# 10.3


@exercise(
    "10.3",
    "Another cut: min-p",
    task="Cut a distribution at a fraction of its largest probability",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"m": (1.0,)},
    exact_zero=True,
    excused={
        "dtype": "one of its correct answers always computes in float64",
        "nan": "the statement does not mention NaN logits",
    },
    robust={
        "logits near 1000": "logits of the lesson are around 1",
        "a token just below the bound is cut": "the difference is too small to matter in the lesson",
        "a token exactly half as probable as the first, with m = 1/2": "rounding decides",
    },
    hints=(
        "Apply the softmax first.",
        "The threshold is m times the largest probability; tokens below it get zero.",
        "Divide by the sum of the remaining probabilities. With m = 1 the most probable token must stay, so compare with >=.",
    ),
)
def min_p(logits, m):
    """Min-p keeps the tokens whose probability is at least `m` times that of the *most probable* token, and rescales
    them to a sum of 1, as (10.4) does. Return the probabilities for `logits` (vocab), with the same shape and with
    exact zeros for the tokens that are cut.

    ```python
    >>> min_p(torch.tensor([0.5, 0.3, 0.2]).log(), 0.5)
    tensor([0.6250, 0.3750, 0.0000])
    ```

    ★
    - Raise a `ValueError` unless `0 < m <= 1`.
    - Logits of 1,000 do not overflow; a token that meets the bound exactly is not cut.
    """
    ### BEGIN SOLUTION
    if not 0 < m <= 1:
        raise ValueError(f"m={m}: expected 0 < m <= 1")
    p = torch.softmax(logits, dim=-1)
    kept = torch.where(p >= m * p.max(), p, 0.0)
    return kept / kept.sum()
    ### END SOLUTION


_NOUNS = torch.tensor([0.40, 0.25, 0.15, 0.10, 0.06, 0.04], dtype=torch.float64)  # the lesson's example


@min_p.cases
def _(draw):
    logits = _NOUNS.log() + 1.7
    yield Case("the lesson's six nouns: mat, floor and chair have 0.12 or more", (logits, 0.3))
    yield Case("with m = 1 the most probable token stays", (logits, 1.0))
    yield Case("every logit is negative", (_NOUNS.log() - 1.0, 0.3))
    vocab = draw.whole(20, 40)
    any_logits = 2 * draw.normal(vocab)
    yield Case("any logits, in any order", (any_logits, 0.05 + 0.2 * draw.uniform(1).item()))
    yield Case("logits near 1000", (1000 + draw.normal(7), 0.4))
    yield Case("an m of 0 is rejected", (logits, 0.0), refuse=True)
    yield Case("an m above 1 is rejected", (logits, 1.5), refuse=True)
    yield Case(
        "tokens as probable as the most probable one stay", (torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), 1.0)
    )
    near = torch.tensor([1.0, 0.4999999, 0.3], dtype=torch.float64).log()
    yield Case("a token just below the bound is cut", (near, 0.5))
    half = torch.tensor([0.0, -math.log(2), -2.5], dtype=torch.float64)  # exactly half, however it is computed
    yield Case("a token exactly half as probable as the first, with m = 1/2", (half, 0.5))


@min_p.mistake("m is a share of the largest probability, not a probability itself")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    kept = torch.where(p >= m, p, 0.0)
    return kept / kept.sum()


@min_p.mistake("the kept probabilities must sum to one: divide by their sum")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    return torch.where(p >= m * p.max(), p, 0.0)


@min_p.mistake("you compared logits, not probabilities: take the softmax first")
def _(logits, m):
    kept = torch.where(logits >= m * logits.max(), torch.softmax(logits, dim=-1), 0.0)
    return kept / kept.sum()


@min_p.mistake("compare with >=, not with >: the most probable token must always stay")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    kept = torch.where(p > m * p.max(), p, 0.0)
    return kept / kept.sum()


@min_p.mistake("you kept the improbable tokens and cut the probable ones")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    kept = torch.where(p <= m * p.max(), p, 0.0)
    return kept / kept.sum()


@min_p.mistake(
    "you took the softmax of the cut probabilities, where a zero contributes e^0 = 1; divide by the sum instead"
)
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    return torch.softmax(torch.where(p >= m * p.max(), p, 0.0), dim=-1)


@min_p.mistake("you replaced the cut logits by 0, and e^0 is 1: use minus infinity")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    return torch.softmax(torch.where(p >= m * p.max(), logits, 0.0), dim=-1)


@min_p.mistake("you kept the tokens whose sum reaches m; that is top-p")
def _(logits, m):
    p, order = torch.softmax(logits, dim=-1).sort(descending=True)
    kept = torch.where(p.cumsum(0) - p < m, p, 0.0)
    return torch.zeros_like(p).scatter(0, order, kept / kept.sum())


@min_p.mistake("you cut tokens below m times the mean, not m times the largest probability")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    kept = torch.where(p >= m * p.mean(), p, 0.0)
    return kept / kept.sum()


@min_p.mistake("e^1000 is infinite: subtract the largest logit first, or use torch.softmax")
def _(logits, m):
    p = logits.exp() / logits.exp().sum()
    kept = torch.where(p >= m * p.max(), p, 0.0)
    return kept / kept.sum()


@min_p.mistake("an m of 0, or above 1, must raise a ValueError")
def _(logits, m):
    p = torch.softmax(logits, dim=-1)
    kept = torch.where(p >= min(m, 1.0) * p.max(), p, 0.0)
    return kept / kept.sum()


@min_p.variant
def _(logits, m):
    # compare logits: p_i >= m p_max is equivalent to z_i >= z_max + ln m
    if not m > 0 or not m <= 1:
        raise ValueError("m must be above 0 and at most 1")
    return torch.softmax(logits.masked_fill(logits < logits.max() + math.log(m), -math.inf), dim=0)


@min_p.variant
def _(logits, m):
    # use lists, and process one token at a time
    if not (m > 0 and m <= 1):
        raise ValueError(f"{m=}")
    z = logits.tolist()
    relative = [math.exp(score - max(z)) for score in z]  # 1 for the most probable token
    kept = [score if score >= m else 0.0 for score in relative]
    return torch.tensor([score / sum(kept) for score in kept], dtype=torch.float64)


# 10.4


@exercise(
    "10.4",
    "Move a cache",
    task="Rotate cached keys to earlier positions",
    points=3,
    difficulty=3,
    minutes=20,
    limits={"by": (0,)},
    excused={"dtype": "one of its correct answers always computes in float64"},
    hints=(
        "Rotations add up: R(a) R(b) = R(a + b), lesson 05.",
        "Which rotation R(a) changes every R(n) to R(n - by)? Is it the same for all slots?",
        "Rotate each pair of every slot by the angle -by times the pair's frequency. The minus sign changes only the sign of the sines.",
    ),
)
def shift_keys(keys, by, base):
    """A full cache drops its `by` oldest tokens. The keys that remain were rotated to positions `by`, `by + 1`, ...,
    and must move to the positions 0, 1 and so on. Return the keys rotated to these positions, *without* knowing the
    unrotated keys. `keys` is (batch, kv_head, slot, d_head), and slot may be 0. The layout is `half`: at position $n$
    the pair $(a, b)$ of components $i$ and $i + d_{head}/2$ was rotated to $(a \\cos \\alpha - b \\sin \\alpha,\\ a
    \\sin \\alpha + b \\cos \\alpha)$ with $\\alpha = n \\cdot \\text{base}^{-2i/d_{head}}$.

    ```python
    >>> shift_keys(torch.tensor([[[[math.cos(3), math.sin(3)]]]]), 3, 10000.0).round(decimals=4).abs()
    tensor([[[[1., 0.]]]])
    ```

    ★
    - Raise a `ValueError` if `by` is negative.
    """
    ### BEGIN SOLUTION
    if by < 0:
        raise ValueError(f"by={by}: expected at least 0 positions")
    d_head = keys.shape[-1]
    angle = -by * base ** (-torch.arange(0, d_head, 2, dtype=keys.dtype) / d_head)  # the same for every slot
    a, b = keys.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)
    ### END SOLUTION


def _turned(x, positions, base, interleaved=False, exponent=2):
    """Rotate x (..., token, d_head) to positions (..., token), as in the statements of 10.4 and 10.6."""
    d = x.shape[-1]
    pairs = torch.arange(d // 2, dtype=torch.float64)
    angle = torch.as_tensor(positions, dtype=torch.float64)[..., None] * base ** (-exponent * pairs / d)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    parts = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)


@shift_keys.cases
def _(draw):
    yield Case("one slot, one pair", (draw.normal(1, 1, 1, 2), 1, 10000.0))
    yield Case("one slot, three pairs", (draw.normal(1, 1, 1, 6), 2, 10000.0))
    batch, heads, slots, by = draw.sizes(4, 2, 7)
    keys = _turned(draw.normal(batch, heads, slots, 8), by + torch.arange(slots), 10000.0)
    yield Case("batch, head and slot all different", (keys, by, 10000.0))
    other = _turned(draw.normal(batch, heads, slots, 6), by + torch.arange(slots), 500.0)
    yield Case("another base", (other, by, 500.0))
    yield Case("nothing dropped, nothing moved", (keys, 0, 10000.0))
    yield Case("everything dropped", (keys[:, :, :0], by, 10000.0))
    yield Case("a negative number of positions is rejected", (keys, -1, 10000.0), refuse=True)


@shift_keys.mistake("you rotated in the wrong direction: that moves the keys `by` positions later, not earlier")
def _(keys, by, base):
    return _turned(keys, by, base)


@shift_keys.mistake(
    "each slot was rotated by a different angle, back to position 0; all of them move by the same distance"
)
def _(keys, by, base):
    return _turned(keys, -by - torch.arange(keys.shape[2]), base)


@shift_keys.mistake("you rotated the rotated keys to 0, 1, ...: the old rotation is still in them")
def _(keys, by, base):
    return _turned(keys, torch.arange(keys.shape[2]), base)


@shift_keys.mistake("you rotated each slot back by its new position; all of them move back by the same distance")
def _(keys, by, base):
    return _turned(keys, -torch.arange(keys.shape[2]), base)


@shift_keys.mistake("you rotated nothing: the keys are still at their old positions")
def _(keys, by, base):
    return keys.clone()


@shift_keys.mistake("you moved the slots instead of rotating the keys in them")
def _(keys, by, base):
    return keys.roll(-by, dims=2)


@shift_keys.mistake("you dropped `by` more slots: the given keys are those that remain")
def _(keys, by, base):
    return _turned(keys, -by, base)[:, :, by:]


@shift_keys.mistake("your layout is interleaved: components i and i + d_head/2 make a pair, not 2i and 2i + 1")
def _(keys, by, base):
    return _turned(keys, -by, base, interleaved=True)


@shift_keys.mistake("the base is an argument; you used 10,000")
def _(keys, by, base):
    return _turned(keys, -by, 10000.0)


@shift_keys.mistake("your frequencies are base^(-i/d_head); the exponent is -2i/d_head")
def _(keys, by, base):
    return _turned(keys, -by, base, exponent=1)


@shift_keys.mistake("all pairs are rotated by the same angle; each pair has its own frequency")
def _(keys, by, base):
    return _turned(keys, -by, base, exponent=0)


@shift_keys.mistake("a sign is wrong: that is a reflection, not a rotation; only one of the two sines has a minus sign")
def _(keys, by, base):
    c = _turned(torch.cat((torch.ones(keys.shape[-1] // 2), torch.zeros(keys.shape[-1] // 2))).double(), -by, base)
    cos, sin = c.chunk(2, dim=-1)
    a, b = keys.chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, a * sin + b * cos), dim=-1)


@shift_keys.mistake("a negative `by` must raise a ValueError")
def _(keys, by, base):
    return _turned(keys, -by, base)


@shift_keys.variant
def _(keys, by, base):
    # use complex numbers: a pair is a + ib, and a rotation is multiplication by a number of modulus one
    if by < 0:
        raise ValueError("by must be at least 0")
    half = keys.shape[3] // 2
    pairs = torch.complex(keys[..., :half].contiguous(), keys[..., half:].contiguous())
    omega = torch.exp(-math.log(base) * torch.arange(half, dtype=torch.float64) / half)
    moved = pairs * torch.polar(torch.ones(half, dtype=torch.float64), -by * omega)
    return torch.cat((moved.real, moved.imag), dim=3)


@shift_keys.variant
def _(keys, by, base):
    # write the whole rotation as one matrix, R(by), and multiply by it from the right (which is R(-by) on columns)
    if not by >= 0:
        raise ValueError(f"by = {by}")
    d = keys.shape[-1]
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for i in range(d // 2):
        alpha, j = by / base ** (2 * i / d), i + d // 2
        matrix[i, i] = matrix[j, j] = math.cos(alpha)
        matrix[j, i], matrix[i, j] = math.sin(alpha), -math.sin(alpha)
    return keys @ matrix


# 10.5


@exercise(
    "10.5",
    "Temperature, then top-p",
    task="Compute next-token probabilities with a temperature and top-p",
    points=3,
    difficulty=2,
    minutes=15,
    limits={"share": (1.0,)},
    exact_zero=True,
    excused={
        "dtype": "one of its correct answers always computes in float64",
        "tie": "no two logits are equal",
    },
    robust={
        "a temperature so low that logits divided by it overflow": "no lesson uses such a low temperature",
        "a share of one keeps even the least probable tokens": "the difference is too small to matter in the lesson",
        "two tokens that reach the share exactly": "rounding decides",
        "two tokens that miss it by a billionth": "rounding decides",
        "logits less than a thousandth apart, and an equally low temperature": "no lesson uses such a low temperature",
    },
    hints=(
        "Divide the logits by the temperature before the softmax; then sort the probabilities, the largest first.",
        "A token is in the set if the sum *before* it in that order has not reached the share yet.",
        "`p.sort(descending=True)` gives the order, too, and `torch.zeros_like(p).scatter(0, order, kept)` restores the original order.",
    ),
)
def temperature_top_p(logits, temperature, share):
    """Apply the temperature (10.3), then top-p: keep the smallest set of most probable tokens whose probabilities *reach* the `share`, including
    the token that reaches it. Return the probabilities of the next token, a tensor (vocab), in the order of `logits`, with exact
    zeros for the tokens that are cut. With a share of 1 nothing is cut. No two logits are equal.

    ```python
    >>> temperature_top_p(torch.tensor([0.2, 0.5, 0.3]).log(), 1.0, 0.7)
    tensor([0.0000, 0.6250, 0.3750])
    ```

    ★
    - Raise a `ValueError` unless `temperature > 0` and `0 < share <= 1`.
    - The result is right for a share that is met exactly or missed by a billionth, and for very low temperatures.
    """
    ### BEGIN SOLUTION
    if not temperature > 0 or not 0 < share <= 1:
        raise ValueError(f"temperature={temperature}, share={share}: expected temperature > 0 and 0 < share <= 1")
    z = (logits - logits.max()) / temperature  # the largest is 0, so nothing overflows at any temperature
    p, order = torch.softmax(z, dim=-1).sort(descending=True)
    before = p.cumsum(0) - p
    kept = torch.where((before < share) | (share == 1), p, 0.0)  # the running sum may round to 1 early
    return torch.zeros_like(p).scatter(0, order, kept / kept.sum())
    ### END SOLUTION


@temperature_top_p.cases
def _(draw):
    logits = _NOUNS.log() + 1.7
    yield Case("the lesson's six nouns: it takes four tokens to reach 0.85", (logits, 1.0, 0.85))
    yield Case("a share below the largest probability keeps one token", (logits, 1.0, 0.3))
    yield Case(
        "temperature 2: it takes four tokens to reach 0.7, and three without the temperature", (logits, 2.0, 0.7)
    )
    yield Case("a share of one keeps everything", (logits, 0.8, 1.0))
    mixed = logits[torch.tensor([3, 0, 5, 1, 4, 2])]
    yield Case("logits in any order", (mixed, 0.7, 0.85))
    many = draw.normal(draw.whole(10, 20))
    yield Case("any logits, any temperature", (many, 0.6 + draw.uniform(1).item(), 0.5 + 0.3 * draw.uniform(1).item()))
    yield Case("a temperature so low that logits divided by it overflow", (logits, 1e-310, 0.9))
    rare = torch.tensor([0.0, -40.0, -41.0], dtype=torch.float64)
    yield Case("a share of one keeps even the least probable tokens", (rare, 1.0, 1.0), tolerance=1e-30)
    sixteenths = torch.tensor([8.0, 4.0, 3.0, 1.0], dtype=torch.float64).log()  # sums are exact in any order
    yield Case("two tokens that reach the share exactly", (sixteenths, 1.0, 0.75))
    yield Case("two tokens that miss it by a billionth", (sixteenths, 1.0, 0.75 + 1e-9))
    yield Case("a temperature of 0 is rejected", (logits, 0.0, 0.9), refuse=True)
    yield Case("a share of 0 is rejected", (logits, 1.0, 0.0), refuse=True)
    yield Case("a share above 1 is rejected", (logits, 1.0, 1.2), refuse=True)
    yield Case("logits less than a thousandth apart, and an equally low temperature", (1e-4 * logits, 1e-4, 0.85))
    yield Case("a negative temperature is rejected", (logits, -1.0, 0.9), refuse=True)
    yield Case("a temperature that is not a number is rejected", (logits, math.nan, 0.9), refuse=True)
    yield Case("a share just above 1 is rejected", (logits, 1.0, 1.01), refuse=True)
    yield Case(LARGE, (draw.normal(draw.whole(33, 60)), 0.6 + draw.uniform(1).item(), 0.8))


def _cut(p, keeps):
    """Keep the probabilities for which `keeps(sorted p, sum of those before each)` is true, and renormalize them."""
    p, order = p.sort(descending=True)
    kept = torch.where(keeps(p, p.cumsum(0) - p), p, 0.0)
    return torch.zeros_like(p).scatter(0, order, kept / kept.sum())


@temperature_top_p.mistake("you dropped the token that brings the sum to the share; it must stay")
def _(logits, temperature, share):
    return _cut(torch.softmax(logits / temperature, dim=-1), lambda p, before: before + p <= share)


@temperature_top_p.mistake("you kept one token too many: stop at the one that brings the sum to the share")
def _(logits, temperature, share):
    return _cut(torch.softmax(logits / temperature, dim=-1), lambda p, before: before.roll(1).index_fill(0, torch.tensor(0), 0.0) < share)  # fmt: skip


@temperature_top_p.mistake(
    "you cut before you applied the temperature, but the temperature changes how many tokens reach the share"
)
def _(logits, temperature, share):
    p = _cut(torch.softmax(logits, dim=-1), lambda p, before: before < share) ** (1 / temperature)
    return p / p.sum()


@temperature_top_p.mistake(
    "your temperature divides the probabilities, where it cancels: divide the logits, before the softmax"
)
def _(logits, temperature, share):
    p = torch.softmax(logits, dim=-1) / temperature
    return _cut(p / p.sum(), lambda p, before: before < share)


@temperature_top_p.mistake(
    "you multiplied by the temperature: divide by it, so that a large one flattens the distribution"
)
def _(logits, temperature, share):
    return _cut(torch.softmax(logits * temperature, dim=-1), lambda p, before: before < share)


@temperature_top_p.mistake("the kept probabilities must sum to one: divide by their sum")
def _(logits, temperature, share):
    p, order = torch.softmax(logits / temperature, dim=-1).sort(descending=True)
    return torch.zeros_like(p).scatter(0, order, torch.where(p.cumsum(0) - p < share, p, 0.0))


@temperature_top_p.mistake("your result is in sorted order: put each probability back at its token's index")
def _(logits, temperature, share):
    p = torch.softmax(logits / temperature, dim=-1).sort(descending=True).values
    kept = torch.where(p.cumsum(0) - p < share, p, 0.0)
    return kept / kept.sum()


@temperature_top_p.mistake("you began with the least probable token: sort with the largest first")
def _(logits, temperature, share):
    p, order = torch.softmax(logits / temperature, dim=-1).sort()
    kept = torch.where(p.cumsum(0) - p < share, p, 0.0)
    return torch.zeros_like(p).scatter(0, order, kept / kept.sum())


@temperature_top_p.mistake("you added up in the tokens' own order: sort them first, the most probable first")
def _(logits, temperature, share):
    p = torch.softmax(logits / temperature, dim=-1)
    kept = torch.where(p.cumsum(0) - p < share, p, 0.0)
    return kept / kept.sum()


@temperature_top_p.mistake(
    "logits divided by a very low temperature overflow, and infinity minus infinity is NaN: subtract the largest first"
)
def _(logits, temperature, share):
    if not temperature > 0 or not 0 < share <= 1:
        raise ValueError("expected temperature > 0 and 0 < share <= 1")
    return _cut(torch.softmax(logits / temperature, dim=-1), lambda p, before: before < share)


@temperature_top_p.mistake("that is min-p: the share is a share of the total, not of the largest probability")
def _(logits, temperature, share):
    return _cut(torch.softmax(logits / temperature, dim=-1), lambda p, before: p >= share * p.max())


@temperature_top_p.mistake("a temperature or a share out of range must raise a ValueError")
def _(logits, temperature, share):
    return _cut(torch.softmax(logits / max(temperature, 1e-3), dim=-1), lambda p, before: before < max(share, 1e-9))


@temperature_top_p.variant
def _(logits, temperature, share):
    # process one token after the other in plain Python
    if not temperature > 0 or not (share > 0 and share <= 1):
        raise ValueError(f"{temperature=}, {share=}: expected a temperature above 0, and a share above 0 and at most 1")
    z = logits.tolist()
    e = [math.exp((score - max(z)) / temperature) for score in z]
    p = [score / sum(e) for score in e]
    out, mass = [0.0] * len(p), 0.0
    for token in sorted(range(len(p)), key=p.__getitem__, reverse=True):
        if mass >= share and share < 1:
            break
        out[token] = p[token]
        mass += p[token]
    return torch.tensor(out, dtype=torch.float64) / mass


@temperature_top_p.variant
def _(logits, temperature, share):
    # without sorting: for each token, `before` is the total probability of the more probable ones
    if not temperature > 0:
        raise ValueError(f"{temperature=}")
    if not 0 < share <= 1:
        raise ValueError(f"{share=}")
    z = (logits - logits.max()) / temperature
    before = torch.where(z[None] > z[:, None], torch.softmax(z, 0)[None], 0.0).sum(1)
    return torch.softmax(torch.where((before < share) | (share == 1), z, -torch.inf), dim=0)


# 10.6


@exercise(
    "10.6",
    "Texts of unequal length, in one cache",
    task="Write into a cache of ragged texts, and attend to it",
    points=5,
    difficulty=3,
    minutes=40,
    groups=(
        Group(
            "one text, one token at a time", 2, ("the first token of a text", "one text, one token, two in the cache")
        ),
        Group(
            "one text, several tokens at once",
            1,
            ("one text, three tokens at once: a later one is hidden", "a prompt: three tokens and an empty cache"),
        ),
        Group(
            "texts of different lengths",
            1,
            ("texts of different lengths, one token each", "different lengths and several tokens"),
        ),
        Group("any base, full and free slots", 1),
    ),
    robust={
        "garbage in the free slots may be NaN or infinity": "the lesson's free slots are finite",
        "a score far below those of empty slots": "scores of the lesson are around 1",
    },
    excused={"dtype": "one of its correct answers always computes in float64"},
    hints=(
        "In row b, token i of the call is at position lengths[b] + i. That is also the slot to write it into.",
        "Rotate q and k to these positions, (batch, 1, token), because every row has its own positions. The keys in the cache have already been rotated.",
        "The token at position p may look at the slots 0 ... p, which hides both the garbage and the later tokens of the call. "
        "torch.arange(slots) <= position[..., None] is (batch, token, slot), so add the head axis.",
    ),
)
def ragged_step(q, k, v, keys, values, lengths, base):
    """Texts of different lengths share one cache. `q`, `k` (batch, head, token, d_head) and `v` (batch, head, token,
    d_v) belong to this call's tokens and are **not yet rotated**. In row `b` of `keys` (batch, head, slot, d_head) and
    `values` (batch, head, slot, d_v), the first `lengths[b]` slots are filled; the others hold garbage. Write the
    tokens into the next free slots, rotated as in 10.4, and attend causally within each row, with scores divided by
    $\\sqrt{d_{head}}$. Return `(out, keys, values, lengths)` after the call.

    ```python
    >>> ragged_step(*[torch.ones(1, 1, 1, 2)] * 3, torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.tensor([0]), 10000.0)
    (tensor([[[[1., 1.]]]]), tensor([[[[1., 1.]]]]), tensor([[[[1., 1.]]]]), tensor([1]))
    ```

    ★
    - Raise a `ValueError` if the tokens do not fit into the slots of some row.
    - Garbage may be NaN or infinity.
    - Do not change the given `keys` and `values`.
    """
    ### BEGIN SOLUTION
    batch, _, tokens, d_head = q.shape
    slots = keys.shape[2]
    if int(lengths.max()) + tokens > slots:
        raise ValueError(f"{tokens} tokens after {int(lengths.max())} cached ones do not fit into {slots} slots")
    positions = lengths[:, None] + torch.arange(tokens)  # (batch, token)
    frequencies = base ** (-torch.arange(0, d_head, 2, dtype=q.dtype) / d_head)
    angles = positions[:, None, :, None] * frequencies  # (batch, 1, token, pair): the same for all heads of a row
    cos, sin = angles.cos(), angles.sin()

    def rotate(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    q, k, keys, values = rotate(q), rotate(k), keys.clone(), values.clone()
    for row in range(batch):
        keys[row, :, positions[row]] = k[row]
        values[row, :, positions[row]] = v[row]
    may_look = torch.arange(slots) <= positions[..., None]  # (batch, token, slot)
    scores = q @ keys.transpose(2, 3) / math.sqrt(d_head)
    weights = torch.softmax(scores.masked_fill(~may_look[:, None], -math.inf), dim=-1)
    filled = torch.arange(slots) < (lengths + tokens)[:, None]  # (batch, slot)
    seen = values.masked_fill(~filled[:, None, :, None], 0.0)  # zero times NaN is NaN, so replace garbage
    return weights @ seen, keys, values, lengths + tokens
    ### END SOLUTION


@ragged_step.cases
def _(draw):
    def call(lengths, heads, tokens, slots, d_head, d_v, base=10000.0):
        batch = len(lengths)
        return (
            draw.normal(batch, heads, tokens, d_head),
            draw.normal(batch, heads, tokens, d_head),
            draw.normal(batch, heads, tokens, d_v),
            draw.normal(batch, heads, slots, d_head),
            draw.normal(batch, heads, slots, d_v),
            torch.tensor(lengths),
            base,
        )

    yield Case("the first token of a text", call([0], 1, 1, 3, 2, 2))
    yield Case("one text, one token, two in the cache", call([2], 1, 1, 4, 2, 4))
    yield Case("one text, three tokens at once: a later one is hidden", call([2], 1, 3, 6, 4, 3))
    yield Case("a prompt: three tokens and an empty cache", call([0], 2, 3, 4, 4, 5))
    yield Case("texts of different lengths, one token each", call([1, 4, 2], 2, 1, 6, 4, 6))
    lengths = draw.shuffled(6)[:3].tolist()
    heads, tokens = draw.sizes(2, 2, 5)
    slots = max(lengths) + tokens + 1
    yield Case("different lengths and several tokens", call(lengths, heads, tokens, slots, 6, 8))
    yield Case("another base", call(lengths, heads, tokens, slots, 6, 8, 300.0))
    yield Case("the last free slot is used", call([3, 5], 2, 2, 7, 4, 3))
    broken = call([1, 3], 2, 2, 6, 4, 3)
    for part, bad in zip(broken[3:5], (math.nan, math.inf), strict=True):
        part[0, :, 3:], part[1, :, 5:] = bad, math.nan
    yield Case("garbage in the free slots may be NaN or infinity", broken)
    yield Case("a row without enough free slots is rejected", call([1, 6], 2, 2, 7, 4, 3), refuse=True)
    far = torch.tensor([[[[1e6, 0.0]]]], dtype=torch.float64)
    empty = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    first = (far, -far, far / 1e6, empty, empty, torch.tensor([0]), 100.0)
    yield Case("a score far below those of empty slots", first)


def _written(new, old, places):
    old = old.clone()
    for row in range(old.shape[0]):
        old[row, :, places[row]] = new[row]
    return old


def _attended(q, keys, values, look, scale=None):
    scores = q @ keys.mT / (scale or math.sqrt(q.shape[-1]))
    return torch.softmax(scores.masked_fill(~look, -math.inf), dim=-1) @ values


def _places(lengths, tokens):
    return lengths[:, None] + torch.arange(tokens)


def _up_to(places, slots):
    return (torch.arange(slots) <= places[..., None])[:, None]


def _ragged(
    q, k, v, keys, values, lengths, base,
    *, at=None, at_query=None, slots=None, look=None, scale=None, bumped=None, stored=None, interleaved=False, wipe=False,
):  # fmt: skip
    """Compute the step with the given parts replaced."""
    tokens, room = q.shape[2], keys.shape[2]
    if int(lengths.max()) + tokens > room:
        raise ValueError("the tokens do not fit into the cache")
    right = _places(lengths, tokens)
    at = right if at is None else at
    at_query = at if at_query is None else at_query
    slots = right if slots is None else slots
    turned = _turned(k, at[:, None], base, interleaved)
    kept = torch.zeros_like(keys) if wipe else keys
    seen = _written(turned, kept, slots)
    new_values = _written(v, values, slots)
    look = _up_to(right, room) if look is None else look
    out = _attended(_turned(q, at_query[:, None], base, interleaved), seen, new_values, look, scale)
    given_back = seen if stored is None else _written(stored, keys, slots)
    return out, given_back, new_values, lengths + tokens if bumped is None else bumped


@ragged_step.mistake(
    "your positions are counted from the beginning of the call: the first new token is at lengths[b], not at 0"
)
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at=_places(0 * lengths, q.shape[2]))


@ragged_step.mistake(
    "all tokens of the call have the position of the first: continue with lengths[b], lengths[b] + 1 and so on"
)
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at=_places(lengths, q.shape[2])[:, :1].expand(-1, q.shape[2]))


@ragged_step.mistake("every row has the positions of the first row: each text has its own length")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at=_places(lengths, q.shape[2])[:1].expand(len(lengths), -1))


@ragged_step.mistake("every row has the positions of the longest text: each text has its own length")
def _(q, k, v, keys, values, lengths, base):
    longest = lengths.max().expand(len(lengths))
    return _ragged(q, k, v, keys, values, lengths, base, at=_places(longest, q.shape[2]))


@ragged_step.mistake("every row writes into the slots after the first row's length: each text has its own free slots")
def _(q, k, v, keys, values, lengths, base):
    places = _places(lengths, q.shape[2])[:1].expand(len(lengths), -1).clamp(max=keys.shape[2] - 1)
    return _ragged(q, k, v, keys, values, lengths, base, slots=places)


@ragged_step.mistake("you write after the longest text in every row, and leave a gap of garbage in the shorter ones")
def _(q, k, v, keys, values, lengths, base):
    longest = lengths.max().expand(len(lengths))
    return _ragged(q, k, v, keys, values, lengths, base, slots=_places(longest, q.shape[2]))


@ragged_step.mistake(
    "the tokens of one call see each other's future: several tokens at once need a causal mask between them"
)
def _(q, k, v, keys, values, lengths, base):
    last = (lengths + q.shape[2] - 1)[:, None].expand(-1, q.shape[2])
    return _ragged(q, k, v, keys, values, lengths, base, look=_up_to(last, keys.shape[2]))


@ragged_step.mistake("there is no mask: the slots that are not filled yet hold garbage, and you attend to it")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, look=torch.ones(keys.shape[2], dtype=torch.bool))


@ragged_step.mistake(
    "your causal mask is in the top left corner: the first new token sees only the first slot, not all cached ones"
)
def _(q, k, v, keys, values, lengths, base):
    look = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool).tril()
    return _ragged(q, k, v, keys, values, lengths, base, look=look)


@ragged_step.mistake("the first row's mask is used for all rows: each text has its own length")
def _(q, k, v, keys, values, lengths, base):
    look = _up_to(_places(lengths, q.shape[2]), keys.shape[2])[:1]
    return _ragged(q, k, v, keys, values, lengths, base, look=look)


@ragged_step.mistake("a new token does not see itself: the mask is off by one; it must include slots 0 ... p")
def _(q, k, v, keys, values, lengths, base):
    look = _up_to(_places(lengths, q.shape[2]) - 1, keys.shape[2])
    return _ragged(q, k, v, keys, values, lengths, base, look=look)


@ragged_step.mistake("your mask is off by one: a token sees the slot after its own")
def _(q, k, v, keys, values, lengths, base):
    look = _up_to(_places(lengths, q.shape[2]) + 1, keys.shape[2])
    return _ragged(q, k, v, keys, values, lengths, base, look=look)


@ragged_step.mistake("a weight of 0 times NaN is NaN: replace the contents of the free slots before you multiply")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base)


@ragged_step.mistake("you rotate the cached keys again: they were rotated when they were written")
def _(q, k, v, keys, values, lengths, base):
    tokens, room = q.shape[2], keys.shape[2]
    places = _places(lengths, tokens)
    again = _turned(_written(k, keys, places), torch.arange(room), base)
    new_values = _written(v, values, places)
    out = _attended(_turned(q, places[:, None], base), again, new_values, _up_to(places, room))
    return out, _written(_turned(k, places[:, None], base), keys, places), new_values, lengths + tokens


@ragged_step.mistake("you rotate the cached keys again, and store the result: they were rotated when they were written")
def _(q, k, v, keys, values, lengths, base):
    tokens, room = q.shape[2], keys.shape[2]
    places = _places(lengths, tokens)
    again = _turned(_written(k, keys, places), torch.arange(room), base)
    new_values = _written(v, values, places)
    out = _attended(_turned(q, places[:, None], base), again, new_values, _up_to(places, room))
    return out, again, new_values, lengths + tokens


@ragged_step.mistake("the new keys are not rotated: queries are, so the score depends on the position of the text")
def _(q, k, v, keys, values, lengths, base):
    places = _places(lengths, q.shape[2])
    return _ragged(q, k, v, keys, values, lengths, base, at=0 * places, at_query=places)


@ragged_step.mistake("the queries are not rotated: both queries and keys must be")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at_query=0 * _places(lengths, q.shape[2]))


@ragged_step.mistake("neither queries nor new keys are rotated")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at=0 * _places(lengths, q.shape[2]))


@ragged_step.mistake("out is right, but the cache gets the keys from before the rotation: store the rotated ones")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, stored=k)


@ragged_step.mistake("you rotated the values, too: only queries and keys are rotated")
def _(q, k, v, keys, values, lengths, base):
    turned = _turned(v, _places(lengths, q.shape[2])[:, None], base)
    return _ragged(q, k, turned, keys, values, lengths, base)


@ragged_step.mistake("positions are counted from 0: the first token of a text is not rotated at all")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at=_places(lengths, q.shape[2]) + 1)


@ragged_step.mistake(
    "you rotate in the wrong direction: the minus sign belongs before b sin, in the first component of the pair"
)
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, at=-_places(lengths, q.shape[2]))


@ragged_step.mistake("your layout is interleaved: components i and i + d_head/2 make a pair, not 2i and 2i + 1")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, interleaved=True)


@ragged_step.mistake("the base is an argument; you used 10,000")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, 10000.0)


@ragged_step.mistake("your scores are not divided by the square root of d_head")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, scale=1.0)


@ragged_step.mistake("the returned lengths are those from before the call: they must count the new tokens")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, bumped=lengths.clone())


@ragged_step.mistake("the lengths grew by 1, not by the number of tokens in the call")
def _(q, k, v, keys, values, lengths, base):
    return _ragged(q, k, v, keys, values, lengths, base, bumped=lengths + 1)


@ragged_step.mistake("tokens that do not fit must raise a ValueError; you write over the last slot")
def _(q, k, v, keys, values, lengths, base):
    places = _places(lengths, q.shape[2]).clamp(max=keys.shape[2] - 1)
    new_keys, new_values = _written(_turned(k, places[:, None], base), keys, places), _written(v, values, places)
    out = _attended(_turned(q, places[:, None], base), new_keys, new_values, _up_to(places, keys.shape[2]))
    return out, new_keys, new_values, lengths + q.shape[2]


@ragged_step.variant
def _(q, k, v, keys, values, lengths, base):
    # process one text and one token at a time, without a mask
    batch, _, tokens, d = q.shape
    if any(length + tokens > keys.shape[2] for length in lengths.tolist()):
        raise ValueError("the cache is full")

    def turn(x, n):
        y = x.clone()
        for i in range(d // 2):
            c, s, j = math.cos(n / base ** (2 * i / d)), math.sin(n / base ** (2 * i / d)), i + d // 2
            y[:, i], y[:, j] = x[:, i] * c - x[:, j] * s, x[:, i] * s + x[:, j] * c
        return y

    new_keys, new_values, out = keys.clone(), values.clone(), torch.empty_like(v)
    for b in range(batch):
        for t in range(tokens):
            n = int(lengths[b]) + t
            new_keys[b, :, n], new_values[b, :, n] = turn(k[b, :, t], n), v[b, :, t]
            scores = torch.einsum("hd,hsd->hs", turn(q[b, :, t], n), new_keys[b, :, : n + 1]) * d**-0.5
            out[b, :, t] = torch.einsum("hs,hsv->hv", scores.softmax(-1), new_values[b, :, : n + 1])
    return out, new_keys, new_values, lengths + tokens


@ragged_step.variant
def _(q, k, v, keys, values, lengths, base):
    # rotate complex numbers, scatter, and use PyTorch's attention with a boolean mask
    (_, heads, tokens, d), slots = q.shape, keys.shape[2]
    if (lengths + tokens > slots).any():
        raise ValueError(f"{lengths.tolist()} + {tokens} tokens, {slots} slots")
    n = torch.stack([torch.arange(start, start + tokens) for start in lengths.tolist()])
    omega = base ** (torch.arange(d // 2, dtype=torch.float64) * (-2 / d))
    factor = torch.exp(1j * (n[:, None, :, None] * omega))

    def turn(x):
        z = torch.complex(x[..., : d // 2].contiguous(), x[..., d // 2 :].contiguous()) * factor
        return torch.cat((z.real, z.imag), -1)

    where = n[:, None, :, None]
    new_keys = keys.scatter(2, where.expand(-1, heads, -1, d), turn(k))
    new_values = values.scatter(2, where.expand(-1, heads, -1, v.shape[3]), v)
    mask = torch.arange(slots)[None, None, None] <= where
    free = torch.arange(slots)[:, None] > where[:, :, -1:]
    known = (cache.masked_fill(free, 0.0) for cache in (new_keys, new_values))
    out = torch.nn.functional.scaled_dot_product_attention(turn(q), *known, attn_mask=mask)
    return [out, new_keys, new_values, lengths + tokens]


# 10.7


@exercise(
    "10.7",
    "One step of beam search",
    task="Extend several texts by one token and keep the best",
    points=3,
    difficulty=3,
    minutes=20,
    limits={"width": (1,)},
    excused={
        "dtype": "one of its correct answers always computes in float64",
        "tie": "no two of the best are equally probable",
        "nan": "the statement does not mention NaN scores",
        "one": "with a single token in the vocabulary, a text has fewer than `width` continuations",
    },
    robust={
        "a long text, and continuations that differ by a billionth": "the difference is too small to matter in the lesson",
    },
    hints=(
        "How do the product (10.5) and its logarithm change when one token is added to the text?",
        "All beams compete, so add scores[:, None], flatten the (beam, vocab) table, and take the `width` largest entries.",
        "Index j of the flattened table belongs to beam j // vocab and token j % vocab.",
    ),
)
def extend_beams(scores, log_probabilities, width):
    """`scores` (beam) are the log-probabilities of the current texts, the logarithms of (10.5). `log_probabilities`
    (beam, vocab) holds the log-probability of each next token after each text, and $-\\infty$ where that token is
    impossible. Extend each text by every token, and keep the `width` best continuations. Return `(scores, beams,
    tokens)`, each (width), **best first**: the log-probability of the longer text, the index of the old text, and the
    new token. `width` may differ from the number of old beams. No two of the best continuations are equally probable.

    ```python
    >>> extend_beams(torch.tensor([-1.0, -2.0]), torch.tensor([[-3.0, -0.5], [-0.1, -4.0]]), 2)
    (tensor([-1.5000, -2.1000]), tensor([0, 1]), tensor([1, 0]))
    ```

    ★
    - Raise a `ValueError` if `width < 1`, or if there are fewer than `width` continuations, including impossible ones.
    - The indices of texts and tokens are `int64`.
    """
    ### BEGIN SOLUTION
    beams, vocab = log_probabilities.shape
    if not 1 <= width <= beams * vocab:
        raise ValueError(f"width={width}: expected 1 to {beams * vocab}, the number of continuations")
    longer = (scores[:, None] + log_probabilities).flatten()
    best, place = longer.topk(width)
    return best, place // vocab, place % vocab
    ### END SOLUTION


@extend_beams.cases
def _(draw):
    words = torch.tensor([0.5, 0.4], dtype=torch.float64).log()
    after = torch.tensor([[0.40, 0.35, 0.25], [0.90, 0.06, 0.04]], dtype=torch.float64).log()
    yield Case("the lesson's tree: 'the dog' overtakes 'a dog'", (words, after, 2))
    yield Case("a beam of one, at the start of a text", (torch.zeros(1, dtype=torch.float64), after[:1], 1))
    vocab, width = draw.sizes(2, 3, 7)
    flat = (0.3 * draw.normal(2, vocab)).log_softmax(-1)
    ahead = torch.tensor([-8.0, -1.5], dtype=torch.float64)
    yield Case("one text is so far ahead that it has all the best continuations", (ahead, flat, 3))
    beams, vocab, width = 3, 9 + draw.whole(0, 4), 5 + draw.whole(0, 2)
    table = (2 * draw.normal(beams, vocab)).log_softmax(-1)
    yield Case("more beams than before", (-1 - 0.5 * draw.uniform(beams), table, width))
    yield Case("fewer beams than before", (-1 - 0.5 * draw.uniform(beams), table, 2))
    few = draw.normal(2, 3).log_softmax(dim=-1)
    yield Case("all continuations", (-draw.uniform(2), few, 6))
    impossible = table.clone()
    impossible[:, 1] = -math.inf
    impossible[0, 1:] = -math.inf
    yield Case("impossible tokens", (-1 - 0.5 * draw.uniform(beams), impossible, 4))
    yield Case("a width of 0 is rejected", (words, after, 0), refuse=True)
    yield Case("a width above the number of continuations is rejected", (words, after, 7), refuse=True)
    close = torch.tensor([[-3.0, -1.0 - 1e-9, -1.0], [-2.0, -4.0, -5.0]], dtype=torch.float64)
    yield Case(
        "a long text, and continuations that differ by a billionth", (torch.full((2,), -900.0).double(), close, 2)
    )
    wide = (2 * draw.normal(beams, draw.whole(33, 50))).log_softmax(-1)
    yield Case(LARGE, (-1 - 0.5 * draw.uniform(beams), wide, width))


@extend_beams.mistake("the scores of the old texts are missing: add them to the log-probabilities of the tokens")
def _(scores, log_probabilities, width):
    best, place = log_probabilities.flatten().topk(width)
    vocab = log_probabilities.shape[1]
    return best, place // vocab, place % vocab


@extend_beams.mistake("you ranked the tokens on their own and added the old scores afterwards: rank by the sum")
def _(scores, log_probabilities, width):
    best, place = log_probabilities.flatten().topk(width)
    vocab = log_probabilities.shape[1]
    return scores[place // vocab] + best, place // vocab, place % vocab


@extend_beams.mistake(
    "each old text got one continuation; all continuations compete, and one text may have several of the best"
)
def _(scores, log_probabilities, width):
    best, token = (scores[:, None] + log_probabilities).max(dim=1)
    order = best.argsort(descending=True)[:width]
    return best[order], order, token[order]


@extend_beams.mistake("you extended only the best old text: a text that is behind may overtake it")
def _(scores, log_probabilities, width):
    first = int(scores.argmax())
    best, token = (scores[first] + log_probabilities[first]).topk(min(width, log_probabilities.shape[1]))
    return best, torch.full_like(token, first), token


@extend_beams.mistake(
    "the flattened table has `vocab` columns: divide the index by vocab, not by the number of beams or the width"
)
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width)
    return best, place // len(scores), place % len(scores)


@extend_beams.mistake("the flattened table has `vocab` columns: divide the index by vocab, not by the width")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width)
    return best, place // width, place % width


@extend_beams.mistake("beams and tokens are swapped")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width)
    return best, place % log_probabilities.shape[1], place // log_probabilities.shape[1]


@extend_beams.mistake("`tokens` holds indices of the flattened table: take the remainder by vocab")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width)
    return best, place // log_probabilities.shape[1], place


@extend_beams.mistake("those are the worst continuations")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width, largest=False)
    return best, place // log_probabilities.shape[1], place % log_probabilities.shape[1]


@extend_beams.mistake("the best must come first; yours are in the opposite order")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width)
    best, place = best.flip(0), place.flip(0)
    return best, place // log_probabilities.shape[1], place % log_probabilities.shape[1]


@extend_beams.mistake("you multiplied log-probabilities: add them, because they are logarithms")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] * log_probabilities).flatten().nan_to_num().topk(width)
    return best, place // log_probabilities.shape[1], place % log_probabilities.shape[1]


@extend_beams.mistake("you divided by the length; the score is only the sum of the log-probabilities")
def _(scores, log_probabilities, width):
    best, place = ((scores[:, None] + log_probabilities) / 2).flatten().topk(width)
    return best, place // log_probabilities.shape[1], place % log_probabilities.shape[1]


@extend_beams.mistake("you return probabilities; the scores are logarithms")
def _(scores, log_probabilities, width):
    best, place = (scores[:, None] + log_probabilities).flatten().topk(width)
    return best.exp(), place // log_probabilities.shape[1], place % log_probabilities.shape[1]


@extend_beams.mistake("a width out of range must raise a ValueError")
def _(scores, log_probabilities, width):
    longer = (scores[:, None] + log_probabilities).flatten()
    best, place = longer.topk(min(width, len(longer)))
    return best, place // log_probabilities.shape[1], place % log_probabilities.shape[1]


@extend_beams.variant
def _(scores, log_probabilities, width):
    # sort a list of all continuations
    continuations = [
        (score + log_p, beam, token)
        for beam, score in enumerate(scores.tolist())
        for token, log_p in enumerate(log_probabilities[beam].tolist())
    ]
    if width < 1 or width > len(continuations):
        raise ValueError(f"{width=}: expected 1 to {len(continuations)}")
    best = sorted(continuations, reverse=True)[:width]
    return tuple(
        torch.tensor(column, dtype=dtype)
        for column, dtype in zip(zip(*best, strict=True), (torch.float64, torch.int64, torch.int64), strict=True)
    )


@extend_beams.variant
def _(scores, log_probabilities, width):
    # find the best of each beam first, because at most `width` of one beam can be among the best overall
    if not 0 < width <= log_probabilities.numel():
        raise ValueError(f"{width=}")
    each = min(width, log_probabilities.shape[1])
    values, tokens = log_probabilities.sort(dim=1, descending=True)
    values, tokens = (values + scores.unsqueeze(1))[:, :each], tokens[:, :each]
    beams = torch.arange(len(scores)).unsqueeze(1).expand(-1, each)
    order = values.reshape(-1).argsort(descending=True)[:width]
    return [values.reshape(-1)[order], beams.reshape(-1)[order], tokens.reshape(-1)[order]]
