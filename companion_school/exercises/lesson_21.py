"""Exercises of lesson 21: looking inside."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 21.1


@exercise(
    "21.1",
    "The logit lens",
    task="Read the stream half-way as if it were the end",
    points=1,
    difficulty=1,
    minutes=10,
    right={"gradients": "a trained lens learns through it"},
    hints=(
        "RMSNorm divides each vector by the square root of the mean of its squares, with eps under the root.",
        "Multiply by the gain after the division, and then by the table: `(u / r * gain) @ table.T`.",
        "`u.square().mean(-1, keepdim=True)` keeps the axis, so that the division broadcasts over all layers and tokens.",
    ),
)
def lens(u, gain, table, eps):
    """`u` (layer, token, d_model) is the stream before each of several layers. `gain` (d_model) and `eps`, which is
    added under the square root, belong to the last RMSNorm, and `table` (vocab, d_model) computes the logits. Return
    the logits that the logit lens reads at every layer and token, (layer, token, vocab).

    ```python
    >>> lens(torch.tensor([[[3.0, 4.0]]]), torch.tensor([1.0, 2.0]), torch.eye(2), 0.0)
    tensor([[[0.8485, 2.2627]]])
    ```

    ★
    - Raise a `ValueError` if the width of the stream differs from that of `gain` or `table`.
    - A vector of zeros gives logits of 0 if `eps` is above 0.
    """
    ### BEGIN SOLUTION
    if not u.shape[-1] == gain.shape[-1] == table.shape[-1]:
        raise ValueError(
            f"u {tuple(u.shape)}, gain {tuple(gain.shape)}, table {tuple(table.shape)}: expected equal widths"
        )
    r = (u.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return (u / r * gain) @ table.T
    ### END SOLUTION


@lens.cases
def _(draw):
    yield Case("one vector", (draw.normal(1, 1, 4), draw.normal(4), draw.normal(3, 4), 1e-6), gradients=True)
    layer, token, wide, vocab = draw.sizes(4, 2, 9)
    u, gain, table = draw.normal(layer, token, wide), draw.normal(wide), draw.normal(vocab, wide)
    yield Case("layers and tokens", (u, gain, table, 1e-6), gradients=True)
    yield Case("a long stream", (30 * u, gain, table, 1e-6))
    yield Case("a large eps", (u, gain, table, 0.5))
    yield Case("as many tokens as components", (draw.normal(2, 5, 5), draw.normal(5), draw.normal(5, 5), 1e-6))
    zeros = torch.zeros_like(u)
    yield Case("a stream of zeros", (zeros, gain, table, 1e-6), robust="no stream in the lesson is 0")
    yield Case("a gain of a different width is rejected", (u, gain[1:], table, 1e-6), refuse=True)
    yield Case("a table of a different width is rejected", (u, gain, table[:, 1:], 1e-6), refuse=True)


def _widths(u, gain, table):
    if not u.shape[-1] == gain.shape[-1] == table.shape[-1]:
        raise ValueError("widths differ")


def _scale(u, eps):
    return (u.square().mean(dim=-1, keepdim=True) + eps).sqrt()


@lens.mistake("the norm comes before the table; without it, the shorter vectors of early layers give smaller logits")
def _(u, gain, table, eps):
    _widths(u, gain, table)
    return (u * gain) @ table.T


@lens.mistake("the gain of the norm is missing: the lens uses it, too")
def _(u, gain, table, eps):
    _widths(u, gain, table)
    return (u / _scale(u, eps)) @ table.T


@lens.mistake("the norm divides by the square root of the mean of squares, but you divide by the length")
def _(u, gain, table, eps):
    _widths(u, gain, table)
    return (u / (u.square().sum(dim=-1, keepdim=True) + eps).sqrt() * gain) @ table.T


@lens.mistake("you subtract the mean, but this norm does not")
def _(u, gain, table, eps):
    _widths(u, gain, table)
    v = u - u.mean(dim=-1, keepdim=True)
    return (v / _scale(v, eps) * gain) @ table.T


@lens.mistake("each vector has its own scale, but you use that of the last layer for all")
def _(u, gain, table, eps):
    _widths(u, gain, table)
    return (u / _scale(u[-1:], eps) * gain) @ table.T


@lens.mistake("you added eps outside the square root: add it to the mean of squares")
def _(u, gain, table, eps):
    _widths(u, gain, table)
    return (u / (_scale(u, 0.0) + eps) * gain) @ table.T


@lens.mistake("widths that do not match must raise a ValueError")
def _(u, gain, table, eps):
    wide = min(u.shape[-1], gain.shape[-1], table.shape[-1])
    return (u[..., :wide] / _scale(u, eps) * gain[:wide]) @ table[:, :wide].T


@lens.variant
def _(u, gain, table, eps):
    _widths(u, gain, table)
    return torch.einsum("ltd,d,vd->ltv", u * (u.square().mean(dim=-1, keepdim=True) + eps).rsqrt(), gain, table)


@lens.variant
def _(u, gain, table, eps):
    # Multiply the table by the gain instead of the stream, and divide the logits by the scale
    _widths(u, gain, table)
    return u @ (table * gain).T / _scale(u, eps)


# 21.2


@exercise(
    "21.2",
    "Who wrote the gap",
    task="Split the gap between two words into what each part wrote",
    points=3,
    difficulty=2,
    minutes=20,
    right={"gradients": "it may be part of a training objective that makes parts sparse"},
    hints=(
        "The stream at the end is `writes.sum(0)`. All parts are divided by the root mean square of this vector, with eps under the root.",
        "The direction is the gain times the difference between the two words' rows in the table, divided by that scale.",
        "`writes @ direction` gives one number for each part, and these numbers add up to the gap.",
    ),
)
def credit(writes, gain, table, words, eps):
    """`writes` (part, d_model) holds the embedding of one token and everything that each head and network added to it, so its sum is the final
    stream. RMSNorm with `gain` (d_model) and `eps` comes next, and then `table` (vocab, d_model) computes the logits.
    `words` is a pair of token ids. Return a tensor (part) with each part's contribution to the gap, which is the
    first word's logit minus the second's. The contributions add up to the gap.

    ```python
    >>> writes = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    >>> credit(writes, torch.ones(2), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), (0, 1), 0.0)
    tensor([1.4142, 0.0000])
    ```

    ★
    - Raise a `ValueError` if the widths differ, or if a word's id is negative or not in the table.
    - Raise a `ValueError` if there are no parts.
    """
    ### BEGIN SOLUTION
    if not len(writes) or not writes.shape[-1] == gain.shape[-1] == table.shape[-1]:
        raise ValueError(f"writes {tuple(writes.shape)}, gain {tuple(gain.shape)}, table {tuple(table.shape)}")
    if not all(0 <= word < len(table) for word in words):
        raise ValueError(f"words: expected numbers from 0 to {len(table) - 1}; got {words}")
    u = writes.sum(dim=0)
    r = (u.square().mean() + eps).sqrt()
    return writes @ (gain * (table[words[0]] - table[words[1]])) / r
    ### END SOLUTION


@credit.cases
def _(draw):
    yield Case("two parts", (draw.normal(2, 3), draw.normal(3), draw.normal(4, 3), (0, 2), 1e-6), gradients=True)
    part, wide, vocab = draw.sizes(3, 3, 9)
    writes, gain, table = draw.normal(part, wide), draw.normal(wide), draw.normal(vocab, wide)
    yield Case("many parts", (writes, gain, table, (1, 0), 1e-6), gradients=True)
    yield Case("one part", (writes[:1], gain, table, (0, 2), 1e-6))
    yield Case("a large eps", (writes, gain, table, (2, 1), 0.5))
    yield Case("the same word twice", (writes, gain, table, (1, 1), 1e-6))
    yield Case("as many parts as components", (draw.normal(4, 4), draw.normal(4), draw.normal(4, 4), (3, 1), 1e-6))
    yield Case("a gain of a different width is rejected", (writes, gain[1:], table, (0, 1), 1e-6), refuse=True)
    yield Case("a table of a different width is rejected", (writes, gain, table[:, 1:], (0, 1), 1e-6), refuse=True)
    yield Case("a word that is not in the table is rejected", (writes, gain, table, (0, vocab), 1e-6), refuse=True)
    yield Case("a negative word id is rejected", (writes, gain, table, (-1, 0), 1e-6), refuse=True)
    yield Case("no parts are rejected", (writes[:0], gain, table, (0, 1), 1e-6), refuse=True)


def _fits(writes, gain, table, words):
    if not len(writes) or not writes.shape[-1] == gain.shape[-1] == table.shape[-1]:
        raise ValueError("widths")
    if not all(0 <= word < len(table) for word in words):
        raise ValueError("words")


def _direction(gain, table, words):
    return gain * (table[words[0]] - table[words[1]])


@credit.mistake(
    "the scale is that of the whole stream, but you normalize each part by itself, so the parts do not add up to the gap"
)
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    return (writes / _scale(writes, eps)) @ _direction(gain, table, words)


@credit.mistake("you left out the last norm, which divides all parts by the same scale")
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    return writes @ _direction(gain, table, words)


@credit.mistake("the gain of the last norm is missing")
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    return writes @ (table[words[0]] - table[words[1]]) / _scale(writes.sum(0), eps)


@credit.mistake("you left out the second word: a gap is the first word's logit minus the second's")
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    return writes @ (gain * table[words[0]]) / _scale(writes.sum(0), eps)


@credit.mistake("a positive number must mean that the first word leads, but you swapped the words")
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    return -(writes @ _direction(gain, table, words)) / _scale(writes.sum(0), eps)


@credit.mistake("the scale is that of the parts' sum, not of their mean")
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    return writes @ _direction(gain, table, words) / _scale(writes.mean(0), eps)


@credit.mistake("return each part's contribution itself, not its share of the gap")
def _(writes, gain, table, words, eps):
    _fits(writes, gain, table, words)
    found = writes @ _direction(gain, table, words)
    return found / found.sum()


@credit.mistake("shapes that do not match, no parts, and words that do not exist must raise a ValueError")
def _(writes, gain, table, words, eps):
    wide = min(writes.shape[-1], gain.shape[-1], table.shape[-1])
    writes, gain, table = writes[:, :wide], gain[:wide], table[:, :wide]
    words = [word % len(table) for word in words]
    return writes @ _direction(gain, table, words) / _scale(writes.sum(0), eps)


@credit.variant
def _(writes, gain, table, words, eps):
    # Compute all logits of all parts, then take the two that are needed
    _fits(writes, gain, table, words)
    logits = (writes / _scale(writes.sum(0), eps) * gain) @ table.T
    return logits[:, words[0]] - logits[:, words[1]]


@credit.variant
def _(writes, gain, table, words, eps):
    # Compute how much the gap shrinks if a part is left out while the scale is frozen
    _fits(writes, gain, table, words)
    whole = writes.sum(0)
    direction = _direction(gain, table, words) / _scale(whole, eps)
    return torch.stack([whole @ direction - (whole - write) @ direction for write in writes])


# 21.3


@exercise(
    "21.3",
    "The induction score",
    task="Compute each head's induction score from its attention weights",
    points=3,
    difficulty=2,
    minutes=20,
    right={"gradients": "a score that is monitored in training may also be optimized"},
    excused={"nan": "weights on keys that the score does not use may be anything"},
    hints=(
        "Make a boolean table (batch, query, key). Does the token before the key equal the query's token?",
        "The key at position 0 has no token before it. A copy counts only if the key's position is at most the query's.",
        "A query counts if there is any such key. The score is the mean weight on such keys, over all queries that count.",
    ),
)
def induction(weights, tokens):
    """`weights` (batch, head, query, key) are attention weights under a causal mask, and `tokens` (batch, token) are
    token ids (int64). A key is *after a copy* for a query if it does not come later than the query and the token just
    before the key equals the query's own token. A query *counts* if it has such a key. Return each head's total weight
    on such keys, (head), averaged over all queries in the batch that count.

    ```python
    >>> weights = torch.tensor([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.7, 0.1]]]])
    >>> induction(weights, torch.tensor([[4, 9, 4]]))
    tensor([0.7000])
    ```

    ★
    - Raise a `ValueError` if the shape of `tokens` does not match the weights, or if no query counts.
    - Any weights on keys after the query are ignored.
    """
    ### BEGIN SOLUTION
    batch, _, queries, keys = weights.shape
    if queries != keys or tokens.shape != (batch, queries):
        raise ValueError(
            f"weights {tuple(weights.shape)}, tokens {tuple(tokens.shape)}: expected (batch, head, token, token) and (batch, token)"
        )
    after = torch.zeros(batch, queries, keys, dtype=torch.bool)
    after[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]
    after = after.tril()
    counts = after.any(dim=-1)
    if not counts.any():
        raise ValueError("tokens: expected at least one token that also occurs earlier in its text; got none")
    on_them = (weights * after[:, None]).sum(dim=-1)
    return on_them.transpose(0, 1)[:, counts].mean(dim=-1)
    ### END SOLUTION


def _causal(draw, batch, heads, length):
    scores = draw.normal(batch, heads, length, length)
    return scores.masked_fill(~torch.ones(length, length).bool().tril(), -math.inf).softmax(-1)


@induction.cases
def _(draw):
    small = torch.tensor([[4, 9, 4]])
    yield Case("one copy", (_causal(draw, 1, 1, 3), small), gradients=True)
    yield Case(
        "a sequence repeated once", (_causal(draw, 1, 2, 8), torch.tensor([[3, 5, 1, 2, 3, 5, 1, 2]])), gradients=True
    )
    yield Case("several copies of one token", (_causal(draw, 1, 2, 6), torch.tensor([[7, 1, 7, 2, 7, 7]])))
    yield Case("the same token throughout", (_causal(draw, 1, 3, 5), torch.full((1, 5), 2)))
    batch, heads, length = draw.sizes(3, 3, 8)
    tokens = draw.wholes(0, 3, batch, length)
    tokens[:, -1] = tokens[:, 0]
    yield Case("many texts", (_causal(draw, batch, heads, length), tokens))
    uneven = torch.tensor([[1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 1]])
    yield Case("different numbers of queries count", (_causal(draw, 2, 3, 6), uneven))
    square = torch.tensor([[1, 2, 1], [2, 2, 2], [0, 1, 0]])
    yield Case("as many texts as tokens and heads", (_causal(draw, 3, 3, 3), square))
    yield Case(
        "weights on keys after the query",
        (draw.normal(1, 2, 6, 6).softmax(-1), uneven[:1]),
        robust="weights in the lesson are causal",
    )
    yield Case("a text without a repeated token is rejected", (_causal(draw, 1, 2, 3), uneven[1:, :3]), refuse=True)
    yield Case("tokens of a different length are rejected", (_causal(draw, 2, 3, 5), uneven), refuse=True)
    yield Case("one text too few is rejected", (_causal(draw, 2, 3, 6), uneven[:1]), refuse=True)


def _told(weights, tokens):
    batch, _, queries, keys = weights.shape
    if queries != keys or tokens.shape != (batch, queries):
        raise ValueError("shapes")
    after = torch.zeros(batch, queries, keys, dtype=torch.bool)
    after[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]
    if not after.tril().any():
        raise ValueError("tokens: expected one that also occurs earlier in its text")
    return after


def _mean(weights, after, counts):
    return (weights * after[:, None]).sum(-1).transpose(0, 1)[:, counts].mean(-1)


@induction.mistake("a head that copies looks at the token *after* the earlier copy, but you score the copy itself")
def _(weights, tokens):
    counts = _told(weights, tokens).tril().any(-1)
    same = (tokens[:, :, None] == tokens[:, None]).tril(-1)
    return _mean(weights, same, counts)


@induction.mistake("the token after a copy is one position to its right, not to its left")
def _(weights, tokens):
    counts = _told(weights, tokens).tril().any(-1)
    before = torch.zeros_like(weights[:, 0], dtype=torch.bool)
    before[:, :, :-1] = tokens[:, :, None] == tokens[:, None, 1:]
    return _mean(weights, before.tril(-2), counts)


@induction.mistake("queries without an earlier copy do not count, because they have nothing to find")
def _(weights, tokens):
    after = _told(weights, tokens).tril()
    return _mean(weights, after, torch.ones_like(after[:, :, 0]))


@induction.mistake("all queries that count have the same weight, but you average within each text first")
def _(weights, tokens):
    after = _told(weights, tokens).tril()
    counts = after.any(-1)
    sums = (weights * after[:, None]).sum(-1).sum(-1)
    some = counts.any(-1)
    return (sums[some] / counts.sum(-1)[some][:, None]).mean(0)


@induction.mistake("all keys after a copy count, but you take only the last one")
def _(weights, tokens):
    after = _told(weights, tokens).tril()
    last = after & (after.long().flip(-1).cumsum(-1).flip(-1) == 1)
    return _mean(weights, last, after.any(-1))


@induction.mistake("all keys after a copy count, but you take the largest weight among them")
def _(weights, tokens):
    after = _told(weights, tokens).tril()
    return (weights * after[:, None]).amax(-1).transpose(0, 1)[:, after.any(-1)].mean(-1)


@induction.mistake("each head has its own score")
def _(weights, tokens):
    after = _told(weights, tokens).tril()
    return _mean(weights, after, after.any(-1)).mean(0, keepdim=True).expand(weights.shape[1]).clone()


@induction.mistake("keys after the query do not count")
def _(weights, tokens):
    after = _told(weights, tokens)
    return _mean(weights, after, after.tril().any(-1))


@induction.mistake("shapes that do not match, and texts in which nothing is repeated, must raise a ValueError")
def _(weights, tokens):
    batch, length = min(len(weights), len(tokens)), min(weights.shape[-1], tokens.shape[1])
    weights, tokens = weights[:batch, :, :length, :length], tokens[:batch, :length]
    after = torch.zeros(batch, length, length, dtype=torch.bool)
    after[:, :, 1:] = tokens[:, :, None] == tokens[:, None, :-1]
    after = after.tril()
    return _mean(weights, after, after.any(-1)) if after.any() else torch.zeros(weights.shape[1])


@induction.variant
def _(weights, tokens):
    _told(weights, tokens)
    total, count = 0, 0
    for text, row in enumerate(tokens.tolist()):
        for query, token in enumerate(row):
            keys = [key for key in range(1, query + 1) if row[key - 1] == token]
            if keys:
                total, count = total + weights[text, :, query, keys].sum(-1), count + 1
    return total / count


@induction.variant
def _(weights, tokens):
    after = _told(weights, tokens).tril().to(weights.dtype)
    return torch.einsum("bhqk,bqk->h", weights.tril(), after) / after.amax(-1).sum()


# 21.4


@exercise(
    "21.4",
    "What two directions say",
    task="Measure for each part how far it is necessary, and how far it is sufficient",
    points=3,
    difficulty=3,
    minutes=20,
    right={"gradients": "shares are differentiable functions of the gaps"},
    hints=(
        "The clean run is `gaps[1, 1, ...]` and the other one is `gaps[0, 0, ...]`. Index with a tuple that has one number for each axis.",
        "To noise part i, set all indices to 1 except index i. To denoise it, set all indices to 0 except index i.",
        "A noised share is (clean - patched) / (clean - other), and a denoised share is (patched - other) / (clean - other).",
    ),
)
def both_ways(gaps):
    """Each part of a model may take its output from the clean text (1) or from the other text (0). `gaps`, (2, 2, ...,
    2), has one axis per part and contains the gap for each combination. In `gaps[1, 0, 1]`, only part 1, counted from
    0, uses the other text. Return a tensor (2, part) with each part's share by *noising* (a clean run in which
    only this part comes from the other text) and by *denoising* (the reverse). A share is 0 if nothing changes and 1 if everything
    does.

    ```python
    >>> both_ways(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    tensor([[0., 0.],
            [1., 1.]])
    ```

    ★
    - Raise a `ValueError` if the table has no axes, or if an axis does not have two entries.
    - Raise a `ValueError` if the clean run and the other run have the same gap, because the shares are undefined then.
    """
    ### BEGIN SOLUTION
    parts = gaps.dim()
    if parts == 0 or set(gaps.shape) != {2}:
        raise ValueError(f"gaps: expected two entries for each part; got shape {tuple(gaps.shape)}")
    clean, other = gaps[(1,) * parts], gaps[(0,) * parts]
    if clean == other:
        raise ValueError(f"gaps: expected two runs with different gaps, got {clean.item()} for both")
    noised = torch.stack([gaps[tuple(int(at != part) for at in range(parts))] for part in range(parts)])
    denoised = torch.stack([gaps[tuple(int(at == part) for at in range(parts))] for part in range(parts)])
    return torch.stack([clean - noised, denoised - other]) / (clean - other)
    ### END SOLUTION


@both_ways.cases
def _(draw):
    yield Case("either part is enough", (torch.tensor([[-2.0, 3.0], [3.0, 3.0]]).double(),))
    yield Case("both parts are needed", (torch.tensor([[-2.0, -2.0], [-2.0, 3.0]]).double(),))
    yield Case("one part does nothing", (torch.tensor([[-1.0, -1.0], [4.0, 4.0]]).double(),))
    yield Case("one part", (draw.normal(2),))
    yield Case("two parts", (draw.normal(2, 2),), gradients=True)
    for parts in (3, 4, 5, draw.whole(6, 8)):
        yield Case(f"{parts} parts", (draw.normal(*[2] * parts),), gradients=True)
    yield Case("a gap that is larger in the other text", (-5 - draw.uniform(2, 2, 2),))
    yield Case("a table of three entries is rejected", (draw.normal(2, 3),), refuse=True)
    yield Case("a table without axes is rejected", (draw.normal(2)[0],), refuse=True)
    yield Case(
        "two runs with the same gap are rejected", (torch.tensor([[1.0, 2.0], [3.0, 1.0]]).double(),), refuse=True
    )


def _ends(gaps):
    parts = gaps.dim()
    if parts == 0 or set(gaps.shape) != {2}:
        raise ValueError("expected two entries for each part")
    clean, other = gaps[(1,) * parts], gaps[(0,) * parts]
    if clean == other:
        raise ValueError("the clean run and the other run have the same gap")
    return clean, other


def _singles(gaps, odd):
    """Return the gap of each run in which only one part has the state `odd`."""
    parts = range(gaps.dim())
    return torch.stack([gaps[tuple(odd if at == part else 1 - odd for at in parts)] for part in parts])


@both_ways.mistake("noising comes first, then denoising")
def _(gaps):
    clean, other = _ends(gaps)
    return torch.stack([_singles(gaps, 1) - other, clean - _singles(gaps, 0)]) / (clean - other)


@both_ways.mistake("denoising starts from the other run and brings in one clean part, but you noised twice")
def _(gaps):
    clean, other = _ends(gaps)
    share = (clean - _singles(gaps, 0)) / (clean - other)
    return torch.stack([share, share])


@both_ways.mistake("noising starts from the clean run and spoils one part, but you denoised twice")
def _(gaps):
    clean, other = _ends(gaps)
    share = (_singles(gaps, 1) - other) / (clean - other)
    return torch.stack([share, share])


@both_ways.mistake("a share is a fraction of the difference between the two runs, so divide by clean minus other")
def _(gaps):
    clean, other = _ends(gaps)
    return torch.stack([clean - _singles(gaps, 0), _singles(gaps, 1) - other])


@both_ways.mistake("a share is measured from the run that is patched, not from a gap of 0")
def _(gaps):
    clean, other = _ends(gaps)
    return torch.stack([_singles(gaps, 0), _singles(gaps, 1)]) / (clean - other)


@both_ways.mistake("a noised share says how far the gap moved from clean to other: it is 1 if the gap arrives there")
def _(gaps):
    clean, other = _ends(gaps)
    return torch.stack([_singles(gaps, 0) - other, _singles(gaps, 1) - other]) / (clean - other)


@both_ways.mistake("change each part by itself, not all parts up to it")
def _(gaps):
    clean, other = _ends(gaps)
    parts = range(gaps.dim())
    noised = torch.stack([gaps[tuple(int(at > part) for at in parts)] for part in parts])
    denoised = torch.stack([gaps[tuple(int(at <= part) for at in parts)] for part in parts])
    return torch.stack([clean - noised, denoised - other]) / (clean - other)


@both_ways.mistake("other shapes, or two runs with the same gap, must raise a ValueError")
def _(gaps):
    gaps = gaps.reshape(-1)[: 2 ** max(1, gaps.dim())]
    gaps = torch.nn.functional.pad(gaps, (0, 2 - len(gaps))) if len(gaps) < 2 else gaps
    gaps = gaps.view([2] * int(math.log2(len(gaps))))
    clean, other = gaps.reshape(-1)[-1], gaps.reshape(-1)[0]
    return torch.stack([clean - _singles(gaps, 0), _singles(gaps, 1) - other]) / (clean - other)


@both_ways.variant
def _(gaps):
    clean, other = _ends(gaps)
    return torch.stack([clean - _singles(gaps, 0), _singles(gaps, 1) - other]) / (clean - other)


@both_ways.variant
def _(gaps):
    # In a flat list of all runs, each part corresponds to one bit of the index, and the first part corresponds to the
    # most significant bit
    _ends(gaps)
    flat, bits = gaps.reshape(-1), 2 ** torch.arange(gaps.dim()).flip(0)
    way = flat[-1] - flat[0]
    return torch.stack([(flat[-1] - flat[len(flat) - 1 - bits]) / way, (flat[bits] - flat[0]) / way])


# 21.5


@exercise(
    "21.5",
    "A sparse autoencoder",
    task="Rebuild vectors from their few largest features, and compute the share explained",
    points=3,
    difficulty=2,
    minutes=20,
    right={"gradients": "an autoencoder is trained through this result"},
    excused={"nan": "the output row of a dropped feature may be anything"},
    hints=(
        "Features are `relu(u @ into.T + bias)`; `topk` gives the largest features of each row, and `scatter` puts them back.",
        "Features that are not kept are 0. The rebuilt vectors are `features @ out`.",
        "The explained share is 1 minus a fraction: the sum of squares of `rebuilt - u` over the sum of squares of `u` minus its mean vector.",
    ),
)
def rebuilt(u, into, bias, out, keep):
    """Apply a sparse autoencoder to `u` (vector, d_model). `into` and `out` are (feature, d_model), and `bias` is
    (feature). A feature is $\\max(0, \\text{into} \\cdot u + \\text{bias})$, where each feature has its own row of
    `into`. For each vector only the `keep` largest features remain, and the others become 0. Return the rebuilt
    vectors, (vector, d_model), and the explained share, a zero-dimensional tensor. This share is 1 minus the squared
    error divided by the squared distance from the mean vector of `u`, both summed over all vectors and components.

    ```python
    >>> both = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> rebuilt(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), both, torch.zeros(2), both, 1)
    (tensor([[3., 0.],
            [0., 2.]]), tensor(0.2000))
    ```

    ★
    - Raise a `ValueError` if shapes do not match, or if `keep` is below 1 or above the number of features.
    - Raise a `ValueError` for fewer than two vectors, because a single vector has no distance from its mean.
    """
    ### BEGIN SOLUTION
    if into.shape != out.shape or bias.shape != into.shape[:1] or u.shape[-1] != into.shape[-1] or len(u) < 2:
        raise ValueError(
            f"u {tuple(u.shape)}, into {tuple(into.shape)}, bias {tuple(bias.shape)}, out {tuple(out.shape)}"
        )
    if not 1 <= keep <= len(into):
        raise ValueError(f"keep: expected 1 to {len(into)}; got {keep}")
    value, at = torch.relu(u @ into.T + bias).topk(keep, dim=-1)
    features = torch.zeros_like(u @ into.T).scatter(-1, at, value)
    back = features @ out
    return back, 1 - (back - u).square().sum() / (u - u.mean(dim=0)).square().sum()
    ### END SOLUTION


@rebuilt.cases
def _(draw):
    yield Case("one feature is kept", (draw.normal(3, 4), draw.normal(5, 4), draw.normal(5), draw.normal(5, 4), 1))
    vector, wide, feature = draw.sizes(3, 4, 9)
    u, into, out = draw.normal(vector, wide), draw.normal(2 * feature, wide), draw.normal(2 * feature, wide)
    bias = draw.normal(2 * feature)
    yield Case("a few features are kept", (u, into, bias, out, 3), gradients=True)
    yield Case("all features are kept", (u, into, bias, out, 2 * feature), gradients=True)
    yield Case("few features are above 0", (u, into, bias - 4, out, feature))
    yield Case("vectors far from 0", (u + 5, into, bias, out, 3))
    yield Case(
        "as many features as components", (draw.normal(4, 4), draw.normal(4, 4), draw.normal(4), draw.normal(4, 4), 2)
    )
    yield Case("a keep above the number of features is rejected", (u, into, bias, out, 2 * feature + 1), refuse=True)
    yield Case("a keep of 0 is rejected", (u, into, bias, out, 0), refuse=True)
    yield Case("a different width is rejected", (u, into[:, 1:], bias, out[:, 1:], 2), refuse=True)
    yield Case("one row of out too few is rejected", (u, into, bias, out[1:], 2), refuse=True)
    yield Case("one bias too few is rejected", (u, into, bias[1:], out, 2), refuse=True)
    yield Case("one vector is rejected", (u[:1], into, bias, out, 2), refuse=True)


def _sizes(u, into, bias, out, keep):
    if into.shape != out.shape or bias.shape != into.shape[:1] or u.shape[-1] != into.shape[-1] or len(u) < 2:
        raise ValueError("shapes")
    if not 1 <= keep <= len(into):
        raise ValueError("keep")


def _few(x, keep):
    value, at = x.topk(keep, dim=-1)
    return torch.zeros_like(x).scatter(-1, at, value)


def _explained(u, back):
    return 1 - (back - u).square().sum() / (u - u.mean(0)).square().sum()


@rebuilt.mistake("only the largest features of each vector remain, but you kept all")
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    back = torch.relu(u @ into.T + bias) @ out
    return back, _explained(u, back)


@rebuilt.mistake(
    "the features of each vector compete among themselves, but you chose the largest features across all vectors"
)
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    x = torch.relu(u @ into.T + bias)
    back = _few(x.flatten(), min(keep * len(u), x.numel())).view_as(x) @ out
    return back, _explained(u, back)


@rebuilt.mistake("a feature is never below 0, but where few are above 0, some of your largest ones are negative")
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    back = _few(u @ into.T + bias, keep) @ out
    return back, _explained(u, back)


@rebuilt.mistake("the bias belongs to the features, and may decide which are largest")
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    back = _few(torch.relu(u @ into.T), keep) @ out
    return back, _explained(u, back)


@rebuilt.mistake("the rows of out are written back, not those of into")
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    back = _few(torch.relu(u @ into.T + bias), keep) @ into
    return back, _explained(u, back)


@rebuilt.mistake("a kept feature keeps its size, but you made it 1")
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    back = (_few(torch.relu(u @ into.T + bias), keep) > 0).to(u.dtype) @ out
    return back, _explained(u, back)


@rebuilt.mistake("the error is compared with the distance from the mean vector, not from 0")
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    back = _few(torch.relu(u @ into.T + bias), keep) @ out
    return back, 1 - (back - u).square().sum() / u.square().sum()


@rebuilt.mistake("shapes that do not match, and an impossible keep, must raise a ValueError")
def _(u, into, bias, out, keep):
    wide, count = min(u.shape[-1], into.shape[-1]), min(len(into), len(bias), len(out))
    u, into, bias, out = u[:, :wide], into[:count, :wide], bias[:count], out[:count, :wide]
    back = _few(torch.relu(u @ into.T + bias), min(max(keep, 1), count)) @ out
    return back, _explained(u, back)


@rebuilt.variant
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    x = (torch.einsum("vd,fd->vf", u, into) + bias).clamp(min=0)
    order = x.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    back = torch.where(order < keep, x, 0.0) @ out
    return back, _explained(u, back)


@rebuilt.variant
def _(u, into, bias, out, keep):
    _sizes(u, into, bias, out, keep)
    rows = []
    for row in u:
        x = torch.relu(into @ row + bias)
        at = x.topk(keep).indices
        rows.append(x[at] @ out[at])
    back = torch.stack(rows)
    return back, _explained(u, back)
