"""Exercises for lesson 06: feed-forward networks, norms and residuals."""

import math
from fractions import Fraction

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, Group, exercise

# 6.1


@exercise(
    "6.1",
    "A norm with a pencil",
    task="Work out one entry of a LayerNorm",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "The mean of the four numbers is 2. What are the deviations from it?",
        "The variance is the mean of the squared deviations: divide by 4, not by 3.",
        "Divide the first deviation by the square root of the variance.",
    ),
)
def first_normed_entry():
    """What is the first entry of the LayerNorm of $[4, 2, 0, 2]$, with $\\varepsilon = 0$, gain 1 and bias 0? Return a
    `float` that is accurate to at least four decimal places.
    """
    ### BEGIN SOLUTION
    mean_of_squares = (2**2 + 0**2 + 2**2 + 0**2) / 4  # the deviations are 2, 0, -2, 0
    return 2 / math.sqrt(mean_of_squares)
    ### END SOLUTION


@first_normed_entry.cases
def _(draw):
    yield Case("the first entry", (), tolerance=5e-5)


@first_normed_entry.mistake("you divided the squares by d - 1 = 3; LayerNorm divides by d = 4")
def _():
    return 2 / math.sqrt(8 / 3)


@first_normed_entry.mistake("that is RMSNorm: subtract the mean first")
def _():
    return 4 / math.sqrt(6)


@first_normed_entry.mistake("you divided by the variance, not by its square root")
def _():
    return 1.0


@first_normed_entry.mistake("that is the deviation; divide it by the square root of the variance")
def _():
    return 2.0


@first_normed_entry.mistake(
    "you did not subtract the mean: divide the deviation from the mean, 2, instead of the number 4"
)
def _():
    return 4 / math.sqrt(2)


@first_normed_entry.mistake(
    "you divided by the sum of the squares or its square root; take the mean of the squares first"
)
def _():
    return 2 / math.sqrt(8)


@first_normed_entry.mistake("that is the third entry; the deviation of the first entry is positive")
def _():
    return -math.sqrt(2)


@first_normed_entry.variant
def _():
    return 1.4142


@first_normed_entry.variant
def _():
    return torch.nn.functional.layer_norm(torch.tensor([4.0, 2.0, 0.0, 2.0]), (4,), eps=0.0)[0]


# 6.2


@exercise(
    "6.2",
    "How wide may a gated network be?",
    task="Size a gated network like a plain one",
    points=2,
    difficulty=2,
    minutes=10,
    robust={
        "a little above a multiple, which float32 rounds away": "no model is that wide",
    },
    hints=(
        "Set 2 d (ratio d) equal to 3 d d_ff, as in (6.10), and solve for d_ff.",
        "Divide by `multiple`, round up with `math.ceil`, and multiply again.",
        "For 4,096, a ratio of 4 and multiples of 256 you should get 11,008; check the three arguments first.",
    ),
)
def gated_width(d_model, ratio, multiple):
    """How wide must a gated network (three matrices) be to have *at least* as many weights as a plain one (two matrices) whose $d_{ff}$ is
    `ratio * d_model`? Neither has biases. Return the smallest such width that is a multiple of `multiple`, as an `int`.

    ```python
    >>> gated_width(6, 4.0, 5)
    20
    ```

    ★
    - Raise a `ValueError` for `d_model < 1`, `ratio <= 0` or `multiple < 1`.
    - Widths in the millions are exact.
    """
    ### BEGIN SOLUTION
    if d_model < 1 or ratio <= 0 or multiple < 1:
        raise ValueError(
            f"d_model={d_model}, ratio={ratio}, multiple={multiple}: expected d_model >= 1, ratio > 0 and multiple >= 1"
        )
    return math.ceil(2 * ratio * d_model / 3 / multiple) * multiple
    ### END SOLUTION


@gated_width.cases
def _(draw):
    yield Case("exactly as many weights as the plain network", (12, 4.0, 1))
    yield Case("at least as many weights as the plain network", (10, 4.0, 1))
    yield Case("rounded up to a multiple", (10, 4.0, 24))
    yield Case("a ratio other than 4", (8, 3.0, 16))
    yield Case("LLaMA's width", (4096, 4.0, 256))
    d_model = 3 * draw.whole(20, 90) + 1  # two thirds of it is not a whole number, so rounding causes no trouble
    yield Case("any width", (d_model, 4.0, draw.whole(5, 30)))
    yield Case("a little above a multiple, which float32 rounds away", (30_720_001, 0.5, 256))
    yield Case("a width of one", (1, 4.0, 1))
    yield Case("a ratio below one", (12, 0.5, 1))
    yield Case("a width of 0 is rejected", (0, 4.0, 1), refuse=True)
    yield Case("a ratio of 0 is rejected", (8, 0.0, 1), refuse=True)
    yield Case("multiples of 0 are rejected", (8, 4.0, 0), refuse=True)
    yield Case("a third above a multiple", (25, 0.5, 8))
    yield Case("a width between whole numbers", (2, 1.75, 1))


@gated_width.mistake("that is the plain width; a gated network has three matrices where a plain one has two")
def _(d_model, ratio, multiple):
    return math.ceil(ratio * d_model / multiple) * multiple


@gated_width.mistake("you rounded down: the network must have at least as many weights")
def _(d_model, ratio, multiple):
    return int(2 * ratio * d_model / 3) // multiple * multiple


@gated_width.mistake("you did not round up to a multiple of `multiple`")
def _(d_model, ratio, multiple):
    return math.ceil(2 * ratio * d_model / 3)


@gated_width.mistake("you rounded to the nearest multiple, which can be too small: round up")
def _(d_model, ratio, multiple):
    return int(2 * ratio * d_model / 3 / multiple + 0.5) * multiple


@gated_width.mistake("you added a multiple although the width is already a multiple")
def _(d_model, ratio, multiple):
    return int(2 * ratio * d_model / 3 // multiple + 1) * multiple


@gated_width.mistake(
    "your factor is inverted: a third matrix makes the network narrower, by a factor of 2/3, not wider by 3/2"
)
def _(d_model, ratio, multiple):
    return math.ceil(3 * ratio * d_model / 2 / multiple) * multiple


@gated_width.mistake("you always used 8/3, which is right only for a ratio of 4")
def _(d_model, ratio, multiple):
    return math.ceil(8 * d_model / 3 / multiple) * multiple


@gated_width.mistake("you halved the width: a gated network has one more matrix, not twice as many")
def _(d_model, ratio, multiple):
    return math.ceil(ratio * d_model / 2 / multiple) * multiple


@gated_width.mistake("invalid arguments must raise a ValueError")
def _(d_model, ratio, multiple):
    return math.ceil(2 * ratio * d_model / 3 / max(1, multiple)) * multiple


@gated_width.variant
def _(d_model, ratio, multiple):
    # try one multiple after the other
    if min(d_model, multiple) < 1 or ratio <= 0:
        raise ValueError("expected positive arguments")
    plain, width = 2 * d_model * (ratio * d_model), multiple
    while 3 * d_model * width < plain:
        width += multiple
    return width


@gated_width.variant
def _(d_model, ratio, multiple):
    # use exact fractions, and a division that rounds up
    if d_model < 1 or not ratio > 0 or multiple < 1:
        raise ValueError(f"{d_model=}, {ratio=}, {multiple=}")
    wanted = Fraction(ratio) * d_model * 2 / 3
    return -(-wanted // multiple) * multiple


# 6.3


@exercise(
    "6.3",
    "The backward pass of RMSNorm",
    task="Compute the gradients of RMSNorm, without autograd",
    points=4,
    difficulty=3,
    minutes=25,
    forbidden=("autograd", "backward", "func", "functorch", "requires_grad_", "vjp", "jacobian"),
    groups=(
        Group("one token", 1, ("one token of width 2",)),
        Group("a batch of tokens", 2, ("batch, token and d_model all different",)),
        Group("any epsilon, and edge cases", 1),
    ),
    hints=(
        "Use equation (D6.10) as a model. Which of its terms came from the mean?",
        "With h = g times gain, multiply h by (D6.11). Over which axis is the mean taken?",
        "`gain` was used by every token: add up g times the normalised x over batch and token.",
    ),
)
def rms_backward(x, gain, eps, g):
    """Return `(dx, dgain)`, the gradients of a loss $\\mathcal L$ with respect to `x` (batch, token, d_model) and `gain` (d_model), through
    RMSNorm, equation (6.13), with the constant `eps`. `g` has the shape of `x` and is $\\partial \\mathcal L /
    \\partial \\operatorname{RMS}(x)$. Do not use autograd (`torch.autograd`, `torch.func`, `backward`).

    ```python
    >>> rms_backward(torch.tensor([[[1.0, -1.0]]]), torch.ones(2), 0.0, torch.tensor([[[1.0, 0.0]]]))
    (tensor([[[0.5000, 0.5000]]]), tensor([1., 0.]))
    ```

    ★
    - Raise a `ValueError` if `x` and `g` have different shapes.
    """
    ### BEGIN SOLUTION
    if x.shape != g.shape:
        raise ValueError(f"x and g: expected the same shape, got {tuple(x.shape)} and {tuple(g.shape)}")
    r = (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    hat, h = x / r, g * gain
    return (h - hat * (h * hat).mean(dim=-1, keepdim=True)) / r, (g * hat).sum(dim=(0, 1))
    ### END SOLUTION


@rms_backward.cases
def _(draw):
    yield Case(
        "one token of width 2", (1 + draw.normal(1, 1, 2), 0.5 + draw.uniform(2), 1e-3, 1 + draw.normal(1, 1, 2))
    )
    batch, token, d = draw.sizes(3, 2, 6)
    x, gain, g = 1 + draw.normal(batch, token, d), 0.5 + draw.uniform(d), 1 + draw.normal(batch, token, d)
    yield Case("batch, token and d_model all different", (x, gain, 1e-6, g))
    yield Case("an epsilon that is not small", (x, gain, 0.7, g))
    silent = x.clone()
    silent[0, 0] = 0.0
    yield Case("a token of zeros", (silent, gain, 1e-2, g))
    yield Case("shapes that differ are rejected", (x, gain, 1e-6, g[:1]), refuse=True)


def _rms_parts(x, gain, eps, g):
    r = (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return r, x / r, g * gain


def _mean(x):
    return x.mean(dim=-1, keepdim=True)


@rms_backward.mistake("you treated r as a constant: it depends on x, too")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return h / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("the gain is missing from dx: the gradient after it is g times gain")
def _(x, gain, eps, g):
    r, hat, _ = _rms_parts(x, gain, eps, g)
    return (g - hat * _mean(g * hat)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("that is the gradient of LayerNorm: RMSNorm subtracts no mean, so do not subtract the mean of h")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - _mean(h) - hat * _mean(h * hat)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake(
    "you used the sum of h times the normalised x, but (D6.11) has the mean: the factor 1/d is missing"
)
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * (h * hat).sum(dim=-1, keepdim=True)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake(
    "the gain is missing from the mean: it is the mean of h times the normalised x, and h is g times gain"
)
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * _mean(g * hat)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("(D6.11) contains the normalised x twice; you used x itself")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - x * _mean(h * x)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("dx comes first, then dgain; yours are swapped")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (g * hat).sum(dim=(0, 1)), (h - hat * _mean(h * hat)) / r


@rms_backward.mistake("the division of dx by r is missing")
def _(x, gain, eps, g):
    _, hat, h = _rms_parts(x, gain, eps, g)
    return h - hat * _mean(h * hat), (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("epsilon is missing: it belongs inside the square root of r")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, 0.0, g)
    return (h - hat * _mean(h * hat)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("epsilon belongs inside the square root, not outside")
def _(x, gain, eps, g):
    r, h = x.square().mean(dim=-1, keepdim=True).sqrt() + eps, g * gain
    hat = x / r
    return (h - hat * _mean(h * hat)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.mistake("dgain must be added up over batch and token, because every token used the same gain")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * _mean(h * hat)) / r, g * hat


@rms_backward.mistake("you averaged dgain over the tokens; the gradient of a shared parameter is a sum")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * _mean(h * hat)) / r, (g * hat).mean(dim=(0, 1))


@rms_backward.mistake("dgain is g times the normalised x, not g times x itself")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * _mean(h * hat)) / r, (g * x).sum(dim=(0, 1))


@rms_backward.mistake("the gain belongs in dx, not in dgain: dgain is g times the normalised x")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * _mean(h * hat)) / r, (h * hat).sum(dim=(0, 1))


@rms_backward.mistake("x and g of different shapes must raise a ValueError; broadcasting hides the mistake")
def _(x, gain, eps, g):
    r, hat, h = _rms_parts(x, gain, eps, g)
    return (h - hat * _mean(h * hat)) / r, (g * hat).sum(dim=(0, 1))


@rms_backward.variant
def _(x, gain, eps, g):
    # process one token at a time, with the Jacobian (D6.11) written out
    if g.shape != x.shape:
        raise ValueError("x and g must have the same shape")
    d = len(gain)
    dx, dgain = torch.zeros_like(x), torch.zeros_like(gain)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            r = math.sqrt(sum(value**2 for value in x[b, t].tolist()) / d + eps)
            hat = x[b, t] / r
            jacobian = (torch.eye(d, dtype=x.dtype) - torch.outer(hat, hat) / d) / r
            dx[b, t] = jacobian.T @ (g[b, t] * gain)
            dgain += g[b, t] * hat
    return dx, dgain


@rms_backward.variant
def _(x, gain, eps, g):
    # use powers of the mean square instead of the normalised x
    if list(x.shape) != list(g.shape):
        raise ValueError(f"{x.shape} and {g.shape}")
    square = torch.einsum("btd,btd->bt", x, x) / x.shape[-1] + eps
    along = torch.einsum("btd,btd,d->bt", g, x, gain) / x.shape[-1]
    dx = torch.einsum("btd,d,bt->btd", g, gain, square**-0.5) - torch.einsum("btd,bt->btd", x, along * square**-1.5)
    return [dx, torch.einsum("btd,btd,bt->d", g, x, square**-0.5)]


# 6.4


@exercise(
    "6.4",
    "A stack of pre-norm sub-layers",
    task="Run a stack of pre-norm sub-layers",
    points=3,
    difficulty=2,
    minutes=15,
    excused={
        "one": "the widths of the residual stream and of the branches depend on each other",
    },
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "stream entries of one million": "no stream in the lesson is that large",
    },
    hints=(
        "Which state does the branch read, and which state is its output added to?",
        "`zip` pairs each branch with its gain. Check the lengths first, because `zip` stops at the shorter list.",
        "Use two names, one for the stream and one for the branch's input. The last norm comes after the loop.",
    ),
)
def pre_norm_stack(x, branches, gains, last_gain, eps):
    """Return the output of a pre-norm stack, equation (6.2), including the last norm, for `x` (batch, token, d_model).
    `branches` is a list of pairs `(w_1, w_2)` of matrices (d_model, d_ff) and (d_ff, d_model); each pair has its own
    d_ff. Branch $k$ is $F_k(h) = \\operatorname{ReLU}(h\\, W_1)\\, W_2$. `gains` lists the gains (d_model) of the norms
    on the branches, and `last_gain` (d_model) belongs to the last norm. Every norm is an RMSNorm, (6.13), with the
    constant `eps`. The lists may be empty.

    ```python
    >>> pre_norm_stack(torch.tensor([[[3.0, 4.0]]]), [], [], torch.ones(2), 0.0)
    tensor([[[0.8485, 1.1314]]])
    ```

    ★
    - Raise a `ValueError` if the lists have different lengths.
    - Results are as accurate for stream entries of one million as for entries of 1.
    """
    ### BEGIN SOLUTION
    if len(branches) != len(gains):
        raise ValueError(f"expected one gain for each branch, got {len(gains)} gains and {len(branches)} branches")

    def norm(h, gain):
        return h / (h.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain

    for (w_1, w_2), gain in zip(branches, gains, strict=True):
        x = x + torch.relu(norm(x, gain) @ w_1) @ w_2
    return norm(x, last_gain)
    ### END SOLUTION


@pre_norm_stack.cases
def _(draw):
    def branch(d, d_ff):
        return draw.normal(d, d_ff), draw.normal(d_ff, d)

    def gain(d):
        return 0.5 + draw.uniform(d)

    d = 3
    yield Case("no branches: only the last norm", (2 * draw.normal(1, 1, d), [], [], gain(d), 0.25))
    yield Case("one branch", (2 * draw.normal(1, 2, d), [branch(d, 5)], [gain(d)], gain(d), 0.25))
    batch, token, d, wide, narrow = draw.sizes(5, 2, 9)
    x, last = 3 * draw.normal(batch, token, d), gain(d)
    branches, gains = [branch(d, wide), branch(d, narrow), branch(d, wide)], [gain(d) for _ in range(3)]
    yield Case("three branches of different width", (x, branches, gains, last, 1e-6))
    yield Case("an epsilon that is not small", (x, branches, gains, last, 0.5))
    yield Case("a gradient flows back to x", (x, branches, gains, last, 1e-6), gradients=True)
    yield Case("stream entries of one million", (1e6 * x, branches, gains, last, 1e-6))
    yield Case("fewer gains than branches are rejected", (x, branches, gains[:2], last, 1e-6), refuse=True)
    yield Case("fewer branches than gains are rejected", (x, branches[:2], gains, last, 1e-6), refuse=True)
    d = draw.whole(33, 40)
    yield Case(LARGE, (3 * draw.normal(1, 2, d), [branch(d, 5)], [gain(d)], gain(d), 1e-6))


def _rms(h, gain, eps):
    return h / (h.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain


def _write(h, pair):
    return torch.relu(h @ pair[0]) @ pair[1]


@pre_norm_stack.mistake("that is post-norm: the norm belongs on the branch, not on the stream after the sum")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = _rms(x + _write(x, pair), gain, eps)
    return x


@pre_norm_stack.mistake("that is post-norm with one more norm at the end: the norm belongs on the branch")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = _rms(x + _write(x, pair), gain, eps)
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake("your norm overwrites the stream: the branch is added to x itself, not to the normed x")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = _rms(x, gain, eps)
        x = x + _write(x, pair)
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake(
    "the last norm is missing: the stream grows with depth, and the next layer expects entries around one"
)
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = x + _write(_rms(x, gain, eps), pair)
    return x


@pre_norm_stack.mistake("the norms on the branches are missing: a branch reads the normed stream")
def _(x, branches, gains, last_gain, eps):
    for pair, _ in zip(branches, gains, strict=False):
        x = x + _write(x, pair)
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake("the residual connection is missing: a branch is added to the stream and does not replace it")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = _write(_rms(x, gain, eps), pair)
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake("you add each branch to the input x; add it to the stream that the previous branches produced")
def _(x, branches, gains, last_gain, eps):
    now = x
    for pair, gain in zip(branches, gains, strict=False):
        now = x + _write(_rms(now, gain, eps), pair)
    return _rms(now, last_gain, eps)


@pre_norm_stack.mistake("every branch reads the input x; each must read the stream that the previous branches produced")
def _(x, branches, gains, last_gain, eps):
    return _rms(
        x + sum(_write(_rms(x, gain, eps), pair) for pair, gain in zip(branches, gains, strict=False)), last_gain, eps
    )


@pre_norm_stack.mistake("your norm comes after the branch: it must come before it")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = x + _rms(_write(x, pair), gain, eps)
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake("the ReLU between the two matrices is missing")
def _(x, branches, gains, last_gain, eps):
    for (w_1, w_2), gain in zip(branches, gains, strict=False):
        x = x + _rms(x, gain, eps) @ w_1 @ w_2
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake("the gains are missing from your norms")
def _(x, branches, gains, last_gain, eps):
    for pair, _ in zip(branches, gains, strict=False):
        x = x + _write(_rms(x, 1.0, eps), pair)
    return _rms(x, 1.0, eps)


@pre_norm_stack.mistake("every norm has its own gain: you used the gain of the last norm on the branches, too")
def _(x, branches, gains, last_gain, eps):
    for pair, _ in zip(branches, gains, strict=False):
        x = x + _write(_rms(x, last_gain, eps), pair)
    return _rms(x, last_gain, eps)


@pre_norm_stack.mistake("epsilon is outside the square root in your norm: add it to the mean square")
def _(x, branches, gains, last_gain, eps):
    def norm(h, gain):
        return h / (h.square().mean(dim=-1, keepdim=True).sqrt() + eps) * gain

    for pair, gain in zip(branches, gains, strict=False):
        x = x + _write(norm(x, gain), pair)
    return norm(x, last_gain)


@pre_norm_stack.mistake("your norm does not use the argument eps")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = x + _write(_rms(x, gain, 0.0), pair)
    return _rms(x, last_gain, 0.0)


@pre_norm_stack.mistake("your norm subtracts the mean: that is LayerNorm")
def _(x, branches, gains, last_gain, eps):
    def norm(h, gain):
        return _rms(h - h.mean(dim=-1, keepdim=True), gain, eps)

    for pair, gain in zip(branches, gains, strict=False):
        x = x + _write(norm(x, gain), pair)
    return norm(x, last_gain)


@pre_norm_stack.mistake("lists of different length must raise a ValueError: zip stops at the shorter one")
def _(x, branches, gains, last_gain, eps):
    for pair, gain in zip(branches, gains, strict=False):
        x = x + _write(_rms(x, gain, eps), pair)
    return _rms(x, last_gain, eps)


@pre_norm_stack.variant
def _(x, branches, gains, last_gain, eps):
    # recursion: the stream after k branches is the stream after k - 1 plus the output of the next; with PyTorch's norm
    if len(branches) != len(gains):
        raise ValueError("expected as many gains as branches")

    def stream(k):
        if k == 0:
            return x
        below = stream(k - 1)
        normed = torch.nn.functional.rms_norm(below, below.shape[-1:], gains[k - 1], eps)
        hidden = torch.einsum("btd,df->btf", normed, branches[k - 1][0])
        return below + torch.einsum("btf,fd->btd", hidden.clamp(min=0), branches[k - 1][1])

    return torch.nn.functional.rms_norm(stream(len(gains)), x.shape[-1:], last_gain, eps)


@pre_norm_stack.variant
def _(x, branches, gains, last_gain, eps):
    # process one token at a time, collect the writes in a list and add them up as in (6.5)
    if not len(gains) == len(branches):
        raise ValueError(f"{len(gains)} gains, {len(branches)} branches")
    tokens = []
    for token in x.reshape(-1, x.shape[-1]):
        writes = [token]
        for (w_1, w_2), gain in zip(branches, gains, strict=True):
            now = torch.stack(writes).sum(0)
            normed = now * torch.rsqrt(now @ now / len(now) + eps) * gain
            writes.append(w_2.T @ torch.relu(w_1.T @ normed))
        total = torch.stack(writes).sum(0)
        tokens.append(total * torch.rsqrt((total * total).mean() + eps) * last_gain)
    return torch.stack(tokens).view(x.shape)


# 6.5


@exercise(
    "6.5",
    "How small must a write be?",
    task="Find the scale of writes that keeps a given share of the identity path",
    points=3,
    difficulty=3,
    minutes=15,
    hints=(
        "A factor c on the writing matrices turns v into c^2 v.",
        "Substitute c^2 v for v in (D6.19), set it equal to keep, and solve for c.",
        "Compare with (D6.21): for keep = e^-v and a large count your answer should be close to 1 / sqrt(count).",
    ),
)
def write_scale(count, v, keep):
    """A post-norm stack has `count` sub-layers, and each of them would write an output of mean square `v` into a stream
    of mean square 1. What positive number must all writing matrices $W_2$ be multiplied by so that the mean square
    along the identity path, (D6.19) in the deeper notebook, is exactly `keep` at the bottom? Return a `float`.

    ```python
    >>> write_scale(1, 3.0, 0.25)
    1.0
    ```

    ★
    - Raise a `ValueError` unless `count >= 1`, `v > 0` and `0 < keep < 1`.
    """
    ### BEGIN SOLUTION
    if count < 1 or not v > 0 or not 0 < keep < 1:
        raise ValueError(f"count={count}, v={v}, keep={keep}: expected count >= 1, v > 0 and 0 < keep < 1")
    return math.sqrt((keep ** (-1 / count) - 1) / v)
    ### END SOLUTION


@write_scale.cases
def _(draw):
    yield Case("one sub-layer", (1, 2.0, 0.3))
    yield Case("32 sub-layers", (32, 1.0, 0.5))
    count = draw.whole(5, 40)
    v, keep = 1.2 + draw.uniform(1).item(), 0.2 + 0.6 * draw.uniform(1).item()
    yield Case("any depth, any size, any share", (count, v, keep))
    yield Case("1,000 sub-layers", (1000, 2.0, math.exp(-2.0)))
    yield Case("zero sub-layers are rejected", (0, 1.0, 0.5), refuse=True)
    yield Case("writes of size 0 are rejected", (4, 0.0, 0.5), refuse=True)
    yield Case("a share of 1 is rejected", (4, 1.0, 1.0), refuse=True)
    yield Case("a share of 0 is rejected", (4, 1.0, 0.0), refuse=True)


@write_scale.mistake("a factor c on the weights multiplies the mean square by c squared: take the square root")
def _(count, v, keep):
    return (keep ** (-1 / count) - 1) / v


@write_scale.mistake("v is missing: the larger the writes are, the smaller the factor must be")
def _(count, v, keep):
    return math.sqrt(keep ** (-1 / count) - 1)


@write_scale.mistake("you multiplied by v instead of dividing by it")
def _(count, v, keep):
    return math.sqrt((keep ** (-1 / count) - 1) * v)


@write_scale.mistake(
    "that is what one sub-layer may write: the path passes all of them, so take the count-th root of keep"
)
def _(count, v, keep):
    return math.sqrt((1 / keep - 1) / v)


@write_scale.mistake(
    "you added up the sizes, 1 / (1 + K c^2 v), as in pre-norm; in post-norm the factors are multiplied"
)
def _(count, v, keep):
    return math.sqrt((1 / keep - 1) / (count * v))


@write_scale.mistake("that is 1 / sqrt(count), which keeps about e^-v, whatever `keep` is")
def _(count, v, keep):
    return 1 / math.sqrt(count)


@write_scale.mistake("your exponent has the wrong sign: solve 1 / (1 + c^2 v)^K = keep, so 1 + c^2 v = keep^(-1/K)")
def _(count, v, keep):
    return math.sqrt((1 - keep ** (1 / count)) / v)


@write_scale.mistake("you used ln(1 + y) = y, which holds only for a large count; the share must be exactly keep")
def _(count, v, keep):
    return math.sqrt(-math.log(keep) / (count * v))


@write_scale.mistake("you counted blocks: `count` is already the number of sub-layers, so there is no factor of 2")
def _(count, v, keep):
    return math.sqrt((keep ** (-1 / (2 * count)) - 1) / v)


@write_scale.mistake("invalid arguments must raise a ValueError")
def _(count, v, keep):
    return math.sqrt(max(0.0, max(keep, 1e-9) ** (-1 / max(1, count)) - 1) / max(v, 1e-9))


@write_scale.variant
def _(count, v, keep):
    if not (count >= 1 and v > 0 and 0 < keep < 1):
        raise ValueError(f"got {count=}, {v=}, {keep=}")
    return (math.expm1(-math.log(keep) / count) / v) ** 0.5


@write_scale.variant
def _(count, v, keep):
    # halve an interval until it cannot be halved any more
    if count < 1 or not v > 0 or not 0 < keep < 1:
        raise ValueError(f"{count=}, {v=}, {keep=}: expected count >= 1, v > 0 and 0 < keep < 1")
    low, high = 0.0, 1.0
    while (1 + high**2 * v) ** -count > keep:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if (1 + middle**2 * v) ** -count > keep:
            low = middle
        else:
            high = middle
    return low


# 6.6


@exercise(
    "6.6",
    "A gated network from a checkpoint",
    task="Run a SwiGLU network on weights in the shapes of a checkpoint",
    points=3,
    difficulty=2,
    minutes=10,
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "hidden values in the thousands": "hidden values in the lesson are around 1",
        "gradients at 1,000 and -1,000 are finite": "hidden values in the lesson are around 1",
    },
    hints=(
        "Tokens are rows, so transpose a matrix stored as (out, in) before you multiply a token by it.",
        "SiLU(h) is h times the sigmoid of h. Which of the two projections of x goes through it?",
        "x @ gate.T goes through SiLU, but x @ inner.T does not. Multiply the two entry by entry, and multiply the result by outer.T.",
    ),
)
def swiglu_from_checkpoint(x, gate, inner, outer):
    """Return the output of the SwiGLU network (6.9) for `x` (batch, token, d_model), in the same shape. The matrices are stored as in
    `nn.Linear`, (out, in): `gate` ($W_g$ of the lesson) and `inner` ($W_1$) are (d_ff, d_model), and `outer` ($W_2$) is (d_model, d_ff).
    There are no biases.

    ```python
    >>> swiglu_from_checkpoint(torch.tensor([[[1.0]]]), torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([[1.0]]))
    tensor([[[5.2848]]])
    ```

    ★
    - Raise a `ValueError` if `gate` and `inner` have different shapes.
    - Hidden values of 1,000 or -1,000 cause no NaN, not even in the gradients.
    """
    ### BEGIN SOLUTION
    if gate.shape != inner.shape:
        raise ValueError(f"gate and inner: expected the same shape, got {tuple(gate.shape)} and {tuple(inner.shape)}")
    opening = x @ gate.T
    hidden = opening * torch.sigmoid(opening) * (x @ inner.T)
    return hidden @ outer.T
    ### END SOLUTION


@swiglu_from_checkpoint.cases
def _(draw):
    def network(d, d_ff):
        return draw.normal(d_ff, d), draw.normal(d_ff, d), draw.normal(d, d_ff)

    yield Case(
        "gate, product and outer matrix (d_ff = d_model = 2: a matrix on the wrong side raises no error here)",
        (draw.normal(1, 1, 2), *network(2, 2)),
    )
    batch, token, d, d_ff = draw.sizes(4, 2, 8)
    x, matrices = draw.normal(batch, token, d), network(d, d_ff)
    yield Case("batch, token, d_model and d_ff all different", (x, *matrices))
    yield Case("hidden values in the thousands", (3000 * x, *matrices))
    yield Case("gradients flow back to all arguments", (x, *matrices), gradients=True)
    yield Case(
        "gate and inner of different shapes are rejected", (x, matrices[0][:1], matrices[1], matrices[2]), refuse=True
    )
    eye = torch.eye(2, dtype=torch.float64)
    far = 1000 * torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    yield Case("gradients at 1,000 and -1,000 are finite", (far, eye, eye, eye), gradients=True)
    wide = torch.ones(2, 3, dtype=torch.float64)
    row = torch.ones(1, 1, 3, dtype=torch.float64)
    yield Case("a transposed inner matrix is rejected", (row, wide, wide.T, wide.T), refuse=True)
    yield Case("an inner matrix of another width is rejected", (row, wide, wide[:, :2], wide.T), refuse=True)


def _silu(h):
    return h * torch.sigmoid(h)


@swiglu_from_checkpoint.mistake(
    "the matrices are on the wrong side: they are stored as (out, in) and must be transposed"
)
def _(x, gate, inner, outer):
    return _silu(x @ gate) * (x @ inner) @ outer


@swiglu_from_checkpoint.mistake("the outer matrix is not transposed: it is stored as (out, in), like the others")
def _(x, gate, inner, outer):
    return _silu(x @ gate.T) * (x @ inner.T) @ outer


@swiglu_from_checkpoint.mistake("gate and inner are swapped: SiLU applies to the output of gate")
def _(x, gate, inner, outer):
    return (x @ gate.T) * _silu(x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake(
    "your gate is only a sigmoid (that is a GLU): SiLU multiplies it by the hidden value itself"
)
def _(x, gate, inner, outer):
    return torch.sigmoid(x @ gate.T) * (x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("your activation is GELU; SwiGLU has SiLU")
def _(x, gate, inner, outer):
    return torch.nn.functional.gelu(x @ gate.T) * (x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("your activation is ReLU; SwiGLU has SiLU")
def _(x, gate, inner, outer):
    return torch.relu(x @ gate.T) * (x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("apply SiLU only to the gate, not to the product of the two")
def _(x, gate, inner, outer):
    return _silu((x @ gate.T) * (x @ inner.T)) @ outer.T


@swiglu_from_checkpoint.mistake("apply SiLU only to the gate; you applied it to both")
def _(x, gate, inner, outer):
    return _silu(x @ gate.T) * _silu(x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("the activation is missing: without SiLU the gate is only another factor")
def _(x, gate, inner, outer):
    return (x @ gate.T) * (x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("you added the two projections; multiply them")
def _(x, gate, inner, outer):
    return (_silu(x @ gate.T) + x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake(
    "you combined the sigmoid of one projection with the other projection: SiLU(h) is h times the sigmoid of the same h"
)
def _(x, gate, inner, outer):
    return (x @ gate.T) * torch.sigmoid(x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("the outer matrix is missing: that is the hidden layer")
def _(x, gate, inner, outer):
    return _silu(x @ gate.T) * (x @ inner.T)


@swiglu_from_checkpoint.mistake("the gate is missing: that is a plain network of two matrices")
def _(x, gate, inner, outer):
    return _silu(x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake(
    "e^h / (1 + e^h) is infinity divided by infinity for a large h; write 1 / (1 + e^-h), or torch.sigmoid"
)
def _(x, gate, inner, outer):
    h = x @ gate.T
    return h * h.exp() / (1 + h.exp()) * (x @ inner.T) @ outer.T


@swiglu_from_checkpoint.mistake("no gradient flows back, because the tensors are detached")
def _(x, gate, inner, outer):
    return (_silu(x @ gate.T) * (x @ inner.T) @ outer.T).detach()


@swiglu_from_checkpoint.mistake("gate and inner of different shapes must raise a ValueError")
def _(x, gate, inner, outer):
    return _silu(x @ gate.T) * (x @ inner.T) @ outer.T


@swiglu_from_checkpoint.variant
def _(x, gate, inner, outer):
    # compute both projections in one product, as fast implementations do, and use PyTorch's operators
    if gate.shape != inner.shape:
        raise ValueError("gate and inner must have the same shape")
    linear = torch.nn.functional.linear
    opening, value = linear(x, torch.cat((gate, inner))).chunk(2, dim=-1)
    return linear(torch.nn.functional.silu(opening) * value, outer)


@swiglu_from_checkpoint.variant
def _(x, gate, inner, outer):
    # compute one hidden value at a time
    if tuple(gate.shape) != tuple(inner.shape):
        raise ValueError(f"{gate.shape} is not {inner.shape}")
    out = torch.zeros_like(x)
    for c in range(gate.shape[0]):
        h = torch.einsum("btd,d->bt", x, gate[c])
        passed = h * torch.special.expit(h) * torch.einsum("btd,d->bt", x, inner[c])
        out = out + torch.einsum("bt,d->btd", passed, outer[:, c])
    return out


# 6.7


@exercise(
    "6.7",
    "A norm that nothing upsets",
    task="Write a LayerNorm that survives float16 and constant tokens",
    points=4,
    difficulty=3,
    minutes=20,
    forbidden=(
        "layer_norm",
        "LayerNorm",
        "native_layer_norm",
        "group_norm",
        "GroupNorm",
        "batch_norm",
        "instance_norm",
    ),
    robust={
        "entries of 1e-8, and an epsilon of 1e-18": "no stream is that small",
        "an epsilon of 1e-8 in float16": "it matters only if all entries are equal",
        "the gradient, with a token whose entries are all equal": "a token whose variance is 0",
    },
    hints=(
        "Which axis do you normalise over, what do you divide the sum of squares by, and where does epsilon go?",
        "The square of 1,000 overflows in float16, and 1e-8 is rounded to 0: convert x before you do anything else.",
        "`torch.promote_types(x.dtype, torch.float32)` is the dtype to work in; convert back at the very end.",
    ),
)
def careful_layer_norm(x, gain, bias, eps):
    """Return the LayerNorm (6.11) of `x` (..., d_model), a tensor with any number of leading axes, including none. The
    result has the same shape and dtype. `gain` and `bias` have shape (d_model), and `eps` is positive. The difficulty
    is half precision: if `x` is `float16`, compute in `float32` or wider and round only the result, so that entries of 10,000
    cause no problem. Do not use PyTorch's own norms.

    ```python
    >>> careful_layer_norm(torch.tensor([30000.0, -30000.0], dtype=torch.float16), torch.ones(2).half(), torch.zeros(2).half(), 1e-5)
    tensor([ 1., -1.], dtype=torch.float16)
    ```

    ★
    - An `eps` of 1e-8 has an effect in `float16`, and so do entries of 1e-8 in `float64`.
    - The gradient is finite even for a token whose entries are all equal.
    """
    ### BEGIN SOLUTION
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    deviation = wide - wide.mean(dim=-1, keepdim=True)
    normed = deviation / (deviation.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return (normed * gain + bias).to(x.dtype)
    ### END SOLUTION


@careful_layer_norm.cases
def _(draw):
    def learned(d, dtype=torch.float64):
        return 0.5 + draw.uniform(d, dtype=dtype), draw.normal(d, dtype=dtype)

    yield Case("one token, no leading axis", (1 + draw.normal(3), *learned(3), 1e-5))
    batch, token, d = draw.sizes(3, 3, 7)
    x, (gain, bias) = 1 + draw.normal(batch, token, d), learned(d)
    yield Case("batch, token and d_model all different", (x, gain, bias, 1e-5))
    yield Case("a token whose entries hardly differ", (1e-3 * x, gain, bias, 1e-5))
    yield Case("more leading axes", (x[None], gain, bias, 1e-5))
    constant = x.clone()
    constant[0, 0] = 3.0
    yield Case("a token whose entries are all equal", (constant, gain, bias, 1e-5))
    yield Case("the gradient, with a token whose entries are all equal", (constant, gain, bias, 1e-5), gradients=True)
    yield Case("entries of 1e-8, and an epsilon of 1e-18", (1e-8 * x[0], gain, bias, 1e-18))
    half, close = torch.float16, 1e-2  # float16 has three digits, and the last step may round to it
    yield Case("float16 in, float16 out", (x.to(half), *learned(d, half), 1e-5), tolerance=close)
    loud = (1e4 * draw.normal(batch, token, d).clamp(-3, 3)).to(half)
    yield Case("entries of 10,000 in float16", (loud, *learned(d, half), 1e-5), tolerance=close)
    yield Case(
        "an epsilon of 1e-8 in float16",
        (torch.full((2, 4), 3.0, dtype=half), *learned(4, half), 1e-8),
        tolerance=close,
    )
    tight = torch.tensor([10000.0, 10008.0, 10016.0, 10000.0], dtype=torch.float16)
    one, none = torch.ones(4, dtype=torch.float16), torch.zeros(4, dtype=torch.float16)
    yield Case("a mean that half precision cannot represent", (tight, one, none, 1e-5))
    far = torch.tensor([3.0, 1.0, 0.0, -1.0], dtype=half)
    normed = _ln(far, 1e-5).to(half)
    yield Case("a bias that cancels the gain: rounding comes last", (far, 64 * one, -64 * normed, 1e-5))


def _ln(x, eps, dim=-1, correction=0):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance = wide.var(dim=dim, correction=correction, keepdim=True)
    return (wide - wide.mean(dim=dim, keepdim=True)) / (variance + eps).sqrt()


@careful_layer_norm.mistake("you round before you apply gain and bias, which leaves mostly rounding error; round last")
def _(x, gain, bias, eps):
    return _ln(x, eps).to(x.dtype) * gain + bias


@careful_layer_norm.mistake("your variance is a sum divided by d - 1; LayerNorm divides by d")
def _(x, gain, bias, eps):
    return (_ln(x, eps, correction=1) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("you normalise over the tokens: each token is normalised by itself, over the last axis")
def _(x, gain, bias, eps):
    return (_ln(x, eps, dim=-2 if x.ndim > 1 else -1) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake(
    "you normalise over the second axis, which is the token axis of (batch, token, d_model); use the last one"
)
def _(x, gain, bias, eps):
    return (_ln(x, eps, dim=1 if x.ndim > 1 else -1) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("you normalise over all axes together; each token has its own mean and variance")
def _(x, gain, bias, eps):
    return (_ln(x, eps, dim=tuple(range(x.ndim))) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("that is RMSNorm: subtract each token's mean")
def _(x, gain, bias, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias).to(x.dtype)


@careful_layer_norm.mistake(
    "epsilon is outside the square root: put it inside, so that nothing is divided by 0 in the forward or backward pass"
)
def _(x, gain, bias, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    deviation = wide - wide.mean(-1, keepdim=True)
    return (deviation / (deviation.square().mean(-1, keepdim=True).sqrt() + eps) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("epsilon is missing from your square root")
def _(x, gain, bias, eps):
    return (_ln(x, 0.0) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("the gain is missing")
def _(x, gain, bias, eps):
    return (_ln(x, eps) + bias).to(x.dtype)


@careful_layer_norm.mistake("the bias is missing")
def _(x, gain, bias, eps):
    return (_ln(x, eps) * gain).to(x.dtype)


@careful_layer_norm.mistake("your gain multiplies the bias, too: multiply first, then add")
def _(x, gain, bias, eps):
    return ((_ln(x, eps) + bias) * gain).to(x.dtype)


@careful_layer_norm.mistake("you divide by the variance, not by its square root")
def _(x, gain, bias, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    deviation = wide - wide.mean(-1, keepdim=True)
    return (deviation / (deviation.square().mean(-1, keepdim=True) + eps) * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("your mean and variance carry no gradient: they depend on x, so do not detach them")
def _(x, gain, bias, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    still = wide.detach()
    root = (still.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return ((wide - still.mean(-1, keepdim=True)) / root * gain + bias).to(x.dtype)


@careful_layer_norm.mistake("the result must have the dtype of x: convert back at the end")
def _(x, gain, bias, eps):
    return _ln(x, eps) * gain + bias


@careful_layer_norm.mistake(
    "you compute in half precision, where squares overflow and a small epsilon is rounded to 0; convert x first"
)
def _(x, gain, bias, eps):
    deviation = x - x.mean(-1, keepdim=True)
    return deviation / (deviation.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias


@careful_layer_norm.mistake(
    "you always compute in float32: a float64 token loses half its digits; use float32 or wider"
)
def _(x, gain, bias, eps):
    return (_ln(x.float(), eps) * gain.float() + bias.float()).to(x.dtype)


@careful_layer_norm.variant
def _(x, gain, bias, eps):
    # compute everything in double precision, with PyTorch's own variance
    variance, mean = torch.var_mean(x.double(), dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias.double(), (x.double() - mean) * torch.rsqrt(variance + eps), gain.double()).to(x.dtype)


@careful_layer_norm.variant
def _(x, gain, bias, eps):
    # process one token at a time; the matrix I - 11^T / d subtracts the mean, and rounding comes last
    d = x.shape[-1]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    centre = torch.eye(d, dtype=dtype) - 1 / d
    tokens = []
    for token in x.reshape(-1, d):
        deviation = centre @ token.to(dtype)
        tokens.append(deviation / torch.sqrt(deviation @ deviation / d + eps) * gain + bias)
    return torch.stack(tokens).reshape(x.shape).to(x.dtype)
