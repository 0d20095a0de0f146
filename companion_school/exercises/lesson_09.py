"""Exercises of lesson 09: teacher forcing."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 9.1


@exercise(
    "9.1",
    "The rate of 2017 with a pencil",
    task="Work out the learning rate at one update",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Is update 400 before or after the end of the warm-up? So which branch of (D9.7), in the deeper notebook?",
        "The peak is 1 / sqrt(16 * 100).",
        "Multiply the peak by sqrt(100 / 400).",
    ),
)
def rate_of_2017():
    """Model width $d = 16$, warm-up $w = 100$. What is the learning rate of 2017, equation (D9.6) of the deeper notebook, at update 400? Return
    a `float`, rounded to five decimals or better.
    """
    ### BEGIN SOLUTION
    peak = 1 / math.sqrt(16 * 100)
    return peak * math.sqrt(100 / 400)
    ### END SOLUTION


@rate_of_2017.cases
def _(draw):
    yield Case("the rate at update 400", (), tolerance=5e-6)


@rate_of_2017.mistake("that is the rising branch: after the warm-up the other one is smaller")
def _():
    return 16**-0.5 * 400 * 100**-1.5


@rate_of_2017.mistake("that is the peak, at update 100; by update 400 the rate has fallen")
def _():
    return (16 * 100) ** -0.5


@rate_of_2017.mistake("you divided the peak by 4: the rate falls with the square root of the update")
def _():
    return (16 * 100) ** -0.5 / 4


@rate_of_2017.mistake("you left out d: the rate has a factor of one over its square root")
def _():
    return 400**-0.5


@rate_of_2017.mistake("you divided by d, not by its square root")
def _():
    return 400**-0.5 / 16


@rate_of_2017.mistake("you multiplied by the square root of d: a wider model gets smaller steps")
def _():
    return 400**-0.5 * 4


@rate_of_2017.variant
def _():
    return 16**-0.5 * min(400**-0.5, 400 * 100**-1.5)


@rate_of_2017.variant
def _():
    return 1 / 80


# 9.2


@exercise(
    "9.2",
    "From rows of ids to a batch",
    task="Make padded inputs and targets from rows of ids",
    points=2,
    difficulty=2,
    minutes=12,
    robust={
        "what is ignored may be the filler's id; ids beyond 24 bits": "no vocabulary is so large",
    },
    hints=(
        "How many slots does a row of k ids need, counting the end?",
        "Inputs are `[bos, *row]`, targets `[*row, eos]`.",
        "Fill both on the right up to the longest row's slots: inputs with `pad`, targets with `ignore`.",
    ),
)
def pairs_of(rows, bos, eos, pad, ignore):
    """Make a batch of `rows`, a list of lists of ids without special ones; a row may be empty. Return `(inputs, targets)`, both (batch, token),
    as wide as the longest row needs: in each row `bos` stands in front of the inputs and `eos` at the end of the targets. Behind a short row,
    on the right, inputs are filled with `pad` and targets with `ignore`.

    ```python
    >>> pairs_of([[7, 8], [9]], 1, 2, 0, -100)
    (tensor([[1, 7, 8],
            [1, 9, 0]]), tensor([[   7,    8,    2],
            [   9,    2, -100]]))
    ```

    ★
    - No rows, and two equal ones of `bos`, `eos` and `pad`, are refused with a `ValueError`.
    - The results are `int64` tensors.
    """
    ### BEGIN SOLUTION
    if not rows:
        raise ValueError("rows is empty: expected at least one")
    if len({bos, eos, pad}) < 3:
        raise ValueError(f"bos={bos}, eos={eos}, pad={pad}: expected three different ids")
    slots = max(len(row) for row in rows) + 1
    inputs = [[bos, *row] + [pad] * (slots - len(row) - 1) for row in rows]
    targets = [[*row, eos] + [ignore] * (slots - len(row) - 1) for row in rows]
    return torch.tensor(inputs), torch.tensor(targets)
    ### END SOLUTION


@pairs_of.cases
def _(draw):
    yield Case("one row: the start in front, the end behind", ([[7, 8]], 1, 2, 0, -100))
    yield Case("rows of unequal length", ([[7, 8, 9], [5], [6, 4]], 1, 2, 0, -100))
    bos, eos, pad = (draw.shuffled(6)[:3] + 3).tolist()
    rows = [draw.wholes(10, 40, length).tolist() for length in draw.sizes(4, 1, 6)]
    yield Case("other special ids, and another filler", (rows, bos, eos, pad, -7))
    yield Case("an empty row", ([[], [*rows[0], 11, 12]], bos, eos, pad, -100))
    yield Case("pad equal to bos is refused", (rows, 0, 2, 0, -100), refuse=True)
    yield Case("pad equal to eos is refused", (rows, 1, 0, 0, -100), refuse=True)
    yield Case("bos equal to eos is refused", (rows, 2, 2, 0, -100), refuse=True)
    yield Case("no rows are refused", ([], 1, 2, 0, -100), refuse=True)
    yield Case("rows that are all empty", ([[], []], 1, 2, 3, -100))
    yield Case("a filler below zero", ([[7, 8], [9]], 1, 2, -1, -100))
    yield Case("what is ignored may be the filler's id; ids beyond 24 bits", ([[2**24 + 1], []], 1, 2, 0, 0))


def _checked(rows, bos, eos, pad):
    if not rows or len({bos, eos, pad}) < 3:
        raise ValueError("expected rows, and three different special ids")


def _filled(rows, filler):
    """Rows filled on the right up to the longest."""
    slots = max(map(len, rows))
    return torch.tensor([row + [filler] * (slots - len(row)) for row in rows])


@pairs_of.mistake("your inputs are not shifted: each slot reads the very id that it shall say")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    ended = [[*row, eos] for row in rows]
    return _filled(ended, pad), _filled(ended, ignore)


@pairs_of.mistake("your targets are not shifted: they begin with bos, and each slot says what it has just read")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    begun = [[bos, *row] for row in rows]
    return _filled(begun, pad), _filled(begun, ignore)


@pairs_of.mistake("you shifted twice: slot i must say the id right after the one it reads, not the one after that")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    slots = max(map(len, rows)) + 1
    twice = [[*row[1:], eos] for row in rows]
    targets = torch.tensor([row + [ignore] * (slots - len(row)) for row in twice])
    return _filled([[bos, *row] for row in rows], pad), targets


@pairs_of.mistake("your filler will be trained on: targets are filled with `ignore`, not with `pad`")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, eos] for row in rows], pad)


@pairs_of.mistake("your inputs are filled with `ignore`, for which no embedding exists: fill them with `pad`")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row] for row in rows], ignore), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("the end is missing from your targets: a model must learn to stop")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, ignore] for row in rows], ignore)


@pairs_of.mistake("your inputs are one slot too wide: eos is said, and never read")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row, eos] for row in rows], pad), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("you fill on the left: the filler belongs behind a row")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    slots = max(map(len, rows)) + 1
    inputs = [[pad] * (slots - len(row) - 1) + [bos, *row] for row in rows]
    targets = [[ignore] * (slots - len(row) - 1) + [*row, eos] for row in rows]
    return torch.tensor(inputs), torch.tensor(targets)


@pairs_of.mistake("you wrote 1, 2, 0 or -100 into the function: take the special ids from the arguments")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[1, *row] for row in rows], 0), _filled([[*row, 2] for row in rows], -100)


@pairs_of.mistake("your short rows read eos: cut it off each row before you fill, not off the filled rectangle")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    inputs = _filled([[bos, *row, eos] for row in rows], pad)[:, :-1]
    return inputs, _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("special ids that are equal must be refused with a ValueError")
def _(rows, bos, eos, pad, ignore):
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("bos and eos may not be equal either: refuse any two that are, not only pad with another")
def _(rows, bos, eos, pad, ignore):
    if not rows or pad in (bos, eos):
        raise ValueError("expected rows, and a pad of its own")
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.variant
def _(rows, bos, eos, pad, ignore):
    # write each row into tensors of filler
    if len(rows) == 0 or bos == eos or eos == pad or pad == bos:
        raise ValueError("bad rows or special ids")
    shape = len(rows), 1 + max(len(row) for row in rows)
    inputs, targets = torch.full(shape, pad), torch.full(shape, ignore)
    for b, row in enumerate(rows):
        inputs[b, 0] = bos
        for i, id in enumerate(row):
            inputs[b, i + 1] = targets[b, i] = id
        targets[b, len(row)] = eos
    return inputs, targets


@pairs_of.variant
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    whole = [torch.tensor([bos, *row, eos]) for row in rows]
    padded = torch.nn.utils.rnn.pad_sequence
    return [
        padded([row[:-1] for row in whole], batch_first=True, padding_value=pad),
        padded([row[1:] for row in whole], batch_first=True, padding_value=ignore),
    ]


# 9.3


@exercise(
    "9.3",
    "The gradient that trains it",
    task="Write the gradient of the smoothed loss per token, with filler",
    points=3,
    difficulty=2,
    minutes=15,
    limits={"e": (0.0, 1.0)},
    forbidden=("autograd", "backward", "requires_grad_", "func", "vjp", "jacrev"),
    excused={
        "dtype": "one of its right answers computes in float64, whatever comes in",
        "nan": "what stands in rows of filler counts for nothing, and need not be looked at",
    },
    exact_zero=True,
    robust={
        "logits near 1000": "logits of the lesson are around 1",
    },
    hints=(
        "Equation (D9.4), in the deeper notebook, gives the gradient of one slot's loss: softmax minus smoothed target.",
        "`one_hot` refuses -100: use `targets.clamp(min=0)`, and multiply by the mask of what counts afterwards.",
        "The mean is over the targets that count, not over batch x token, and not over rows.",
    ),
)
def loss_gradient(logits, targets, e):
    """Return the gradient of the loss **per token**, (9.4), with the smoothed targets of (D9.3), deeper, with respect to `logits` (batch, token,
    vocab): of their shape. `targets` (batch, token), `int64`, has -100 where there is filler, whose gradient is exactly 0; `e` is the share
    of label smoothing. Do it without autograd.

    ```python
    >>> loss_gradient(torch.zeros(1, 2, 2), torch.tensor([[1, -100]]), 0.0)
    tensor([[[ 0.5000, -0.5000],
             [-0.0000,  0.0000]]], dtype=torch.float64)
    ```

    ★
    - Refused with a `ValueError` unless $0 \\le e < 1$ and at least one target counts.
    - Logits of 1,000 do not overflow; NaN in a slot that counts shows.
    """
    ### BEGIN SOLUTION
    counts = targets != -100
    if not 0 <= e < 1:
        raise ValueError(f"e={e}: expected a share of at least 0 and below 1")
    if not counts.any():
        raise ValueError("targets: expected at least one that counts, got filler only")
    vocab = logits.shape[-1]
    one_hot = torch.nn.functional.one_hot(targets.clamp(min=0), vocab).double()
    smoothed = (1 - e) * one_hot + e / vocab
    return (logits.softmax(dim=-1) - smoothed) * counts[..., None] / counts.sum()
    ### END SOLUTION


@loss_gradient.cases
def _(draw):
    yield Case("one slot, without smoothing", (draw.normal(1, 1, 3), torch.tensor([[1]]), 0.0))
    yield Case("one slot, smoothed", (draw.normal(1, 1, 3), torch.tensor([[2]]), 0.3))
    short = torch.tensor([[1, 0, 4], [3, -100, -100]])
    yield Case("rows of unequal length: filler counts for nothing", (draw.normal(2, 3, 5), short, 0.0))
    yield Case("filler and smoothing together", (draw.normal(2, 3, 5), short, 0.2))
    batch, slots, vocab = draw.sizes(3, 3, 8)
    lengths = draw.wholes(1, slots, batch)
    lengths[0], lengths[1] = slots, 1
    targets = draw.wholes(0, vocab - 1, batch, slots)
    targets = targets.masked_fill(torch.arange(slots) >= lengths[:, None], -100)
    yield Case("any sizes", (draw.normal(batch, slots, vocab), targets, 0.05 + 0.4 * draw.uniform(1).item()))
    yield Case("a row of filler only", (draw.normal(2, 2, 4), torch.tensor([[-100, -100], [0, 3]]), 0.1))
    yield Case("logits near 1000", (1000 + draw.normal(2, 3, 5), short, 0.1))
    spoiled = draw.normal(2, 3, 5)
    spoiled[0, 1, 2] = math.nan
    yield Case("NaN in a slot that counts shows", (spoiled, short, 0.1), only_nan=True)
    yield Case("a share of 1 is refused", (draw.normal(2, 3, 5), short, 1.0), refuse=True)
    yield Case("a share below 0 is refused", (draw.normal(2, 3, 5), short, -0.1), refuse=True)
    yield Case("filler only is refused", (draw.normal(1, 2, 5), torch.full((1, 2), -100), 0.1), refuse=True)


def _refuse(targets, e):
    if not 0 <= e < 1 or (targets == -100).all():
        raise ValueError("bad share, or filler only")


def _smoothed(targets, e, vocab):
    return (1 - e) * torch.nn.functional.one_hot(targets.clamp(min=0), vocab) + e / vocab


def _slots(logits, targets, e):
    """The gradient of the sum, and which targets count."""
    _refuse(targets, e)
    counts = targets != -100
    return (logits.softmax(-1) - _smoothed(targets, e, logits.shape[-1])) * counts[..., None], counts


@loss_gradient.mistake("you divide by batch x token: filler does not count")
def _(logits, targets, e):
    return _slots(logits, targets, e)[0] / targets.numel()


@loss_gradient.mistake("that is the gradient of the sum: divide by the number of targets that count")
def _(logits, targets, e):
    return _slots(logits, targets, e)[0]


@loss_gradient.mistake(
    "that is a mean over rows of means over tokens: add all losses, and divide once by all that count"
)
def _(logits, targets, e):
    total, counts = _slots(logits, targets, e)
    return total / counts.sum(1).clamp(min=1)[:, None, None] / counts.any(1).sum()


@loss_gradient.mistake("your sign is turned round: the gradient is softmax minus target")
def _(logits, targets, e):
    total, counts = _slots(logits, targets, e)
    return -total / counts.sum()


@loss_gradient.mistake("the smoothing is missing: your target is one-hot")
def _(logits, targets, e):
    total, counts = _slots(logits, targets, 0.0 if 0 <= e < 1 else e)
    return total / counts.sum()


@loss_gradient.mistake(
    "you give the share e to the wrong tokens only: (D9.3) deals it out evenly over all v, the right one too"
)
def _(logits, targets, e):
    _refuse(targets, e)
    counts, vocab = targets != -100, logits.shape[-1]
    right = torch.nn.functional.one_hot(targets.clamp(min=0), vocab)
    q = (1 - e) * right + e / (vocab - 1) * (1 - right)
    return (logits.softmax(-1) - q) * counts[..., None] / counts.sum()


@loss_gradient.mistake(
    "your smoothed target adds up to more than one: the right token keeps a share of 1 - e only, before e / v comes on top"
)
def _(logits, targets, e):
    _refuse(targets, e)
    counts, vocab = targets != -100, logits.shape[-1]
    q = torch.nn.functional.one_hot(targets.clamp(min=0), vocab) + e / vocab
    return (logits.softmax(-1) - q) * counts[..., None] / counts.sum()


@loss_gradient.mistake("filler gets a gradient: multiply its slots by zero")
def _(logits, targets, e):
    _refuse(targets, e)
    return (logits.softmax(-1) - _smoothed(targets, e, logits.shape[-1])) / (targets != -100).sum()


@loss_gradient.mistake("your softmax does not run over the vocabulary, the last axis")
def _(logits, targets, e):
    _refuse(targets, e)
    counts = targets != -100
    return (logits.softmax(1) - _smoothed(targets, e, logits.shape[-1])) * counts[..., None] / counts.sum()


@loss_gradient.mistake("the target is not subtracted: that is the softmax alone")
def _(logits, targets, e):
    _refuse(targets, e)
    counts = targets != -100
    return logits.softmax(-1) * counts[..., None] / counts.sum()


@loss_gradient.mistake("e^1000 is infinite: subtract the largest logit first, or use PyTorch's softmax")
def _(logits, targets, e):
    _refuse(targets, e)
    counts, powers = targets != -100, logits.exp()
    p = powers / powers.sum(-1, keepdim=True)
    return (p - _smoothed(targets, e, logits.shape[-1])) * counts[..., None] / counts.sum()


@loss_gradient.mistake("a share outside 0 <= e < 1 must be refused with a ValueError")
def _(logits, targets, e):
    counts = targets != -100
    if not counts.any():
        raise ValueError("filler only")
    return (logits.softmax(-1) - _smoothed(targets, e, logits.shape[-1])) * counts[..., None] / counts.sum()


@loss_gradient.variant
def _(logits, targets, e):
    # slot by slot and token by token
    _refuse(targets, e)
    batch, slots, vocab = logits.shape
    tokens = sum(id != -100 for row in targets.tolist() for id in row)
    out = torch.zeros_like(logits)
    for b in range(batch):
        for i in range(slots):
            right = int(targets[b, i])
            if right == -100:
                continue
            z = logits[b, i] - logits[b, i].max()
            for j in range(vocab):
                q = e / vocab + (1 - e if j == right else 0)
                out[b, i, j] = (z[j].exp() / z.exp().sum() - q) / tokens
    return out


@loss_gradient.variant
def _(logits, targets, e):
    # on the slots that count alone
    here = targets.ne(-100)
    if not (e >= 0 and e < 1) or here.sum() == 0:
        raise ValueError(f"{e=}")
    slopes = logits[here].log_softmax(dim=1).exp() - e / logits.shape[2]
    slopes[torch.arange(len(slopes)), targets[here]] -= 1 - e
    out = torch.zeros_like(logits)
    out[here] = slopes / len(slopes)
    return out


# 9.4


@exercise(
    "9.4",
    "A detector of leaks and missing masks",
    task="Find first mistakes, and catch models that see more than they should",
    points=4,
    difficulty=3,
    minutes=20,
    right={
        "an earlier mistake in what is written is refused": "to find the leak is the exercise",
        "a mistake only in what is written is refused": "to find the leak is the exercise",
        "a mistake only under teacher forcing is refused": "to find the leak is the exercise",
    },
    hints=(
        "`wrong = (says != targets) & (targets != -100)`, for both.",
        "`argmax` of an integer tensor gives the first of the largest. What does it give for a row of zeros?",
        "Compute the list of first mistakes for both, compare row by row (`None` is equal to `None` only), and return one.",
    ),
)
def first_mistakes(forced, written, targets):
    """The test of (9.6) for any model. All three are `int64` (batch, token): the likeliest tokens teacher-`forced`, those `written`
    free-running, and the `targets`, with -100 where there is filler, which is never a mistake. Return for each row the slot of its first
    mistake, counted from 0, or `None`. If in some row `forced` and `written` make their first mistake in different slots, or only one makes
    any, raise a `ValueError`: something leaks. After the first mistake the two may differ.

    ```python
    >>> first_mistakes(torch.tensor([[5, 9, 7], [5, 6, 7]]), torch.tensor([[5, 9, 8], [5, 6, 7]]), torch.tensor([[5, 6, 7], [5, 6, -100]]))
    [1, None]
    ```

    ★
    - The message names the row.
    - Three shapes that are not equal are refused with a `ValueError`.
    """
    ### BEGIN SOLUTION
    if not forced.shape == written.shape == targets.shape:
        shapes = tuple(forced.shape), tuple(written.shape), tuple(targets.shape)
        raise ValueError(f"forced, written, targets: expected equal shapes, got {shapes}")

    def firsts(says):
        wrong = (says != targets) & (targets != -100)
        return [row.int().argmax().item() if row.any() else None for row in wrong]

    slots = firsts(forced)
    for row, (a, b) in enumerate(zip(slots, firsts(written), strict=True)):
        if a != b:
            raise ValueError(
                f"row {row}: first mistake in slot {a} teacher-forced, {b} free-running; expected the same"
            )
    return slots
    ### END SOLUTION


def _texts(draw):
    """Texts of unequal length with a first mistake somewhere, or none, and anything in the slots after it."""
    batch, slots = draw.sizes(2, 4, 8)
    targets, forced, written = (draw.wholes(3, 9, batch, slots) for _ in range(3))
    for row in range(batch):
        length = slots if row == 0 else draw.whole(2, slots)
        first = 2 if row == 0 else length if row == 1 else draw.whole(1, length + 1)
        targets[row, length:] = -100
        for says in (forced, written):
            says[row, : first - 1] = targets[row, : first - 1]
            if first <= length:
                says[row, first - 1] = targets[row, first - 1] + (10 if says is forced else 20)
    return forced, written, targets


@first_mistakes.cases
def _(draw):
    y = torch.tensor([[5, 6, 7, 2], [5, 2, -100, -100], [8, 9, 2, -100]])
    f = torch.tensor([[5, 4, 7, 3], [5, 2, 9, 9], [8, 9, 3, 7]])
    w = torch.tensor([[5, 4, 4, 4], [5, 2, 1, 1], [8, 9, 3, 3]])
    yield Case("one row whose second slot is wrong", (f[:1], w[:1], y[:1]))
    yield Case("a row without a mistake gives None", (f[1:2, :2], w[1:2, :2], y[1:2, :2]))
    yield Case("filler is never a mistake", (f, w, y))
    yield Case("any texts", _texts(draw))
    early, only, other = w.clone(), w.clone(), f.clone()
    early[0, 0], only[1, 1], other[1, 0] = 3, 4, 4
    yield Case("an earlier mistake in what is written is refused", (f, early, y), refuse=True)
    longer = [torch.cat([filled.expand(7, -1), told]) for filled, told in ((y[1:2], f), (y[1:2], early), (y[1:2], y))]
    yield Case("the message names the row, here row 7", tuple(longer), refuse=True, says="7")
    yield Case("a mistake only in what is written is refused", (f, only, y), refuse=True)
    yield Case("a mistake only under teacher forcing is refused", (other, w, y), refuse=True)
    yield Case("another shape is refused", (f[:1], f[:1].expand(2, -1), y[:1].expand(2, -1)), refuse=True)
    two = torch.tensor([[3, 4], [3, 4]])
    yield Case("one row of targets for two texts is refused", (two, two, two[:1]), refuse=True)
    yield Case("one row written for two is refused", (two, two[:1], two), refuse=True)


def _firsts(says, targets, none=None):
    wrong = (says != targets) & (targets != -100)
    return [row.int().argmax().item() if row.any() else none for row in wrong]


def _agree(forced, written, targets):
    if not forced.shape == written.shape == targets.shape or _firsts(forced, targets) != _firsts(written, targets):
        raise ValueError("expected equal shapes, and the same first mistakes")


@first_mistakes.mistake("count slots from 0: you count from 1")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return [None if slot is None else slot + 1 for slot in _firsts(forced, targets)]


@first_mistakes.mistake("you take what stands at filler for a mistake: a target of -100 is never one")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return [row.int().argmax().item() if row.any() else None for row in forced != targets]


@first_mistakes.mistake("`argmax` of a row of zeros is 0: a row without a mistake gives None, not slot 0")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return _firsts(forced, targets, 0)


@first_mistakes.mistake("a row without a mistake gives None, not -1")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return _firsts(forced, targets, -1)


@first_mistakes.mistake("that is the last mistake of each row: look for the first")
def _(forced, written, targets):
    _agree(forced, written, targets)
    wrong = (forced != targets) & (targets != -100)
    return [row.nonzero()[-1].item() if row.any() else None for row in wrong]


@first_mistakes.mistake("that is how many mistakes a row has: return the slot of the first")
def _(forced, written, targets):
    _agree(forced, written, targets)
    wrong = (forced != targets) & (targets != -100)
    return [row.sum().item() if row.any() else None for row in wrong]


@first_mistakes.mistake("you compare the two with each other: a mistake is what differs from the target")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return _firsts(forced, torch.where(targets == -100, targets, written))


@first_mistakes.mistake("you leave the rows without a mistake out: there is one entry for each row")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return [slot for slot in _firsts(forced, targets) if slot is not None]


@first_mistakes.mistake("you do not compare the first mistakes of the two: where they differ, raise a ValueError")
def _(forced, written, targets):
    if not forced.shape == written.shape == targets.shape:
        raise ValueError("expected equal shapes")
    return _firsts(forced, targets)


@first_mistakes.mistake("a mistake under one of the two alone must be refused, too: None and a slot are not the same")
def _(forced, written, targets):
    if not forced.shape == written.shape == targets.shape:
        raise ValueError("expected equal shapes")
    both = _firsts(forced, targets), _firsts(written, targets)
    if any(a is not None and b is not None and a != b for a, b in zip(*both, strict=True)):
        raise ValueError("the first mistakes differ")
    return both[0]


@first_mistakes.mistake(
    "shapes that are not equal must be refused with a ValueError: PyTorch would repeat the smaller one"
)
def _(forced, written, targets):
    slots = _firsts(forced, targets)
    if slots != _firsts(written, targets):
        raise ValueError("the first mistakes differ")
    return slots


@first_mistakes.mistake("after the first mistake the two may differ: compare only the slots of the first ones")
def _(forced, written, targets):
    if not forced.shape == written.shape == targets.shape:
        raise ValueError("expected equal shapes")
    if not torch.equal(forced[targets != -100], written[targets != -100]):
        raise ValueError("forced and written differ")
    return _firsts(forced, targets)


@first_mistakes.variant
def _(forced, written, targets):
    # slot by slot, both at once
    if forced.shape != targets.shape or written.shape != targets.shape:
        raise ValueError("unequal shapes")
    result = []
    for row, (fs, ws, ys) in enumerate(zip(forced.tolist(), written.tolist(), targets.tolist(), strict=True)):
        slot = None
        for i, (f, w, y) in enumerate(zip(fs, ws, ys, strict=True)):
            if y == -100:
                continue
            if (f == y) != (w == y):
                raise ValueError(f"row {row}, slot {i}: {f} teacher-forced, {w} free-running, target {y}")
            if f != y:
                slot = i
                break
        result.append(slot)
    return result


@first_mistakes.variant
def _(forced, written, targets):
    # the number of slots before the first mistake, by a running product
    if len({forced.shape, written.shape, targets.shape}) > 1:
        raise ValueError("unequal shapes")
    right = torch.stack([(says == targets) | (targets == -100) for says in (forced, written)])
    before = right.long().cumprod(dim=-1).sum(dim=-1)
    if (before[0] != before[1]).any():
        raise ValueError(f"rows {(before[0] != before[1]).nonzero().flatten().tolist()}")
    return tuple(None if n == targets.shape[1] else n for n in before[0].tolist())
