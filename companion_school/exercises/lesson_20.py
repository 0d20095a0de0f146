"""Exercises of lesson 20: from completing to answering."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 20.1


@exercise(
    "20.1",
    "What the loss counts",
    task="Mark the tokens of a conversation that count in the loss",
    points=1,
    difficulty=1,
    minutes=10,
    hints=(
        "Go through the tokens and remember whose turn it is: no one's, the user's, or the assistant's.",
        "A role token changes the turn but never counts. Any other token counts if it is the assistant's turn.",
        "`end` still belongs to the turn that it ends. After it, it is no one's turn.",
    ),
)
def loss_mask(ids, user, assistant, end):
    """`ids` is a conversation, given as a list of tokens. A turn begins with a role token, `user` or `assistant`, and
    ends with the token `end`. There may be several turns of both kinds, and an `end` may be followed by padding, which
    can consist of any tokens except role tokens. Return a list of booleans that says for each token whether it counts
    in the loss. What the assistant says counts, including its `end` but not its role token.

    ```python
    >>> loss_mask([7, 1, 2, 9, 8, 3, 9, 0], 7, 8, 9)
    [False, False, False, False, False, True, True, False]
    ```

    ★
    - Raise a `ValueError` if a conversation does not begin with a role token.
    - An assistant's turn may lack its `end` because the text was cut off. Then all of its tokens count.
    """
    ### BEGIN SOLUTION
    if not ids or ids[0] not in (user, assistant):
        raise ValueError(f"ids: expected a role token ({user} or {assistant}) at the start, got {ids[:1]}")
    speaks, found = None, []
    for token in ids:
        role = token in (user, assistant)
        found.append(speaks == assistant and not role)
        if role or token == end:
            speaks = token if role else None
    return found
    ### END SOLUTION


@loss_mask.cases
def _(draw):
    yield Case("one question, one answer", ([7, 1, 2, 9, 8, 3, 4, 9], 7, 8, 9))
    yield Case("two answers", ([7, 1, 9, 8, 3, 9, 7, 2, 9, 8, 4, 4, 9], 7, 8, 9))
    yield Case("padding after the end", ([7, 1, 9, 8, 3, 9, 0, 0, 9], 7, 8, 9))
    yield Case("padding between two turns", ([7, 1, 9, 0, 8, 3, 9, 5, 7, 2, 9, 8, 4, 9], 7, 8, 9))
    yield Case("the assistant begins", ([8, 3, 3, 9, 7, 1, 9], 7, 8, 9))
    for number in range(3):
        ids = []
        for _ in range(draw.whole(2, 4)):
            for role in (21, 22):
                ids += [role, *draw.wholes(0, 9, draw.whole(1, 4)).tolist(), 20]
        yield Case(f"a longer conversation, {number + 1} of 3", (ids, 21, 22, 20))
    yield Case("an answer that is cut off", ([7, 1, 9, 8, 3, 4], 7, 8, 9), robust="no answer in the lesson is cut off")
    yield Case(
        "a conversation that does not begin with a role token is rejected", ([1, 2, 9, 8, 3, 9], 7, 8, 9), refuse=True
    )
    yield Case("an empty conversation is rejected", ([], 7, 8, 9), refuse=True)


def _roles(ids, user, assistant):
    if not ids or ids[0] not in (user, assistant):
        raise ValueError("expected a role token first")


def _marked(ids, user, assistant, end, *, role=False, ends=True, fillers=False, who=None):
    who, speaks, found = (assistant,) if who is None else who, None, []
    for token in ids:
        is_role = token in (user, assistant)
        if is_role:
            speaks = token
            found.append(role and speaks in who)
            continue
        found.append(speaks in who and (ends or token != end))
        if token == end and not fillers:
            speaks = None
    return found


@loss_mask.mistake("the role token is given: the assistant writes only the tokens after it")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    return _marked(ids, user, assistant, end, role=True)


@loss_mask.mistake("`end` counts: without it the model does not learn to stop")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    return _marked(ids, user, assistant, end, ends=False)


@loss_mask.mistake("the tokens between an `end` and the next role token belong to no one")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    return _marked(ids, user, assistant, end, fillers=True)


@loss_mask.mistake("the user's tokens do not count, because no one could predict them")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    return _marked(ids, user, assistant, end, who=(user, assistant))


@loss_mask.mistake("you count the user's tokens instead of the assistant's")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    return _marked(ids, user, assistant, end, who=(user,))


@loss_mask.mistake("all answers count, not only the first")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    found = _marked(ids, user, assistant, end)
    ended = [at for at, token in enumerate(ids) if found[at] and token == end]
    return [counts and (not ended or at <= ended[0]) for at, counts in enumerate(found)]


@loss_mask.mistake("all answers count, not only the last")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    found = _marked(ids, user, assistant, end)
    last = max((at for at, token in enumerate(ids) if token == assistant), default=0)
    return [counts and at > last for at, counts in enumerate(found)]


@loss_mask.mistake("you left out an answer that is cut off before its `end`")
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    found = _marked(ids, user, assistant, end)
    last = max((at for at, token in enumerate(ids) if token == end), default=-1)
    return [counts and at <= last for at, counts in enumerate(found)]


@loss_mask.mistake("a conversation that does not begin with a role token must raise a ValueError")
def _(ids, user, assistant, end):
    return _marked(ids, user, assistant, end)


@loss_mask.variant
def _(ids, user, assistant, end):
    _roles(ids, user, assistant)
    return _marked(ids, user, assistant, end)


@loss_mask.variant
def _(ids, user, assistant, end):
    # For each token, find the last role before it and whether an end lies between them
    _roles(ids, user, assistant)
    found = []
    for at, token in enumerate(ids):
        roles = [place for place in range(at) if ids[place] in (user, assistant)]
        mine = bool(roles) and ids[roles[-1]] == assistant and token not in (user, assistant)
        found.append(mine and end not in ids[roles[-1] + 1 : at])
    return found


# 20.2


@exercise(
    "20.2",
    "Many adapters, one model",
    task="Apply a frozen matrix to a batch, with a separate adapter for each row",
    points=3,
    difficulty=2,
    minutes=15,
    right={"gradients": "its output goes into a model that is trained"},
    excused={"edge": "a different index means a different adapter"},
    hints=(
        "All rows share `x @ weight.T`, so compute it once.",
        "`down[which]` is (batch, in, rank), one matrix for each row. Multiply by it with `torch.einsum`, or with `@` and an additional axis.",
        "Rows with -1 get no change. Select with `torch.where`, or compute the change only for the rows that have an adapter.",
    ),
)
def adapted(x, weight, down, up, which, scale):
    """A server has one frozen matrix, `weight` (out, in), which maps a row x to `x @ weight.T`, and several adapters of the same rank: `down`
    (adapter, in, rank) and `up` (adapter, rank, out). Row b of the batch `x` (batch, in) uses the adapter with the
    index `which[b]` (int64), or no adapter if that index is -1. The change that an adapter makes is multiplied by
    `scale`. Return the outputs (batch, out).

    ```python
    >>> one = torch.ones(1, 1, 1)
    >>> adapted(torch.tensor([[3.0], [3.0]]), torch.tensor([[2.0]]), one, one, torch.tensor([0, -1]), 0.5)
    tensor([[7.5000],
            [6.0000]])
    ```

    ★
    - Raise a `ValueError` if shapes do not match, or if an adapter does not exist.
    - An adapter that no row of the batch uses has no effect, even if it contains NaN.
    """
    ### BEGIN SOLUTION
    sizes = (down.shape[0], x.shape[1], weight.shape[0]) != (up.shape[0], down.shape[1], up.shape[2])
    if sizes or down.shape[2] != up.shape[1] or weight.shape[1] != x.shape[1] or which.shape != x.shape[:1]:
        raise ValueError(
            f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, down {tuple(down.shape)}, up {tuple(up.shape)}"
        )
    if not ((which >= -1) & (which < len(down))).all():
        raise ValueError(f"which: expected indices from -1 to {len(down) - 1}; got {which.tolist()}")
    out, rows = x @ weight.T, (which >= 0).nonzero()[:, 0]
    mine = which[rows]
    change = torch.einsum("bi,bir,bro->bo", x[rows], down[mine], up[mine])
    return out.index_add(0, rows, scale * change)
    ### END SOLUTION


@adapted.cases
def _(draw):
    weight, down, up = draw.normal(3, 4), draw.normal(2, 4, 2), draw.normal(2, 2, 3)
    yield Case("one adapter for all", (draw.normal(2, 4), weight, down, up, torch.tensor([1, 1]), 1.0))
    yield Case(
        "different adapters",
        (draw.normal(3, 4), weight, down, up, torch.tensor([1, 0, 1]), 2.0),
        gradients=True,
    )
    yield Case("rows without an adapter", (draw.normal(3, 4), weight, down, up, torch.tensor([-1, 0, -1]), 2.0))
    yield Case("-1 for every row", (draw.normal(2, 4), weight, down, up, torch.tensor([-1, -1]), 2.0))
    wide_in, wide_out, rank, adapters = draw.sizes(4, 2, 8)
    weight, down = draw.normal(wide_out, wide_in), draw.normal(adapters, wide_in, rank)
    up, x, which = draw.normal(adapters, rank, wide_out), draw.normal(9, wide_in), draw.wholes(-1, adapters - 1, 9)
    yield Case("other sizes", (x, weight, down, up, which, 0.25))
    square = (draw.normal(5, 4), draw.normal(4, 4), draw.normal(3, 4, 4), draw.normal(3, 4, 4))
    yield Case("all sizes equal", (*square, draw.wholes(0, 2, 5), 0.5))
    used = torch.zeros_like(which)
    spoilt = [adapter.clone() for adapter in (down, up)]
    for adapter in spoilt:
        adapter[1:] = float("nan")
    yield Case(
        "NaN in unused adapters", (x, weight, *spoilt, used, 0.25), robust="the lesson's adapters contain no NaN"
    )
    yield Case("an adapter that does not exist is rejected", (x, weight, down, up, used + adapters, 0.25), refuse=True)
    yield Case("a number below -1 is rejected", (x, weight, down, up, used - 2, 0.25), refuse=True)
    yield Case("a batch of a different size is rejected", (x[1:], weight, down, up, which, 0.25), refuse=True)
    yield Case("one adapter too few is rejected", (x, weight, down, up[1:], used, 0.25), refuse=True)


def _fitting(x, weight, down, up, which):
    if weight.shape != (up.shape[2], x.shape[1]) or down.shape[:2] != (up.shape[0], x.shape[1]):
        raise ValueError("sizes do not match")
    if down.shape[2] != up.shape[1] or which.shape != x.shape[:1]:
        raise ValueError("sizes do not match")
    if not ((which >= -1) & (which < len(down))).all():
        raise ValueError(f"which: expected -1 to {len(down) - 1}")


def _one_by_one(x, weight, down, up, which, scale, change=None):
    change = change or (lambda row, a: row @ down[a] @ up[a])
    rows = []
    for row, number in zip(x, which.tolist(), strict=True):
        rows.append(row @ weight.T + (scale * change(row, number) if number >= 0 else 0))
    return torch.stack(rows)


@adapted.mistake("-1 means no adapter, but as an index it selects the last one")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return x @ weight.T + scale * torch.einsum("bi,bir,bro->bo", x, down[which], up[which])


@adapted.mistake("each row has its own adapter, but you use that of the first row for all")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return _one_by_one(x, weight, down, up, which[:1].expand(len(x)), scale)


@adapted.mistake("you add the changes of all adapters, but each row uses only one")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    every = sum(a @ b for a, b in zip(down, up, strict=True))
    return _one_by_one(x, weight, down, up, which, scale, lambda row, a: row @ every)


@adapted.mistake("you forgot to multiply the change by the scale")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return _one_by_one(x, weight, down, up, which, 1.0)


@adapted.mistake("the scale multiplies only the change, not the frozen matrix")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return scale * _one_by_one(x, weight, down, up, which, 1.0)


@adapted.mistake("use the scale as given: you also divide it by the rank")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return _one_by_one(x, weight, down, up, which, scale / down.shape[2])


@adapted.mistake("the change is added to the output of the frozen matrix: it does not replace that output")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return _one_by_one(x, torch.zeros_like(weight), down, up, which, scale)


@adapted.mistake("an adapter that no row uses must have no effect, but 0 times NaN is NaN")
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    chosen = (which[:, None] == torch.arange(len(down))).to(x.dtype)
    return x @ weight.T + scale * torch.einsum("bi,air,aro,ba->bo", x, down, up, chosen)


@adapted.mistake("shapes that do not match, and adapters that do not exist, must raise a ValueError")
def _(x, weight, down, up, which, scale):
    count = min(len(x), len(which))
    known = which[:count].clamp(-1, min(len(down), len(up)) - 1)
    return _one_by_one(x[:count], weight, down, up, known, scale)


@adapted.variant
def _(x, weight, down, up, which, scale):
    _fitting(x, weight, down, up, which)
    return _one_by_one(x, weight, down, up, which, scale)


@adapted.variant
def _(x, weight, down, up, which, scale):
    # Process the rows of one adapter at a time, with the merged matrix
    _fitting(x, weight, down, up, which)
    out = x @ weight.T
    for number in range(len(down)):
        rows = (which == number).nonzero()[:, 0]
        if len(rows):
            out = out.index_copy(0, rows, x[rows] @ (weight.T + scale * down[number] @ up[number]))
    return out


# 20.3


@exercise(
    "20.3",
    "A loss on pairs",
    task="Compute the loss of DPO from the log probabilities of tokens",
    points=3,
    difficulty=2,
    minutes=15,
    right={"gradients": "only the gradient of a loss is used"},
    hints=(
        "The log probability of an answer is the sum over those of its tokens that count, so use `torch.where(counts, now - start, 0).sum(-1)`.",
        "The margin is tau times the difference of the two sums, the first minus the second. The loss is `-log(sigmoid(margin))`.",
        "`torch.nn.functional.logsigmoid` does not overflow, whatever the margin.",
    ),
)
def preference_loss(now, start, counts, tau):
    """`now` (pair, 2, token) holds the log probabilities that the model gives to the tokens of two answers, first the
    good one and then the bad one. `start` (pair, 2, token) holds those that it gave before training. `counts`
    (pair, 2, token) is boolean and says which tokens belong to the answers. Return the loss of DPO, (20.7), with the
    temperature `tau`, averaged over the pairs, as a zero-dimensional tensor.

    ```python
    >>> now, start = torch.tensor([[[-1.0], [-2.0]]]), torch.tensor([[[-1.0], [-1.0]]])
    >>> preference_loss(now, start, torch.ones(1, 2, 1).bool(), 1.0)
    tensor(0.3133)
    ```

    ★
    - Raise a `ValueError` if the shapes differ, if a pair does not have two answers, if there are no pairs, or if the temperature is not above
      0.
    - A margin of a thousand, or of minus a thousand, must not cause an overflow.
    - The values of tokens that do not count have no effect, even if they are minus infinity.
    """
    ### BEGIN SOLUTION
    same = now.shape == start.shape == counts.shape
    if not same or now.dim() != 3 or now.shape[1] != 2 or not len(now) or not tau > 0:
        raise ValueError(
            f"now {tuple(now.shape)}, start {tuple(start.shape)}, counts {tuple(counts.shape)}, tau={tau}: expected equal shapes and tau > 0"
        )
    hidden = ~counts
    moved = (now.masked_fill(hidden, 0) - start.masked_fill(hidden, 0)).sum(dim=-1)
    return -torch.nn.functional.logsigmoid(tau * (moved[:, 0] - moved[:, 1])).mean()
    ### END SOLUTION


@preference_loss.cases
def _(draw):
    every = torch.ones(1, 2, 3).bool()
    yield Case("one pair", (-draw.uniform(1, 2, 3), -draw.uniform(1, 2, 3), every, 1.0), gradients=True)
    yield Case("a small temperature", (-draw.uniform(1, 2, 3), -draw.uniform(1, 2, 3), every, 0.1))
    uneven = torch.tensor([[[True, True, True, True], [True, False, False, False]]])
    yield Case(
        "answers of unequal length", (-draw.uniform(1, 2, 4), -draw.uniform(1, 2, 4), uneven, 2.0), gradients=True
    )
    pair, token = draw.sizes(2, 4, 9)
    now, start = -3 * draw.uniform(pair, 2, token), -3 * draw.uniform(pair, 2, token)
    counts = draw.uniform(pair, 2, token) < 0.7
    counts[:, :, 0] = True
    yield Case("many pairs", (now, start, counts, 0.5), gradients=True)
    yield Case("the model has not changed yet", (now, now.clone(), counts, 0.5))
    yield Case(
        "a margin of minus a thousand",
        (now + torch.tensor([-1000.0, 0]).double()[:, None], start, counts, 0.5),
        robust="margins in the lesson are small",
    )
    yield Case(
        "a margin of a thousand",
        (now + torch.tensor([0, -1000.0]).double()[:, None], start, counts, 0.5),
        robust="margins in the lesson are small",
    )
    cut = now.masked_fill(~counts, -math.inf)
    yield Case(
        "minus infinity in tokens that do not count",
        (cut, start.masked_fill(~counts, -math.inf), counts, 0.5),
        robust="padding in the lesson has a finite log probability",
    )
    yield Case("a temperature of 0 is rejected", (now, start, counts, 0.0), refuse=True)
    yield Case("a `start` of a different shape is rejected", (now, start[1:], counts, 0.5), refuse=True)
    yield Case("a mask of a different shape is rejected", (now, start, counts[:, :1], 0.5), refuse=True)
    yield Case("one answer instead of two is rejected", (now[:, :1], start[:, :1], counts[:, :1], 0.5), refuse=True)
    yield Case("zero pairs are rejected", (now[:0], start[:0], counts[:0], 0.5), refuse=True)


def _paired(now, start, counts, tau):
    if (
        not now.shape == start.shape == counts.shape
        or now.dim() != 3
        or now.shape[1] != 2
        or not len(now)
        or not tau > 0
    ):
        raise ValueError("now, start, counts: expected matching shapes, at least one pair, and tau above 0")


def _moved(now, start, counts):
    hidden = ~counts
    return (now.masked_fill(hidden, 0) - start.masked_fill(hidden, 0)).sum(dim=-1)


def _softplus(margin):
    return torch.nn.functional.softplus(-margin).mean()


@preference_loss.mistake(
    "the probability of an answer is the product of its tokens' probabilities, so take the sum of the logarithms, not their mean"
)
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts) / counts.sum(-1).clamp(min=1)
    return _softplus(tau * (moved[:, 0] - moved[:, 1]))


@preference_loss.mistake("only tokens that count belong to an answer")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = (now - start).sum(-1)
    return _softplus(tau * (moved[:, 0] - moved[:, 1]))


@preference_loss.mistake("the margin is measured from the start, so subtract the log probabilities in `start`")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = now.masked_fill(~counts, 0).sum(-1)
    return _softplus(tau * (moved[:, 0] - moved[:, 1]))


@preference_loss.mistake("the good answer comes first: you teach the model the bad one")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return _softplus(tau * (moved[:, 1] - moved[:, 0]))


@preference_loss.mistake("the margin is multiplied by the temperature, not divided by it as in a softmax")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return _softplus((moved[:, 0] - moved[:, 1]) / tau)


@preference_loss.mistake("the temperature is missing")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return _softplus(moved[:, 0] - moved[:, 1])


@preference_loss.mistake("the loss is the mean over the pairs, not the sum")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return _softplus(tau * (moved[:, 0] - moved[:, 1])) * len(now)


@preference_loss.mistake("take the mean of the losses, not the loss of the mean margin")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return _softplus((tau * (moved[:, 0] - moved[:, 1])).mean(0, keepdim=True))


@preference_loss.mistake("the loss is minus the logarithm of the probability, not minus the probability")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return -torch.sigmoid(tau * (moved[:, 0] - moved[:, 1])).mean()


@preference_loss.mistake(
    "far below 0 the sigmoid is 0 in floating point and its logarithm is minus infinity, so use logsigmoid"
)
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return (1 + torch.exp(-tau * (moved[:, 0] - moved[:, 1]))).log().mean()


@preference_loss.mistake("mask before you subtract, because minus infinity minus minus infinity is NaN")
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = ((now - start) * counts).sum(-1)
    return _softplus(tau * (moved[:, 0] - moved[:, 1]))


@preference_loss.mistake("different shapes, no pairs, or a temperature that is not above 0 must raise a ValueError")
def _(now, start, counts, tau):
    pair = min(len(now), len(start), len(counts))
    counts = counts[:pair].expand(pair, now.shape[1], now.shape[2])
    moved = _moved(now[:pair], start[:pair], counts)
    return _softplus(tau * (moved[:, 0] - moved[:, -1]))


@preference_loss.variant
def _(now, start, counts, tau):
    _paired(now, start, counts, tau)
    moved = _moved(now, start, counts)
    return _softplus(tau * (moved[:, 0] - moved[:, 1]))


@preference_loss.variant
def _(now, start, counts, tau):
    # Compute minus the log probability of the first answer in a softmax over both
    _paired(now, start, counts, tau)
    zero = now.new_zeros(())
    moved = (torch.where(counts, now, zero) - torch.where(counts, start, zero)).sum(-1)
    return -(tau * moved).log_softmax(-1)[:, 0].mean()


# 20.4


@exercise(
    "20.4",
    "Better than the group",
    task="Compute advantages from the rewards of groups of answers",
    points=2,
    difficulty=2,
    minutes=10,
    hints=(
        "Each row is a group, so subtract its own mean.",
        "Divide by the standard deviation of the group, with `correction=0`, which is the square root of the mean squared distance.",
        "Where it is 0, all rewards are equal. Divide by 1 there, and 0 stays 0.",
    ),
)
def advantages(rewards):
    """`rewards` (question, answer) holds the rewards of several answers to each of several questions. Return the
    advantages of GRPO, (20.10), in the same shape. An advantage says how much better an answer is than its group, in
    standard deviations of the group (the square root of the mean squared distance from its mean). If all answers of a
    group got the same reward, all advantages of that group are exactly 0.

    ```python
    >>> advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    tensor([[ 1., -1., -1.,  1.]])
    ```

    ★
    - Raise a `ValueError` unless there are two axes and every group has at least one answer.
    - Rewards of a million or of a millionth give the same advantages as rewards of 1, because nothing is added to the
      deviation.
    """
    ### BEGIN SOLUTION
    if rewards.dim() != 2 or not rewards.shape[1]:
        raise ValueError(f"rewards: expected shape (question, answer), got {tuple(rewards.shape)}")
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    off = (rewards - rewards.mean(dim=1, keepdim=True)).masked_fill(equal, 0)
    scale = off.detach().abs().amax(dim=1, keepdim=True).masked_fill(equal, 1)
    off = off / scale
    return off / off.square().mean(dim=1, keepdim=True).masked_fill(equal, 1).sqrt()
    ### END SOLUTION


@advantages.cases
def _(draw):
    yield Case("two of eight are right", (torch.tensor([[1.0, 0, 0, 1, 0, 0, 0, 0]]).double(),))
    yield Case("two separate groups", (torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]]).double(),))
    yield Case("all right or all wrong", (torch.tensor([[1.0, 1, 1], [0, 0, 0], [0, 1, 0]]).double(),))
    question, answer = draw.sizes(2, 3, 9)
    rewards = draw.normal(question, answer)
    yield Case("rewards that are not 0 and 1", (rewards,))
    yield Case("groups of different levels", (rewards + 10 * draw.normal(question, 1),))
    yield Case("one answer in a group", (draw.normal(3, 1),))
    yield Case(
        "equal rewards of a third", (torch.full((2, 6), 1 / 3).double(),), robust="rewards in the lesson are 0 and 1"
    )
    yield Case("rewards of a millionth", (rewards * 1e-6,), robust="rewards in the lesson are 0 and 1")
    yield Case("rewards of a million", (rewards * 1e6,), robust="rewards in the lesson are 0 and 1")
    yield Case("one axis is rejected", (rewards[0],), refuse=True)
    yield Case("three axes are rejected", (rewards[None],), refuse=True)
    yield Case("groups without an answer are rejected", (rewards[:, :0],), refuse=True)


def _groups(rewards):
    if rewards.dim() != 2 or not rewards.shape[1]:
        raise ValueError("expected (question, answer)")


def _standard(off, deviation, equal):
    return torch.where(equal, 0.0, off / torch.where(equal, 1.0, deviation))


def _equal(rewards):
    return (rewards == rewards[:, :1]).all(dim=1, keepdim=True)


@advantages.mistake("each group has its own mean, but yours is the mean of all answers")
def _(rewards):
    _groups(rewards)
    return _standard(rewards - rewards.mean(), rewards.std(dim=1, correction=0, keepdim=True), _equal(rewards))


@advantages.mistake("each group has its own deviation, but yours is that of all answers")
def _(rewards):
    _groups(rewards)
    off = rewards - rewards.mean(dim=1, keepdim=True)
    return _standard(off, rewards.std(correction=0).clamp(min=1e-12), _equal(rewards))


@advantages.mistake("groups are rows, but your mean runs over the questions")
def _(rewards):
    _groups(rewards)
    off = rewards - rewards.mean(dim=0)
    return _standard(off, rewards.std(dim=0, correction=0), _equal(rewards) | (rewards.std(dim=0, correction=0) == 0))


@advantages.mistake(
    "the deviation divides by the number of answers, but `std` divides by one less unless you pass `correction=0`"
)
def _(rewards):
    _groups(rewards)
    if rewards.shape[1] == 1:
        return torch.zeros_like(rewards)
    return _standard(rewards - rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, keepdim=True), _equal(rewards))


@advantages.mistake("you divide by the variance; the standard deviation is its square root")
def _(rewards):
    _groups(rewards)
    off = rewards - rewards.mean(dim=1, keepdim=True)
    return _standard(off, rewards.var(dim=1, correction=0, keepdim=True), _equal(rewards))


@advantages.mistake("you only subtract the mean, as in Dr. GRPO; here divide by the deviation, too")
def _(rewards):
    _groups(rewards)
    return (rewards - rewards.mean(dim=1, keepdim=True)).masked_fill(_equal(rewards), 0)


@advantages.mistake("an answer's own reward belongs to the mean, too, but yours is the mean of the others")
def _(rewards):
    _groups(rewards)
    count = rewards.shape[1]
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / max(count - 1, 1)
    return _standard(rewards - others, rewards.std(dim=1, correction=0, keepdim=True), _equal(rewards))


@advantages.mistake("if all rewards are equal, the advantages are 0, not 0 / 0")
def _(rewards):
    _groups(rewards)
    return (rewards - rewards.mean(dim=1, keepdim=True)) / rewards.std(dim=1, correction=0, keepdim=True)


@advantages.mistake("the constant that you add to the deviation is not small compared with rewards of a millionth")
def _(rewards):
    _groups(rewards)
    off = (rewards - rewards.mean(dim=1, keepdim=True)).masked_fill(_equal(rewards), 0)
    return off / (rewards.std(dim=1, correction=0, keepdim=True) + 1e-8)


@advantages.mistake(
    "rounding can make the mean of equal numbers differ from them, so check whether all rewards are equal"
)
def _(rewards):
    _groups(rewards)
    off, deviation = rewards - rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, correction=0, keepdim=True)
    third = _equal(rewards) & (rewards != rewards.round())
    spoilt = torch.where(third, torch.sign(torch.arange(rewards.shape[1]) - 1.5).to(rewards.dtype), 0.0)
    return _standard(off, deviation, _equal(rewards)) + spoilt


@advantages.mistake("anything other than groups with at least one answer must raise a ValueError")
def _(rewards):
    rewards = rewards.reshape(-1, rewards.shape[-1] if rewards.dim() else 1)
    return _standard(
        rewards - rewards.mean(dim=1, keepdim=True),
        rewards.std(dim=1, correction=0, keepdim=True),
        (rewards == rewards[:, :1]).all(1, keepdim=True),
    )


@advantages.variant
def _(rewards):
    _groups(rewards)
    deviation = rewards.std(dim=1, correction=0, keepdim=True)
    return _standard(rewards - rewards.mean(dim=1, keepdim=True), deviation, _equal(rewards))


@advantages.variant
def _(rewards):
    # Process one group at a time
    _groups(rewards)
    rows = []
    for group in rewards:
        off = group - group.mean()
        same = bool((group == group[0]).all())
        rows.append(torch.zeros_like(group) if same else off / off.square().mean().sqrt())
    return torch.stack(rows) if rows else torch.zeros_like(rewards)


# 20.5


@exercise(
    "20.5",
    "A loss that holds back",
    task="Compute the clipped loss of GRPO from the log probabilities of tokens",
    points=4,
    difficulty=3,
    minutes=20,
    right={"gradients": "only the gradient of a loss is used"},
    limits={"clip": (0, 1)},
    hints=(
        "The ratio of a token is `(now - old).exp()`. Mask both first, so that it is 1 for tokens that do not count.",
        "For each token take the smaller of `ratio * gain` and `ratio.clamp(1 - clip, 1 + clip) * gain`, even if the gain is negative.",
        "Take the mean over the tokens of each answer that count, then the mean over the answers, and change the sign.",
    ),
)
def held_back(now, old, gain, counts, clip):
    """`now` and `old` (answer, token) hold the log probabilities that the current model and the model that sampled the
    answers give to the tokens. `gain` (answer) holds the advantages, and `counts` (answer, token) says which tokens
    belong to the answers. Return the loss of GRPO, (20.11), with ratios clipped to the range from 1 - clip to 1 + clip,
    as a mean over the tokens of each answer and then over the answers. The loss is a zero-dimensional tensor.

    ```python
    >>> now, old = torch.tensor([[0.5]]).log(), torch.tensor([[0.25]]).log()
    >>> held_back(now, old, torch.tensor([1.0]), torch.tensor([[True]]), 0.2)
    tensor(-1.2000)
    ```

    ★
    - Raise a `ValueError` if shapes do not match, if there is no answer, if an answer has no token that counts, or if `clip` is not above 0 and
      below 1.
    - The values of tokens that do not count have no effect, even if they are minus infinity.
    """
    ### BEGIN SOLUTION
    fits = now.dim() == 2 and now.shape == old.shape == counts.shape and gain.shape == now.shape[:1]
    if not fits or not len(now) or not counts.any(dim=1).all() or not 0 < clip < 1:
        raise ValueError(
            f"now {tuple(now.shape)}, old {tuple(old.shape)}, gain {tuple(gain.shape)}, clip={clip}: expected matching shapes and 0 < clip < 1"
        )
    ratio = (now.masked_fill(~counts, 0) - old.masked_fill(~counts, 0)).exp()
    gain = gain[:, None]
    per_token = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    return -((per_token * counts).sum(dim=1) / counts.sum(dim=1)).mean()
    ### END SOLUTION


@held_back.cases
def _(draw):
    every, good, bad = torch.ones(1, 3).bool(), torch.tensor([1.5]).double(), torch.tensor([-0.5]).double()
    old = -1 - draw.uniform(1, 3)
    up, down = old + torch.tensor([0.05, 0.3, 0.6]).double(), old - torch.tensor([0.05, 0.3, 0.6]).double()
    yield Case("a good answer that has become more probable", (up, old, good, every, 0.2), gradients=True)
    yield Case("a good answer that has become less probable", (down, old, good, every, 0.2), gradients=True)
    yield Case("a bad answer that has become more probable", (up, old, bad, every, 0.2), gradients=True)
    yield Case("a bad answer that has become less probable", (down, old, bad, every, 0.2), gradients=True)
    answer, token = draw.sizes(2, 4, 9)
    old = -2 * draw.uniform(answer, token)
    now, gain = old + 0.4 * draw.normal(answer, token), draw.normal(answer)
    counts = draw.uniform(answer, token) < 0.6
    counts[:, 0] = True
    counts[0] = True
    yield Case("answers of unequal length", (now, old, gain, counts, 0.2), gradients=True)
    yield Case("a different clip", (now, old, gain, counts, 0.35))
    yield Case("the model has not changed yet", (old.clone(), old, gain, counts, 0.2))
    cut = (now.masked_fill(~counts, -math.inf), old.masked_fill(~counts, -math.inf))
    yield Case(
        "minus infinity in tokens that do not count",
        (*cut, gain, counts, 0.2),
        robust="padding in the lesson has a finite log probability",
    )
    yield Case("a clip of 0 is rejected", (now, old, gain, counts, 0.0), refuse=True)
    yield Case("a clip of 1 is rejected", (now, old, gain, counts, 1.0), refuse=True)
    yield Case("one advantage too few is rejected", (now, old, gain[1:], counts, 0.2), refuse=True)
    yield Case("a mask of a different shape is rejected", (now, old, gain, counts[:, 1:], 0.2), refuse=True)
    yield Case(
        "an answer without a token is rejected", (now, old, gain, counts & (gain[:, None] != gain[1]), 0.2), refuse=True
    )
    yield Case("zero answers are rejected", (now[:0], old[:0], gain[:0], counts[:0], 0.2), refuse=True)


def _told(now, old, gain, counts, clip):
    if now.dim() != 2 or not now.shape == old.shape == counts.shape or gain.shape != now.shape[:1]:
        raise ValueError("sizes do not match")
    if not len(now) or not counts.any(dim=1).all() or not 0 < clip < 1:
        raise ValueError(
            f"{clip=}: expected at least one answer, each with tokens that count, and a clip between 0 and 1"
        )


def _ratio(now, old, counts):
    return (now.masked_fill(~counts, 0) - old.masked_fill(~counts, 0)).exp()


def _averaged(per_token, counts):
    return -((per_token * counts).sum(dim=1) / counts.sum(dim=1)).mean()


@held_back.mistake("the smaller of the two products counts, but you take the larger")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    ratio, gain = _ratio(now, old, counts), gain[:, None]
    return _averaged(torch.maximum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain), counts)


@held_back.mistake(
    "the clipped product by itself also holds back changes in the wrong direction, so take the smaller of the two products"
)
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    return _averaged(_ratio(now, old, counts).clamp(1 - clip, 1 + clip) * gain[:, None], counts)


@held_back.mistake("the clip is missing")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    return _averaged(_ratio(now, old, counts) * gain[:, None], counts)


@held_back.mistake(
    "you take the smaller ratio instead of the smaller product: they differ if the advantage is negative"
)
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    ratio = _ratio(now, old, counts)
    return _averaged(torch.minimum(ratio, ratio.clamp(1 - clip, 1 + clip)) * gain[:, None], counts)


@held_back.mistake("the ratio is the new probability divided by the old one, but yours is upside down")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    ratio, gain = _ratio(old, now, counts), gain[:, None]
    return _averaged(torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain), counts)


@held_back.mistake("the arguments are logarithms, so a ratio of probabilities is the exponential of their difference")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    ratio, gain = 1 + now.masked_fill(~counts, 0) - old.masked_fill(~counts, 0), gain[:, None]
    return _averaged(torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain), counts)


def _products(now, old, gain, counts, clip):
    ratio, gain = _ratio(now, old, counts), gain[:, None]
    return torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)


@held_back.mistake("each answer has the same weight, so take the mean over its tokens first, and then over the answers")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    return -(_products(now, old, gain, counts, clip) * counts).sum() / counts.sum()


@held_back.mistake("an answer's mean is over the tokens that count, not over all positions")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    return -(_products(now, old, gain, counts, clip) * counts).mean(dim=1).mean()


@held_back.mistake("you include tokens that do not count in the loss; leave them out")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    ratio, gain = (now - old).exp(), gain[:, None]
    return -torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean(dim=1).mean()


@held_back.mistake("a loss is minimized, so a quantity that should grow needs a minus sign")
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    return -_averaged(_products(now, old, gain, counts, clip), counts)


@held_back.mistake(
    "mask before you subtract, because minus infinity minus minus infinity is NaN, and so is NaN times 0"
)
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    ratio, gain = (now - old).exp(), gain[:, None]
    return _averaged(torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain), counts)


@held_back.mistake(
    "shapes that do not match, an answer without a token, and a clip that is not between 0 and 1 must raise a ValueError"
)
def _(now, old, gain, counts, clip):
    answers, tokens = min(len(gain), len(now)), counts.shape[1]
    now, old, counts, gain = now[:answers, :tokens], old[:answers, :tokens], counts[:answers], gain[:answers]
    per_token = _products(now, old, gain, counts, clip) * counts
    return -(per_token.sum(dim=1) / counts.sum(dim=1).clamp(min=1)).sum() / max(answers, 1)


@held_back.variant
def _(now, old, gain, counts, clip):
    _told(now, old, gain, counts, clip)
    return _averaged(_products(now, old, gain, counts, clip), counts)


@held_back.variant
def _(now, old, gain, counts, clip):
    # Process one answer at a time; clip a good answer's ratio from above and a bad answer's from below
    _told(now, old, gain, counts, clip)
    losses = []
    for row in range(len(now)):
        ratio = (now[row][counts[row]] - old[row][counts[row]]).exp()
        held = torch.where(gain[row] > 0, ratio.clamp(max=1 + clip), ratio.clamp(min=1 - clip))
        losses.append(-(held * gain[row]).mean())
    return torch.stack(losses).mean()


# 20.6


@exercise(
    "20.6",
    "One of several tries",
    task="Estimate pass@k from sampled answers",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"drawn": (1,), "k": (1,)},
    hints=(
        "Of all ways to choose k of the sampled answers, how many have no right one among them?",
        "For each question, these are `math.comb(drawn - right, k)` of `math.comb(drawn, k)` choices.",
        "Subtract that fraction from one, and take the mean over the questions.",
    ),
)
def pass_at(right, drawn, k):
    """For each question, `drawn` answers were sampled, and the list of integers `right` says how many of them were right. Return the unbiased
    estimate of pass@k, the probability that at least one of k answers is right, averaged over the questions, as a `float`.

    ```python
    >>> pass_at([1, 0, 4], 4, 2)
    0.5
    ```

    ★
    - Raise a `ValueError` if there are no questions, if there are more right answers than samples, or if k is less
      than 1 or more than `drawn`.
    - Ten thousand answers must not cause an overflow.
    """
    ### BEGIN SOLUTION
    if not right or not 1 <= k <= drawn or not all(0 <= count <= drawn for count in right):
        raise ValueError(f"right {right}, drawn {drawn}, k {k}")
    every = math.comb(drawn, k)
    return sum(1 - math.comb(drawn - count, k) / every for count in right) / len(right)
    ### END SOLUTION


@pass_at.cases
def _(draw):
    yield Case("one right answer of four, two tries", ([1], 4, 2))
    yield Case("one try", ([2, 0, 5], 5, 1))
    yield Case("fewer wrong answers than tries", ([3, 4], 5, 3))
    yield Case("as many tries as answers", ([1, 0, 6], 6, 6))
    drawn = draw.whole(12, 20)
    yield Case("many questions", (draw.wholes(0, drawn, 40).tolist(), drawn, draw.whole(3, 5)))
    yield Case("hard questions", (draw.wholes(0, 2, 7).tolist(), drawn, 6))
    yield Case("ten thousand answers", ([3, 500, 0], 10_000, 200), robust="the lesson draws 32")
    yield Case("zero questions are rejected", ([], 4, 2), refuse=True)
    yield Case("more right answers than drawn are rejected", ([5], 4, 2), refuse=True)
    yield Case("a negative count is rejected", ([2, -1], 4, 2), refuse=True)
    yield Case("zero tries are rejected", ([1], 4, 0), refuse=True)
    yield Case("more tries than answers are rejected", ([1], 4, 5), refuse=True)


def _drawn(right, drawn, k):
    if not right or not 1 <= k <= drawn or not all(0 <= count <= drawn for count in right):
        raise ValueError(f"{right=}, {drawn=}, {k=}: expected k from 1 to drawn, and counts from 0 to drawn")


@pass_at.mistake(
    "a power of the share of wrong answers is too large on average, so count the ways to choose k of the sampled answers"
)
def _(right, drawn, k):
    _drawn(right, drawn, k)
    return sum(1 - (1 - count / drawn) ** k for count in right) / len(right)


@pass_at.mistake("estimate each question by itself, then average, because questions differ")
def _(right, drawn, k):
    _drawn(right, drawn, k)
    every = drawn * len(right)
    return 1 - math.comb(every - sum(right), k) / math.comb(every, k)


@pass_at.mistake("you ask whether any sampled answer is right, whatever k is")
def _(right, drawn, k):
    _drawn(right, drawn, k)
    return sum(count > 0 for count in right) / len(right)


@pass_at.mistake("you ask how often all k are right, but one is enough")
def _(right, drawn, k):
    _drawn(right, drawn, k)
    return sum(math.comb(count, k) / math.comb(drawn, k) for count in right) / len(right)


@pass_at.mistake("you return how often none of the k is right")
def _(right, drawn, k):
    _drawn(right, drawn, k)
    return sum(math.comb(drawn - count, k) / math.comb(drawn, k) for count in right) / len(right)


@pass_at.mistake("return the mean over the questions, not the sum")
def _(right, drawn, k):
    _drawn(right, drawn, k)
    return sum(1 - math.comb(drawn - count, k) / math.comb(drawn, k) for count in right)


@pass_at.mistake("k times the share of right answers counts some tries twice and can exceed 1")
def _(right, drawn, k):
    _drawn(right, drawn, k)
    return sum(min(1.0, k * count / drawn) for count in right) / len(right)


@pass_at.mistake("no questions, counts above `drawn`, and k below 1 or above `drawn` must raise a ValueError")
def _(right, drawn, k):
    k = min(max(k, 0), drawn)
    held = [min(max(count, 0), drawn) for count in right]
    return sum(1 - math.comb(drawn - count, k) / math.comb(drawn, k) for count in held) / max(len(held), 1)


@pass_at.variant
def _(right, drawn, k):
    # Compute the probability that k answers, drawn one after the other, are all wrong
    _drawn(right, drawn, k)
    total = 0.0
    for count in right:
        none = 1.0
        for tried in range(k):
            none *= max(drawn - count - tried, 0) / (drawn - tried)
        total += 1 - none
    return total / len(right)


@pass_at.variant
def _(right, drawn, k):
    # Use the product of Chen et al. (2021)
    _drawn(right, drawn, k)
    found = []
    for count in right:
        if drawn - count < k:
            found.append(1.0)
        else:
            found.append(1 - math.prod(1 - k / at for at in range(drawn - count + 1, drawn + 1)))
    return sum(found) / len(found)
