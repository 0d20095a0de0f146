"""Exercises for lesson 04: sinusoidal positions."""

import math

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, exercise


def _waves(positions, d, base=10000.0):
    """Compute the rows of equation (4.2) in float64: positions (...) -> (..., d_model)."""
    omega = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = positions.double()[..., None] * omega
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def _shift(k, d, base=10000.0):
    """Return the matrix that shifts every position by k; it has one block (4.5) for each pair."""
    blocks = []
    for i in range(d // 2):
        c, s = math.cos(k * base ** (-2 * i / d)), math.sin(k * base ** (-2 * i / d))
        blocks.append(torch.tensor([[c, s], [-s, c]], dtype=torch.float64))
    return torch.block_diag(*blocks)


EXPONENTIAL = 1e-9  # error of `torch.matrix_exp` near the identity, in float64

# 4.1


@exercise(
    "4.1",
    "One entry with a pencil",
    task="Work out one entry of a position vector",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "To which pair does column 3 belong, and does it hold the pair's sine or its cosine?",
        "What is the frequency of that pair for d = 4?",
        "The angle a is the frequency times 2. Substitute it into 1 - a^2 / 2.",
    ),
)
def entry_of_place_two():
    """Let $d = 4$, the base be 10,000, and the position be $t = 2$. What is the entry in column 3, counted from 0, of
    the wave in equation (4.2)? Return a `float` that is accurate to at least four decimal places. You can do without a
    calculator, because $\\cos a \\approx 1 - a^2/2$ for a small angle.
    """
    ### BEGIN SOLUTION
    angle = 2 / 100  # column 3 is the cosine of pair 1, whose frequency is 10000^(-2/4)
    return 1 - angle**2 / 2
    ### END SOLUTION


@entry_of_place_two.cases
def _(draw):
    yield Case("the entry in column 3 at position 2", (), tolerance=2e-5)


@entry_of_place_two.mistake(
    "that is column 2, the sine of the pair (or its angle, which is nearly the same); column 3 is the cosine"
)
def _():
    return math.sin(0.02)


@entry_of_place_two.mistake("that is the cosine of the first pair; column 3 belongs to the second")
def _():
    return math.cos(2)


@entry_of_place_two.mistake("that is the sine of the first pair, column 0")
def _():
    return math.sin(2)


@entry_of_place_two.mistake(
    "you used the number of the column as i, which makes the angle too small: i is the number of the pair, 1, and this pair's frequency is 10000^(-2/4)"
)
def _():
    return math.cos(2 / 10000**1.5)


@entry_of_place_two.mistake("you forgot to halve: cos a is about 1 - a^2/2")
def _():
    return 1 - 0.02**2


@entry_of_place_two.mistake("that is the entry at position 1: multiply the frequency by 2")
def _():
    return math.cos(0.01)


@entry_of_place_two.mistake("that is the entry at position 3; use t = 2 as given, because positions are counted from 0")
def _():
    return math.cos(0.03)


@entry_of_place_two.mistake("that is a^2/2; the cosine is 1 minus that")
def _():
    return 0.02**2 / 2


@entry_of_place_two.variant
def _():
    return 0.9998


@entry_of_place_two.variant
def _():
    return torch.tensor(2 * 10000 ** (-2 / 4), dtype=torch.float64).cos()


# 4.2


@exercise(
    "4.2",
    "The matrix that shifts",
    task="Build the matrix that moves every position by k",
    points=2,
    difficulty=2,
    minutes=10,
    hints=(
        "By which angle does pair i rotate in k steps?",
        "Equation (4.5) is one block. Where does it have the minus sign?",
        "`torch.block_diag(*blocks)` puts the blocks along the diagonal. Check `d` before that.",
    ),
)
def shift_matrix(k, d, base):
    """Let $p_t$ be the wave of position $t$, written as a column. Pair $i$ has the frequency $\\omega_i =
    \\text{base}^{-2i/d}$, with its sine in row $2i$ and its cosine in row $2i + 1$. Return the matrix $M_k$ (d_model,
    d_model) that satisfies $M_k\\, p_t = p_{t+k}$ at every position $t$. `k` may be negative, and `d` is the width
    d_model.

    ```python
    >>> shift_matrix(1, 2, 10000.0)
    tensor([[ 0.5403,  0.8415],
            [-0.8415,  0.5403]], dtype=torch.float64)
    ```

    ★
    - Raise a `ValueError` if `d` is odd or less than 2.
    - The result is `float64`, and exact up to rounding.
    """
    ### BEGIN SOLUTION
    if d < 2 or d % 2:
        raise ValueError(f"d={d}: expected an even width of at least 2")
    blocks = []
    for i in range(d // 2):
        angle = k * base ** (-2 * i / d)
        c, s = math.cos(angle), math.sin(angle)
        blocks.append(torch.tensor([[c, s], [-s, c]], dtype=torch.float64))
    return torch.block_diag(*blocks)
    ### END SOLUTION


@shift_matrix.cases
def _(draw):
    yield Case("one pair, one step", (1, 2, 10000.0), tolerance=EXPONENTIAL)
    yield Case("several steps", (3, 2, 10000.0), tolerance=EXPONENTIAL)
    yield Case("every pair rotates by its own angle", (2, 6, 10000.0), tolerance=EXPONENTIAL)
    yield Case("another base", (2, 4, 50.0), tolerance=EXPONENTIAL)
    back = -draw.whole(2, 6)
    yield Case("a step back", (back, 2 * draw.whole(2, 5), 50.0 + 100 * draw.whole(1, 9)), tolerance=EXPONENTIAL)
    yield Case("zero steps change nothing", (0, 4, 10000.0), tolerance=EXPONENTIAL)
    yield Case("an odd width is rejected", (1, 3, 10000.0), refuse=True)
    yield Case("a width of 0 is rejected", (1, 0, 10000.0), refuse=True)
    for base in (50.0, 900.0):
        yield Case("another base, with the same shift and width", (3, 4, base), tolerance=EXPONENTIAL)


@shift_matrix.mistake("your matrix shifts by -k: in each block the minus sign belongs in the lower left")
def _(k, d, base):
    return _shift(k, d, base).T.contiguous()


@shift_matrix.mistake("both sines of a block have the same sign: such a block is not a rotation")
def _(k, d, base):
    m = _shift(k, d, base)
    return m.triu() + m.triu(1).T


@shift_matrix.mistake("cosine and sine are swapped: the cosines belong on the diagonal")
def _(k, d, base):
    blocks = []
    for i in range(d // 2):
        c, s = math.cos(k * base ** (-2 * i / d)), math.sin(k * base ** (-2 * i / d))
        blocks.append(torch.tensor([[s, c], [-c, s]], dtype=torch.float64))
    return torch.block_diag(*blocks)


@shift_matrix.mistake("k steps are M_1 to the power k, not k times M_1")
def _(k, d, base):
    return k * _shift(1, d, base)


@shift_matrix.mistake("your matrix rotates by one step, whatever k is")
def _(k, d, base):
    return _shift(1, d, base)


@shift_matrix.mistake("your base is fixed at 10000: use the argument")
def _(k, d, base):
    return _shift(k, d)


@shift_matrix.mistake("the factor 2 is missing from your exponent: the frequency of pair i is base^(-2i/d)")
def _(k, d, base):
    return _shift(k, d, math.sqrt(base))


@shift_matrix.mistake("you counted columns instead of pairs: i runs from 0 to d/2 - 1, so all exponents stay below 1")
def _(k, d, base):
    return _shift(k, d, base**2)


@shift_matrix.mistake("your pairs are column i and column i + d/2: here a pair's sine and cosine are side by side")
def _(k, d, base):
    m = _shift(k, d, base)
    order = torch.arange(d).view(-1, 2).T.flatten()
    return m[order][:, order]


@shift_matrix.mistake("all your pairs rotate at the same speed, one radian per step")
def _(k, d, base):
    return torch.block_diag(*[_shift(k, 2)] * (d // 2))


@shift_matrix.mistake("a width that cannot be cut into pairs must raise a ValueError")
def _(k, d, base):
    return _shift(k, d, base) if d else torch.zeros(0, 0)


@shift_matrix.variant
def _(k, d, base):
    # compute the matrix exponential of k times the generator
    if d % 2 == 1 or d <= 0:
        raise ValueError("d must be even and positive")
    generator = torch.zeros(d, d, dtype=torch.float64)
    for i in range(0, d, 2):
        generator[i, i + 1] = base ** (-i / d)
        generator[i + 1, i] = -(base ** (-i / d))
    return torch.linalg.matrix_exp(k * generator)


@shift_matrix.variant
def _(k, d, base):
    # fill whole diagonals at once
    if d < 2 or d % 2:
        raise ValueError(f"{d} columns: expected an even number of at least 2")
    angle = k * base ** (-torch.arange(0, d, 2).double() / d)
    upper = torch.stack([angle.sin(), torch.zeros_like(angle)], dim=1).flatten()[:-1]
    return torch.diag(angle.cos().repeat_interleave(2)) + torch.diag(upper, 1) - torch.diag(upper, -1)


@shift_matrix.variant
def _(k, d, base):
    # raise the rotation of one step to the power k
    if d < 2 or d % 2:
        raise ValueError(f"d={d}")
    turn = [complex(math.cos(base ** (-2 * i / d)), math.sin(base ** (-2 * i / d))) ** k for i in range(d // 2)]
    out = torch.zeros(d, d, dtype=torch.float64)
    for i, z in enumerate(turn):
        out[2 * i, 2 * i] = out[2 * i + 1, 2 * i + 1] = z.real
        out[2 * i, 2 * i + 1], out[2 * i + 1, 2 * i] = z.imag, -z.imag
    return out


# 4.3


@exercise(
    "4.3",
    "How far, and which way?",
    task="Find how far apart two positions are, and in which direction",
    points=3,
    difficulty=3,
    minutes=15,
    excused={
        "tie": "a wave has no two equal entries side by side",
        "levels": "no entry of a wave is above 1",
        "offset": "no entry of a wave is above 1",
        "one": "the width is even",
    },
    hints=(
        "Why is the dot product of p and q not enough?",
        "What is M_k p_s when k = t - s?",
        "Try all k from -100 to 100, both ends included, and keep the one that brings M_k p closest to q.",
    ),
)
def offset_between(p, q):
    """You get the waves of two positions, but not the positions themselves: `p` is $p_s$ and `q` is $p_t$, both `float64` (d_model) as in
    equation (4.2), with the base 10,000. Return $t - s$ with its sign, as an `int`. $s$ and $t$ are whole numbers and may be in the
    thousands, but $-100 \\le t - s \\le 100$. The width may be as small as 2.

    ```python
    >>> offset_between(torch.tensor([math.sin(7), math.cos(7)]), torch.tensor([math.sin(4), math.cos(4)]))
    -3
    ```

    ★
    - Raise a `ValueError` if `p` and `q` have different widths.
    """
    ### BEGIN SOLUTION
    if p.shape != q.shape:
        raise ValueError(f"expected equal widths, got {tuple(p.shape)} and {tuple(q.shape)}")
    d = len(p)
    omega = 10000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    sine, cosine = p[0::2], p[1::2]
    distances = {}
    for k in range(-100, 101):
        c, s = (omega * k).cos(), (omega * k).sin()
        moved = torch.stack([c * sine + s * cosine, c * cosine - s * sine], dim=1).flatten()  # M_k p, (4.5)
        distances[k] = (moved - q).norm().item()
    return min(distances, key=distances.get)
    ### END SOLUTION


@offset_between.cases
def _(draw):
    def pair(s, t, d):
        return _waves(torch.tensor(s), d), _waves(torch.tensor(t), d)

    yield Case("three positions ahead", pair(5, 8, 4))
    yield Case("positions back have a negative sign", pair(9, 7, 4))
    yield Case("the same position twice", pair(40, 40, 6))
    yield Case("far from the start", pair(1234, 1177, 16))
    d, s = 2 * draw.whole(3, 12), draw.whole(200, 3000)
    yield Case("any positions, any width", pair(s, s - draw.whole(30, 90), d))
    s = draw.whole(0, 50)
    yield Case("a hundred positions ahead", pair(s, s + 100, 8))
    yield Case("a hundred positions back", pair(s + 100, s, 2 * draw.whole(3, 6)))
    yield Case("a single pair that has made a full turn in between", pair(s, s + 44, 2))
    yield Case("widths 4 and 6 are rejected", (_waves(torch.tensor(3), 4), _waves(torch.tensor(3), 6)), refuse=True)
    yield Case("positions of several thousand", pair(7950, 8010, 8))
    yield Case("a single pair, several thousand positions from the start", pair(7669, 7701, 2))
    yield Case(LARGE, pair(s, s + draw.whole(3, 90), 2 * draw.whole(17, 30)))


def _nearest(p, q, offsets):
    """Return the offset k that brings M_k p closest to q."""
    omega = 10000 ** (-torch.arange(0, len(p), 2, dtype=torch.float64) / len(p))
    angle = torch.tensor(list(offsets))[:, None] * omega
    c, s, sine, cosine = angle.cos(), angle.sin(), p[0::2], p[1::2]
    moved = torch.stack([c * sine + s * cosine, c * cosine - s * sine], dim=-1).flatten(1)
    return offsets[(moved - q).norm(dim=1).argmin().item()]


def _turned(p, q, i):
    """Return the angle, from -pi to pi, between the hands of pair i in p and in q."""
    before, after = (math.atan2(x[2 * i], x[2 * i + 1]) for x in (p, q))
    return math.remainder(after - before, 2 * math.pi)


@offset_between.mistake(
    "the distance is right, but the direction is lost: a dot product is the same for k steps ahead and k steps back"
)
def _(p, q):
    zero = _waves(torch.tensor(0), len(p))
    return min(range(101), key=lambda k: abs((_waves(torch.tensor(k), len(p)) @ zero - p @ q).item()))


@offset_between.mistake("the distance is right, but the direction is wrong: t - s is positive when q comes after p")
def _(p, q):
    return -_nearest(p, q, range(-100, 101))


@offset_between.mistake("you tried no negative offsets: q may come before p")
def _(p, q):
    return _nearest(p, q, range(101))


@offset_between.mistake("`range(-100, 100)` ends at 99: an offset of 100 is allowed, too")
def _(p, q):
    return _nearest(p, q, range(-100, 100))


@offset_between.mistake(
    "you read only the fast hand: after more than three steps in either direction it may have made a full turn"
)
def _(p, q):
    return round(_turned(p, q, 0))


@offset_between.mistake("you read only the slowest hand; at d = 2 it is the fast one, which may have made a full turn")
def _(p, q):
    last = len(p) // 2 - 1
    return round(_turned(p, q, last) / 10000 ** (-2 * last / len(p)))


@offset_between.mistake("you looked for s and t among the first positions; only their difference is small")
def _(p, q):
    table = _waves(torch.arange(151), len(p))
    s, t = ((table - x).norm(dim=1).argmin().item() for x in (p, q))
    return t - s


@offset_between.mistake("vectors of different widths must raise a ValueError")
def _(p, q):
    return _nearest(p, q, range(-100, 101))


@offset_between.variant
def _(p, q):
    # represent each hand as a complex number; the quotient of two unit complex numbers is the rotation between them
    if len(p) != len(q):
        raise ValueError(f"{len(p)} is not {len(q)}")
    z = torch.complex(q[1::2], q[0::2]) * torch.complex(p[1::2], -p[0::2])
    omega = 10000 ** (-torch.arange(0, len(p), 2) / len(p)).double()
    k = torch.arange(-100, 101)
    agreement = (z * torch.exp(-1j * k[:, None] * omega)).real.sum(dim=1)
    return int(k[agreement.argmax()])


@offset_between.variant
def _(p, q):
    # use the slowest hand if it cannot make a full turn, and search if there is only one hand
    if p.shape != q.shape:
        raise ValueError("p and q must have the same width")
    last = len(p) // 2 - 1
    turn = _turned(p, q, last)
    if last:
        return torch.tensor(turn * 10000 ** (2 * last / len(p))).round().int()
    return min(range(-100, 101), key=lambda k: abs(math.remainder(k - turn, 2 * math.pi)))


# 4.4


@exercise(
    "4.4",
    "A head that looks back",
    task="Find the query matrix that makes a head look j positions back",
    points=4,
    difficulty=3,
    minutes=20,
    excused={
        "tie": "a matrix of equal columns has no inverse",
        "nan": "PyTorch's solvers raise their own error for NaN",
    },
    robust={
        "a negative sharpness": "a negative sharpness makes the head look away",
    },
    hints=(
        "With positions as columns, the score of m for n is p_m^T A p_n, where A = W_q W_k^T / sqrt(d).",
        "Which A gives p_m . p_(n + j)? Equation (4.4) moves p_n by j positions.",
        "So W_q W_k^T = sharpness * sqrt(d) * M_j. Bring W_k^T to the other side by multiplying by its inverse from the right.",
    ),
)
def look_back(j, w_k, sharpness):
    """A head sees only positions: row $t$ of $P$ is $p_t$, equation (4.2) with the base 10,000. Its key matrix $W_k$, `w_k` (d_model,
    d_model), is frozen and has an inverse. Return the query matrix $W_q$ (d_model, d_model) that makes the head look `j` positions back.
    For all positions $m$ and $n$,

    $$\\frac{(p_m W_q) \\cdot (p_n W_k)}{\\sqrt{d}} = \\text{sharpness} \\cdot p_m \\cdot p_{n + j}, \\qquad d = \\text{d\\_model}.$$

    There is exactly one such matrix.

    ```python
    >>> look_back(0, torch.eye(2).double(), 3.0)
    tensor([[4.2426, 0.0000],
            [0.0000, 4.2426]], dtype=torch.float64)
    ```

    ★
    - Raise a `ValueError` for `j < 0`.
    - The result is `float64`.
    """
    ### BEGIN SOLUTION
    if j < 0:
        raise ValueError(f"j={j}: expected a distance of 0 or more")
    d = len(w_k)
    blocks = []
    for i in range(d // 2):
        angle = j * 10000 ** (-2 * i / d)
        c, s = math.cos(angle), math.sin(angle)
        blocks.append(torch.tensor([[c, s], [-s, c]], dtype=torch.float64))
    shift = torch.block_diag(*blocks)  # M_j, a block (4.5) for each pair
    return sharpness * math.sqrt(d) * shift @ torch.linalg.inv(w_k).T
    ### END SOLUTION


def _invertible(draw, d):
    """Draw a matrix with singular values between 0.5 and 1.5."""
    left, right = (torch.linalg.qr(draw.normal(d, d))[0] for _ in range(2))
    return left @ torch.diag(0.5 + draw.uniform(d)) @ right


@look_back.cases
def _(draw):
    yield Case("one position back, with the positions as keys", (1, torch.eye(4).double(), 1.0), tolerance=EXPONENTIAL)
    yield Case("a greater sharpness", (3, torch.eye(4).double(), 20.0), tolerance=EXPONENTIAL)
    yield Case("a key matrix that is not the identity", (1, _invertible(draw, 4), 1.0), tolerance=EXPONENTIAL)
    j, half = draw.whole(2, 7), draw.whole(3, 6)
    yield Case(
        "any number of positions, any width",
        (j, _invertible(draw, 2 * half), 1.5 + draw.whole(1, 9)),
        tolerance=EXPONENTIAL,
    )
    yield Case(
        "0 positions back: the head looks at the word itself", (0, _invertible(draw, 6), 2.0), tolerance=EXPONENTIAL
    )
    yield Case("a negative number of positions is rejected", (-1, torch.eye(4).double(), 1.0), refuse=True)
    yield Case("a negative sharpness", (1, torch.eye(4, dtype=torch.float64), -2.0), tolerance=EXPONENTIAL)
    yield Case(LARGE, (j, _invertible(draw, 2 * draw.whole(9, 10)), 2.5), tolerance=EXPONENTIAL)


@look_back.mistake("your head looks j positions ahead: that is the transpose of M_j")
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * _shift(j, d).T @ torch.linalg.inv(w_k).T


@look_back.mistake("the scores are divided by the square root of d: W_q must compensate for it")
def _(j, w_k, sharpness):
    return sharpness * _shift(j, len(w_k)) @ torch.linalg.inv(w_k).T


@look_back.mistake(
    "you divided by the square root of d: the scores are already divided by it, so W_q must be multiplied by it"
)
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness / math.sqrt(d) * _shift(j, d) @ torch.linalg.inv(w_k).T


@look_back.mistake("you treated W_k as the identity: multiply by the inverse of its transpose")
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * _shift(j, d)


@look_back.mistake("you multiplied by the inverse of W_k; use the inverse of its transpose, because A is W_q W_k^T")
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * _shift(j, d) @ torch.linalg.inv(w_k)


@look_back.mistake(
    "you multiplied by W_k, which undoes its transpose only if W_k is orthogonal: multiply by the inverse"
)
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * _shift(j, d) @ w_k


@look_back.mistake("the inverse is on the wrong side: W_q W_k^T = M_j means W_q = M_j times the inverse")
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * torch.linalg.inv(w_k).T @ _shift(j, d)


@look_back.mistake("the sharpness is missing: it multiplies all scores")
def _(j, w_k, sharpness):
    d = len(w_k)
    return math.sqrt(d) * _shift(j, d) @ torch.linalg.inv(w_k).T


@look_back.mistake("your head looks one position back, whatever j is")
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * _shift(1, d) @ torch.linalg.inv(w_k).T


@look_back.mistake("a negative number of positions must raise a ValueError")
def _(j, w_k, sharpness):
    d = len(w_k)
    return sharpness * math.sqrt(d) * _shift(j, d) @ torch.linalg.inv(w_k).T


@look_back.variant
def _(j, w_k, sharpness):
    # solve a linear system: W_k W_q^T = sharpness sqrt(d) M_j^T
    if j < 0:
        raise ValueError("j must be 0 or more")
    d = w_k.shape[0]
    target = torch.zeros(d, d, dtype=torch.float64)
    for i in range(0, d, 2):
        a = j / 10000 ** (i / d)
        target[i, i] = target[i + 1, i + 1] = math.cos(a)
        target[i, i + 1], target[i + 1, i] = -math.sin(a), math.sin(a)
    return torch.linalg.solve(w_k, sharpness * d**0.5 * target).T


@look_back.variant
def _(j, w_k, sharpness):
    # from positions only: solve P X = Q for X by least squares, where Q holds the desired queries
    if j < 0:
        raise ValueError(f"{j} positions")
    d = len(w_k)
    n = 4000
    omega = torch.tensor([10000.0 ** (-2 * i / d) for i in range(d // 2)], dtype=torch.float64)

    def rows(first):
        angle = torch.arange(first, first + n, dtype=torch.float64)[:, None] * omega
        return torch.stack((angle.sin(), angle.cos()), dim=2).reshape(n, d)

    wanted = rows(-j) @ torch.linalg.inv(w_k.T) * sharpness * math.sqrt(d)  # p_m . p_(n+j) = p_(m-j) . p_n
    return torch.linalg.lstsq(rows(0), wanted).solution


# 4.5


@exercise(
    "4.5",
    "Positions of a padded batch",
    task="Add positions to a batch that is padded on the left",
    points=3,
    difficulty=2,
    minutes=20,
    excused={
        "one": "the width is even",
    },
    robust={
        "positions beyond 256 remain distinct in bfloat16": "half precision is a separate matter",
    },
    hints=(
        "In a row with `length` real tokens, how many padding tokens come first?",
        "`torch.arange(n) - (n - lengths)[:, None]` is a (batch, token) tensor of positions. What does a negative position mean?",
        "Compute angles and waves in `float64`, cast them to the dtype of x, and let `torch.where(real[..., None], a, b)` choose token by token.",
    ),
)
def add_positions(x, lengths):
    """Sequences of unequal length are padded on the **left**. `x` (batch, token, d_model) holds them, and `lengths` (batch), `int64`, says how
    many tokens of each row are real. Return `x` with positions added: $p_0$ to the first *real* token of each row, $p_1$ to the next, and so on.
    $p_t$ is the wave of position $t$, equation (4.2), with the base 10,000. Leave padding unchanged.

    ```python
    >>> add_positions(torch.zeros(1, 3, 2), torch.tensor([2]))
    tensor([[[0.0000, 0.0000],
             [0.0000, 1.0000],
             [0.8415, 0.5403]]])
    ```

    ★
    - Raise a `ValueError` for a length below 1 or above the number of tokens.
    - The result has the dtype of `x`. Positions beyond 256 remain distinct, even in `bfloat16`.
    - Do not change the tensor `x`.
    """
    ### BEGIN SOLUTION
    n, d = x.shape[1:]
    if (lengths < 1).any() or (lengths > n).any():
        raise ValueError(f"lengths={lengths.tolist()}: expected whole numbers from 1 to {n}")
    positions = torch.arange(n) - (n - lengths)[:, None]  # (batch, token), where padding gets negative numbers
    omega = 10000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = positions[..., None] * omega
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x.dtype)
    real = positions >= 0
    return torch.where(real[..., None], x + waves, x)
    ### END SOLUTION


@add_positions.cases
def _(draw):
    yield Case("rows without padding count from 0", (torch.zeros(1, 3, 4).double(), torch.tensor([3])))
    yield Case(
        "the first real token of each row gets position 0",
        (draw.normal(2, 3, 4), torch.tensor([3, 2])),
    )
    batch, n, half = draw.sizes(3, 3, 8)
    lengths = torch.cat([torch.tensor([n, 1]), draw.wholes(1, n - 1, batch - 2)])
    lengths = lengths[draw.shuffled(batch)]
    yield Case("each row has its own length", (draw.normal(batch, n, 2 * half), lengths))
    n = draw.whole(300, 400)
    inputs = draw.normal(1, n, 4, dtype=torch.bfloat16), torch.tensor([n - 1])
    yield Case("positions beyond 256 remain distinct in bfloat16", inputs, tolerance=0.02)
    yield Case("a length of 0 is rejected", (draw.normal(2, 3, 4), torch.tensor([3, 0])), refuse=True)
    yield Case("a length of 4 for 3 tokens is rejected", (draw.normal(2, 3, 4), torch.tensor([4, 1])), refuse=True)
    yield Case("padded rows of the same length", (draw.normal(3, 4, 2), torch.tensor([2, 2, 2])), tolerance=1e-4)


def _places(x, lengths):
    """Return positions (batch, token), negative for padding, and a boolean mask (batch, token, 1)."""
    n = x.shape[1]
    places = torch.arange(n) - (n - lengths)[:, None]
    return places, (places >= 0)[..., None]


@add_positions.mistake("you count the padding: the first real token of every row is at position 0")
def _(x, lengths):
    _, real = _places(x, lengths)
    return torch.where(real, x + _waves(torch.arange(x.shape[1]), x.shape[2]).to(x.dtype), x)


@add_positions.mistake("you count the padding and change it, too: positions begin at the first real token")
def _(x, lengths):
    return x + _waves(torch.arange(x.shape[1]), x.shape[2]).to(x.dtype)


@add_positions.mistake("your padding got position 0, which is not a vector of zeros: leave padding unchanged")
def _(x, lengths):
    places, _ = _places(x, lengths)
    return x + _waves(places.clamp(min=0), x.shape[2]).to(x.dtype)


@add_positions.mistake("your padding got negative positions; they have vectors, too: leave padding unchanged")
def _(x, lengths):
    places, _ = _places(x, lengths)
    return x + _waves(places, x.shape[2]).to(x.dtype)


@add_positions.mistake("your padding became zero: leave it unchanged")
def _(x, lengths):
    places, real = _places(x, lengths)
    return (x + _waves(places, x.shape[2]).to(x.dtype)) * real


@add_positions.mistake("you treat the padding as if it were on the right; here it is on the left")
def _(x, lengths):
    places = torch.arange(x.shape[1])
    real = (places < lengths[:, None])[..., None]
    return torch.where(real, x + _waves(places, x.shape[2]).to(x.dtype), x)


@add_positions.mistake("you gave every row the padding of the first: each row has its own length")
def _(x, lengths):
    places, real = _places(x, lengths[:1])
    return torch.where(real, x + _waves(places, x.shape[2]).to(x.dtype), x)


@add_positions.mistake("your first real token got nothing: position 0 has a vector, too, and its cosines are 1")
def _(x, lengths):
    places, _ = _places(x, lengths)
    return torch.where((places > 0)[..., None], x + _waves(places, x.shape[2]).to(x.dtype), x)


@add_positions.mistake("you multiplied x by the square root of d_model: here positions are added to x without a factor")
def _(x, lengths):
    places, real = _places(x, lengths)
    return torch.where(real, x * math.sqrt(x.shape[2]) + _waves(places, x.shape[2]).to(x.dtype), x)


@add_positions.mistake("you count from 1: the first real token is at position 0")
def _(x, lengths):
    places, real = _places(x, lengths)
    return torch.where(real, x + _waves(places + 1, x.shape[2]).to(x.dtype), x)


@add_positions.mistake(
    "your angles are computed in the dtype of x: in bfloat16 there are no whole numbers between 256 and 258"
)
def _(x, lengths):
    places, real = _places(x, lengths)
    omega = (10000 ** (-torch.arange(0, x.shape[2], 2) / x.shape[2])).to(x.dtype)
    angles = places.to(x.dtype)[..., None] * omega
    return torch.where(real, x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2), x)


@add_positions.mistake("you changed x itself: work on a copy")
def _(x, lengths):
    places, real = _places(x, lengths)
    x += torch.where(real, _waves(places, x.shape[2]), 0.0).to(x.dtype)
    return x


@add_positions.mistake("the result has the dtype of the waves; it must have the dtype of x")
def _(x, lengths):
    places, real = _places(x, lengths)
    return torch.where(real, x + _waves(places, x.shape[2]), x.double())


@add_positions.mistake("impossible lengths must raise a ValueError")
def _(x, lengths):
    places, real = _places(x, lengths)
    return torch.where(real, x + _waves(places, x.shape[2]).to(x.dtype), x)


@add_positions.variant
def _(x, lengths):
    # process one row at a time
    out = x.clone()
    for row, length in enumerate(lengths.tolist()):
        if not 1 <= length <= x.shape[1]:
            raise ValueError(f"{length} real tokens of {x.shape[1]}")
        angle = torch.arange(length)[:, None] * torch.exp(
            torch.arange(0, x.shape[2], 2).double() * (-math.log(10000.0) / x.shape[2])
        )
        out[row, x.shape[1] - length :, 0::2] += angle.sin().to(x.dtype)
        out[row, x.shape[1] - length :, 1::2] += angle.cos().to(x.dtype)
    return out


@add_positions.variant
def _(x, lengths):
    # build a table that begins with rows of zeros, and add a different slice of it to each sequence
    n, d = x.shape[1], x.shape[2]
    if lengths.min() < 1 or lengths.max() > n:
        raise ValueError(f"lengths: expected 1 to {n}")
    i = torch.arange(d).double()
    angle = torch.arange(n)[:, None] / 10000 ** ((i - i % 2) / d)
    table = torch.cat([torch.zeros(n, d), torch.sin(angle + i % 2 * math.pi / 2)])
    return (x.double() + torch.stack([table[m : m + n] for m in lengths.tolist()])).to(x.dtype)


# 4.6


@exercise(
    "4.6",
    "The table of waves",
    task="Compute sinusoidal positions of any shape, in four dtypes",
    points=3,
    difficulty=2,
    minutes=15,
    robust={
        "angles in float64 are still exact a million positions away": "no text is that long",
        "no angle overflows in float16": "half precision is a separate matter",
    },
    hints=(
        "There are d/2 frequencies, (4.1). Every position times every frequency is an angle, and the frequencies form a new last axis.",
        "`torch.stack([sines, cosines], dim=-1)` puts the sine and the cosine of a pair side by side. `flatten(-2)` puts the pairs one after the other.",
        "Give `torch.arange` the dtype float64 (without it, a division gives float32), and cast the finished waves with `.to(getattr(torch, dtype))`.",
    ),
)
def sinusoids(positions, d, base, dtype):
    """Return $p_t$, equation (4.2), for every position in `positions`, an `int64` tensor of any shape. The result has
    the shape of `positions` with an axis of width `d` appended. Pair $i$ has the frequency $\\omega_i =
    \\text{base}^{-2i/d}$, with its sine in column $2i$ and its cosine in column $2i + 1$. `dtype` is the dtype of the
    result: `"float64"`, `"float32"`, `"bfloat16"` or `"float16"`. Compute the angles in `float32` or better, and cast
    only the finished waves.

    ```python
    >>> sinusoids(torch.tensor([0, 1]), 2, 10000.0, "float32")
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    ```

    ★
    - Raise a `ValueError` if `d` is odd or less than 2.
    - With `"float64"`, the angles are accurate even at position one million.
    """
    ### BEGIN SOLUTION
    if d < 2 or d % 2:
        raise ValueError(f"d={d}: expected an even width of at least 2")
    omega = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (pair), (4.1)
    angles = positions[..., None] * omega  # (..., pair)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return waves.to(getattr(torch, dtype))
    ### END SOLUTION


@sinusoids.cases
def _(draw):
    yield Case("one pair is a sine and a cosine", (torch.tensor([0, 1, 2]), 2, 10000.0, "float64"))
    yield Case("each pair has its own frequency", (torch.tensor([1, 2]), 4, 10000.0, "float64"))
    d = 2 * draw.whole(3, 6)
    rows, tokens = draw.sizes(2, 2, 6)
    places = draw.wholes(0, 60, rows, tokens)
    yield Case("any positions, different in each row of the batch", (places, d, 10000.0, "float64"))
    yield Case("another base", (torch.tensor([3, 1]), 6, 100.0 + 10 * draw.whole(1, 90), "float64"))
    yield Case("a single position", (torch.tensor(draw.whole(2, 50)), d, 10000.0, "float64"))
    yield Case("single precision", (draw.wholes(0, 40, 3), 6, 10000.0, "float32"))
    yield Case("neighbours beyond 256 remain distinct in bfloat16", (torch.tensor([256, 257]), 4, 10000.0, "bfloat16"))
    yield Case("no angle overflows in float16", (torch.tensor([2048, 2049, 70000]), 2, 10000.0, "float16"))
    far = 10**6 + draw.whole(0, 999)
    yield Case(
        "angles in float64 are still exact a million positions away",
        (torch.tensor([far]), 8, 10000.0, "float64"),
        tolerance=1e-6,
    )
    yield Case("an odd width is rejected", (torch.tensor([0, 1]), 5, 10000.0, "float64"), refuse=True)
    yield Case("a width of 0 is rejected", (torch.tensor([0, 1]), 0, 10000.0, "float64"), refuse=True)
    places = torch.tensor([[0, 7, -300]])
    for name in ("float32", "float64", "float16"):
        yield Case("the same positions, including negative ones, in another dtype", (places, 4, 100.0, name))


def _from_angles(sines, cosines, dtype):
    return torch.stack([sines.sin(), cosines.cos()], dim=-1).flatten(-2).to(getattr(torch, dtype))


def _table(positions, d, base, dtype):
    return _waves(positions, d, base).to(getattr(torch, dtype))


@sinusoids.mistake("your cosine has its own frequency: sine and cosine of a pair share one angle")
def _(positions, d, base, dtype):
    c = torch.arange(0, d, 2, dtype=torch.float64)
    places = positions[..., None]
    return _from_angles(places * base ** (-c / d), places * base ** (-(c + 1) / d), dtype)


@sinusoids.mistake(
    "you counted columns instead of pairs: the columns 0, 2, 4, ... are 2i already, so do not double them"
)
def _(positions, d, base, dtype):
    return _table(positions, d, base**2, dtype)


@sinusoids.mistake("the factor 2 is missing from your exponent: the frequency of pair i is base^(-2i/d)")
def _(positions, d, base, dtype):
    return _table(positions, d, math.sqrt(base), dtype)


@sinusoids.mistake("your exponent ends at 1: divide 2i by d, not i by d/2 - 1")
def _(positions, d, base, dtype):
    return _table(positions, d, base ** (d / max(1, d - 2)), dtype)


@sinusoids.mistake("you divided by the frequency: the angle is position times frequency, and frequencies decrease")
def _(positions, d, base, dtype):
    return _table(positions, d, 1 / base, dtype)


@sinusoids.mistake("your exponents use integer division (//) and are all 0, so every pair rotates at the same speed")
def _(positions, d, base, dtype):
    return _table(positions, d, 1.0, dtype)


@sinusoids.mistake("you return only sines: without the cosines no matrix can shift positions")
def _(positions, d, base, dtype):
    angles = positions[..., None] * base ** (-torch.arange(d, dtype=torch.float64) / d)
    return angles.sin().to(getattr(torch, dtype))


@sinusoids.mistake("sine and cosine are swapped: the sine is in column 2i")
def _(positions, d, base, dtype):
    return _table(positions, d, base, dtype).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


@sinusoids.mistake(
    "all your sines come first, then all cosines: here the sine and the cosine of a pair are side by side"
)
def _(positions, d, base, dtype):
    return _table(positions, d, base, dtype).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


@sinusoids.mistake("your base is fixed at 10000: use the argument")
def _(positions, d, base, dtype):
    return _table(positions, d, 10000.0, dtype)


@sinusoids.mistake("you count from 1: position 0 has the angle 0")
def _(positions, d, base, dtype):
    return _table(positions + 1, d, base, dtype)


@sinusoids.mistake("you counted the rows instead of reading `positions`")
def _(positions, d, base, dtype):
    n = positions.shape[-1] if positions.ndim else 1
    return _table(torch.arange(n).expand(positions.shape), d, base, dtype)


@sinusoids.mistake(
    "your code expects a single list of positions, but `positions` may have any shape: `positions[..., None]` adds the axis of the pairs"
)
def _(positions, d, base, dtype):
    angles = positions[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    out = torch.zeros(len(positions), d, dtype=torch.float64)
    out[:, 0::2], out[:, 1::2] = angles.sin(), angles.cos()
    return out.to(getattr(torch, dtype))


@sinusoids.mistake("you gave every row of the batch the positions of the first")
def _(positions, d, base, dtype):
    first = positions[0].expand(positions.shape) if positions.ndim > 1 else positions
    return _table(first, d, base, dtype)


@sinusoids.mistake(
    "your angles are in half precision: not every whole number above 256 (bfloat16) or 2048 (float16) exists there"
)
def _(positions, d, base, dtype):
    kind = getattr(torch, dtype)
    omega = (base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)).to(kind)
    angles = positions.to(kind)[..., None] * omega
    return _from_angles(angles, angles, dtype)


@sinusoids.mistake("your frequencies are in float32, which is what `torch.arange(...) / d` gives: name a dtype")
def _(positions, d, base, dtype):
    angles = positions.double()[..., None] * (base ** (-torch.arange(0, d, 2) / d)).double()
    return _from_angles(angles, angles, dtype)


@sinusoids.mistake(
    "your `exp` is computed in float32, torch's default: `torch.arange(0, d, 2, dtype=torch.float64)` makes it float64"
)
def _(positions, d, base, dtype):
    angles = positions[..., None] * torch.exp(torch.arange(0, d, 2) * (-math.log(base) / d))
    return _from_angles(angles, angles, dtype)


@sinusoids.mistake(
    "your waves are computed in float32 and cast at the end: for float64, the angles must be float64, too"
)
def _(positions, d, base, dtype):
    angles = positions[..., None] * base ** (-torch.arange(0, d, 2) / d)
    return _from_angles(angles, angles, dtype)


@sinusoids.mistake("a width that cannot be cut into pairs must raise a ValueError")
def _(positions, d, base, dtype):
    return _table(positions, d, base, dtype)


@sinusoids.variant
def _(positions, d, base, dtype):
    # compute one number at a time
    if d < 2 or d % 2 == 1:
        raise ValueError(f"d is {d}")
    rows = []
    for t in positions.flatten().tolist():
        for i in range(d // 2):
            rows += [math.sin(t / base ** (2 * i / d)), math.cos(t / base ** (2 * i / d))]
    return torch.tensor(rows, dtype=torch.float64).view(*positions.shape, d).to(getattr(torch, dtype))


@sinusoids.variant
def _(positions, d, base, dtype):
    # compute e^(i angle) = cos + i sin, and read it as pairs of real numbers in reverse order
    if d % 2 or d <= 0:
        raise ValueError(f"{d=}: expected an even width above 0")
    omega = torch.exp(-math.log(base) * torch.arange(0, d, 2, dtype=torch.float64) / d)
    z = torch.polar(torch.ones(()).double(), positions.unsqueeze(-1) * omega)
    return torch.view_as_real(z).flip(-1).reshape(*positions.shape, d).to(getattr(torch, dtype))


@sinusoids.variant
def _(positions, d, base, dtype):
    # fill a table one column at a time, in single precision where that is enough
    if d < 2 or d % 2:
        raise ValueError(f"{d=}")
    wide = torch.float64 if dtype == "float64" else torch.float32
    out = torch.empty(*positions.shape, d, dtype=wide)
    for column in range(d):
        angle = positions.to(wide) * base ** (-(column // 2) * 2 / d)
        out[..., column] = torch.cos(angle) if column % 2 else torch.sin(angle)
    return out.to(getattr(torch, dtype))


# 4.7


@exercise(
    "4.7",
    "The matrix from data alone",
    task="Recover the shift matrix from pairs of vectors only",
    points=4,
    difficulty=3,
    minutes=20,
    excused={
        "tie": "one matrix shifts all rows, so no row can be changed by itself",
        "levels": "one matrix shifts all rows, so no row can be changed by itself",
        "offset": "one matrix shifts all rows, so no row can be changed by itself",
        "one": "a component of a shifted row depends on more than that component",
        "nan": "PyTorch's solvers raise their own error for NaN",
    },
    robust={
        "vectors of length 1e-6": "positions have entries around 1",
    },
    hints=(
        "When the rows are stacked, the equations read after = before M^T. The unknown is on the right.",
        "`torch.linalg.lstsq(A, B).solution` is the Y that brings A Y closest to B. Which matrix is Y here?",
        "M is determined if the rows of `before` span all d dimensions: `torch.linalg.matrix_rank(before)` must be d.",
    ),
)
def shift_from_data(before, after):
    """You get a table of positions without its formula. `before` and `after` are `float64` (row, d_model). Row $r$ of
    `before` is the vector of some position, and row $r$ of `after` is the vector of the position that comes a fixed
    number of steps later. One matrix $M$ performs the shift: with the vectors as columns,
    $\\text{after}_r = M\\, \\text{before}_r$ for every $r$. Return $M$ (d_model, d_model). Rows come in any order, and
    may occur more than once.

    ```python
    >>> shift_from_data(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    ```

    ★
    - Raise a `ValueError` if the rows do not determine $M$ because they do not span all dimensions, whatever the norms
      of the vectors.
    """
    ### BEGIN SOLUTION
    d = before.shape[1]
    rank = int(torch.linalg.matrix_rank(before))
    if rank < d:
        raise ValueError(f"before: expected rows that span {d} dimensions, got {rank}")
    return torch.linalg.lstsq(before, after).solution.T
    ### END SOLUTION


@shift_from_data.cases
def _(draw):
    def table(d, rows, *, repeat=()):
        """Return positions mixed by a fixed matrix, so that no formula applies, with `repeat` repeated rows in front."""
        mix = _invertible(draw, d)
        places = draw.shuffled(300)[:rows]
        places = torch.cat([places[list(repeat)], places])
        base, k = 100.0 + draw.whole(0, 900), draw.whole(1, 9)
        return _waves(places, d, base) @ mix, _waves(places + k, d, base) @ mix

    yield Case("as many rows as dimensions", table(2, 2))
    yield Case("more rows than dimensions", table(4, 7))
    yield Case("some rows occur twice", table(4, 8, repeat=(0, 1, 0)))
    d = 2 * draw.whole(2, 4)
    yield Case("any width", table(d, 4 * d + draw.whole(1, 9)))
    yield Case("three rows for four dimensions are rejected", table(4, 3), refuse=True)
    yield Case(
        "enough rows, but only three different ones, are rejected", table(4, 3, repeat=(0, 1, 2, 0)), refuse=True
    )
    flat = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], dtype=torch.float64)
    yield Case("different rows on one line are rejected", (flat, flat), refuse=True)
    yield Case("vectors of length 1e-6", tuple(1e-6 * each for each in table(4, 7)), tolerance=1e-4)
    yield Case("vectors of length 1e6 on one line are rejected", (1e6 * flat, 1e6 * flat), refuse=True)
    d = draw.whole(33, 40)
    wide = draw.normal(2 * d, d)
    yield Case(LARGE, (wide, wide @ _invertible(draw, d)))


@shift_from_data.mistake("that is the transpose: the matrix to the right of the rows is M^T")
def _(before, after):
    return torch.linalg.lstsq(before, after).solution


@shift_from_data.mistake("your matrix leads back from `after` to `before`")
def _(before, after):
    return torch.linalg.lstsq(after, before).solution.T


@shift_from_data.mistake(
    "that is the transpose of the matrix that leads back: transpose it, and solve from `before` to `after`"
)
def _(before, after):
    return torch.linalg.lstsq(after, before).solution


@shift_from_data.mistake("you multiplied by the transpose of `before` as if it were its inverse")
def _(before, after):
    return after.T @ before


@shift_from_data.mistake("you used only the first d rows: one of them may occur twice")
def _(before, after):
    d = before.shape[1]
    if len(before) < d:
        raise ValueError("too few rows")
    return torch.linalg.solve(before[:d], after[:d]).T


@shift_from_data.mistake("too few rows do not determine M: you returned one of many matrices that satisfy them")
def _(before, after):
    return torch.linalg.lstsq(before, after, driver="gelsd").solution.T


@shift_from_data.mistake("you counted rows, but repeated rows add nothing: use their rank")
def _(before, after):
    if len(before) < before.shape[1]:
        raise ValueError("too few rows")
    return torch.linalg.lstsq(before, after, driver="gelsd").solution.T


@shift_from_data.variant
def _(before, after):
    # solve the normal equations
    gram = before.T @ before
    if torch.linalg.matrix_rank(before) != len(gram):
        raise ValueError("the rows do not determine M")
    return torch.linalg.solve(gram, before.T @ after).mT


@shift_from_data.variant
def _(before, after):
    # use singular values
    u, s, vt = torch.linalg.svd(before, full_matrices=False)
    if len(s) < before.shape[1] or s[-1] < 1e-10 * s[0]:
        raise ValueError(f"singular values {s.tolist()}")
    return torch.einsum("rc,rk,k,kd->cd", after, u, 1 / s, vt)


@shift_from_data.variant
def _(before, after):
    # take the rows one by one, and leave out each row that is linearly dependent on earlier ones
    chosen = []
    for row in range(len(before)):
        if torch.linalg.matrix_rank(before[[*chosen, row]]) == len(chosen) + 1:
            chosen.append(row)
    if len(chosen) < before.shape[1]:
        raise ValueError(f"only {len(chosen)} independent rows")
    return after[chosen].T @ torch.linalg.inv(before[chosen]).T
