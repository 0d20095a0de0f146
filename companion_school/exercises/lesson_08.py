"""Exercises for lesson 08: the decoder stack and cross-attention."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 8.1


@exercise(
    "8.1",
    "Padding with a pencil",
    task="Compute one weight when the padding is not hidden",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "What is the score of a key of zeros?",
        "How many terms does the denominator of the softmax have now?",
        "Divide e to the power of 4 by the sum of all six exponentials.",
    ),
)
def weight_beside_filler():
    """A careless batch appends two padding tokens to the source of the pencil example. Their rows in the memory are all
    zeros, so their keys are zeros too, and no mask hides them. What weight does the slot that reads `one` now give to
    the source's `<end>`? Without the padding, the slot's scores would be $(1, 0, 1, 4)$, already divided by
    $\\sqrt{d_k}$, and the last one belongs to `<end>`. Return a `float` that is accurate to at least four decimal
    places.
    """
    ### BEGIN SOLUTION
    scores = [1, 0, 1, 4, 0, 0]  # a key of zeros scores 0, and e^0 is 1
    return math.exp(4) / sum(math.exp(score) for score in scores)
    ### END SOLUTION


@weight_beside_filler.cases
def _(draw):
    yield Case("the weight of the end token", (), tolerance=5e-5)


@weight_beside_filler.mistake("that is the weight without padding, but a score of 0 is not a weight of 0")
def _():
    return math.exp(4) / (2 * math.e + 1 + math.exp(4))


@weight_beside_filler.mistake("you divided the scores by their sum; exponentiate them first")
def _():
    return 4 / 6


@weight_beside_filler.mistake("there are two padding tokens, and you counted one")
def _():
    return math.exp(4) / (2 * math.e + 2 + math.exp(4))


@weight_beside_filler.mistake("you divided by the square root of d_k, but these scores have already been divided by it")
def _():
    return math.exp(2) / (2 * math.exp(0.5) + 3 + math.exp(2))


@weight_beside_filler.mistake("that is the weight of one padding token, not of the end token")
def _():
    return 1 / (2 * math.e + 3 + math.exp(4))


@weight_beside_filler.mistake("that is the total weight of the padding; return the weight of the end token")
def _():
    return 2 / (2 * math.e + 3 + math.exp(4))


@weight_beside_filler.mistake(
    "you left out the source's own token with score 0; it contributes e^0 = 1, like the padding"
)
def _():
    return math.exp(4) / (2 * math.e + math.exp(4))


@weight_beside_filler.variant
def _():
    return torch.softmax(torch.tensor([1.0, 0, 1, 4, 0, 0]), dim=0)[3]


@weight_beside_filler.variant
def _():
    return 0.8662


# 8.2


@exercise(
    "8.2",
    "The shift",
    task="Compute a decoder's inputs from its targets",
    points=2,
    difficulty=2,
    minutes=10,
    robust={
        "ids of more than 32 bits, and a start token of -1": "no vocabulary is that large",
    },
    hints=(
        "Which column of the targets is never an input?",
        "`torch.full((batch, 1), start)` is a column of start tokens.",
        "`torch.cat([...], dim=1)` joins columns side by side.",
    ),
)
def shift_right(targets, start):
    """Return the decoder's inputs for `targets`, `int64` (batch, token). The inputs have the same shape. Slot $i$ reads
    target $i - 1$, and the first slot reads `start`.

    ```python
    >>> shift_right(torch.tensor([[5, 6, 7]]), 1)
    tensor([[1, 5, 6]])
    ```

    ★
    - Raise a `ValueError` if `targets` does not have two axes, or if `start` occurs in it, because a start token is never a target.
    - Do not change `targets`. Ids may need more than 32 bits.
    """
    ### BEGIN SOLUTION
    if targets.ndim != 2:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected two axes (batch, token)")
    if (targets == start).any():
        raise ValueError(f"start={start} occurs in targets: expected a token that is never a target")
    first = torch.full((len(targets), 1), start, dtype=targets.dtype)
    return torch.cat([first, targets[:, :-1]], dim=1)
    ### END SOLUTION


@shift_right.cases
def _(draw):
    yield Case("one sequence", (torch.tensor([[7, 3, 5]]), 1))
    yield Case("a single target, which is never an input", (torch.tensor([[9]]), 1))
    batch, token = draw.sizes(2, 3, 8)
    targets = torch.stack([draw.shuffled(12)[:token] for _ in range(batch)])
    yield Case("several sequences, and any start token", (targets + 5, draw.whole(20, 40)))
    yield Case("a start token of 0", (targets + 1, 0))
    yield Case("targets with one axis raise an error", (torch.tensor([7, 3, 5]), 1), refuse=True)
    yield Case("a start token among the targets raises an error", (torch.tensor([[7, 3], [4, 1]]), 1), refuse=True)
    yield Case("ids of more than 32 bits, and a start token of -1", (torch.tensor([[2**40 + 1, 2**24 + 1, 3]]), -1))
    yield Case("a start token of 0 among the targets raises an error", (torch.tensor([[5, 0]]), 0), refuse=True)
    yield Case("targets with three axes raise an error", (torch.full((2, 2, 2), 7), 1), refuse=True)


@shift_right.mistake("your first input is the last target, so slot 0 sees a token from the future")
def _(targets, start):
    return torch.roll(targets, 1, dims=1)


@shift_right.mistake("your inputs are not shifted: every slot reads the token that it should predict")
def _(targets, start):
    return targets.clone()


@shift_right.mistake("you shifted the wrong way: every slot reads the token after the one that it should predict")
def _(targets, start):
    return torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], start)], dim=1)


@shift_right.mistake("you overwrote the first token instead of moving it: slot 1 must read target 0")
def _(targets, start):
    return torch.cat([torch.full_like(targets[:, :1], start), targets[:, 1:]], dim=1)


@shift_right.mistake("the last target is never an input; drop it, or the inputs are one token too long")
def _(targets, start):
    return torch.cat([torch.full_like(targets[:, :1], start), targets], dim=1)


@shift_right.mistake("you shifted twice: slot 2 must read target 1, not target 0")
def _(targets, start):
    return torch.nn.functional.pad(targets, (2, 0), value=start)[:, : targets.shape[1]]


@shift_right.mistake("you shifted along the batch: each sequence moves along its own tokens")
def _(targets, start):
    return torch.cat([torch.full_like(targets[:1], start), targets[:-1]], dim=0)


@shift_right.mistake("your inputs begin with 0, but they must begin with `start`, whichever token that is")
def _(targets, start):
    return torch.nn.functional.pad(targets, (1, -1))


@shift_right.mistake("token ids are integers, but your column of start tokens makes the result a float tensor")
def _(targets, start):
    return torch.cat([torch.zeros(len(targets), 1) + start, targets[:, :-1]], dim=1)


@shift_right.mistake("you changed the caller's targets; work on a new tensor")
def _(targets, start):
    shifted = shift_right(targets, start)
    return targets.copy_(shifted)


@shift_right.mistake("raise a ValueError for targets with one axis")
def _(targets, start):
    if (targets == start).any():
        raise ValueError("start occurs in targets")
    return torch.cat([torch.full_like(targets[..., :1], start), targets[..., :-1]], dim=-1)


@shift_right.mistake("raise a ValueError for a start token that occurs in the targets")
def _(targets, start):
    if targets.ndim != 2:
        raise ValueError("targets must have two axes")
    return torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], dim=1)


@shift_right.variant
def _(targets, start):
    # use lists
    if targets.dim() != 2:
        raise ValueError("expected (batch, token)")
    rows = targets.tolist()
    if any(start in row for row in rows):
        raise ValueError(f"targets contain the start token {start}")
    return torch.tensor([[start, *row[:-1]] for row in rows])


@shift_right.variant
def _(targets, start):
    if len(targets.shape) != 2 or start in targets:
        raise ValueError("bad targets")
    out = targets.roll(1, dims=1)
    out[:, 0] = start
    return out


@shift_right.variant
def _(targets, start):
    if targets.ndim != 2 or not torch.all(targets != start):
        raise ValueError("bad targets")
    return torch.nn.functional.pad(targets, (1, -1), value=start)


# 8.3


@exercise(
    "8.3",
    "One head of cross-attention",
    task="Write one head of cross-attention for a source with padding",
    points=3,
    difficulty=2,
    minutes=15,
    forbidden=("scaled_dot_product_attention", "MultiheadAttention", "multi_head_attention_forward"),
    excused={
        "nan": "hidden rows of the source do not affect the result, so NaN there need not be detected",
    },
    exact_zero=True,
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "scores far below zero, and padding above them": "no lesson has such scores",
    },
    hints=(
        "Compute queries from `y`, and keys and values from `x`. The scores are (target token, source token), divided by the square root of d_k.",
        "`real` has one entry for each *column*: `masked_fill(~real, -math.inf)` broadcasts it over the rows.",
        "Apply the softmax along the source, `dim=-1`. The output is the weights times the values.",
    ),
)
def cross_head(y, x, W_q, W_k, W_v, real):
    """Compute one head of cross-attention, equation (8.7): `y` (target token, d_model) from the decoder looks at `x`
    (source token, d_model) from the encoder. The matrices are `W_q` and `W_k` (d_model, d_k), and `W_v` (d_model, d_v).
    `real` (source token) is boolean, and False means padding. Return `(output, weights)`, with the shapes (target
    token, d_v) and (target token, source token). Padding gets a weight of exactly 0. Do not use PyTorch's attention
    functions.

    ```python
    >>> cross_head(torch.zeros(1, 1), torch.tensor([[4.0], [6.0], [9.0]]), *[torch.ones(1, 1)] * 3, torch.tensor([True, True, False]))
    (tensor([[5.]]), tensor([[0.5000, 0.5000, 0.0000]]))
    ```

    ★
    - Raise a `ValueError` if the shape of `real` is not (source token), or if none of its entries is True.
    - Results are right even if all real scores are far below zero and the padding's scores are higher. A NaN in a real token must show up in the result.
    """
    ### BEGIN SOLUTION
    if real.shape != x.shape[:1] or not real.any():
        raise ValueError(f"real: expected {len(x)} entries, at least one of them True, got {real.tolist()}")
    scores = (y @ W_q) @ (x @ W_k).T / math.sqrt(W_q.shape[1])
    weights = torch.softmax(scores.masked_fill(~real, -math.inf), dim=-1)
    return weights @ (x @ W_v), weights
    ### END SOLUTION


def _head(draw, targets, sources, d_model, d_k, d_v):
    matrices = draw.normal(d_model, d_k), draw.normal(d_model, d_k), draw.normal(d_model, d_v)
    return draw.normal(targets, d_model), draw.normal(sources, d_model), *matrices


@cross_head.cases
def _(draw):
    yield Case("two targets, two source tokens, no padding", (*_head(draw, 2, 2, 4, 3, 2), torch.tensor([True, True])))
    yield Case("three targets, four source tokens", (*_head(draw, 3, 4, 5, 3, 2), torch.ones(4, dtype=torch.bool)))
    filler = torch.tensor([True, False, True, False])
    yield Case("padding has weight 0, and the rest of the row adds up to one", (*_head(draw, 3, 4, 5, 6, 2), filler))
    targets, sources, d_model, d_k, d_v = draw.sizes(5, 2, 8)
    real = draw.uniform(sources) > 0.4
    real[-1], real[0] = True, False
    yield Case(
        "any sizes, gradients included", (*_head(draw, targets, sources, d_model, d_k, d_v), real), gradients=True
    )
    inputs = _head(draw, 3, 4, 5, 6, 2)
    yield Case("a source with only padding raises an error", (*inputs, torch.zeros(4, dtype=torch.bool)), refuse=True)
    yield Case("a single boolean for all source tokens raises an error", (*inputs, torch.tensor([True])), refuse=True)
    eye = torch.eye(2, dtype=torch.float64)
    far = torch.tensor([[-1e3, 0.0], [-1e3, 1e-4], [3.0, 3.0]], dtype=torch.float64)
    shown = torch.tensor([True, True, False])
    sunk = (1e3 * eye[:1], far, eye, eye, eye, shown)
    yield Case("scores far below zero, and padding above them", sunk, tolerance=1e-6)
    spoiled = [tensor.clone() for tensor in inputs]
    spoiled[1][0, 1] = math.nan
    yield Case("a NaN in a real source token shows up in the result", (*spoiled, filler), only_nan=True)
    column = (eye[:1], far, eye, eye, eye, shown[:, None])
    yield Case("a `real` of shape (source token, 1) raises an error", column, refuse=True)


def _cross(y, x, W_q, W_k, W_v, real, scale=None, dim=-1):
    scores = (y @ W_q) @ (x @ W_k).T / (scale or math.sqrt(W_q.shape[1]))
    weights = torch.softmax(scores.masked_fill(~real, -math.inf), dim=dim)
    return weights @ (x @ W_v), weights


@cross_head.mistake("your columns add up to one instead of your rows: the softmax runs along the source")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, x, W_q, W_k, W_v, real, dim=0)


@cross_head.mistake("your padding is not hidden")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, x, W_q, W_k, W_v, torch.ones_like(real))


@cross_head.mistake("your mask comes after the softmax, so the padding is still in the denominator")
def _(y, x, W_q, W_k, W_v, real):
    weights = _cross(y, x, W_q, W_k, W_v, torch.ones_like(real))[1] * real
    return weights @ (x @ W_v), weights


@cross_head.mistake("your scores are not divided by the square root of d_k")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, x, W_q, W_k, W_v, real, scale=1.0)


@cross_head.mistake("you divided the scores by the square root of d_model, but the query has width d_k")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, x, W_q, W_k, W_v, real, scale=math.sqrt(x.shape[1]))


@cross_head.mistake("you divided the scores by d_k instead of its square root")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, x, W_q, W_k, W_v, real, scale=W_q.shape[1])


@cross_head.mistake("your keys and values come from the decoder, which is self-attention; compute them from x")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, y, W_q, W_k, W_v, real)


@cross_head.mistake("your queries come from the source; the decoder attends to the source, so compute them from y")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(x, y, W_q, W_k, W_v, real)


@cross_head.mistake("your values are the unprojected rows of x; multiply them by W_v first")
def _(y, x, W_q, W_k, W_v, real):
    weights = _cross(y, x, W_q, W_k, W_v, real)[1]
    return weights @ x, weights


@cross_head.mistake("cross-attention has no causal mask: the source is complete, and every slot may see all of it")
def _(y, x, W_q, W_k, W_v, real):
    scores = (y @ W_q) @ (x @ W_k).T / math.sqrt(W_q.shape[1])
    look = real & torch.ones(len(y), len(x), dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~look, -math.inf), dim=-1)
    return weights @ (x @ W_v), weights


@cross_head.mistake("your result is detached, so no gradient flows back to the encoder")
def _(y, x, W_q, W_k, W_v, real):
    return tuple(result.detach() for result in cross_head(y, x, W_q, W_k, W_v, real))


@cross_head.mistake("raise a ValueError for a `real` of the wrong length or without any True")
def _(y, x, W_q, W_k, W_v, real):
    return _cross(y, x, W_q, W_k, W_v, real)


@cross_head.variant
def _(y, x, W_q, W_k, W_v, real):
    # process one slot at a time, over the real tokens only
    if real.ndim != 1 or len(real) != len(x) or real.sum() == 0:
        raise ValueError("real: expected one entry for each source token, at least one of them True")
    kept = real.nonzero()[:, 0]
    rows = []
    for slot in y:
        z = torch.stack([(slot @ W_q).dot(x[j] @ W_k) / W_k.shape[1] ** 0.5 for j in kept])
        e = torch.exp(z - z.max())
        rows.append(torch.zeros(len(x), dtype=x.dtype).index_put((kept,), e / e.sum()))
    weights = torch.stack(rows)
    return torch.stack([sum(row[j] * (x[j] @ W_v) for j in kept) for row in weights]), weights


@cross_head.variant
def _(y, x, W_q, W_k, W_v, real):
    # combine W_q W_k^T into one matrix, and add the mask as 0 or minus infinity
    if tuple(real.shape) != (x.shape[0],) or not bool(real.any()):
        raise ValueError("bad mask")
    z = torch.einsum("id,de,je->ij", y, W_q @ W_k.T, x) * W_k.shape[1] ** -0.5
    z = z + torch.where(real, 0.0, -math.inf)
    weights = (z - z.logsumexp(dim=1, keepdim=True)).exp()
    return [torch.einsum("ij,jd,dv->iv", weights, x, W_v), weights]


# 8.4


@exercise(
    "8.4",
    "A detector of leaks",
    task="List where a prediction sees what it must not see, or misses what it should see",
    points=3,
    difficulty=3,
    minutes=15,
    robust={
        "a logit that stays minus infinity has not changed and hides no change of another": "the lesson's decoder never gives a logit of minus infinity",
        "changes just above the bound, on it and just below": "a leak is larger than a rounding error",
        "many changes below the bound do not add up to one above it": "a leak is larger than a rounding error",
    },
    hints=(
        "How much does the row of each slot change? `(after - before).abs().amax(dim=-1)` is a table. What do its axes count?",
        "The table is (target, slot). Build the table as it should be: each slot depends on the real targets before its own.",
        "Transpose the table of changes to (slot, target), and compare it with the one that you built. `nonzero()` then lists the differences in the required order.",
    ),
)
def leaks(before, after, real):
    """Does a decoder see exactly what it should? `before` (slot, vocab) holds its logits for a text, with the inputs shifted, so slot $i$ predicts
    target $i$. `after` is (target, slot, vocab), and `after[j]` holds all logits when only target $j$ is replaced. A slot *depends* on a target
    if one of its logits changes by more than `1e-9`. It should depend on exactly those targets before its own that are
    True in the boolean `real` (target). List all pairs `(slot, target)` that violate this, sorted by slot, then by
    target.

    ```python
    >>> leaks(torch.zeros(2, 1), torch.tensor([[[0.0], [3.0]], [[2.0], [0.0]]]), torch.tensor([True, True]))
    [(0, 1)]
    ```

    ★
    - A logit that is $-\\infty$ before and after has not changed.
    - Raise a `ValueError` if `after` is not (slot, slot, vocab) with the sizes of `before`, or if `real` is not (slot).
    """
    ### BEGIN SOLUTION
    slots, vocab = before.shape
    if after.shape != (slots, slots, vocab) or real.shape != (slots,):
        shapes = tuple(after.shape), tuple(real.shape)
        raise ValueError(f"after, real: expected shapes {(slots, slots, vocab)} and {(slots,)}, got {shapes}")
    moved = torch.where(after == before, 0.0, (after - before).abs())  # -inf before and after is no change
    depends = moved.amax(dim=-1).T > 1e-9  # (slot, target)
    should = torch.ones_like(depends).tril(-1) & real
    return [(slot, target) for slot, target in (depends != should).nonzero().tolist()]
    ### END SOLUTION


def _moved(draw, depends, vocab, down=False, real=None):
    """Draw logits before and after a change of each target; `depends` (slot, target) says which slots change."""
    slots = len(depends)
    change = 0.1 + draw.uniform(slots, slots, vocab)  # (target, slot, vocab)
    change[..., 0] = 0.0
    change[..., 1] = -change[..., 2:].sum(dim=-1)
    change = -change.abs() if down else change
    before = draw.normal(slots, vocab)
    real = torch.ones(slots, dtype=torch.bool) if real is None else real
    return before, before + change * depends.T[..., None], real


@leaks.cases
def _(draw):
    def honest(n):
        return torch.ones(n, n, dtype=torch.bool).tril(-1)

    yield Case("a correct model", _moved(draw, honest(3), 4))
    unshifted = torch.ones(3, 3, dtype=torch.bool).tril()
    yield Case("a missing shift: every slot reads its own target", _moved(draw, unshifted, 4))
    leaky = honest(4)
    leaky[1, 3] = True
    yield Case("one slot that sees one later target, and logits that fall", _moved(draw, leaky, 3, down=True))
    n = draw.whole(5, 7)
    unmasked = torch.ones(n, n, dtype=torch.bool)
    unmasked[:, -1] = False  # no slot reads the last target
    yield Case("a model without a mask", _moved(draw, unmasked, 3))
    missed = honest(4).tril(-2)
    yield Case("a hidden diagonal, or a double shift: the last word is lost", _moved(draw, missed, 3))
    real = torch.tensor([True, True, False, True, False])
    yield Case("padding that is seen", _moved(draw, honest(5), 3, real=real))
    yield Case("padding that is not seen", _moved(draw, honest(5) & real, 3, real=real))
    some = draw.uniform(n, n) > 0.5
    some[0, 2] = some[0, n - 1] = some[2, 2] = True
    some[3, 1] = False
    any_real = draw.uniform(n) > 0.3
    yield Case("any dependencies", _moved(draw, some, draw.whole(8, 10), real=any_real))
    before, after, all_real = _moved(draw, honest(4), 5)
    yield Case("a change below 1e-9 is rounding", (before, after + 1e-12, all_real))
    yield Case("a change of 1e-7 is more than rounding", (before, before + 1e-7 * (after - before), all_real))
    ruled_out = _moved(draw, unshifted, 4)
    for logits in ruled_out[:2]:
        logits[..., 3] = -math.inf
    yield Case("a logit that stays minus infinity has not changed and hides no change of another", ruled_out)
    yield Case("fewer targets than slots raise an error", (before, after[:1], all_real), refuse=True)
    yield Case("fewer slots after than before raise an error", (before, after[:, :1], all_real), refuse=True)
    yield Case("a single boolean for all targets raises an error", (before, after, all_real[:1]), refuse=True)
    level = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1000.0, 0.0]], dtype=torch.float64)
    nudged = level.repeat(3, 1, 1)
    nudged[0, 0, 0] = 1e-9  # exactly the bound, not more
    nudged[1, 0, 1] = 1.5e-9
    nudged[2, 0, 0] = 0.8e-9
    nudged[1, 1, 1] += 4e-9
    nudged[2, 1, 0] = -math.inf
    nudged[2, 2, 0] += 1e-3
    three = all_real[:3]
    yield Case("changes just above the bound, on it and just below", (level, nudged, three))
    yield Case("a different vocabulary after than before raises an error", (level, nudged[..., :1], three), refuse=True)
    many = torch.zeros(2, 6, dtype=torch.float64)
    yield Case(
        "many changes below the bound do not add up to one above it", (many, many.repeat(2, 1, 1) + 0.6e-9, three[:2])
    )


def _depends(before, after):
    """Return a boolean table (slot, target) of the slots that depend on each target."""
    return ((after - before).abs().amax(dim=-1) > 1e-9).T


def _should(before, real):
    return torch.ones(len(before), len(before), dtype=torch.bool).tril(-1) & real


def _wrong(before, after, real):
    return _depends(before, after) != _should(before, real)


def _pairs(table, base=0):
    return [(slot + base, target + base) for slot, target in table.nonzero().tolist()]


@leaks.mistake("you listed the pairs that are as they should be; list the others")
def _(before, after, real):
    return _pairs(~_wrong(before, after, real))


@leaks.mistake("your axes are swapped: `after` is (target, slot, vocab), and you took its first axis as the slots")
def _(before, after, real):
    return _pairs(_should(before, real) != _depends(before, after).T)


@leaks.mistake("a slot that depends on its own target has lost its shift, so the diagonal must count as a leak")
def _(before, after, real):
    return _pairs(_depends(before, after) != (torch.ones(len(before), len(before), dtype=torch.bool).tril() & real))


@leaks.mistake("you listed all dependencies, but those on real targets before a slot's own are right")
def _(before, after, real):
    return _pairs(_depends(before, after))


@leaks.mistake("you listed only leaks; also list targets that a slot should depend on and does not")
def _(before, after, real):
    return _pairs(_depends(before, after) & ~_should(before, real))


@leaks.mistake("you listed only lost targets; also list the leaks")
def _(before, after, real):
    return _pairs(~_depends(before, after) & _should(before, real))


@leaks.mistake("no slot should depend on padding, so padding that is not seen is not a lost target")
def _(before, after, real):
    return _pairs(_depends(before, after) != _should(before, torch.ones_like(real)))


@leaks.mistake("you looked only at real targets, but padding that a slot sees is a leak, too")
def _(before, after, real):
    return _pairs(_wrong(before, after, real) & real)


@leaks.mistake("slots and targets are counted from 0")
def _(before, after, real):
    return _pairs(_wrong(before, after, real), base=1)


@leaks.mistake("your pairs are in the wrong order: the slot comes first")
def _(before, after, real):
    return [(target, slot) for slot, target in _pairs(_wrong(before, after, real))]


@leaks.mistake("your list is sorted by target; sort it by slot first")
def _(before, after, real):
    return sorted(_pairs(_wrong(before, after, real)), key=lambda pair: (pair[1], pair[0]))


@leaks.mistake("positive and negative changes cancel in your sum; take absolute values first")
def _(before, after, real):
    return _pairs(_should(before, real) != ((after - before).sum(dim=-1).abs() > 1e-9).T)


@leaks.mistake(
    "minus infinity minus minus infinity is NaN, and NaN is never above the bound, so it hides other changes"
)
def _(before, after, real):
    if after.shape != (len(before), *before.shape) or real.shape != before.shape[:1]:
        raise ValueError("after: expected (target, slot, vocab)")
    return _pairs(_wrong(before, after, real))


@leaks.mistake("a logit that falls has changed, too; take absolute values before the maximum")
def _(before, after, real):
    return _pairs(_should(before, real) != ((after - before).amax(dim=-1) > 1e-9).T)


@leaks.mistake("a change of 1e-12 is rounding; count only changes above 1e-9")
def _(before, after, real):
    return _pairs(_should(before, real) != (after != before).any(dim=-1).T)


@leaks.mistake("a change of 1e-7 is more than rounding; the bound is 1e-9")
def _(before, after, real):
    moved = torch.where(after == before, 0.0, (after - before).abs())
    return _pairs(_should(before, real) != (moved.amax(dim=-1) > 1e-6).T)


@leaks.mistake("logits of the wrong shape would be broadcast silently; raise a ValueError")
def _(before, after, real):
    return _pairs(_wrong(before, after, real))


@leaks.variant
def _(before, after, real):
    # use three loops
    if after.ndim != 3 or list(after.shape) != [len(before), *before.shape] or real.shape != (len(before),):
        raise ValueError("after: expected (target, slot, vocab)")
    found = []
    for slot in range(len(before)):
        for target in range(len(before)):
            pairs = zip(after[target, slot].tolist(), before[slot].tolist(), strict=True)
            if any(abs(a - b) > 1e-9 for a, b in pairs if a != b) != (target < slot and bool(real[target])):
                found.append([slot, target])
    return found


@leaks.variant
def _(before, after, real):
    if tuple(after.shape) != (len(before), *before.shape) or tuple(real.shape) != (len(before),):
        raise ValueError("bad shape")
    seen = ~torch.isclose(after, before.expand_as(after), rtol=0.0, atol=1e-9).all(dim=-1)
    pairs = ((s, t) for s in range(len(before)) for t in range(len(before)))
    return [(s, t) for s, t in pairs if seen[t, s].item() is not (t < s and real[t].item())]


# 8.5


@exercise(
    "8.5",
    "The gradient of the memory",
    task="Compute the gradient that reaches the encoder through one head",
    points=4,
    difficulty=3,
    minutes=20,
    forbidden=("autograd", "backward", "requires_grad_", "requires_grad", "vjp", "jvp", "jacrev", "jacobian"),
    hints=(
        "The last line of equation (D8.9) needs the gradients with respect to K and V.",
        "Lesson 02 has them: (D2.10) for V, and (D2.12), then (D2.13), for K.",
        "There are two paths to X, through the keys and through the values; add them.",
    ),
)
def memory_gradient(y, x, W_q, W_k, W_v, g):
    """Compute a gradient of one head of cross-attention without a mask, equation (8.3). The memory $X$ is `x` (source
    token, d_model), and the decoder's rows are `y` (target token, d_model). The matrices are `W_q` and `W_k` (d_model,
    d_k), and `W_v` (d_model, d_v). The tensor `g` (target token, d_v) is $\\partial\\mathcal{L}/\\partial(AV)$. Return
    $\\partial\\mathcal{L}/\\partial X$, (source token, d_model), without autograd.

    ```python
    >>> memory_gradient(torch.zeros(1, 1), torch.zeros(2, 1), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.tensor([[6.0]]))
    tensor([[3.],
            [3.]])
    ```

    ★
    - Large scores do not overflow.
    """
    ### BEGIN SOLUTION
    q, k, v, scale = y @ W_q, x @ W_k, x @ W_v, math.sqrt(W_q.shape[1])
    a = torch.softmax(q @ k.T / scale, dim=-1)
    dv = a.T @ g  # (D2.10)
    dz = a * (g @ v.T - (g * (a @ v)).sum(dim=-1, keepdim=True))  # (D2.12)
    dk = dz.T @ q / scale  # (D2.13)
    return dk @ W_k.T + dv @ W_v.T  # (D8.9)
    ### END SOLUTION


@memory_gradient.cases
def _(draw):
    yield Case("two targets, two source tokens", (*_head(draw, 2, 2, 2, 2, 2), draw.normal(2, 2)))
    yield Case("one target", (*_head(draw, 1, 3, 4, 2, 5), draw.normal(1, 5)))
    targets, sources, d_model, d_k, d_v = draw.sizes(5, 2, 8)
    yield Case("all sizes different", (*_head(draw, targets, sources, d_model, d_k, d_v), draw.normal(targets, d_v)))


def _paths(y, x, W_q, W_k, W_v, g, scale=None, dim=-1, centre=True):
    """Return the gradients with respect to K and V."""
    q, k, v, scale = y @ W_q, x @ W_k, x @ W_v, scale or math.sqrt(W_q.shape[1])
    a = torch.softmax(q @ k.T / scale, dim=dim)
    da = g @ v.T
    dz = a * (da - (a * da).sum(dim=dim, keepdim=True)) if centre else a * da
    return dz.T @ q / scale, a.T @ g


@memory_gradient.mistake("the path through the keys is missing, but x also determines the weights")
def _(y, x, W_q, W_k, W_v, g):
    return _paths(y, x, W_q, W_k, W_v, g)[1] @ W_v.T


@memory_gradient.mistake("the path through the values is missing")
def _(y, x, W_q, W_k, W_v, g):
    return _paths(y, x, W_q, W_k, W_v, g)[0] @ W_k.T


@memory_gradient.mistake("you left out the factor 1 / sqrt(d_k) in the path through the keys")
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g)
    return math.sqrt(W_q.shape[1]) * dk @ W_k.T + dv @ W_v.T


@memory_gradient.mistake("your scores are not divided by the square root of d_k, forwards or backwards")
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g, scale=1.0)
    return dk @ W_k.T + dv @ W_v.T


@memory_gradient.mistake("your weights are computed with scores that are not divided by the square root of d_k")
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g, scale=1.0)
    return dk / math.sqrt(W_q.shape[1]) @ W_k.T + dv @ W_v.T


@memory_gradient.mistake(
    "you left out the second term of the softmax's Jacobian; subtract the row's weighted mean of dA"
)
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g, centre=False)
    return dk @ W_k.T + dv @ W_v.T


@memory_gradient.mistake("your matrices are not transposed: the gradient of a product with W contains its transpose")
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g)
    return dk @ W_k + dv @ W_v


@memory_gradient.mistake("you added the gradients of K and V; multiply each by its own transposed matrix first")
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g)
    return dk + dv


@memory_gradient.mistake(
    "that is the gradient with respect to the decoder's rows; return the one with respect to the encoder's output"
)
def _(y, x, W_q, W_k, W_v, g):
    q, k, v, scale = y @ W_q, x @ W_k, x @ W_v, math.sqrt(W_q.shape[1])
    a = torch.softmax(q @ k.T / scale, dim=-1)
    dz = a * (g @ v.T - (g * (a @ v)).sum(dim=-1, keepdim=True))
    return dz @ k / scale @ W_q.T


@memory_gradient.mistake("your softmax runs over the targets; each slot spreads its weight over the source")
def _(y, x, W_q, W_k, W_v, g):
    dk, dv = _paths(y, x, W_q, W_k, W_v, g, dim=0)
    return dk @ W_k.T + dv @ W_v.T


@memory_gradient.variant
def _(y, x, W_q, W_k, W_v, g):
    # process one slot at a time, with the Jacobian written out
    total, root = torch.zeros_like(x), W_k.shape[1] ** 0.5
    for row, upper in zip(y, g, strict=True):
        query = row @ W_q
        a = torch.softmax(x @ W_k @ query / root, dim=0)
        dz = (torch.diag(a) - torch.outer(a, a)) @ (x @ W_v @ upper)
        total += torch.outer(dz, W_k @ query) / root + torch.outer(a, W_v @ upper)
    return total


@memory_gradient.variant
def _(y, x, W_q, W_k, W_v, g):
    # write each bilinear form as a single matrix that is multiplied by the source
    asks, hears = y @ W_q @ W_k.T / math.sqrt(W_k.shape[1]), g @ W_v.T  # both (target token, d_model)
    z = torch.einsum("id,jd->ij", asks, x)
    e = torch.exp(z - z.amax(1, keepdim=True))
    a = e / e.sum(1, keepdim=True)
    da = torch.einsum("id,jd->ij", hears, x)
    dz = a * da - a * torch.einsum("ij,ij->i", a, da)[:, None]
    return torch.einsum("ij,id->jd", dz, asks) + torch.einsum("ij,id->jd", a, hears)
