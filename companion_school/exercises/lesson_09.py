"""Exercises for lesson 09: teacher forcing."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 9.1


@exercise(
    "9.1",
    "The rate of 2017 with a pencil",
    task="Compute the learning rate at one update",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Is update 400 before or after the end of the warm-up? Which branch of (D9.7), in the deeper notebook, applies?",
        "The peak is 1 / sqrt(16 * 100).",
        "Multiply the peak by sqrt(100 / 400).",
    ),
)
def rate_of_2017():
    """A model has width $d = 16$, and its warm-up takes $w = 100$ updates. What is the learning rate of the 2017
    schedule, equation (D9.6) of the deeper notebook, at update 400? Return a `float` that is accurate to at least five
    decimal places.
    """
    ### BEGIN SOLUTION
    peak = 1 / math.sqrt(16 * 100)
    return peak * math.sqrt(100 / 400)
    ### END SOLUTION


@rate_of_2017.cases
def _(draw):
    yield Case("the rate at update 400", (), tolerance=5e-6)


@rate_of_2017.mistake("that is the rising branch, but after the warm-up the other one is smaller")
def _():
    return 16**-0.5 * 400 * 100**-1.5


@rate_of_2017.mistake("that is the peak, at update 100; by update 400 the rate has fallen")
def _():
    return (16 * 100) ** -0.5


@rate_of_2017.mistake("you divided the peak by 4, but the rate falls with the square root of the update")
def _():
    return (16 * 100) ** -0.5 / 4


@rate_of_2017.mistake("you left out d; the rate has a factor of 1 / sqrt(d)")
def _():
    return 400**-0.5


@rate_of_2017.mistake("you divided by d instead of its square root")
def _():
    return 400**-0.5 / 16


@rate_of_2017.mistake("you multiplied by the square root of d, but a wider model gets smaller steps")
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
    task="Build padded inputs and targets from rows of ids",
    points=2,
    difficulty=2,
    minutes=12,
    robust={
        "an `ignore` that equals the padding's id, and ids beyond 24 bits": "no vocabulary is that large",
    },
    hints=(
        "How many slots does a row of k ids need, counting the end?",
        "The inputs are `[bos, *row]`, and the targets are `[*row, eos]`.",
        "Pad both on the right to the length of the longest row, the inputs with `pad` and the targets with `ignore`.",
    ),
)
def pairs_of(rows, bos, eos, pad, ignore):
    """Build a batch from `rows`, a list of lists of ordinary token ids. A row may be empty. Return `(inputs, targets)`,
    both (batch, token), as wide as the longest row needs. In each row the inputs begin with `bos`, and the targets end
    with `eos`. Pad short rows on the right, the inputs with `pad` and the targets with `ignore`.

    ```python
    >>> pairs_of([[7, 8], [9]], 1, 2, 0, -100)
    (tensor([[1, 7, 8],
            [1, 9, 0]]), tensor([[   7,    8,    2],
            [   9,    2, -100]]))
    ```

    ★
    - Raise a `ValueError` if there are no rows, or if two of `bos`, `eos` and `pad` are equal.
    - Return `int64` tensors.
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
    yield Case("one row, with the start in front and the end at the end", ([[7, 8]], 1, 2, 0, -100))
    yield Case("rows of unequal length", ([[7, 8, 9], [5], [6, 4]], 1, 2, 0, -100))
    bos, eos, pad = (draw.shuffled(6)[:3] + 3).tolist()
    rows = [draw.wholes(10, 40, length).tolist() for length in draw.sizes(4, 1, 6)]
    yield Case("other special ids, and other padding", (rows, bos, eos, pad, -7))
    yield Case("an empty row", ([[], [*rows[0], 11, 12]], bos, eos, pad, -100))
    yield Case("pad equal to bos raises an error", (rows, 0, 2, 0, -100), refuse=True)
    yield Case("pad equal to eos raises an error", (rows, 1, 0, 0, -100), refuse=True)
    yield Case("bos equal to eos raises an error", (rows, 2, 2, 0, -100), refuse=True)
    yield Case("an empty list of rows raises an error", ([], 1, 2, 0, -100), refuse=True)
    yield Case("rows that are all empty", ([[], []], 1, 2, 3, -100))
    yield Case("a padding id below zero", ([[7, 8], [9]], 1, 2, -1, -100))
    yield Case("an `ignore` that equals the padding's id, and ids beyond 24 bits", ([[2**24 + 1], []], 1, 2, 0, 0))


def _checked(rows, bos, eos, pad):
    if not rows or len({bos, eos, pad}) < 3:
        raise ValueError("expected at least one row, and three different special ids")


def _filled(rows, filler):
    """Pad rows on the right to the length of the longest."""
    slots = max(map(len, rows))
    return torch.tensor([row + [filler] * (slots - len(row)) for row in rows])


@pairs_of.mistake("your inputs are not shifted: each slot reads the id that it should predict")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    ended = [[*row, eos] for row in rows]
    return _filled(ended, pad), _filled(ended, ignore)


@pairs_of.mistake("your targets are not shifted: they begin with bos, and each slot predicts what it has just read")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    begun = [[bos, *row] for row in rows]
    return _filled(begun, pad), _filled(begun, ignore)


@pairs_of.mistake("you shifted twice: slot i must predict the id right after the one it reads, not the one after that")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    slots = max(map(len, rows)) + 1
    twice = [[*row[1:], eos] for row in rows]
    targets = torch.tensor([row + [ignore] * (slots - len(row)) for row in twice])
    return _filled([[bos, *row] for row in rows], pad), targets


@pairs_of.mistake("your padding would be trained on; fill the targets with `ignore`, not with `pad`")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, eos] for row in rows], pad)


@pairs_of.mistake("your inputs are filled with `ignore`, which has no embedding; fill them with `pad`")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row] for row in rows], ignore), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("the end is missing from your targets, but a model must learn to stop")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, ignore] for row in rows], ignore)


@pairs_of.mistake("your inputs are one slot too wide; eos is predicted and never read")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[bos, *row, eos] for row in rows], pad), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("you pad on the left, but the padding belongs at the end of a row")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    slots = max(map(len, rows)) + 1
    inputs = [[pad] * (slots - len(row) - 1) + [bos, *row] for row in rows]
    targets = [[ignore] * (slots - len(row) - 1) + [*row, eos] for row in rows]
    return torch.tensor(inputs), torch.tensor(targets)


@pairs_of.mistake("you wrote 1, 2, 0 or -100 into the function; take the special ids from the arguments")
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    return _filled([[1, *row] for row in rows], 0), _filled([[*row, 2] for row in rows], -100)


@pairs_of.mistake(
    "the inputs of your short rows contain eos; leave it out of each row before you pad, not out of the padded rectangle"
)
def _(rows, bos, eos, pad, ignore):
    _checked(rows, bos, eos, pad)
    inputs = _filled([[bos, *row, eos] for row in rows], pad)[:, :-1]
    return inputs, _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("raise a ValueError if special ids are equal")
def _(rows, bos, eos, pad, ignore):
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.mistake("bos and eos must not be equal either; compare all three ids, not only pad with the others")
def _(rows, bos, eos, pad, ignore):
    if not rows or pad in (bos, eos):
        raise ValueError("expected at least one row, and a pad id that is not used for anything else")
    return _filled([[bos, *row] for row in rows], pad), _filled([[*row, eos] for row in rows], ignore)


@pairs_of.variant
def _(rows, bos, eos, pad, ignore):
    # write each row into tensors filled with padding
    if len(rows) == 0 or bos == eos or eos == pad or pad == bos:
        raise ValueError("expected at least one row, and three different special ids")
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
    task="Compute the gradient of the smoothed loss per token, with padding",
    points=3,
    difficulty=2,
    minutes=15,
    limits={"e": (0.0, 1.0)},
    forbidden=("autograd", "backward", "requires_grad_", "func", "vjp", "jacrev"),
    excused={
        "dtype": "one of its correct answers always computes in float64",
        "nan": "rows of padding do not affect the result, so NaN there need not be detected",
    },
    exact_zero=True,
    robust={
        "logits near 1000": "logits of the lesson are around 1",
    },
    hints=(
        "Equation (D9.4), in the deeper notebook, gives the gradient of one slot's loss, which is softmax minus smoothed target.",
        "`one_hot` raises an error for -100. Use `targets.clamp(min=0)`, and then multiply by the mask of the slots that count.",
        "Take the mean over the targets that count, not over batch x token, and not over rows.",
    ),
)
def loss_gradient(logits, targets, e):
    """Return the gradient of the loss **per token**, (9.4), with respect to `logits` (batch, token, vocab), as a tensor
    of the same shape. The targets are smoothed as in (D9.3) of the deeper notebook, and `e` is the amount of label
    smoothing. `targets` (batch, token) is `int64` and has -100 for padding, whose gradient is exactly 0. Do not use
    autograd.

    ```python
    >>> loss_gradient(torch.zeros(1, 2, 2), torch.tensor([[1, -100]]), 0.0)
    tensor([[[ 0.5000, -0.5000],
             [-0.0000,  0.0000]]], dtype=torch.float64)
    ```

    ★
    - Raise a `ValueError` unless $0 \\le e < 1$ and at least one target counts.
    - Logits of 1,000 do not overflow, and a NaN in a slot that counts shows up in the result.
    """
    ### BEGIN SOLUTION
    counts = targets != -100
    if not 0 <= e < 1:
        raise ValueError(f"e={e}: expected 0 <= e < 1")
    if not counts.any():
        raise ValueError("targets: expected at least one that counts, got only padding")
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
    yield Case("rows of unequal length, whose padding does not count", (draw.normal(2, 3, 5), short, 0.0))
    yield Case("padding and smoothing together", (draw.normal(2, 3, 5), short, 0.2))
    batch, slots, vocab = draw.sizes(3, 3, 8)
    lengths = draw.wholes(1, slots, batch)
    lengths[0], lengths[1] = slots, 1
    targets = draw.wholes(0, vocab - 1, batch, slots)
    targets = targets.masked_fill(torch.arange(slots) >= lengths[:, None], -100)
    yield Case("any sizes", (draw.normal(batch, slots, vocab), targets, 0.05 + 0.4 * draw.uniform(1).item()))
    yield Case("a row of padding only", (draw.normal(2, 2, 4), torch.tensor([[-100, -100], [0, 3]]), 0.1))
    yield Case("logits near 1000", (1000 + draw.normal(2, 3, 5), short, 0.1))
    spoiled = draw.normal(2, 3, 5)
    spoiled[0, 1, 2] = math.nan
    yield Case("a NaN in a slot that counts shows up in the result", (spoiled, short, 0.1), only_nan=True)
    yield Case("a smoothing of 1 raises an error", (draw.normal(2, 3, 5), short, 1.0), refuse=True)
    yield Case("a smoothing below 0 raises an error", (draw.normal(2, 3, 5), short, -0.1), refuse=True)
    yield Case(
        "targets that are all padding raise an error",
        (draw.normal(1, 2, 5), torch.full((1, 2), -100), 0.1),
        refuse=True,
    )


def _refuse(targets, e):
    if not 0 <= e < 1 or (targets == -100).all():
        raise ValueError("expected 0 <= e < 1, and a target that is not padding")


def _smoothed(targets, e, vocab):
    return (1 - e) * torch.nn.functional.one_hot(targets.clamp(min=0), vocab) + e / vocab


def _slots(logits, targets, e):
    """Return the gradient of the summed loss, and a mask of the targets that count."""
    _refuse(targets, e)
    counts = targets != -100
    return (logits.softmax(-1) - _smoothed(targets, e, logits.shape[-1])) * counts[..., None], counts


@loss_gradient.mistake("you divided by batch x token, but padding does not count")
def _(logits, targets, e):
    return _slots(logits, targets, e)[0] / targets.numel()


@loss_gradient.mistake("that is the gradient of the sum; divide by the number of targets that count")
def _(logits, targets, e):
    return _slots(logits, targets, e)[0]


@loss_gradient.mistake(
    "that is a mean of the rows' means; add all losses, and divide once by the number of slots that count"
)
def _(logits, targets, e):
    total, counts = _slots(logits, targets, e)
    return total / counts.sum(1).clamp(min=1)[:, None, None] / counts.any(1).sum()


@loss_gradient.mistake("your sign is reversed: the gradient is softmax minus target")
def _(logits, targets, e):
    total, counts = _slots(logits, targets, e)
    return -total / counts.sum()


@loss_gradient.mistake("the smoothing is missing: your target is one-hot")
def _(logits, targets, e):
    total, counts = _slots(logits, targets, 0.0 if 0 <= e < 1 else e)
    return total / counts.sum()


@loss_gradient.mistake(
    "you spread e over the wrong tokens only; (D9.3) spreads it evenly over all v, including the right one"
)
def _(logits, targets, e):
    _refuse(targets, e)
    counts, vocab = targets != -100, logits.shape[-1]
    right = torch.nn.functional.one_hot(targets.clamp(min=0), vocab)
    q = (1 - e) * right + e / (vocab - 1) * (1 - right)
    return (logits.softmax(-1) - q) * counts[..., None] / counts.sum()


@loss_gradient.mistake(
    "your smoothed target adds up to more than one; the right token has 1 - e, and then e / v is added"
)
def _(logits, targets, e):
    _refuse(targets, e)
    counts, vocab = targets != -100, logits.shape[-1]
    q = torch.nn.functional.one_hot(targets.clamp(min=0), vocab) + e / vocab
    return (logits.softmax(-1) - q) * counts[..., None] / counts.sum()


@loss_gradient.mistake("padding gets a gradient; multiply its slots by zero")
def _(logits, targets, e):
    _refuse(targets, e)
    return (logits.softmax(-1) - _smoothed(targets, e, logits.shape[-1])) / (targets != -100).sum()


@loss_gradient.mistake("your softmax must run over the vocabulary, the last axis")
def _(logits, targets, e):
    _refuse(targets, e)
    counts = targets != -100
    return (logits.softmax(1) - _smoothed(targets, e, logits.shape[-1])) * counts[..., None] / counts.sum()


@loss_gradient.mistake("that is only the softmax; subtract the target")
def _(logits, targets, e):
    _refuse(targets, e)
    counts = targets != -100
    return logits.softmax(-1) * counts[..., None] / counts.sum()


@loss_gradient.mistake("e^1000 overflows; subtract the largest logit first, or use PyTorch's softmax")
def _(logits, targets, e):
    _refuse(targets, e)
    counts, powers = targets != -100, logits.exp()
    p = powers / powers.sum(-1, keepdim=True)
    return (p - _smoothed(targets, e, logits.shape[-1])) * counts[..., None] / counts.sum()


@loss_gradient.mistake("raise a ValueError unless 0 <= e < 1")
def _(logits, targets, e):
    counts = targets != -100
    if not counts.any():
        raise ValueError("expected at least one target that is not padding")
    return (logits.softmax(-1) - _smoothed(targets, e, logits.shape[-1])) * counts[..., None] / counts.sum()


@loss_gradient.variant
def _(logits, targets, e):
    # compute one slot and one token of the vocabulary at a time
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
    # compute the gradient only for the slots that count
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
        "an earlier mistake in free running raises an error": "finding the leak is the exercise",
        "a mistake only in free running raises an error": "finding the leak is the exercise",
        "a mistake only under teacher forcing raises an error": "finding the leak is the exercise",
    },
    hints=(
        "Compute `wrong = (says != targets) & (targets != -100)` for both.",
        "`argmax` of an integer tensor returns the first index of the maximum. What does it return for a row of zeros?",
        "Compute the list of first mistakes for both, compare the two lists row by row (`None` equals only `None`), and return one list.",
    ),
)
def first_mistakes(forced, written, targets):
    """Apply the test of (9.6) to any model. All three arguments are `int64` (batch, token). `forced` holds the most
    probable tokens with teacher forcing, and `written` the tokens from free running. `targets` has -100 for
    padding, which is never a mistake. For each row, return the slot of its first mistake, counted from 0, or `None`. If
    `forced` and `written` make their first mistake in different slots of a row, or only one makes a mistake, raise a
    `ValueError`, because something leaks. After the first mistake the two may differ.

    ```python
    >>> first_mistakes(torch.tensor([[5, 9, 7], [5, 6, 7]]), torch.tensor([[5, 9, 8], [5, 6, 7]]), torch.tensor([[5, 6, 7], [5, 6, -100]]))
    [1, None]
    ```

    ★
    - The error message names the row.
    - Raise a `ValueError` if the three shapes are not equal.
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
                f"row {row}: expected the same first mistake, got slot {a} teacher-forced and {b} free-running"
            )
    return slots
    ### END SOLUTION


def _texts(draw):
    """Draw texts of different lengths, with a first mistake at any slot (or none) and random tokens after it."""
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
    yield Case("padding is never a mistake", (f, w, y))
    yield Case("any texts", _texts(draw))
    early, only, other = w.clone(), w.clone(), f.clone()
    early[0, 0], only[1, 1], other[1, 0] = 3, 4, 4
    yield Case("an earlier mistake in free running raises an error", (f, early, y), refuse=True)
    longer = [torch.cat([filled.expand(7, -1), told]) for filled, told in ((y[1:2], f), (y[1:2], early), (y[1:2], y))]
    yield Case("the message names the row, here row 7", tuple(longer), refuse=True, says="7")
    yield Case("a mistake only in free running raises an error", (f, only, y), refuse=True)
    yield Case("a mistake only under teacher forcing raises an error", (other, w, y), refuse=True)
    yield Case("another shape raises an error", (f[:1], f[:1].expand(2, -1), y[:1].expand(2, -1)), refuse=True)
    two = torch.tensor([[3, 4], [3, 4]])
    yield Case("one row of targets for two texts raises an error", (two, two, two[:1]), refuse=True)
    yield Case("one written row for two texts raises an error", (two, two[:1], two), refuse=True)


def _firsts(says, targets, none=None):
    wrong = (says != targets) & (targets != -100)
    return [row.int().argmax().item() if row.any() else none for row in wrong]


def _agree(forced, written, targets):
    if not forced.shape == written.shape == targets.shape or _firsts(forced, targets) != _firsts(written, targets):
        raise ValueError("expected equal shapes, and the same first mistakes")


@first_mistakes.mistake("you count slots from 1; count them from 0")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return [None if slot is None else slot + 1 for slot in _firsts(forced, targets)]


@first_mistakes.mistake("you counted a token at a padding slot as a mistake; a target of -100 is never one")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return [row.int().argmax().item() if row.any() else None for row in forced != targets]


@first_mistakes.mistake("`argmax` of a row of zeros is 0, but a row without a mistake gives None, not slot 0")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return _firsts(forced, targets, 0)


@first_mistakes.mistake("a row without a mistake gives None, not -1")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return _firsts(forced, targets, -1)


@first_mistakes.mistake("that is the last mistake of each row; find the first")
def _(forced, written, targets):
    _agree(forced, written, targets)
    wrong = (forced != targets) & (targets != -100)
    return [row.nonzero()[-1].item() if row.any() else None for row in wrong]


@first_mistakes.mistake("that is the number of mistakes of each row; return the slot of the first")
def _(forced, written, targets):
    _agree(forced, written, targets)
    wrong = (forced != targets) & (targets != -100)
    return [row.sum().item() if row.any() else None for row in wrong]


@first_mistakes.mistake("you compared the two with each other, but a mistake is a difference from the target")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return _firsts(forced, torch.where(targets == -100, targets, written))


@first_mistakes.mistake("you left out the rows without a mistake; return one entry for each row")
def _(forced, written, targets):
    _agree(forced, written, targets)
    return [slot for slot in _firsts(forced, targets) if slot is not None]


@first_mistakes.mistake("you did not compare the first mistakes of the two; raise a ValueError if they differ")
def _(forced, written, targets):
    if not forced.shape == written.shape == targets.shape:
        raise ValueError("expected equal shapes")
    return _firsts(forced, targets)


@first_mistakes.mistake("raise an error, too, if only one of the two makes a mistake; None and a slot are not the same")
def _(forced, written, targets):
    if not forced.shape == written.shape == targets.shape:
        raise ValueError("expected equal shapes")
    both = _firsts(forced, targets), _firsts(written, targets)
    if any(a is not None and b is not None and a != b for a, b in zip(*both, strict=True)):
        raise ValueError("the first mistakes are at different slots")
    return both[0]


@first_mistakes.mistake("raise a ValueError for unequal shapes, because PyTorch would repeat the smaller one")
def _(forced, written, targets):
    slots = _firsts(forced, targets)
    if slots != _firsts(written, targets):
        raise ValueError("the first mistakes are at different slots")
    return slots


@first_mistakes.mistake("after the first mistake the two may differ; compare only the slots of the first mistakes")
def _(forced, written, targets):
    if not forced.shape == written.shape == targets.shape:
        raise ValueError("expected equal shapes")
    if not torch.equal(forced[targets != -100], written[targets != -100]):
        raise ValueError("forced and written differ")
    return _firsts(forced, targets)


@first_mistakes.variant
def _(forced, written, targets):
    # go through the slots one at a time, and check both tensors together
    if forced.shape != targets.shape or written.shape != targets.shape:
        raise ValueError("unequal shapes")
    result = []
    for row, (fs, ws, ys) in enumerate(zip(forced.tolist(), written.tolist(), targets.tolist(), strict=True)):
        slot = None
        for i, (f, w, y) in enumerate(zip(fs, ws, ys, strict=True)):
            if y == -100:
                continue
            if (f == y) != (w == y):
                raise ValueError(
                    f"row {row}, slot {i}: only one of {f} (teacher-forced) and {w} (free-running) equals the target {y}"
                )
            if f != y:
                slot = i
                break
        result.append(slot)
    return result


@first_mistakes.variant
def _(forced, written, targets):
    # count the slots before the first mistake with a running product
    if len({forced.shape, written.shape, targets.shape}) > 1:
        raise ValueError("unequal shapes")
    right = torch.stack([(says == targets) | (targets == -100) for says in (forced, written)])
    before = right.long().cumprod(dim=-1).sum(dim=-1)
    if (before[0] != before[1]).any():
        raise ValueError(f"rows {(before[0] != before[1]).nonzero().flatten().tolist()}")
    return tuple(None if n == targets.shape[1] else n for n in before[0].tolist())
