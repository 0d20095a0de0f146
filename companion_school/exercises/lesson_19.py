"""Exercises of lesson 19: fewer bits."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 19.1


@exercise(
    "19.1",
    "Levels for a group",
    task="Round a matrix to few bits, with a step for each group",
    points=2,
    difficulty=2,
    minutes=12,
    limits={"bits": (2,)},
    hints=(
        "`W.view(-1, group)` has a group in each row, because neighbours in a row are adjacent in memory.",
        "The step of a group is its largest absolute value divided by the highest level, `2 ** (bits - 1) - 1`.",
        "Compute `(parts / step).round() * step` and reshape it like `W`. What if a group is all zeros?",
    ),
)
def in_groups(W, bits, group):
    """Round `W` (row, column) to integers of `bits` bits with absmax scaling. Every `group` consecutive entries of a row share a
    step, chosen so that the largest of their absolute values becomes the highest level, $2^{bits-1} - 1$. Return the
    step times the level of every entry, as a tensor like `W`. Halves are rounded to the even level, as in
    `torch.round`.

    ```python
    >>> in_groups(torch.tensor([[0.7, -0.34, 4.9, 0.4]]), 4, 2)
    tensor([[ 0.7000, -0.3000,  4.9000,  0.7000]])
    ```

    ★
    - Raise a `ValueError` if there are fewer than 2 bits, or if `group` does not divide the number of columns.
    - A group of zeros remains zero.
    """
    ### BEGIN SOLUTION
    if bits < 2 or group < 1 or W.shape[1] % group:
        raise ValueError(f"bits={bits}, group={group}: expected at least 2 bits and a divisor of {W.shape[1]} columns")
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    step = torch.where(step == 0, 1.0, step)
    return ((parts / step).round() * step).reshape(W.shape)
    ### END SOLUTION


@in_groups.cases
def _(draw):
    yield Case("a row that is one group", (draw.normal(1, 6), 4, 6))
    yield Case(
        "groups with their own steps", (draw.normal(2, 8) * torch.tensor([1.0, 20.0]).repeat_interleave(4), 4, 4)
    )
    yield Case("rows with their own steps", (draw.normal(3, 4) * torch.tensor([[1.0], [30.0], [0.1]]), 3, 4))
    yield Case(
        "the largest absolute value is negative", (torch.tensor([[0.31, -2.0, 0.9, 0.5]], dtype=torch.float64), 4, 4)
    )
    rows, parts, group = draw.sizes(3, 2, 6)
    yield Case("other sizes", (draw.normal(rows, parts * group), draw.whole(3, 6), group))
    yield Case("eight bits", (draw.normal(2, 10), 8, 5))
    yield Case("two bits: -1, 0 and 1", (draw.normal(3, 6), 2, 3))
    yield Case(
        "a group of zeros",
        (torch.tensor([[0.0, 0.0, 1.0, 0.4]], dtype=torch.float64), 4, 2),
        robust="a trained matrix has no such group",
    )
    yield Case("one bit is rejected", (draw.normal(2, 4), 1, 2), refuse=True)
    yield Case("a group that does not divide the columns is rejected", (draw.normal(2, 6), 4, 4), refuse=True)


def _divides(W, bits, group):
    if bits < 2 or group < 1 or W.shape[1] % group:
        raise ValueError(f"{bits=}, {group=}: expected bits >= 2 and a group that divides {W.shape[1]} columns")


def _rounded(parts, most, bits):
    step = most / (2 ** (bits - 1) - 1)
    step = torch.where(step == 0, 1.0, step)
    return (parts / step).round() * step


@in_groups.mistake("a step belongs to a group; yours is shared by the whole row")
def _(W, bits, group):
    _divides(W, bits, group)
    return _rounded(W, W.abs().amax(dim=1, keepdim=True), bits)


@in_groups.mistake("a step belongs to a group; yours is shared by the whole matrix")
def _(W, bits, group):
    _divides(W, bits, group)
    return _rounded(W, W.abs().max(), bits)


@in_groups.mistake("the largest *absolute* value sets the step: take absolute values first")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    return _rounded(parts, parts.amax(dim=1, keepdim=True), bits).reshape(W.shape)


@in_groups.mistake("the highest level is 2^(bits - 1) - 1: one bit is the sign, and 0 takes a level")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / 2 ** (bits - 1)
    step = torch.where(step == 0, 1.0, step)
    return ((parts / step).round() * step).reshape(W.shape)


@in_groups.mistake("round to the nearest level: `floor` always goes down, which is off by half a step on average")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    step = torch.where(step == 0, 1.0, step)
    return ((parts / step).floor() * step).reshape(W.shape)


@in_groups.mistake("these are the levels; return the level times its step")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (parts / torch.where(step == 0, 1.0, step)).round().reshape(W.shape)


@in_groups.mistake("a group consists of neighbours in a *row*; yours go down the columns")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.T.reshape(-1, group) if W.shape[0] % group == 0 else W.T.reshape(-1, W.shape[0])
    return _rounded(parts, parts.abs().amax(dim=1, keepdim=True), bits).reshape(W.T.shape).T


@in_groups.mistake("a group of zeros has the step 0, and 0 / 0 is NaN")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((parts / step).round() * step).reshape(W.shape)


@in_groups.mistake(
    "fewer than 2 bits, and a group that does not divide the columns, must be rejected with a ValueError"
)
def _(W, bits, group):
    bits, group = max(bits, 2), group if W.shape[1] % group == 0 else W.shape[1]
    parts = W.reshape(-1, group)
    return _rounded(parts, parts.abs().amax(dim=1, keepdim=True), bits).reshape(W.shape)


@in_groups.variant
def _(W, bits, group):
    # Process one group at a time
    _divides(W, bits, group)
    kept = [_rounded(part, part.abs().amax(dim=1, keepdim=True), bits) for part in W.split(group, dim=1)]
    return torch.cat(kept, dim=1)


@in_groups.variant
def _(W, bits, group):
    _divides(W, bits, group)
    rows, columns = W.shape
    parts = W.reshape(rows, columns // group, group)
    step = parts.abs().max(dim=-1, keepdim=True).values / (2 ** (bits - 1) - 1)
    kept = (parts / step).round() * step
    return torch.where(step == 0, 0.0 * parts, kept).reshape(rows, columns)


# 19.2


@exercise(
    "19.2",
    "What a rounded matrix weighs",
    task="Count the bytes of a matrix in groups, with their scales and zero points",
    points=1,
    difficulty=1,
    minutes=8,
    limits={"rows": (1,), "columns": (1,), "bits": (1,), "group": (1,)},
    hints=(
        "A row has `columns` entries of `bits` bits, and a scale for each of its groups.",
        "If `group` does not divide the number of columns, the last group of a row is shorter, but it needs a scale as well.",
        "Add up the bits of all rows, divide by eight, and round up.",
    ),
)
def rounded_bytes(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    """A matrix of `rows` by `columns` is stored with `bits` bits per weight. Every `group` consecutive entries of a row
    share a scale of `scale_bits` bits and, if the rounding is affine, a zero point of `zero_bits` bits. The last group
    of a row may be shorter. Everything is packed without gaps. How many bytes does the matrix take? Return an `int`,
    rounded up to whole bytes.

    ```python
    >>> rounded_bytes(2, 40, 4, 32)
    48
    ```

    ★
    - Raise a `ValueError` if `rows`, `columns`, `bits` or `group` is below 1, or if `scale_bits` or `zero_bits` is negative.
    """
    ### BEGIN SOLUTION
    if min(rows, columns, bits, group) < 1 or min(scale_bits, zero_bits) < 0:
        raise ValueError(
            f"{rows} x {columns}, bits={bits}, group={group}: expected all of these to be at least 1, and non-negative bits for scales and zeros"
        )
    groups = -(-columns // group)
    total = rows * (columns * bits + groups * (scale_bits + zero_bits))
    return -(-total // 8)
    ### END SOLUTION


@rounded_bytes.cases
def _(draw):
    yield Case("one group", (1, 32, 4, 32))
    yield Case("two groups per row", (3, 64, 4, 32))
    yield Case("a last group that is shorter", (2, 40, 4, 32))
    yield Case("affine: a zero point too", (4, 64, 4, 16, 16, 4))
    yield Case("a partial byte", (1, 3, 3, 3, 8, 0))
    yield Case("scales of a byte, as in MX", (2, 64, 4, 32, 8))
    rows, columns = draw.whole(3, 40), draw.whole(50, 200)
    yield Case("other sizes", (rows, columns, draw.whole(2, 8), draw.whole(7, 33), 16, draw.whole(1, 8)))
    yield Case("a group longer than a row", (2, 10, 4, 64))
    yield Case("zero rows are rejected", (0, 4, 4, 2), refuse=True)
    yield Case("zero bits are rejected", (2, 4, 0, 2), refuse=True)
    yield Case("groups of 0 are rejected", (2, 4, 4, 0), refuse=True)
    yield Case("a negative scale is rejected", (2, 4, 4, 2, -1), refuse=True)


def _sizes(rows, columns, bits, group, scale_bits, zero_bits):
    if min(rows, columns, bits, group) < 1 or min(scale_bits, zero_bits) < 0:
        raise ValueError("expected at least 1")


@rounded_bytes.mistake("each group has a scale: you counted one for each row")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * (columns * bits + scale_bits + zero_bits) // 8)


@rounded_bytes.mistake("you left out the scale of a shorter last group")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * (columns * bits + columns // group * (scale_bits + zero_bits)) // 8)


@rounded_bytes.mistake("groups end at the end of a row: they do not continue in the next row")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-(rows * columns * bits + -(-rows * columns // group) * (scale_bits + zero_bits)) // 8)


@rounded_bytes.mistake("you left out the zero points of affine groups")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * (columns * bits + -(-columns // group) * scale_bits) // 8)


@rounded_bytes.mistake("you left out the bits of the scales")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * columns * bits // 8)


@rounded_bytes.mistake("these are bits; a byte has eight of them")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return rows * (columns * bits + -(-columns // group) * (scale_bits + zero_bits))


@rounded_bytes.mistake("a partial byte counts: round up")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return rows * (columns * bits + -(-columns // group) * (scale_bits + zero_bits)) // 8


@rounded_bytes.mistake("sizes below 1, and negative `scale_bits` or `zero_bits`, must be rejected with a ValueError")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    return -(-rows * (columns * bits + -(-columns // max(group, 1)) * (scale_bits + zero_bits)) // 8)


@rounded_bytes.variant
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    # Process one group at a time
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    total = 0
    for _ in range(rows):
        for at in range(0, columns, group):
            total += min(group, columns - at) * bits + scale_bits + zero_bits
    return (total + 7) // 8


@rounded_bytes.variant
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    whole, rest = divmod(columns, group)
    of_a_row = columns * bits + (whole + (rest > 0)) * (scale_bits + zero_bits)
    return math.ceil(rows * of_a_row / 8)


# 19.3


@exercise(
    "19.3",
    "Later columns make up for it",
    task="Round column by column, and let later columns compensate for each error",
    points=4,
    difficulty=3,
    minutes=24,
    excused={
        "one": "fewer inputs than columns give equations with many solutions",
        "levels": "inputs of very different sizes give equations that floating point cannot solve",
        "offset": "inputs that are nearly equal give equations that floating point cannot solve",
        "scale": "an input ten thousand times as large gives equations that floating point cannot solve",
        "tie": "equal columns give equations that floating point cannot solve",
        "nan": "the last column's own inputs are never used",
        "dtype": "a weight close to the middle of two levels may be rounded either way",
    },
    hints=(
        "Begin with `Xi = x.T @ x / len(x)`. Which parts of it does equation (19.6) need for column c and the later columns?",
        "Round the column as it is *now*, after the earlier corrections: `kept[:, c] = (W[:, c] / step).round() * step`.",
        "`W[:, c + 1:] -= torch.outer(kept[:, c] - W[:, c], torch.linalg.solve(Xi[c + 1:, c + 1:], Xi[c + 1:, c]))`.",
    ),
)
def make_up(W, x, step):
    """`W` (row, column) multiplies inputs, and `x` (token, column) is a sample of these inputs, with more tokens than
    columns. Round all weights of row i to multiples of `step[i]`. Go through the columns from first to last. Round each
    column to the nearest multiples, with halves to even, and then adjust all *later* columns so that the mean squared
    error of the outputs $x W^\\top$ is smallest, given the columns that are already rounded. Return the rounded
    weights, a tensor like `W`, without changing the arguments.

    ```python
    >>> make_up(torch.tensor([[0.4, 0.4]]), torch.tensor([[1.0, 0.8], [0.0, 0.6]]), torch.tensor([1.0]))
    tensor([[0., 1.]])
    ```

    ★
    - Raise a `ValueError` if sizes do not match, or if a step is not above 0.
    """
    ### BEGIN SOLUTION
    if W.ndim != 2 or x.ndim != 2 or x.shape[1] != W.shape[1] or step.shape != W.shape[:1] or not (step > 0).all():
        raise ValueError(
            f"W {tuple(W.shape)}, x {tuple(x.shape)}, step {tuple(step.shape)}: expected matching sizes, and steps above 0"
        )
    W, kept, Xi = W.clone(), torch.empty_like(W), x.T @ x / len(x)
    for c in range(W.shape[1]):
        kept[:, c] = (W[:, c] / step).round() * step
        if c + 1 < W.shape[1]:
            makes_up = torch.linalg.solve(Xi[c + 1 :, c + 1 :], Xi[c + 1 :, c])
            W[:, c + 1 :] -= torch.outer(kept[:, c] - W[:, c], makes_up)
    return kept
    ### END SOLUTION


def _inputs(draw, tokens, columns):
    """Draw correlated inputs."""
    return draw.normal(tokens, columns) + 0.8 * draw.normal(tokens, 1)


@make_up.cases
def _(draw):
    pair = torch.tensor([[1.0, 0.8], [0.0, 0.6]], dtype=torch.float64)
    yield Case(
        "two columns", (torch.tensor([[0.4, 0.4]], dtype=torch.float64), pair, torch.ones(1, dtype=torch.float64))
    )
    yield Case("one row, more columns", (draw.normal(1, 5), _inputs(draw, 30, 5), torch.tensor([0.5]).double()))
    yield Case(
        "each row has its own step", (draw.normal(3, 5), _inputs(draw, 30, 5), torch.tensor([0.2, 0.9, 1.7]).double())
    )
    rows, columns = draw.sizes(2, 3, 7)
    yield Case("other sizes", (draw.normal(rows, columns), _inputs(draw, 40, columns), 0.3 + draw.uniform(rows)))
    together = draw.normal(60, 9) + 2 * draw.normal(60, 1)
    yield Case("many correlated columns", (draw.normal(6, 9), together, 0.1 + 0.2 * draw.uniform(6)))
    yield Case("one column", (draw.normal(3, 1), draw.normal(9, 1), 0.3 + draw.uniform(3)))
    yield Case(
        "inputs of a different width are rejected",
        (draw.normal(2, 4), draw.normal(20, 3), torch.ones(2).double()),
        refuse=True,
    )
    yield Case(
        "the wrong number of steps is rejected",
        (draw.normal(2, 4), draw.normal(20, 4), torch.ones(4).double()),
        refuse=True,
    )
    yield Case(
        "a step of 0 is rejected",
        (draw.normal(2, 4), draw.normal(20, 4), torch.tensor([1.0, 0.0]).double()),
        refuse=True,
    )


def _fits(W, x, step):
    if W.ndim != 2 or x.ndim != 2 or x.shape[1] != W.shape[1] or step.shape != W.shape[:1] or not (step > 0).all():
        raise ValueError("expected matching sizes, and steps above 0")


def _column_by_column(W, x, step, sign=1.0, all_but=False, center=False):
    W, kept = W.clone(), torch.zeros_like(W)
    x = x - x.mean(dim=0) if center else x
    Xi = x.T @ x / len(x)
    for c in range(W.shape[1]):
        kept[:, c] = (W[:, c] / step).round() * step
        if c + 1 < W.shape[1]:
            later = (
                Xi[c + 1 :, c] / Xi[c + 1 :, c + 1 :].diagonal()
                if all_but
                else torch.linalg.solve(Xi[c + 1 :, c + 1 :], Xi[c + 1 :, c])
            )
            off = kept[:, c] - W[:, c]
            W[:, c + 1 :] -= sign * torch.outer(off, later)
    return kept


@make_up.mistake("that is plain rounding: after each column, adjust the later ones")
def _(W, x, step):
    _fits(W, x, step)
    return (W / step[:, None]).round() * step[:, None]


@make_up.mistake("later columns must *compensate* for the error: the sign in (19.6) is minus")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W, x, step, sign=-1.0)


@make_up.mistake(
    "you corrected each later column separately, which corrects too much: solve with the matrix of all later columns"
)
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W, x, step, all_but=True)


@make_up.mistake("you returned the corrected weights; return the rounded ones")
def _(W, x, step):
    _fits(W, x, step)
    W, Xi = W.clone(), x.T @ x / len(x)
    for c in range(W.shape[1] - 1):
        off = (W[:, c] / step).round() * step - W[:, c]
        W[:, c + 1 :] -= torch.outer(off, torch.linalg.solve(Xi[c + 1 :, c + 1 :], Xi[c + 1 :, c]))
    return W


@make_up.mistake("go from the first column to the last: you go the other way")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W.flip(1), x.flip(1), step).flip(1)


@make_up.mistake("the error of an output is zeta times the input itself: do not subtract the mean of the inputs")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W, x, step, center=True)


@make_up.mistake("sizes that do not match, and a step that is not above 0, must be rejected with a ValueError")
def _(W, x, step):
    width = min(W.shape[1], x.shape[1])
    step = torch.where(step > 0, step, 1.0).repeat(W.shape[0])[: W.shape[0]]
    kept = W.clone()
    kept[:, :width] = _column_by_column(W[:, :width], x[:, :width], step)
    return kept


@make_up.variant
def _(W, x, step):
    # Solve a least-squares problem on the outputs themselves
    _fits(W, x, step)
    W, kept = W.clone(), torch.zeros_like(W)
    for c in range(W.shape[1]):
        kept[:, c] = (W[:, c] / step).round() * step
        off = kept[:, c] - W[:, c]
        if c + 1 < W.shape[1]:
            W[:, c + 1 :] -= torch.outer(off, torch.linalg.lstsq(x[:, c + 1 :], x[:, c : c + 1]).solution[:, 0])
    return kept


@make_up.variant
def _(W, x, step):
    # Do it as libraries do, with one factorisation whose rows give the corrections
    _fits(W, x, step)
    W, kept = W.clone(), torch.zeros_like(W)
    rows = torch.linalg.cholesky(torch.linalg.inv(x.T @ x), upper=True)
    for c in range(W.shape[1]):
        kept[:, c] = (W[:, c] / step).round() * step
        W[:, c:] -= torch.outer((W[:, c] - kept[:, c]) / rows[c, c], rows[c, c:])
    return kept


# 19.7


@exercise(
    "19.7",
    "Up or down by chance",
    task="Round to given levels at random, so that the mean is preserved",
    points=2,
    difficulty=2,
    minutes=12,
    hints=(
        "`torch.bucketize(x, levels)` counts the levels below each number, which is the index of the level above it.",
        "The probability of going up is the fraction of the way from the lower level to the upper one.",
        "Go up where `dice < (x - low) / (high - low)`. First clamp numbers outside the levels to the nearest end.",
    ),
)
def by_chance(x, levels, dice):
    """Round each element of `x` (row, column) to one of the `levels`, which are numbers in ascending order, by
    stochastic rounding, equation (19.11): an element between two neighbouring levels is rounded up with a probability
    that equals its fraction of the way from the lower to the upper level. `dice`, which has the shape of `x`, holds a
    random number between 0 and 1 for each element: round up where it is below the probability. An element below the
    first or above the last level becomes that level.

    ```python
    >>> x, dice = torch.tensor([[0.1, 2.3, 9.0]]), torch.tensor([[0.15, 0.5, 0.9]])
    >>> by_chance(x, torch.tensor([0.0, 0.5, 1.0, 2.0, 3.0]), dice)
    tensor([[0.5000, 2.0000, 3.0000]])
    ```

    ★
    - Raise a `ValueError` if there are fewer than two levels, if they are not ascending, or if `dice` does not have the
      shape of `x` or contains a number outside [0, 1).
    """
    ### BEGIN SOLUTION
    if levels.ndim != 1 or len(levels) < 2 or not (levels[1:] > levels[:-1]).all() or dice.shape != x.shape:
        raise ValueError(
            f"{len(levels)} levels, dice {tuple(dice.shape)}: expected two or more ascending levels, and dice with the shape of x"
        )
    if not ((dice >= 0) & (dice < 1)).all():
        raise ValueError("dice: expected numbers that are at least 0 and less than 1")
    x = x.clamp(levels[0], levels[-1])
    above = torch.bucketize(x.contiguous(), levels).clamp(min=1)
    low, high = levels[above - 1], levels[above]
    return torch.where(dice < (x - low) / (high - low), high, low)
    ### END SOLUTION


FP4 = torch.tensor([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def _asked(draw, levels, rows, columns):
    """Draw elements at quarters of the way between two levels, and random numbers that are not close to a multiple of
    1/4."""
    at, way = draw.wholes(0, len(levels) - 2, rows, columns), draw.wholes(1, 3, rows, columns) / 4
    x = levels[at] + way * (levels[at + 1] - levels[at])
    return x, levels, (draw.wholes(0, 7, rows, columns) + 0.25 + draw.uniform(rows, columns) / 2) / 8


@by_chance.cases
def _(draw):
    yield Case("levels one apart", _asked(draw, torch.arange(-2, 3).double(), 2, 6))
    yield Case("the levels of e2m1, which are not evenly spaced", _asked(draw, FP4, 3, 8))
    rows, columns = draw.sizes(2)
    yield Case("other sizes", _asked(draw, FP4, rows, columns))
    x, levels, dice = _asked(draw, FP4, 2, 5)
    yield Case("numbers beyond the levels", (x * 40, levels, dice))
    yield Case("numbers that are already levels", (FP4[draw.wholes(0, 14, 3, 5)], FP4, draw.uniform(3, 5)))
    yield Case("one level is rejected", (draw.normal(2, 3), FP4[:1], draw.uniform(2, 3)), refuse=True)
    yield Case("descending levels are rejected", (draw.normal(2, 3), FP4.flip(0), draw.uniform(2, 3)), refuse=True)
    yield Case("dice of a different shape are rejected", (draw.normal(2, 3), FP4, draw.uniform(3, 2)), refuse=True)
    yield Case("dice of 1 and more are rejected", (draw.normal(2, 3), FP4, draw.uniform(2, 3) + 1), refuse=True)


def _fits_levels(x, levels, dice):
    if levels.ndim != 1 or len(levels) < 2 or not (levels[1:] > levels[:-1]).all() or dice.shape != x.shape:
        raise ValueError("expected two or more increasing levels, and dice of the same shape as x")
    if not ((dice >= 0) & (dice < 1)).all():
        raise ValueError("dice: expected numbers that are at least 0 and less than 1")


def _neighbours(x, levels):
    above = torch.bucketize(x.contiguous(), levels).clamp(1, len(levels) - 1)
    return levels[above - 1], levels[above]


@by_chance.mistake("this rounds to the nearest level, so a number near 0 becomes 0 every time: let the dice decide")
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    return levels[(x[..., None] - levels).abs().argmin(dim=-1)]


@by_chance.mistake("the probability of the upper level is the fraction of the way from the *lower* one")
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    x = x.clamp(levels[0], levels[-1])
    low, high = _neighbours(x, levels)
    return torch.where(dice < (high - x) / (high - low), high, low)


@by_chance.mistake("going up or down with equal probability does not preserve the mean")
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    x = x.clamp(levels[0], levels[-1])
    low, high = _neighbours(x, levels)
    return torch.where((dice < 0.5) & (x > low) | (x == high), high, low)


@by_chance.mistake("the levels are not one apart: divide by the distance between the two neighbours")
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    x = x.clamp(levels[0], levels[-1])
    low, high = _neighbours(x, levels)
    return torch.where((dice < x - low) | (x == high), high, low)


@by_chance.mistake("you go up where the dice are above the probability; go up where they are *below* it")
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    x = x.clamp(levels[0], levels[-1])
    low, high = _neighbours(x, levels)
    return torch.where((dice > (x - low) / (high - low)) & (x > low) | (x == high), high, low)


@by_chance.mistake("you use one die for all numbers: each number needs its own")
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    x = x.clamp(levels[0], levels[-1])
    low, high = _neighbours(x, levels)
    return torch.where(dice[0, 0] < (x - low) / (high - low), high, low)


@by_chance.mistake(
    "levels that are not ascending, fewer than two levels, and dice of a different shape or range must be rejected with a ValueError"
)
def _(x, levels, dice):
    levels = levels.sort().values if len(levels) > 1 else torch.cat([levels, levels + 1])
    x, dice = x.clamp(levels[0], levels[-1]), dice.reshape(x.shape)
    low, high = _neighbours(x, levels)
    return torch.where(dice < (x - low) / (high - low), high, low)


@by_chance.variant
def _(x, levels, dice):
    _fits_levels(x, levels, dice)
    kept = torch.empty_like(x)
    for at in range(x.shape[0]):
        for to in range(x.shape[1]):
            value = x[at, to].clamp(levels[0], levels[-1])
            below = int((levels <= value).sum()) - 1
            low = levels[below]
            high = levels[min(below + 1, len(levels) - 1)]
            goes = high > low and dice[at, to] < (value - low) / (high - low)
            kept[at, to] = high if goes else low
    return kept


@by_chance.variant
def _(x, levels, dice):
    # Express the position among the levels as one number, and subtract the dice from it
    _fits_levels(x, levels, dice)
    x = x.clamp(levels[0], levels[-1])
    below = ((x[..., None] >= levels).sum(dim=-1) - 1).clamp(0, len(levels) - 2)
    way = (x - levels[below]) / (levels[below + 1] - levels[below])
    return levels[(below + way - dice).ceil().long()]
