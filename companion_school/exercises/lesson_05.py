"""Exercises for lesson 05: rotary positions."""

import math

import torch

from companion_school.checking.exercise import Case, Group, exercise


def _angles(positions, d, base=10000.0):
    """Compute the angles of equation (5.5) in float64: positions (...) -> (..., pair)."""
    places = torch.as_tensor(positions, dtype=torch.float64)
    return places[..., None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def _turn(x, angles, layout="half"):
    """Rotate the pairs of x (..., token, d_head) counter-clockwise by angles (..., token, pair), in the dtype of x."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if layout == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


# 5.1


@exercise(
    "5.1",
    "A score with a pencil",
    task="Work out one score after quarter turns",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Rotate the query twice and the key once.",
        "Take the dot product of the two.",
        "Or rotate only the query, by one quarter turn (the difference of the positions), and leave the key as it is.",
    ),
)
def score_by_turns():
    """Use quarter turns, as at the beginning of the lesson: each position rotates a pair counter-clockwise by 90 degrees, and a quarter turn
    takes $(a, b)$ to $(-b, a)$. The query $(1, 2)$ is at position 2, and the key $(2, 1)$ at position 1. What is their score, the dot
    product of the rotated query and the rotated key? Return a number.
    """
    ### BEGIN SOLUTION
    query = (-1, -2)  # (1, 2) after two quarter turns
    key = (-1, 2)  # (2, 1) after one
    return query[0] * key[0] + query[1] * key[1]
    ### END SOLUTION


@score_by_turns.cases
def _(draw):
    yield Case("the score of query and key", (), tolerance=1e-9)


@score_by_turns.mistake("neither of the two is rotated (or both are rotated by the same angle)")
def _():
    return 1 * 2 + 2 * 1


@score_by_turns.mistake("you rotated the query twice and left the key where it is")
def _():
    return -1 * 2 + -2 * 1


@score_by_turns.mistake("you rotated only the key, or rotated both clockwise, or swapped the two positions")
def _():
    return 1 * -1 + 2 * 2


@score_by_turns.mistake("a sign is wrong: the query is (-1, -2) and the key (-1, 2), so the second product is negative")
def _():
    return 1 + 4


@score_by_turns.mistake("those are the two products; the score is their sum")
def _():
    return (1, -4)


@score_by_turns.variant
def _():
    query, key = complex(1, 2) * 1j**2, complex(2, 1) * 1j
    return (query.conjugate() * key).real


@score_by_turns.variant
def _():
    turn = torch.tensor([[0, -1], [1, 0]])
    return torch.tensor([1, 2]) @ turn.T @ torch.tensor([2, 1])


# 5.2


@exercise(
    "5.2",
    "Rotary from scratch",
    task="Rotate the queries or keys of one head",
    points=3,
    difficulty=2,
    minutes=20,
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "angles are not rounded to bfloat16": "the lesson does not discuss half precision",
        "positions in the thousands, float16": "the lesson does not discuss half precision",
        "positions before 0": "a text starts at position 0",
    },
    hints=(
        "The frequencies are `base ** (-2 * c / d)` for c from 0 to d/2 - 1, with d = d_head. Multiply every position by every frequency, for example in `float64`, to get the angles.",
        "`x.chunk(2, dim=-1)` gives the first and the second components of all pairs. They are views: do not write into them.",
        "(a, b) becomes (a cos - b sin, a sin + b cos); join the two with `torch.cat` and return the dtype of x.",
    ),
)
def rotary(x, positions, base):
    """`x` (token, d_head) holds the queries or keys of one head, and `positions` is a list of `int`, one for each
    token, in any order. Return `x` rotated: at position $i$, pair $c$ is rotated counter-clockwise by $i\\,\\theta_c$,
    where $\\theta_c = \\text{base}^{-2c/d_k}$ and $d_k$ = d_head, equations (5.3) and (5.5). The layout is **half**, so
    pair $c$ consists of the components $c$ and $c + d_k/2$.

    ```python
    >>> rotary(torch.tensor([[1.0, 0.0]]), [1], 10000.0)
    tensor([[0.5403, 0.8415]])
    ```

    ★
    - Raise a `ValueError` if d_head is odd, or if the number of positions is not the number of tokens.
    - Positions may be negative.
    - In `bfloat16` and `float16`, angles are computed in `float32`, and the result has the dtype of `x`.
    """
    ### BEGIN SOLUTION
    tokens, d = x.shape
    if d % 2 or len(positions) != tokens:
        raise ValueError(
            f"x of shape {tuple(x.shape)} and {len(positions)} positions: expected an even width and one position per token"
        )
    theta = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (pair)
    angle = torch.tensor(positions, dtype=torch.float64)[:, None] * theta  # (token, pair)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    ### END SOLUTION


@rotary.cases
def _(draw):
    yield Case("one pair rotates by its position in radians", (torch.eye(2).double(), [0, 1], 10000.0))
    yield Case("position 0 is not rotated", (draw.normal(1, 4), [0], 10000.0))
    yield Case("two pairs, each with its own frequency", (draw.normal(2, 4), [1, 2], 10000.0))
    yield Case("another base", (draw.normal(4, 6), [0, 1, 2, 3], 100.0 + draw.whole(0, 99)))
    tokens, half = draw.sizes(2, 2, 7)
    places = draw.shuffled(90)[:tokens].tolist()
    yield Case("positions in any order", (draw.normal(tokens, 2 * half), places, 10000.0))
    yield Case("gradients flow back to x", (draw.normal(3, 4), [5, 0, 2], 10000.0), gradients=True)
    far = draw.whole(130, 400) * 2 + 1  # odd, because bfloat16 has no odd numbers above 256
    low = 1 + draw.uniform(2, 4, dtype=torch.bfloat16)
    yield Case("angles are not rounded to bfloat16", (low, [far, far + 1], 10000.0), tolerance=0.05)
    yield Case("an odd width is rejected", (draw.normal(2, 3), [0, 1], 10000.0), refuse=True)
    yield Case("three positions for two tokens are rejected", (draw.normal(2, 4), [0, 1, 2], 10000.0), refuse=True)
    yield Case("one position for two tokens is rejected", (draw.normal(2, 4), [3], 10000.0), refuse=True)
    before = torch.tensor([[1.0, 2.0, 3.0, 5.0], [2.0, 1.0, 0.5, 3.0]], dtype=torch.float64)
    yield Case("positions before 0", (before, [-3, -1], 100.0))
    far = draw.normal(3, 4, dtype=torch.float16), [2049, 4099, 5], 10000.0
    yield Case("positions in the thousands, float16", far, tolerance=1e-2)


@rotary.mistake("your pairs are neighbours, 2c and 2c + 1: that is the interleaved layout")
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1], base), "interleaved")


@rotary.mistake(
    "you split the pairs as halves and joined them as neighbours: use `torch.cat`, not `stack` and `flatten`"
)
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1], base)).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


@rotary.mistake(
    "you repeated the angles for neighbours but swapped the components by halves: repeat the angles with `torch.cat`"
)
def _(x, positions, base):
    angles = _angles(positions, x.shape[1], base).repeat_interleave(2, dim=1).to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-b, a], dim=-1) * angles.sin()


@rotary.mistake("your exponent ends at 1: divide 2c by d_k, not c by d_k/2 - 1")
def _(x, positions, base):
    d = x.shape[1]
    return _turn(x, _angles(positions, d, base ** (d / max(1, d - 2))))


@rotary.mistake("you rotate clockwise: (a, b) becomes (a cos - b sin, a sin + b cos)")
def _(x, positions, base):
    return _turn(x, -_angles(positions, x.shape[1], base))


@rotary.mistake("both signs are plus: the first component is a cos - b sin")
def _(x, positions, base):
    angles = _angles(positions, x.shape[1], base).to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() + b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)


@rotary.mistake("both of your terms, x cos and x sin, use the same component: each half needs the other half, too")
def _(x, positions, base):
    angles = _angles(positions, x.shape[1], base).to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - a * angles.sin(), b * angles.sin() + b * angles.cos()], dim=-1)


@rotary.mistake("the factor 2 is missing from your exponent: the frequency of pair c is base^(-2c/d_k)")
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1], math.sqrt(base)))


@rotary.mistake(
    "your frequencies count components instead of pairs: the exponents become twice as large as they should be"
)
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1], base**2))


@rotary.mistake("all your pairs rotate at the same speed: do you compute the exponents with integer division (//)?")
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1], 1.0))


@rotary.mistake("you counted the rows instead of reading `positions`")
def _(x, positions, base):
    return _turn(x, _angles(range(len(positions)), x.shape[1], base))


@rotary.mistake("you gave all tokens the position of the first")
def _(x, positions, base):
    return _turn(x, _angles([positions[0]] * len(positions), x.shape[1], base))


@rotary.mistake("you count from 1: a token at position 0 is not rotated")
def _(x, positions, base):
    return _turn(x, _angles([m + 1 for m in positions], x.shape[1], base))


@rotary.mistake("your base is fixed at 10000: use the argument")
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1]))


@rotary.mistake("your angles are computed in the dtype of x: in bfloat16 no number above 256 is odd")
def _(x, positions, base):
    d = x.shape[1]
    theta = (base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)).to(x.dtype)
    angles = torch.tensor(positions, dtype=x.dtype)[:, None] * theta
    return _turn(x, angles)


@rotary.mistake(
    "the result must have the dtype of x: cast cosine and sine before you multiply, or the result at the end"
)
def _(x, positions, base):
    return _turn(x.double(), _angles(positions, x.shape[1], base))


@rotary.mistake(
    "you wrote into x, so the second half was computed from a first half that was already rotated: make a new tensor"
)
def _(x, positions, base):
    angles = _angles(positions, x.shape[1], base).to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    a[:] = a * angles.cos() - b * angles.sin()
    b[:] = a * angles.sin() + b * angles.cos()
    return x


@rotary.mistake("the rotation is right, but x is detached, so no gradient can flow back")
def _(x, positions, base):
    return _turn(x.detach(), _angles(positions, x.shape[1], base))


@rotary.mistake("an odd width, or a number of positions other than the number of tokens, must raise a ValueError")
def _(x, positions, base):
    return _turn(x, _angles(positions, x.shape[1], base))


@rotary.variant
def _(x, positions, base):
    # use complex numbers
    if x.shape[1] % 2 == 1 or len(x) != len(positions):
        raise ValueError("x: expected an even width and as many rows as positions")
    half = x.shape[1] // 2
    wide = x.double()
    z = torch.complex(wide[:, :half], wide[:, half:])
    step = torch.exp(1j * base ** (-torch.arange(half, dtype=torch.float64) / half))
    z = z * torch.stack([step**m for m in positions])
    return torch.cat([z.real, z.imag], dim=1).to(x.dtype)


@rotary.variant
def _(x, positions, base):
    # rotate one token and one pair at a time, with a 2 x 2 matrix
    tokens, d = x.shape
    if d % 2:
        raise ValueError(f"d_head={d} is odd")
    if len(positions) != tokens:
        raise ValueError(f"{len(positions)} positions for {tokens} tokens")
    rows = []
    for vector, m in zip(x, positions, strict=True):
        out = [None] * d
        for j in range(d // 2):
            c, s = math.cos(m / base ** (2 * j / d)), math.sin(m / base ** (2 * j / d))
            out[j], out[j + d // 2] = c * vector[j] - s * vector[j + d // 2], s * vector[j] + c * vector[j + d // 2]
        rows.append(torch.stack(out))
    return torch.stack(rows)


@rotary.variant
def _(x, positions, base):
    # compute x cos + h(x) sin, (D5.7), with every angle repeated
    n, d = x.shape
    if d % 2 or n != len(positions):
        raise ValueError(f"{n=}, {d=}, positions={positions}")
    wide = torch.promote_types(x.dtype, torch.float32)
    angle = torch.outer(torch.tensor(positions, dtype=wide), 1 / base ** (torch.arange(0, d, 2, dtype=wide) / d))
    cos, sin = (torch.cat([f(angle), f(angle)], dim=1) for f in (torch.cos, torch.sin))
    rotated = torch.cat([-x[:, d // 2 :], x[:, : d // 2]], dim=1)
    return (x * cos + rotated * sin).to(x.dtype)


# 5.3


@exercise(
    "5.3",
    "Convert a checkpoint",
    task="Reorder a stored weight from the interleaved layout to the half layout",
    points=3,
    difficulty=2,
    minutes=15,
    hints=(
        "`view` the rows as (head, d_head, d_model).",
        "Within each head: even rows first, then the odd ones.",
        "Return to two axes with `flatten(0, 1)`.",
    ),
)
def convert_layout(weight, heads):
    """`weight` (heads · d_head, d_model) is the stored weight of a query or key projection, with the rows of head 0
    first. It was trained in the **interleaved** layout, where the components $2c$ and $2c + 1$ of a head form pair $c$.
    Return the weight for the **half** layout, where the components $c$ and $c + d_k/2$ form pair $c$, with $d_k$ =
    d_head. Keep the order of the pairs and of the two components in each pair, so that no score changes.

    ```python
    >>> convert_layout(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), 1).flatten()
    tensor([0., 2., 1., 3.])
    ```

    ★
    - Raise a `ValueError` if the rows cannot be divided evenly among the `heads`, or if d_head is odd.
    - The result is a new tensor with the dtype of `weight`, and gradients flow back to `weight`.
    """
    ### BEGIN SOLUTION
    if len(weight) % heads or (len(weight) // heads) % 2:
        raise ValueError(f"{len(weight)} rows and {heads} heads: expected the number of rows per head to be even")
    rows = weight.view(heads, len(weight) // heads, -1)  # (head, d_head, d_model)
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1).flatten(0, 1)
    ### END SOLUTION


@convert_layout.cases
def _(draw):
    yield Case("one head of two pairs", (torch.arange(4.0)[:, None], 1))
    yield Case("one head of three pairs", (torch.arange(6.0)[:, None], 1))
    yield Case("each head by itself", (draw.normal(3 * 4, 7), 3))
    heads, half, d_model = draw.sizes(3, 2, 7)
    inputs = draw.normal(heads * 2 * half, d_model, dtype=torch.float32), heads
    yield Case("any number of heads and pairs", inputs, gradients=True)
    yield Case("heads of one pair need no change", (draw.normal(2 * 3, 5), 3))
    yield Case("ten rows for three heads are rejected", (draw.normal(10, 4), 3), refuse=True)
    yield Case("heads of three rows are rejected", (draw.normal(6, 4), 2), refuse=True)
    yield Case("nine rows for two heads are rejected", (draw.normal(9, 4), 2), refuse=True)


def _by_head(weight, heads, order):
    return weight.view(heads, -1, weight.shape[1])[:, order].flatten(0, 1)


def _evens_first(d):
    return torch.cat([torch.arange(0, d, 2), torch.arange(1, d, 2)])


@convert_layout.mistake("you rearranged the rows across heads; rearrange them within each head")
def _(weight, heads):
    return weight[_evens_first(len(weight))]


@convert_layout.mistake("that converts half to interleaved: here the even rows come first")
def _(weight, heads):
    return _by_head(weight, heads, _evens_first(len(weight) // heads).argsort())


@convert_layout.mistake("you put the odd rows first: the first component of a pair belongs to the first half")
def _(weight, heads):
    return _by_head(weight, heads, _evens_first(len(weight) // heads).roll(len(weight) // heads // 2))


@convert_layout.mistake("you rearranged nothing")
def _(weight, heads):
    return weight.clone()


@convert_layout.mistake(
    "your heads are interleaved: the rows of one head are stored together, so the head is the first axis"
)
def _(weight, heads):
    rows = weight.view(-1, heads, weight.shape[1])
    return rows[_evens_first(len(rows))].flatten(0, 1)


@convert_layout.mistake(
    "you treated all heads as one list of pairs: within each head, the first components come before the second ones"
)
def _(weight, heads):
    return torch.cat([weight[0::2], weight[1::2]]).view(2, heads, -1, weight.shape[1]).transpose(1, 2).flatten(0, 2)


@convert_layout.mistake(
    "you rearranged the columns, which belong to the components of the input; the rows compute the query or key"
)
def _(weight, heads):
    d = weight.shape[1]
    return weight[:, _evens_first(d)]


@convert_layout.mistake("raise a ValueError unless every head gets an even number of rows")
def _(weight, heads):
    return _by_head(weight, heads, _evens_first(len(weight) // heads))


@convert_layout.variant
def _(weight, heads):
    # make the pairs a separate axis, and swap it with the axis of their two components
    rows, d_model = weight.shape
    if rows % (2 * heads):
        raise ValueError(f"{rows} rows cannot be split into pairs for {heads} heads")
    return weight.reshape(heads, -1, 2, d_model).transpose(1, 2).reshape(rows, d_model).clone()


@convert_layout.variant
def _(weight, heads):
    # multiply each head by a permutation matrix
    d, rest = divmod(len(weight), heads)
    if rest or d % 2:
        raise ValueError("weight: expected an even number of rows per head")
    p = torch.zeros(d, d, dtype=weight.dtype)
    for j in range(d // 2):
        p[j, 2 * j] = p[d // 2 + j, 2 * j + 1] = 1
    return torch.block_diag(*[p] * heads) @ weight


@convert_layout.variant
def _(weight, heads):
    d = len(weight) // heads
    if d * heads != len(weight) or d % 2 == 1:
        raise ValueError(f"{len(weight)=}, {heads=}")
    return torch.stack([weight[h * d + i] for h in range(heads) for start in (0, 1) for i in range(start, d, 2)])


# 5.4


@exercise(
    "5.4",
    "The base that a context needs",
    task="Find the smallest base whose slowest pair rotates no further than you allow",
    points=3,
    difficulty=3,
    minutes=15,
    robust={
        "a base of more than 10^15": "no model has such a base",
    },
    hints=(
        "The slowest pair is c = d_k/2 - 1. Write its frequency with (5.5).",
        "In `length` tokens it rotates by `length` times this frequency, and this angle may be at most 2 pi times `turn`.",
        "Solve for the base as in (D5.13), in the deeper notebook. Does the exponent have the right sign, and is the result at least 1?",
    ),
)
def smallest_base(length, d_head, turn):
    """In a context of `length` tokens the slowest of the d_head / 2 pairs rotates by `length` times its frequency, equation (5.5). This angle
    may be at most the fraction `turn` of a full turn. Return the smallest base that satisfies this, as a `float`. If
    every base above 1 satisfies it, return 1.0.

    ```python
    >>> round(smallest_base(100, 4, 1.0), 2)
    253.3
    ```

    ★
    - Raise a `ValueError` if `d_head` is odd or below 4, or if `turn` is not above 0.
    """
    ### BEGIN SOLUTION
    if d_head % 2 or d_head < 4 or not turn > 0:
        raise ValueError(f"d_head={d_head}, turn={turn}: expected an even d_head >= 4 and turn > 0")
    return max(1.0, (length / (2 * math.pi * turn)) ** (d_head / (d_head - 2)))
    ### END SOLUTION


@smallest_base.cases
def _(draw):
    yield Case("two pairs, one full turn", (4096, 4, 1.0))
    yield Case("a quarter of a turn", (100_000, 64, 0.25))
    yield Case("any context", (draw.whole(500, 20_000), 2 * draw.whole(3, 40), 0.1 + draw.uniform(1).item()))
    yield Case("1.0 if every base is large enough", (5, 8, 1.0))
    yield Case("two and a half turns", (4096, 16, 2.5))
    yield Case("a base of more than 10^15", (1_000_000, 4, 0.001))
    yield Case("a head of one pair is rejected: its only frequency is 1", (100, 2, 1.0), refuse=True)
    yield Case("an odd width is rejected", (100, 7, 1.0), refuse=True)
    yield Case("a turn of 0 is rejected", (100, 8, 0.0), refuse=True)
    yield Case("a negative turn is rejected", (100, 8, -0.5), refuse=True)


@smallest_base.mistake("your slowest pair is c = d_k/2; pairs count from 0 to d_k/2 - 1")
def _(length, d_head, turn):
    return max(1.0, length / (2 * math.pi * turn))


@smallest_base.mistake("you took a full turn to be 1 radian; it is 2 pi radians")
def _(length, d_head, turn):
    return max(1.0, (length / turn) ** (d_head / (d_head - 2)))


@smallest_base.mistake("a full turn is 2 pi radians, not pi")
def _(length, d_head, turn):
    return max(1.0, (length / (math.pi * turn)) ** (d_head / (d_head - 2)))


@smallest_base.mistake("you did not take the root: the frequency contains the base to the power (d - 2)/d")
def _(length, d_head, turn):
    return max(1.0, (length / (2 * math.pi * turn)) ** ((d_head - 2) / d_head))


@smallest_base.mistake("the fraction of a turn belongs in the denominator: less rotation needs a larger base")
def _(length, d_head, turn):
    return max(1.0, (length * turn / (2 * math.pi)) ** (d_head / (d_head - 2)))


@smallest_base.mistake("that base is below 1, so later pairs would rotate faster; return 1.0")
def _(length, d_head, turn):
    return (length / (2 * math.pi * turn)) ** (d_head / (d_head - 2))


@smallest_base.mistake("the factor 2 is missing from your exponent: the frequency of pair c is base^(-2c/d_k)")
def _(length, d_head, turn):
    return max(1.0, (length / (2 * math.pi * turn)) ** (2 * d_head / (d_head - 2)))


@smallest_base.mistake(
    "you multiplied 10000 by the stretch s; by (D5.13) the base grows by the factor s to the power d_k/(d_k - 2)"
)
def _(length, d_head, turn):
    return max(1.0, 10000 * (length / (2 * math.pi * turn * 10000 ** (1 - 2 / d_head))))


@smallest_base.mistake("an invalid width or turn must raise a ValueError")
def _(length, d_head, turn):
    return max(1.0, (length / (2 * math.pi * turn)) ** (d_head / (d_head - 2)))


@smallest_base.variant
def _(length, d_head, turn):
    # use logarithms
    if d_head < 4 or d_head % 2 == 1 or not turn > 0:
        raise ValueError(f"{d_head=}, {turn=}: expected an even d_head of at least 4, and a turn above 0")
    slowest = torch.tensor(2 * math.pi * turn / length, dtype=torch.float64)
    return torch.exp(-slowest.log() * d_head / (d_head - 2)).clamp(min=1.0).item()


@smallest_base.variant
def _(length, d_head, turn):
    # halve an interval again and again
    if d_head % 2 != 0 or d_head <= 2 or not turn > 0:
        raise ValueError(f"{d_head=}, {turn=}")
    last = d_head // 2 - 1

    def too_far(log_base):
        return length * math.exp(-2 * last / d_head * log_base) > 2 * math.pi * turn

    low, high = 0.0, 200.0
    if not too_far(low):
        return 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if too_far(middle) else (low, middle)
    return math.exp(high)


# 5.5


@exercise(
    "5.5",
    "Turn once, then keep",
    task="Score a new token against cached keys, each of them rotated once",
    points=3,
    difficulty=2,
    minutes=15,
    excused={"dtype": "one of its correct answers always computes in float64"},
    hints=(
        "Positions are counted from 0. What is the new token's position if `n` keys are already cached?",
        "Rotate the new query and the new key to that position, both by the same angles. The cached keys are already rotated.",
        "Append the rotated key with `torch.cat` along the key axis, and take the dot products of the rotated query with all of them, divided by the square root of d_head.",
    ),
)
def next_scores(q, k, kept, base):
    """`kept` (head, key, d_head) is a decoder's cache: the rotated keys at positions 0, 1, 2 and so on, or no keys yet.
    The next token's query `q` and key `k` (head, d_head) are not rotated yet. Return `(scores, kept)`: the scores
    (head, key + 1) of the query with all keys, its own last, divided by $\\sqrt{\\text{d\\_head}}$, and the new cache
    (head, key + 1, d_head). The layout is `half`: components $c$ and $c + d_k/2$ form a pair, which is rotated
    counter-clockwise by the position times $\\text{base}^{-2c/d_k}$, where $d_k$ = d_head.

    ```python
    >>> next_scores(torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1, 1, 2), 10000.0)[0]
    tensor([[0.0000, 1.4142]], dtype=torch.float64)
    ```

    ★
    - Do not change the given `kept`.
    """
    ### BEGIN SOLUTION
    d = q.shape[-1]
    position = kept.shape[1]
    angle = position * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (pair)
    cos, sin = angle.cos(), angle.sin()

    def rotated(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    kept = torch.cat([kept, rotated(k)[:, None]], dim=1)  # (head, key + 1, d_head)
    scores = torch.einsum("hd,hkd->hk", rotated(q), kept) / math.sqrt(d)
    return scores, kept
    ### END SOLUTION


@next_scores.cases
def _(draw):
    def step(heads, keys, d, base):
        kept = _turn(draw.normal(heads, keys, d), _angles(range(keys), d, base))
        return draw.normal(heads, d), draw.normal(heads, d), kept, base

    yield Case("the second token, with one key in the cache", step(1, 1, 2, 10000.0))
    yield Case("the first token, with an empty cache", step(2, 0, 4, 10000.0))
    yield Case("several keys in the cache", step(2, 3, 4, 10000.0))
    heads, keys, half = draw.sizes(3, 2, 8)
    yield Case("any sizes and another base", step(heads, keys, 2 * half, 50.0 + draw.whole(0, 99)))


def _step(q, k, kept, base, at_query, at_key, layout="half", scale=None):
    d = q.shape[-1]
    turned_q = _turn(q, _angles(at_query, d, base), layout)
    kept = torch.cat([kept, _turn(k, _angles(at_key, d, base), layout)[:, None]], dim=1)
    return torch.einsum("hd,hkd->hk", turned_q, kept) / (scale or math.sqrt(d)), kept


@next_scores.mistake("your position restarts at 0: the new token comes after all cached keys")
def _(q, k, kept, base):
    return _step(q, k, kept, base, 0, 0)


@next_scores.mistake("your position is one too high: the first token is at position 0")
def _(q, k, kept, base):
    return _step(q, k, kept, base, kept.shape[1] + 1, kept.shape[1] + 1)


@next_scores.mistake("your position is that of the last cached key: the new token is one position later")
def _(q, k, kept, base):
    last = max(0, kept.shape[1] - 1)
    return _step(q, k, kept, base, last, last)


@next_scores.mistake("you rotated the cached keys again: each key is rotated once, before it is cached")
def _(q, k, kept, base):
    n, d = kept.shape[1], q.shape[-1]
    return _step(q, k, _turn(kept, _angles(range(n), d, base)), base, n, n)


@next_scores.mistake("you rotated all keys to the position of the new token, so their distances are lost")
def _(q, k, kept, base):
    n, d = kept.shape[1], q.shape[-1]
    return _step(q, k, _turn(kept, _angles(n, d, base)), base, n, n)


@next_scores.mistake("you cached the new key without rotating it")
def _(q, k, kept, base):
    return _step(q, k, kept, base, kept.shape[1], 0)


@next_scores.mistake(
    "your scores are right, but the new key in your cache is not rotated: the next step would see it at position 0"
)
def _(q, k, kept, base):
    n = kept.shape[1]
    return _step(q, k, kept, base, n, n)[0], torch.cat([kept, k[:, None]], dim=1)


@next_scores.mistake("you rotated the new key but not the query")
def _(q, k, kept, base):
    return _step(q, k, kept, base, 0, kept.shape[1])


@next_scores.mistake("the new token does not see itself: append its key before you compute the scores")
def _(q, k, kept, base):
    n = kept.shape[1]
    scores, keys = _step(q, k, kept, base, n, n)
    return scores[:, :-1], keys


@next_scores.mistake("your new key comes first; cache keys in the order of their positions")
def _(q, k, kept, base):
    n = kept.shape[1]
    scores, keys = _step(q, k, kept, base, n, n)
    return scores.roll(1, dims=1), keys.roll(1, dims=1)


@next_scores.mistake("your scores are not divided by the square root of d_head")
def _(q, k, kept, base):
    n = kept.shape[1]
    return _step(q, k, kept, base, n, n, scale=1.0)


@next_scores.mistake("your scores are divided by d_head, not by its square root")
def _(q, k, kept, base):
    n = kept.shape[1]
    return _step(q, k, kept, base, n, n, scale=q.shape[-1])


@next_scores.mistake("those are weights: scores come before the softmax")
def _(q, k, kept, base):
    n = kept.shape[1]
    scores, keys = _step(q, k, kept, base, n, n)
    return torch.softmax(scores, dim=-1), keys


@next_scores.mistake("your pairs are neighbours, but the cached keys have the half layout: the two do not match")
def _(q, k, kept, base):
    n = kept.shape[1]
    return _step(q, k, kept, base, n, n, layout="interleaved")


@next_scores.mistake("you rotate clockwise, opposite to the cached keys")
def _(q, k, kept, base):
    n = kept.shape[1]
    return _step(q, k, kept, base, -n, -n)


@next_scores.mistake("your base is fixed at 10000: use the argument")
def _(q, k, kept, base):
    n = kept.shape[1]
    return _step(q, k, kept, 10000.0, n, n)


@next_scores.variant
def _(q, k, kept, base):
    # use complex numbers
    n, d = kept.shape[1:]
    turn = torch.polar(torch.ones(d // 2).double(), n * base ** (-torch.arange(d // 2).double() * 2 / d))
    zq, zk = (torch.complex(x[:, : d // 2], x[:, d // 2 :]) * turn for x in (q, k))
    keys = torch.complex(kept[..., : d // 2], kept[..., d // 2 :])
    keys = torch.cat([keys, zk.unsqueeze(1)], dim=1)
    scores = (zq.conj().unsqueeze(1) * keys).real.sum(dim=-1) * d**-0.5
    return scores, torch.cat([keys.real, keys.imag], dim=-1)


@next_scores.variant
def _(q, k, kept, base):
    # use a rotation matrix, for one head at a time
    heads, n, d = kept.shape
    r = torch.zeros(d, d, dtype=torch.float64)
    for j in range(d // 2):
        a = n / base ** (2 * j / d)
        r[j, j] = r[j + d // 2, j + d // 2] = math.cos(a)
        r[j, j + d // 2], r[j + d // 2, j] = -math.sin(a), math.sin(a)
    new = torch.empty(heads, n + 1, d, dtype=torch.float64)
    scores = torch.empty(heads, n + 1, dtype=torch.float64)
    for h in range(heads):
        new[h, :n], new[h, n] = kept[h], r @ k[h]
        scores[h] = new[h] @ (r @ q[h]) / d**0.5
    return [scores, new]


# 5.6


@exercise(
    "5.6",
    "Attention that turns",
    task="Write multi-head attention with rotary positions",
    points=5,
    difficulty=2,
    minutes=30,
    groups=(
        Group("one head", 2, ("one head, one pair", "one head, several pairs")),
        Group("several heads", 1, ("all heads rotate by the same angles, each in its own columns",)),
        Group("separate positions for each row", 1, ("each row of the batch has its own positions",)),
        Group("any sizes, gradients and edge cases", 1),
    ),
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={"far from the start of a text": "angles in float32 are accurate for texts of ordinary length"},
    hints=(
        "Project, then split: `(x @ w_q).unflatten(-1, (heads, d_head)).transpose(1, 2)` is (batch, head, token, d_head). Which of q, k and v are rotated?",
        "Angles (batch, token, pair) need an axis for the heads: `angles[:, None]` rotates all heads of a row by the same angles.",
        "Scores are divided by the square root of d_head, the softmax runs over the keys, and the outputs are merged with `.transpose(1, 2).flatten(2)`.",
    ),
)
def rotary_attention(x, w_q, w_k, w_v, heads, positions, base):
    """Compute multi-head attention with rotary positions, without a mask or an output matrix. `x` is (batch, token,
    d_model), `w_q` and `w_k` are (d_model, heads · d_head), and `w_v` is (d_model, heads · d_v). Head $h$, counted from
    0, uses block $h$ of the columns of each matrix. `positions` (batch, token) is `int64`. In each head, components $c$
    and $c + d_k/2$ of a query or key form a pair, which is rotated counter-clockwise by the position times
    $\\text{base}^{-2c/d_k}$, where $d_k$ = d_head. Divide the scores by $\\sqrt{d_k}$. Return (batch, token, heads ·
    d_v).

    ```python
    >>> x, eye = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.eye(2)
    >>> rotary_attention(x.double(), *[eye.double()] * 3, 1, torch.tensor([[0, 1]]), 10000.0)
    tensor([[[0.7862, 0.2138],
             [0.2138, 0.7862]]], dtype=torch.float64)
    ```

    ★
    - Raise a `ValueError` if the columns of `w_q` cannot be divided evenly among the `heads`, or if d_head is odd.
    - Compute angles in `float64`, so that results at position one million are as accurate as at small positions.
    """
    ### BEGIN SOLUTION
    width = w_q.shape[1]
    if width % heads or (width // heads) % 2:
        raise ValueError(f"w_q of width {width} and {heads} heads: expected an even width for each head")
    d = width // heads

    def split(y):
        return y.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, head, token, width of a head)

    theta = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = (positions[..., None] * theta)[:, None]  # (batch, 1, token, pair): the same for all heads
    cos, sin = angle.cos(), angle.sin()

    def rotated(y):
        a, b = y.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    q, k, v = rotated(split(x @ w_q)), rotated(split(x @ w_k)), split(x @ w_v)
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(d), dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)
    ### END SOLUTION


@rotary_attention.cases
def _(draw):
    def inputs(batch, tokens, d_model, heads, d_head, d_v):
        matrices = [draw.normal(d_model, heads * width) / math.sqrt(d_model) for width in (d_head, d_head, d_v)]
        places = torch.stack([draw.shuffled(40)[:tokens] for _ in range(batch)])
        return 2 * draw.normal(batch, tokens, d_model), *matrices, heads, places

    yield Case("one head, one pair", (*inputs(1, 2, 3, 1, 2, 4), 10000.0))
    yield Case("one head, several pairs", (*inputs(1, 3, 5, 1, 6, 4), 10000.0))
    yield Case("all heads rotate by the same angles, each in its own columns", (*inputs(1, 3, 5, 2, 4, 6), 10000.0))
    yield Case("each row of the batch has its own positions", (*inputs(2, 4, 5, 3, 4, 2), 10000.0))
    batch, tokens, heads = draw.sizes(3, 2, 5)
    some = inputs(batch, tokens, draw.whole(5, 9), heads, 2 * draw.whole(2, 4), 2 * draw.whole(5, 6))
    yield Case("any sizes, another base, and gradients", (*some, 20.0 + draw.whole(0, 99)), gradients=True)
    x, w_q, w_k, w_v, _, places = inputs(1, 2, 3, 2, 4, 2)
    yield Case("far from the start of a text", (x, w_q, w_k, w_v, 2, 30_000 * places, 500.0))
    yield Case("eight columns for three heads are rejected", (x, w_q, w_k, w_v, 3, places, 10000.0), refuse=True)
    x, w_q, w_k, w_v, _, places = inputs(1, 2, 3, 2, 3, 2)
    yield Case("heads of three columns are rejected", (x, w_q, w_k, w_v, 2, places, 10000.0), refuse=True)


def _heads(y, heads):
    return y.unflatten(-1, (heads, -1)).transpose(1, 2)


def _attended(q, k, v, scale=None):
    weights = torch.softmax(q @ k.transpose(-1, -2) / (scale or math.sqrt(q.shape[-1])), dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def _around(x, w_q, w_k, w_v, heads, turn_q, turn_k, turn_v=None, scale=None):
    """Compute attention, applying the given functions to queries, keys and values (batch, head, token, width) after the split."""
    q, k, v = _heads(x @ w_q, heads), _heads(x @ w_k, heads), _heads(x @ w_v, heads)
    return _attended(turn_q(q), turn_k(k), turn_v(v) if turn_v else v, scale)


def _by(positions, base, layout="half", sign=1):
    return lambda y: _turn(y, sign * _angles(positions, y.shape[-1], base)[:, None], layout)


@rotary_attention.mistake("you rotated the values, too: only queries and keys rotate")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    return _around(x, w_q, w_k, w_v, heads, turn, turn, turn)


@rotary_attention.mistake(
    "you rotated only the queries: the score then depends on the position of the query, not on the distance"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    return _around(x, w_q, w_k, w_v, heads, _by(positions, base), lambda k: k)


@rotary_attention.mistake(
    "you rotated only the keys: the score then depends on the position of the key, not on the distance"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    return _around(x, w_q, w_k, w_v, heads, lambda q: q, _by(positions, base))


@rotary_attention.mistake(
    "your scores do not depend on positions: nothing is rotated, or you used the head axis as the token axis, so all tokens of a head rotate alike"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    return _around(x, w_q, w_k, w_v, heads, lambda q: q, lambda k: k)


@rotary_attention.mistake(
    "queries and keys rotate in opposite directions: the score then depends on the sum of the positions, not on the distance"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    return _around(x, w_q, w_k, w_v, heads, _by(positions, base), _by(positions, base, sign=-1))


@rotary_attention.mistake("you rotate clockwise: (a, b) becomes (a cos - b sin, a sin + b cos)")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base, sign=-1)
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("you counted the tokens instead of reading `positions`")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(torch.arange(x.shape[1])[None], base)
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("you gave every row of the batch the positions of the first row")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions[:1], base)
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("your pairs are neighbours, 2c and 2c + 1: that is the interleaved layout")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base, "interleaved")
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("query and key have different layouts, so their pairs do not match")
def _(x, w_q, w_k, w_v, heads, positions, base):
    return _around(x, w_q, w_k, w_v, heads, _by(positions, base), _by(positions, base, "interleaved"))


@rotary_attention.mistake("you rotated before splitting into heads: pairs and frequencies belong to a single head")
def _(x, w_q, w_k, w_v, heads, positions, base):
    def rotated(y):
        return _turn(y, _angles(positions, y.shape[-1], base))

    q, k = rotated(x @ w_q), rotated(x @ w_k)
    return _attended(_heads(q, heads), _heads(k, heads), _heads(x @ w_v, heads))


@rotary_attention.mistake(
    "your frequencies are computed from the width of all heads together; d is the width of one head"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base ** (1 / heads))
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("your frequencies are computed from d_model; d is the width of one head")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base ** (w_q.shape[1] / heads / x.shape[2]))
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("your base is fixed at 10000: use the argument")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, 10000.0)
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.mistake("your scores are not divided by the square root of d_head")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    return _around(x, w_q, w_k, w_v, heads, turn, turn, scale=1.0)


@rotary_attention.mistake(
    "your scores are divided by the square root of the width of all heads; divide by that of d_head, the width of one head"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    return _around(x, w_q, w_k, w_v, heads, turn, turn, scale=math.sqrt(w_q.shape[1]))


@rotary_attention.mistake(
    "your heads attend to each other instead of the tokens: the last two axes must be token and d_head"
)
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    q, k = (turn(_heads(x @ w, heads)).transpose(1, 2) for w in (w_q, w_k))  # (batch, token, head, d_head)
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
    return (weights @ _heads(x @ w_v, heads).transpose(1, 2)).flatten(2)


@rotary_attention.mistake("you split the heads without a transpose: head and token are mixed up")
def _(x, w_q, w_k, w_v, heads, positions, base):
    q, k, v = ((x @ w).reshape(len(x), heads, x.shape[1], -1) for w in (w_q, w_k, w_v))
    turn = _by(positions, base)
    return _attended(turn(q), turn(k), v)


@rotary_attention.mistake("you merged the heads without transposing back: head and token are mixed up")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    q, k, v = turn(_heads(x @ w_q, heads)), turn(_heads(x @ w_k, heads)), _heads(x @ w_v, heads)
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
    return (weights @ v).reshape(len(x), x.shape[1], -1)


@rotary_attention.mistake("your softmax runs over the queries; each row is a distribution over the keys")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    q, k, v = turn(_heads(x @ w_q, heads)), turn(_heads(x @ w_k, heads)), _heads(x @ w_v, heads)
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-2)
    return (weights @ v).transpose(1, 2).flatten(2)


@rotary_attention.mistake("you applied a causal mask; here every token sees all others")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    q, k, v = turn(_heads(x @ w_q, heads)), turn(_heads(x @ w_k, heads)), _heads(x @ w_v, heads)
    ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = torch.softmax((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(ahead, -math.inf), dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)


@rotary_attention.mistake("raise a ValueError unless every head gets an even number of columns")
def _(x, w_q, w_k, w_v, heads, positions, base):
    turn = _by(positions, base)
    return _around(x, w_q, w_k, w_v, heads, turn, turn)


@rotary_attention.variant
def _(x, w_q, w_k, w_v, heads, positions, base):
    # loop over the rows of the batch and the heads; rotate by the distance only, as in (5.6)
    d = w_q.shape[1] // heads
    if d * heads != w_q.shape[1] or d % 2:
        raise ValueError(f"{w_q.shape[1]} columns for {heads} heads")
    theta = torch.tensor([base ** (-2 * j / d) for j in range(d // 2)], dtype=torch.float64)
    rows = []
    for row, places in zip(x, positions, strict=True):
        distance = places[None, :] - places[:, None]  # (query, key): j - i
        outputs = []
        for q, k, v in zip(*((row @ w).chunk(heads, dim=1) for w in (w_q, w_k, w_v)), strict=True):
            zq, zk = (torch.complex(y[:, : d // 2], y[:, d // 2 :]) for y in (q, k))
            turn = torch.exp(1j * distance[..., None] * theta)
            scores = (zq.conj()[:, None] * zk[None] * turn).real.sum(-1)
            outputs.append(torch.softmax(scores / d**0.5, dim=1) @ v)
        rows.append(torch.cat(outputs, dim=1))
    return torch.stack(rows)


@rotary_attention.variant
def _(x, w_q, w_k, w_v, heads, positions, base):
    # Rotate with the layout (batch, token, head, d_head), then use PyTorch's operator
    batch, tokens, _ = x.shape
    width = w_q.shape[1]
    if width % (2 * heads) != 0:
        raise ValueError("w_q has the wrong width")
    d = width // heads
    angle = torch.einsum("bt,j->btj", positions.double(), base ** (torch.arange(0, d, 2).double() / -d))
    cos, sin = (torch.cat([f, f], dim=-1)[:, :, None] for f in (angle.cos(), angle.sin()))

    def rotated(y):
        y = y.reshape(batch, tokens, heads, d)
        return (y * cos + torch.cat([-y[..., d // 2 :], y[..., : d // 2]], dim=-1) * sin).transpose(1, 2)

    v = (x @ w_v).reshape(batch, tokens, heads, -1).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(rotated(x @ w_q), rotated(x @ w_k), v)
    return out.transpose(1, 2).reshape(batch, tokens, -1)


# 5.7


@exercise(
    "5.7",
    "A peak where you want it",
    task="Find the key whose score with a query peaks at a distance you choose",
    points=3,
    difficulty=3,
    minutes=15,
    robust={
        "thousands of positions before": "the lesson's texts are short",
    },
    excused={"dtype": "one of its correct answers always computes in float64"},
    hints=(
        "By (5.6) the score is q . R_(j - i) k, and j - i = -distance. Move the rotation to q.",
        "Among vectors of the same length, which has the largest dot product with a given vector?",
        "R_(-distance) k must be q itself. Which rotation undoes R_(-distance)?",
    ),
)
def key_with_peak(q, distance, base):
    """A query `q` (d_head), not yet rotated, is at some position. Among all keys with the same norm as `q`, find the
    one whose score with `q` is largest when the key is `distance` positions **before** the query and both are rotated.
    Return that key before rotation. Pair $c$ consists of the components $c$ and $c + d_k/2$ (layout `half`) and is
    rotated counter-clockwise by the position times $\\text{base}^{-2c/d_k}$, where $d_k$ = d_head. If `distance` is
    negative, the key comes after the query.

    ```python
    >>> key_with_peak(torch.tensor([1.0, 0.0]), 0, 10000.0)
    tensor([1., 0.], dtype=torch.float64)
    ```

    ★
    - Raise a `ValueError` if d_head is odd.
    - The result for a distance of several thousand is as accurate as for a distance of 1. `q` is not zero.
    """
    ### BEGIN SOLUTION
    d = len(q)
    if d % 2:
        raise ValueError(f"q: expected an even width, got {d}")
    # score = q^T R_(j - i) k = (R_distance q)^T k, largest for k = R_distance q
    angle = distance * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a, b = q.chunk(2)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()])
    ### END SOLUTION


@key_with_peak.cases
def _(draw):
    yield Case("one pair, one position before", (draw.normal(2), 1, 10000.0))
    yield Case("at distance 0, the query itself", (draw.normal(4), 0, 10000.0))
    yield Case("twenty positions before", (draw.normal(6), 20, 10000.0))
    yield Case("another base", (draw.normal(8), draw.whole(2, 9), 100.0 + draw.whole(0, 99)))
    yield Case("after the query", (draw.normal(2 * draw.whole(2, 6)), -draw.whole(2, 30), 10000.0))
    yield Case("an odd width is rejected", (draw.normal(5), 2, 10000.0), refuse=True)
    yield Case("thousands of positions before", (draw.normal(4), 3000 + draw.whole(0, 99), 10000.0), tolerance=1e-3)


def _peak(q, distance, base, layout="half"):
    return _turn(q[None], _angles([distance], len(q), base), layout)[0]


@key_with_peak.mistake(
    "your peak is on the other side of the query: rotate the key forwards to compensate for its earlier position"
)
def _(q, distance, base):
    return _peak(q, -distance, base)


@key_with_peak.mistake("that key has its peak at distance 0: rotate it by the distance")
def _(q, distance, base):
    return q.clone()


@key_with_peak.mistake("your key has length one; it must be as long as q")
def _(q, distance, base):
    k = _peak(q, distance, base)
    return k / k.norm()


@key_with_peak.mistake("your pairs are neighbours, 2j and 2j + 1: here pair c consists of c and c + d_k/2")
def _(q, distance, base):
    return _peak(q, distance, base, "interleaved")


@key_with_peak.mistake("you rotated all pairs at the same speed; pair c has the frequency base^(-2c/d_k)")
def _(q, distance, base):
    return _peak(q, distance, 1.0)


@key_with_peak.mistake("the factor 2 is missing from your exponent: the frequency of pair c is base^(-2c/d_k)")
def _(q, distance, base):
    return _peak(q, distance, math.sqrt(base))


@key_with_peak.mistake("your base is fixed at 10000: use the argument")
def _(q, distance, base):
    return _peak(q, distance, 10000.0)


@key_with_peak.mistake("you rotated by one step, whatever the distance")
def _(q, distance, base):
    return _peak(q, (distance > 0) - (distance < 0), base)


@key_with_peak.mistake(
    "you ignored the sign of the distance: a negative distance means that the key comes after the query"
)
def _(q, distance, base):
    return _peak(q, abs(distance), base)


@key_with_peak.mistake("an odd width must raise a ValueError")
def _(q, distance, base):
    return _peak(q, distance, base)


@key_with_peak.variant
def _(q, distance, base):
    # use complex numbers
    half = len(q) // 2
    if 2 * half != len(q):
        raise ValueError("d_head is odd")
    z = torch.complex(q[:half], q[half:]) * torch.exp(1j * distance * base ** (-torch.arange(half).double() / half))
    return torch.cat([z.real, z.imag])


@key_with_peak.variant
def _(q, distance, base):
    # the score is linear in the key, so the best key is the gradient, rescaled to the norm of q
    d = len(q)
    if d % 2 == 1:
        raise ValueError(f"{d} components cannot be split into pairs")

    def rotated(y, m):
        pairs = [(y[j], y[j + d // 2], m * base ** (-2 * j / d)) for j in range(d // 2)]
        first = [a * math.cos(t) - b * math.sin(t) for a, b, t in pairs]
        return torch.stack(first + [a * math.sin(t) + b * math.cos(t) for a, b, t in pairs])

    k = torch.zeros_like(q, requires_grad=True)
    direction = torch.autograd.grad(rotated(q, distance) @ rotated(k, 0), k)[0]
    return direction * q.norm() / direction.norm()
