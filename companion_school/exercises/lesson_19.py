"""Exercises of lesson 19: fewer bits, better steps."""

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
        "`W.view(-1, group)` has a group in each row, since neighbours in a row lie side by side.",
        "The largest in size of a group, divided by the highest level, is its step: `2 ** (bits - 1) - 1` is that level.",
        "`(parts / step).round() * step`, and back into the shape of `W`. What if a group is all zeros?",
    ),
)
def in_groups(W, bits, group):
    """Round `W` (row, column) to whole numbers of `bits` bits by absmax: every `group` neighbours of a row share a step, which makes the largest of
    them in size the highest level, $2^{bits-1} - 1$. Return what is kept, step times level, a tensor like `W`. Halves go to the even level, as
    `torch.round` does it.

    ```python
    >>> in_groups(torch.tensor([[0.7, -0.34, 4.9, 0.4]]), 4, 2)
    tensor([[ 0.7000, -0.3000,  4.9000,  0.7000]])
    ```

    ★
    - Fewer than 2 bits, and a group that does not divide the columns, are refused with a `ValueError`.
    - A group of zeros stays zeros.
    """
    ### BEGIN SOLUTION
    if bits < 2 or group < 1 or W.shape[1] % group:
        raise ValueError(f"bits={bits}, group={group}: expected at least 2, and a divisor of {W.shape[1]} columns")
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    step = torch.where(step == 0, 1.0, step)
    return ((parts / step).round() * step).reshape(W.shape)
    ### END SOLUTION


@in_groups.cases
def _(draw):
    yield Case("a row that is one group", (draw.normal(1, 6), 4, 6))
    yield Case(
        "groups with steps of their own", (draw.normal(2, 8) * torch.tensor([1.0, 20.0]).repeat_interleave(4), 4, 4)
    )
    yield Case("rows with steps of their own", (draw.normal(3, 4) * torch.tensor([[1.0], [30.0], [0.1]]), 3, 4))
    yield Case("the largest in size is negative", (torch.tensor([[0.31, -2.0, 0.9, 0.5]], dtype=torch.float64), 4, 4))
    rows, parts, group = draw.sizes(3, 2, 6)
    yield Case("other sizes", (draw.normal(rows, parts * group), draw.whole(3, 6), group))
    yield Case("eight bits", (draw.normal(2, 10), 8, 5))
    yield Case("two bits: -1, 0 and 1", (draw.normal(3, 6), 2, 3))
    yield Case(
        "a group of zeros",
        (torch.tensor([[0.0, 0.0, 1.0, 0.4]], dtype=torch.float64), 4, 2),
        robust="a trained matrix has no such group",
    )
    yield Case("one bit is refused", (draw.normal(2, 4), 1, 2), refuse=True)
    yield Case("a group that does not divide the columns is refused", (draw.normal(2, 6), 4, 4), refuse=True)


def _divides(W, bits, group):
    if bits < 2 or group < 1 or W.shape[1] % group:
        raise ValueError("no such groups")


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


@in_groups.mistake("the largest in *size* sets the step: take the absolute value first")
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


@in_groups.mistake("to the nearest level: `floor` always goes down, which is off by half a step on average")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    step = torch.where(step == 0, 1.0, step)
    return ((parts / step).floor() * step).reshape(W.shape)


@in_groups.mistake("these are the levels; what is kept is the level times its step")
def _(W, bits, group):
    _divides(W, bits, group)
    parts = W.reshape(-1, group)
    step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (parts / torch.where(step == 0, 1.0, step)).round().reshape(W.shape)


@in_groups.mistake("neighbours in a *row* are a group; yours go down the columns")
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


@in_groups.mistake("fewer than 2 bits, and a group that does not divide the columns, must be refused with a ValueError")
def _(W, bits, group):
    bits, group = max(bits, 2), group if W.shape[1] % group == 0 else W.shape[1]
    parts = W.reshape(-1, group)
    return _rounded(parts, parts.abs().amax(dim=1, keepdim=True), bits).reshape(W.shape)


@in_groups.variant
def _(W, bits, group):
    # group by group
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
        "A row has `columns` numbers of `bits` bits, and a scale for each of its groups.",
        "If the group does not divide the columns, the last group of a row is shorter, and needs its scale all the same.",
        "Add up the bits of all rows; eight are a byte, and what is begun is a whole byte.",
    ),
)
def rounded_bytes(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    """A matrix of `rows` by `columns` is kept in `bits` bits a number. Every `group` neighbours of a row share a scale of `scale_bits` bits, and, if
    it is affine, a zero point of `zero_bits`; the last group of a row may be shorter. Everything is packed without gaps. How many bytes does it
    take? Return an `int`; a byte that is begun counts.

    ```python
    >>> rounded_bytes(2, 40, 4, 32)
    48
    ```

    ★
    - Rows, columns, bits or a group below 1, and negative bits of scale or zero point, are refused with a `ValueError`.
    """
    ### BEGIN SOLUTION
    if min(rows, columns, bits, group) < 1 or min(scale_bits, zero_bits) < 0:
        raise ValueError(f"{rows} x {columns}, bits={bits}, group={group}: expected at least 1; scales of at least 0")
    groups = -(-columns // group)
    total = rows * (columns * bits + groups * (scale_bits + zero_bits))
    return -(-total // 8)
    ### END SOLUTION


@rounded_bytes.cases
def _(draw):
    yield Case("one group", (1, 32, 4, 32))
    yield Case("two groups a row", (3, 64, 4, 32))
    yield Case("a last group that is shorter", (2, 40, 4, 32))
    yield Case("affine: a zero point too", (4, 64, 4, 16, 16, 4))
    yield Case("a byte that is begun", (1, 3, 3, 3, 8, 0))
    yield Case("scales of a byte, as in MX", (2, 64, 4, 32, 8))
    rows, columns = draw.whole(3, 40), draw.whole(50, 200)
    yield Case("other sizes", (rows, columns, draw.whole(2, 8), draw.whole(7, 33), 16, draw.whole(1, 8)))
    yield Case("a group longer than a row", (2, 10, 4, 64))
    yield Case("no row is refused", (0, 4, 4, 2), refuse=True)
    yield Case("no bits are refused", (2, 4, 0, 2), refuse=True)
    yield Case("no group is refused", (2, 4, 4, 0), refuse=True)
    yield Case("a negative scale is refused", (2, 4, 4, 2, -1), refuse=True)


def _sizes(rows, columns, bits, group, scale_bits, zero_bits):
    if min(rows, columns, bits, group) < 1 or min(scale_bits, zero_bits) < 0:
        raise ValueError("expected at least 1")


@rounded_bytes.mistake("each group has a scale: you counted one for each row")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * (columns * bits + scale_bits + zero_bits) // 8)


@rounded_bytes.mistake("the last group of a row needs a scale as well, even if it is shorter")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * (columns * bits + columns // group * (scale_bits + zero_bits)) // 8)


@rounded_bytes.mistake("groups end where a row ends: they do not go on into the next row")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-(rows * columns * bits + -(-rows * columns // group) * (scale_bits + zero_bits)) // 8)


@rounded_bytes.mistake("affine groups have a zero point beside the scale")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * (columns * bits + -(-columns // group) * scale_bits) // 8)


@rounded_bytes.mistake("the scales take bits too")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return -(-rows * columns * bits // 8)


@rounded_bytes.mistake("these are bits; a byte has eight")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return rows * (columns * bits + -(-columns // group) * (scale_bits + zero_bits))


@rounded_bytes.mistake("a byte that is begun counts: round up")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    _sizes(rows, columns, bits, group, scale_bits, zero_bits)
    return rows * (columns * bits + -(-columns // group) * (scale_bits + zero_bits)) // 8


@rounded_bytes.mistake("sizes below 1, and negative bits of a scale, must be refused with a ValueError")
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    return -(-rows * (columns * bits + -(-columns // max(group, 1)) * (scale_bits + zero_bits)) // 8)


@rounded_bytes.variant
def _(rows, columns, bits, group, scale_bits=16, zero_bits=0):
    # group by group
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
    "What comes later makes up",
    task="Round column by column, and let later columns make up for each error",
    points=4,
    difficulty=3,
    minutes=24,
    excused={
        "one": "fewer inputs than columns leave equations with many solutions",
        "levels": "inputs of quite different levels leave equations that no rounding of numbers can solve",
        "offset": "inputs that are nearly equal leave equations that no rounding of numbers can solve",
        "scale": "what is read ten thousand times as loudly leaves equations that no rounding of numbers can solve",
        "tie": "equal columns leave equations that no rounding of numbers can solve",
        "nan": "the last column's own inputs are never asked for",
        "dtype": "a weight next to the middle of two levels falls to either side",
    },
    hints=(
        "`Xi = x.T @ x / len(x)`. Which of its parts do columns c + 1, c + 2, ... and column c need? Equation (19.6).",
        "Round the column as it stands *now*, not as it was in the beginning: `kept[:, c] = (W[:, c] / step).round() * step`.",
        "`W[:, c + 1:] -= torch.outer(kept[:, c] - W[:, c], torch.linalg.solve(Xi[c + 1:, c + 1:], Xi[c + 1:, c]))`.",
    ),
)
def make_up(W, x, step):
    """`W` (row, column) multiplies inputs, of which `x` (token, column) are some, more than there are columns. All weights of row i are rounded to
    multiples of `step[i]` (row). Go through the columns from the first to the last: round the column to the nearest multiples, halves to even, and
    then move all *later* columns so that the mean square error of the answers $x W^\\top$ is least, with the columns so far as they are kept.
    Return what is kept, like `W`; change no argument.

    ```python
    >>> make_up(torch.tensor([[0.4, 0.4]]), torch.tensor([[1.0, 0.8], [0.0, 0.6]]), torch.tensor([1.0]))
    tensor([[0., 1.]])
    ```

    ★
    - Sizes that do not fit, and a step that is not above 0, are refused with a `ValueError`.
    """
    ### BEGIN SOLUTION
    if W.ndim != 2 or x.ndim != 2 or x.shape[1] != W.shape[1] or step.shape != W.shape[:1] or not (step > 0).all():
        raise ValueError(f"W {tuple(W.shape)}, x {tuple(x.shape)}, step {tuple(step.shape)}: expected sizes that fit")
    W, kept, Xi = W.clone(), torch.empty_like(W), x.T @ x / len(x)
    for c in range(W.shape[1]):
        kept[:, c] = (W[:, c] / step).round() * step
        if c + 1 < W.shape[1]:
            makes_up = torch.linalg.solve(Xi[c + 1 :, c + 1 :], Xi[c + 1 :, c])
            W[:, c + 1 :] -= torch.outer(kept[:, c] - W[:, c], makes_up)
    return kept
    ### END SOLUTION


def _inputs(draw, tokens, columns):
    """Inputs that go together."""
    return draw.normal(tokens, columns) + 0.8 * draw.normal(tokens, 1)


@make_up.cases
def _(draw):
    pair = torch.tensor([[1.0, 0.8], [0.0, 0.6]], dtype=torch.float64)
    yield Case(
        "two columns", (torch.tensor([[0.4, 0.4]], dtype=torch.float64), pair, torch.ones(1, dtype=torch.float64))
    )
    yield Case("one row, more columns", (draw.normal(1, 5), _inputs(draw, 30, 5), torch.tensor([0.5]).double()))
    yield Case(
        "each row its own step", (draw.normal(3, 5), _inputs(draw, 30, 5), torch.tensor([0.2, 0.9, 1.7]).double())
    )
    rows, columns = draw.sizes(2, 3, 7)
    yield Case("other sizes", (draw.normal(rows, columns), _inputs(draw, 40, columns), 0.3 + draw.uniform(rows)))
    together = draw.normal(60, 9) + 2 * draw.normal(60, 1)
    yield Case("many columns that go together", (draw.normal(6, 9), together, 0.1 + 0.2 * draw.uniform(6)))
    yield Case("one column", (draw.normal(3, 1), draw.normal(9, 1), 0.3 + draw.uniform(3)))
    yield Case(
        "inputs that do not fit are refused",
        (draw.normal(2, 4), draw.normal(20, 3), torch.ones(2).double()),
        refuse=True,
    )
    yield Case(
        "steps that do not fit are refused",
        (draw.normal(2, 4), draw.normal(20, 4), torch.ones(4).double()),
        refuse=True,
    )
    yield Case(
        "a step of 0 is refused",
        (draw.normal(2, 4), draw.normal(20, 4), torch.tensor([1.0, 0.0]).double()),
        refuse=True,
    )


def _fits(W, x, step):
    if W.ndim != 2 or x.ndim != 2 or x.shape[1] != W.shape[1] or step.shape != W.shape[:1] or not (step > 0).all():
        raise ValueError("expected sizes that fit")


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


@make_up.mistake("that is plain rounding: after each column the later ones must move")
def _(W, x, step):
    _fits(W, x, step)
    return (W / step[:, None]).round() * step[:, None]


@make_up.mistake("later columns must make *up* for the error: the sign in (19.6) is minus")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W, x, step, sign=-1.0)


@make_up.mistake("each later column alone would do too much together: solve with the table of all later ones")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W, x, step, all_but=True)


@make_up.mistake("you gave the weights as they were moved; what is asked is what is kept")
def _(W, x, step):
    _fits(W, x, step)
    W, Xi = W.clone(), x.T @ x / len(x)
    for c in range(W.shape[1] - 1):
        off = (W[:, c] / step).round() * step - W[:, c]
        W[:, c + 1 :] -= torch.outer(off, torch.linalg.solve(Xi[c + 1 :, c + 1 :], Xi[c + 1 :, c]))
    return W


@make_up.mistake("from the first column to the last: yours goes the other way")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W.flip(1), x.flip(1), step).flip(1)


@make_up.mistake("an answer is off by zeta times the input as it is: do not subtract the mean of the inputs")
def _(W, x, step):
    _fits(W, x, step)
    return _column_by_column(W, x, step, center=True)


@make_up.mistake("sizes that do not fit, and a step that is not above 0, must be refused with a ValueError")
def _(W, x, step):
    width = min(W.shape[1], x.shape[1])
    step = torch.where(step > 0, step, 1.0).repeat(W.shape[0])[: W.shape[0]]
    kept = W.clone()
    kept[:, :width] = _column_by_column(W[:, :width], x[:, :width], step)
    return kept


@make_up.variant
def _(W, x, step):
    # least squares on the answers themselves
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
    # as libraries do it: one factorisation, whose rows are the corrections
    _fits(W, x, step)
    W, kept = W.clone(), torch.zeros_like(W)
    rows = torch.linalg.cholesky(torch.linalg.inv(x.T @ x), upper=True)
    for c in range(W.shape[1]):
        kept[:, c] = (W[:, c] / step).round() * step
        W[:, c:] -= torch.outer((W[:, c] - kept[:, c]) / rows[c, c], rows[c, c:])
    return kept


# 19.4


@exercise(
    "19.4",
    "Directions made equally long",
    task="Bring the singular values of a matrix near 1 by products alone",
    points=2,
    difficulty=2,
    minutes=12,
    forbidden=("svd", "svdvals"),
    right={"gradients": "nothing learns through it, and any way of writing it is differentiable"},
    excused={"levels": "levels beyond what a rounding keeps are raised by the rounds, with their rounding"},
    hints=(
        "First divide by the root of the sum of all squares: then no singular value is above 1.",
        "With `A = X @ X.T` a round is `X = a * X + (b * A + c * A @ A) @ X`.",
        "Transpose a matrix that has more rows than columns, so that A is the smaller product, and transpose it back.",
    ),
)
def even_out(G, rounds=5):
    """Divide `G` (row, column) by the root of the sum of its squares, and send it `rounds` times through

    $$X \\leftarrow 3.4445\\, X - 4.775\\, X X^\\top X + 2.0315\\, (X X^\\top)^2 X$$

    Return the result, like `G`. No decomposition is used.

    ```python
    >>> even_out(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), 1)
    tensor([[1.1933, 0.0000],
            [0.0000, 0.9765]])
    ```

    ★
    - Fewer than 0 rounds, and what is no matrix, are refused with a `ValueError`.
    - A matrix of zeros stays zeros.
    """
    ### BEGIN SOLUTION
    if G.ndim != 2 or rounds < 0:
        raise ValueError(f"G {tuple(G.shape)}, rounds={rounds}: expected a matrix, and at least 0")
    tall = G.shape[0] > G.shape[1]
    X = G.T if tall else G
    size = X.square().sum().sqrt()
    X = X / torch.where(size == 0, 1.0, size)
    for _ in range(rounds):
        A = X @ X.T
        X = 3.4445 * X + (-4.775 * A + 2.0315 * A @ A) @ X
    return X.T if tall else X
    ### END SOLUTION


@even_out.cases
def _(draw):
    yield Case("a diagonal", (torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64), 1))
    rows, columns = sorted(draw.sizes(2, 3, 7))
    yield Case("a wide matrix", (draw.normal(rows, columns),))
    yield Case("a tall matrix", (draw.normal(columns, rows),))
    yield Case("two rounds", (draw.normal(rows, columns), 2))
    yield Case("no round: only divided", (draw.normal(rows, columns), 0))
    yield Case("a strong direction and weak ones", (draw.normal(4, 1) @ draw.normal(1, 5) + 0.05 * draw.normal(4, 5),))
    yield Case("zeros", (torch.zeros(3, 4, dtype=torch.float64),), robust="a gradient of zeros is rare")
    yield Case("what is no matrix is refused", (draw.normal(4),), refuse=True)
    yield Case("fewer than no rounds are refused", (draw.normal(2, 3), -1), refuse=True)


def _matrix(G, rounds):
    if G.ndim != 2 or rounds < 0:
        raise ValueError("expected a matrix")


def _rounds(X, rounds, at=(3.4445, -4.775, 2.0315)):
    for _ in range(rounds):
        A = X @ X.T
        X = at[0] * X + (at[1] * A + at[2] * A @ A) @ X
    return X


def _divided(G, size):
    return G / torch.where(size == 0, 1.0, size)


@even_out.mistake("divide first: a singular value above 1 runs away under this polynomial")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(G, min(rounds, 2))


@even_out.mistake("divide by the root of the sum of *all* squares, not row by row")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum(dim=1, keepdim=True).sqrt()), rounds)


@even_out.mistake("the largest number is not the size of a matrix: divide by the root of the sum of its squares")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.abs().max()), min(rounds, 3))


@even_out.mistake("a product of matrices is meant; yours takes the cube of each number")
def _(G, rounds=5):
    _matrix(G, rounds)
    X = _divided(G, G.square().sum().sqrt())
    for _ in range(rounds):
        X = 3.4445 * X - 4.775 * X**3 + 2.0315 * X**5
    return X


@even_out.mistake("the second factor is minus: what is above 1 has to come down")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum().sqrt()), min(rounds, 2), (3.4445, 4.775, 2.0315))


@even_out.mistake("a round too few: `range(rounds)`")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum().sqrt()), max(rounds - 1, 0))


@even_out.mistake("a tall matrix that you transposed must be transposed back")
def _(G, rounds=5):
    _matrix(G, rounds)
    X = G.T if G.shape[0] > G.shape[1] else G
    return _rounds(_divided(X, X.square().sum().sqrt()), rounds)


@even_out.mistake("a matrix of zeros has the size 0, and 0 / 0 is NaN")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(G / G.square().sum().sqrt(), rounds)


@even_out.mistake("what is no matrix, and fewer than 0 rounds, must be refused with a ValueError")
def _(G, rounds=5):
    X = G if G.ndim == 2 else G.reshape(1, -1)
    return _rounds(_divided(X, X.square().sum().sqrt()), max(rounds, 0))


@even_out.variant
def _(G, rounds=5):
    # never transposed: the same numbers from the larger product
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum().sqrt()), rounds)


@even_out.variant
def _(G, rounds=5):
    # the table on the other side
    _matrix(G, rounds)
    X = _divided(G, torch.linalg.matrix_norm(G))
    for _ in range(rounds):
        cube = X @ (X.T @ X)
        X = 3.4445 * X - 4.775 * cube + 2.0315 * cube @ (X.T @ X)
    return X


# 19.5


@exercise(
    "19.5",
    "An update of Muon",
    task="Write Muon's update, with momentum, decay and the right length",
    points=3,
    difficulty=2,
    minutes=15,
    excused={"levels": "levels beyond what a rounding keeps are raised by the rounds, with their rounding"},
    hints=(
        "The momentum first: 0.95 of the old one, and 0.05 of the gradient. Nesterov's form then mixes once more.",
        "`even_out` of exercise 19.4, or its three lines, makes the directions equally long.",
        "Decay multiplies the weights by `1 - rate * decay` before the step; a tall matrix steps farther, by a root.",
    ),
)
def muon_update(W, gradient, mean, rate, decay):
    """One update of Muon. `W`, `gradient` and `mean`, the momentum so far, are (row, column). The new momentum is 0.95 of the old and 0.05 of the
    gradient; Nesterov's form takes 0.95 of the *new* momentum and 0.05 of the gradient. That is evened out by five rounds of exercise 19.4. `W` is
    multiplied by 1 − rate · decay, and the evened matrix subtracted, times the rate and, where there are more rows than columns, times
    $\\sqrt{\\text{rows}/\\text{columns}}$. Return the new `W` and the new momentum; change no argument.

    ```python
    >>> W, mean = muon_update(torch.eye(2), torch.eye(2), torch.zeros(2, 2), 0.1, 0.5)
    >>> W, mean
    (tensor([[0.8392, 0.0000],
            [0.0000, 0.8392]]), tensor([[0.0500, 0.0000],
            [0.0000, 0.0500]]))
    ```

    ★
    - Three shapes that are not the same, and a negative rate or decay, are refused with a `ValueError`.
    - A gradient and a momentum of zeros move nothing; only decay is left.
    """
    ### BEGIN SOLUTION
    if W.ndim != 2 or not W.shape == gradient.shape == mean.shape or rate < 0 or decay < 0:
        raise ValueError(
            f"{tuple(W.shape)}, {tuple(gradient.shape)}, {tuple(mean.shape)}: expected one shape, rates from 0 on"
        )
    mean = 0.95 * mean + 0.05 * gradient
    X = 0.95 * mean + 0.05 * gradient
    tall = W.shape[0] > W.shape[1]
    X = X.T if tall else X
    size = X.square().sum().sqrt()
    X = X / torch.where(size == 0, 1.0, size)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.775 * A + 2.0315 * A @ A) @ X
    X = X.T if tall else X
    longer = max(1.0, W.shape[0] / W.shape[1]) ** 0.5
    return (1 - rate * decay) * W - rate * longer * X, mean
    ### END SOLUTION


@muon_update.cases
def _(draw):
    rows, columns = sorted(draw.sizes(2, 3, 7))
    zeros = torch.zeros(rows, columns, dtype=torch.float64)
    yield Case("a first update", (draw.normal(rows, columns), draw.normal(rows, columns), zeros, 0.1, 0.0))
    yield Case(
        "with momentum", (draw.normal(rows, columns), draw.normal(rows, columns), draw.normal(rows, columns), 0.1, 0.0)
    )
    yield Case(
        "with decay", (draw.normal(rows, columns), draw.normal(rows, columns), draw.normal(rows, columns), 0.2, 0.5)
    )
    yield Case(
        "a tall matrix", (draw.normal(columns, rows), draw.normal(columns, rows), draw.normal(columns, rows), 0.1, 0.1)
    )
    yield Case(
        "momentum against the gradient", (draw.normal(3, 4), draw.normal(3, 4), -0.04 * draw.normal(3, 4), 0.3, 0.1)
    )
    yield Case(
        "zeros move nothing", (draw.normal(rows, columns), zeros, zeros, 0.1, 0.5), robust="a gradient of zeros is rare"
    )
    yield Case(
        "another shape is refused", (draw.normal(3, 4), draw.normal(4, 3), draw.normal(3, 4), 0.1, 0.1), refuse=True
    )
    yield Case(
        "a momentum of another shape is refused",
        (draw.normal(3, 4), draw.normal(3, 4), draw.normal(1, 4), 0.1, 0.1),
        refuse=True,
    )
    yield Case(
        "a negative rate is refused", (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4), -0.1, 0.1), refuse=True
    )
    yield Case(
        "a negative decay is refused", (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4), 0.1, -0.1), refuse=True
    )


def _one_shape(W, gradient, mean, rate, decay):
    if W.ndim != 2 or not W.shape == gradient.shape == mean.shape or rate < 0 or decay < 0:
        raise ValueError("expected one shape")


def _even(X):
    return _rounds(_divided(X, X.square().sum().sqrt()), 5)


def _longer(W):
    return max(1.0, W.shape[0] / W.shape[1]) ** 0.5


@muon_update.mistake("the form of Nesterov mixes the gradient in once more, after the momentum")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _longer(W) * _even(mean), mean


@muon_update.mistake("the momentum is a mean of gradients: keep it before it is evened out")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    even = _even(0.95 * mean + 0.05 * gradient)
    return (1 - rate * decay) * W - rate * _longer(W) * even, even


@muon_update.mistake("decay shrinks the weights by rate times decay, not by the decay alone")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - decay) * W - rate * _longer(W) * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("decay is decoupled: it must not go through the rounds with the gradient")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    gradient = gradient + decay * W
    mean = 0.95 * mean + 0.05 * gradient
    return W - rate * _longer(W) * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("a matrix with more rows than columns steps farther, by the root of their ratio")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("a wide matrix does not step less: the root is never below 1")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    longer = (W.shape[0] / W.shape[1]) ** 0.5
    return (1 - rate * decay) * W - rate * longer * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("against the gradient: yours climbs")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W + rate * _longer(W) * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("zeros have the size 0, and 0 / 0 is NaN")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    X = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _longer(W) * _rounds(X / X.square().sum().sqrt(), 5), mean


@muon_update.mistake("shapes that are not the same, and a negative rate or decay, must be refused with a ValueError")
def _(W, gradient, mean, rate, decay):
    gradient = gradient.reshape(W.shape)
    mean = 0.95 * mean.expand_as(W) + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _longer(W) * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.variant
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = mean.lerp(gradient, 0.05)
    even = _even(gradient.lerp(mean, 0.95))
    return W * (1 - rate * decay) - even * (rate * _longer(W)), mean


@muon_update.variant
def _(W, gradient, mean, rate, decay):
    # in one formula: 0.9025 of the old momentum and 0.0975 of the gradient
    _one_shape(W, gradient, mean, rate, decay)
    even = _even(0.9025 * mean + 0.0975 * gradient)
    return W - rate * decay * W - rate * _longer(W) * even, 0.95 * mean + 0.05 * gradient


# 19.6


@exercise(
    "19.6",
    "How much of a gradient is noise",
    task="Estimate the gradient noise scale from the gradients of single windows",
    points=3,
    difficulty=3,
    minutes=15,
    excused={
        "offset": "a noise beside a gradient ten thousand times as large is lost in rounding",
        "dtype": "what is left of two nearly equal sums is lost in rounding",
        "tie": "windows with one and the same gradient have no noise, and rounding gives any small number",
        "levels": "what is left of two nearly equal sums is lost in rounding",
    },
    hints=(
        "Two numbers are known: the mean of the single windows' squares, and the square of the mean of all n.",
        "By (19.18) the first is true + noise, and the second true + noise / n. Solve for both.",
        "true = (n * large - single) / (n - 1), noise = single - true. What if true is not above 0?",
    ),
)
def noise_in(gradients):
    """`gradients` (window, weight) are the gradients of n single windows. Estimate $|\\nabla|^2$, the square of the true gradient's length, and the
    noise, the mean square distance of a window's gradient from it, without bias, by equation (19.18) for batches of 1 and of n. Return noise over
    $|\\nabla|^2$, the noise scale in windows, as a `float`.

    ```python
    >>> noise_in(torch.tensor([[3.0, 1.0], [1.0, -1.0]]))
    2.0
    ```

    ★
    - Fewer than two windows are refused with a `ValueError`.
    - If the estimate of $|\\nabla|^2$ is not above 0, nothing can be said: return `None`.
    """
    ### BEGIN SOLUTION
    if gradients.ndim != 2 or len(gradients) < 2:
        raise ValueError(f"gradients {tuple(gradients.shape)}: expected (window, weight), at least two windows")
    n = len(gradients)
    single = gradients.square().sum(dim=1).mean()
    large = gradients.mean(dim=0).square().sum()
    true = (n * large - single) / (n - 1)
    return None if true <= 0 else float((single - true) / true)
    ### END SOLUTION


@noise_in.cases
def _(draw):
    yield Case("two windows", (torch.tensor([[3.0, 1.0], [1.0, -1.0]], dtype=torch.float64),))
    yield Case(
        "three windows", (torch.tensor([[2.0, 0.0, 1.0], [3.0, 1.0, 0.0], [1.0, 0.5, 0.5]], dtype=torch.float64),)
    )
    windows, weights = draw.sizes(2, 5, 12)
    yield Case("other sizes", (1.5 + draw.normal(windows, weights),))
    yield Case("little noise", (2 + 0.2 * draw.normal(windows, weights),))
    yield Case("one weight", (1 + 0.5 * draw.normal(6, 1),))
    yield Case(
        "the noise hides the gradient",
        (torch.tensor([[1.0, 0.0], [-1.0, 0.5]], dtype=torch.float64),),
        robust="in the lesson the true gradient is seen",
    )
    yield Case("one window is refused", (draw.normal(1, 4),), refuse=True)
    yield Case("no matrix is refused", (draw.normal(5),), refuse=True)


def _two(gradients):
    if gradients.ndim != 2 or len(gradients) < 2:
        raise ValueError("expected two windows")


def _ratio(noise, true):
    return None if true <= 0 else float(noise / true)


@noise_in.mistake("the square of the mean of n gradients still has a part of the noise, noise / n: subtract it")
def _(gradients):
    _two(gradients)
    large = gradients.mean(dim=0).square().sum()
    n, single = len(gradients), gradients.square().sum(dim=1).mean()
    return None if n * large <= single else _ratio(single - large, large)


@noise_in.mistake("the noise is unbiased, and the gradient is not: it too must lose noise / n")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    return None if n * large <= single else _ratio(gradients.var(dim=0).sum(), large)


@noise_in.mistake("all weights together have one noise scale: add up over the weights before you divide")
def _(gradients):
    _two(gradients)
    n = len(gradients)
    single, large = gradients.square().mean(dim=0), gradients.mean(dim=0).square()
    true = (n * large - single) / (n - 1)
    return None if true.sum() <= 0 else float(((single - true) / true).mean())


@noise_in.mistake("that is gradient over noise; the noise scale is the other way round, a number of windows")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / (n - 1)
    return None if true <= 0 else float(true / (single - true))


@noise_in.mistake("squares of lengths are compared; you took a root")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / (n - 1)
    return None if true <= 0 else float(((single - true) / true) ** 0.5)


@noise_in.mistake("where the estimate of the true square is not above 0, nothing can be said: `None`")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / (n - 1)
    return float((single - true) / true)


@noise_in.mistake("fewer than two windows must be refused with a ValueError")
def _(gradients):
    gradients = gradients.reshape(len(gradients), -1)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / max(n - 1, 1)
    return _ratio(single - true, true)


@noise_in.variant
def _(gradients):
    # variances without bias, over all weights
    _two(gradients)
    noise = gradients.var(dim=0).sum()
    return _ratio(noise, gradients.mean(dim=0).square().sum() - noise / len(gradients))


@noise_in.variant
def _(gradients):
    # products of different windows have no noise in them: their mean is the true square
    _two(gradients)
    n, products = len(gradients), gradients @ gradients.T
    true = (products.sum() - products.diagonal().sum()) / (n * (n - 1))
    return _ratio(products.diagonal().mean() - true, true)
