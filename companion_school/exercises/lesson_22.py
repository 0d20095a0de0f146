"""Exercises of lesson 22: better steps."""

import torch

from companion_school.checking.exercise import Case, exercise

# 22.1


@exercise(
    "22.1",
    "Directions made equally long",
    task="Bring the singular values of a matrix near 1 with matrix products only",
    points=2,
    difficulty=2,
    minutes=12,
    forbidden=("svd", "svdvals"),
    right={"gradients": "no gradient flows through it in training"},
    excused={"levels": "the rounds amplify directions that are as small as rounding errors"},
    hints=(
        "First divide by the square root of the sum of all squares, so that no singular value is above 1.",
        "With `A = X @ X.T` a round is `X = a * X + (b * A + c * A @ A) @ X`.",
        "If a matrix has more rows than columns, transpose it, so that A is the smaller product. At the end, transpose back.",
    ),
)
def even_out(G, rounds=5):
    """Divide `G` (row, column) by the square root of the sum of its squared entries. Then apply this update `rounds` times:

    $$X \\leftarrow 3.4445\\, X - 4.775\\, X X^\\top X + 2.0315\\, (X X^\\top)^2 X$$

    Return the result, a tensor like `G`. Do not use a decomposition.

    ```python
    >>> even_out(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), 1)
    tensor([[1.1933, 0.0000],
            [0.0000, 0.9765]])
    ```

    ★
    - Raise a `ValueError` if `rounds` is negative or `G` is not a matrix.
    - A matrix of zeros remains a matrix of zeros.
    """
    ### BEGIN SOLUTION
    if G.ndim != 2 or rounds < 0:
        raise ValueError(f"G {tuple(G.shape)}, rounds={rounds}: expected a matrix and at least 0 rounds")
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
    yield Case("a diagonal matrix", (torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64), 1))
    rows, columns = sorted(draw.sizes(2, 3, 7))
    yield Case("a wide matrix", (draw.normal(rows, columns),))
    yield Case("a tall matrix", (draw.normal(columns, rows),))
    yield Case("two rounds", (draw.normal(rows, columns), 2))
    yield Case("no rounds: the matrix is only divided", (draw.normal(rows, columns), 0))
    yield Case("a strong direction and weak ones", (draw.normal(4, 1) @ draw.normal(1, 5) + 0.05 * draw.normal(4, 5),))
    yield Case("zeros", (torch.zeros(3, 4, dtype=torch.float64),), robust="a gradient of zeros is rare")
    yield Case("a tensor that is not a matrix is rejected", (draw.normal(4),), refuse=True)
    yield Case("a negative number of rounds is rejected", (draw.normal(2, 3), -1), refuse=True)


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


@even_out.mistake("divide first: this polynomial makes singular values above 1 grow without bound")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(G, min(rounds, 2))


@even_out.mistake("divide by the square root of the sum of *all* squares, not row by row")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum(dim=1, keepdim=True).sqrt()), rounds)


@even_out.mistake("you divided by the largest entry: divide by the square root of the sum of all squares")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.abs().max()), min(rounds, 3))


@even_out.mistake("use matrix products; you take the cube of each entry")
def _(G, rounds=5):
    _matrix(G, rounds)
    X = _divided(G, G.square().sum().sqrt())
    for _ in range(rounds):
        X = 3.4445 * X - 4.775 * X**3 + 2.0315 * X**5
    return X


@even_out.mistake("the second coefficient is negative, so that values above 1 become smaller")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum().sqrt()), min(rounds, 2), (3.4445, 4.775, 2.0315))


@even_out.mistake("you ran one round too few: use `range(rounds)`")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum().sqrt()), max(rounds - 1, 0))


@even_out.mistake("a tall matrix that you transposed must be transposed back")
def _(G, rounds=5):
    _matrix(G, rounds)
    X = G.T if G.shape[0] > G.shape[1] else G
    return _rounds(_divided(X, X.square().sum().sqrt()), rounds)


@even_out.mistake("the norm of a matrix of zeros is 0, and 0 / 0 is NaN")
def _(G, rounds=5):
    _matrix(G, rounds)
    return _rounds(G / G.square().sum().sqrt(), rounds)


@even_out.mistake("anything other than a matrix, or a negative number of rounds, must be rejected with a ValueError")
def _(G, rounds=5):
    X = G if G.ndim == 2 else G.reshape(1, -1)
    return _rounds(_divided(X, X.square().sum().sqrt()), max(rounds, 0))


@even_out.variant
def _(G, rounds=5):
    # Never transpose: the larger product gives the same result
    _matrix(G, rounds)
    return _rounds(_divided(G, G.square().sum().sqrt()), rounds)


@even_out.variant
def _(G, rounds=5):
    # Multiply by X^T X on the right instead
    _matrix(G, rounds)
    X = _divided(G, torch.linalg.matrix_norm(G))
    for _ in range(rounds):
        cube = X @ (X.T @ X)
        X = 3.4445 * X - 4.775 * cube + 2.0315 * cube @ (X.T @ X)
    return X


# 22.2


@exercise(
    "22.2",
    "An update of Muon",
    task="Write Muon's update, with momentum, decay and the right scale",
    points=3,
    difficulty=2,
    minutes=15,
    excused={"levels": "the rounds amplify directions that are as small as rounding errors"},
    hints=(
        "Compute the momentum first: 0.95 times the old one plus 0.05 times the gradient. Nesterov's form mixes in the gradient once more.",
        "`even_out` from exercise 22.1 makes the directions equally long. Call it or copy its three lines.",
        "Decay multiplies the weights by `1 - rate * decay` before the step. For a tall matrix, multiply the step by the square root of rows / columns.",
    ),
)
def muon_update(W, gradient, mean, rate, decay):
    """Perform one update of Muon. `W`, `gradient` and `mean`, the momentum so far, are (row, column). The new momentum
    is 0.95 times the old one plus 0.05 times the gradient. Nesterov's form then takes 0.95 times the *new* momentum
    plus 0.05 times the gradient. Orthogonalize the result as in exercise 22.1 (five rounds). Multiply `W` by 1 − rate ·
    decay, and subtract the orthogonalized matrix times the rate. If there are more rows than columns, also multiply
    this matrix by $\\sqrt{\\text{rows}/\\text{columns}}$. Return the new `W` and momentum without changing the
    arguments.

    ```python
    >>> W, mean = muon_update(torch.eye(2), torch.eye(2), torch.zeros(2, 2), 0.1, 0.5)
    >>> W, mean
    (tensor([[0.8392, 0.0000],
            [0.0000, 0.8392]]), tensor([[0.0500, 0.0000],
            [0.0000, 0.0500]]))
    ```

    ★
    - Raise a `ValueError` if the three shapes differ, or if the rate or the decay is negative.
    - If gradient and momentum are zero, only the decay changes `W`.
    """
    ### BEGIN SOLUTION
    if W.ndim != 2 or not W.shape == gradient.shape == mean.shape or rate < 0 or decay < 0:
        raise ValueError(
            f"{tuple(W.shape)}, {tuple(gradient.shape)}, {tuple(mean.shape)}: expected equal shapes, and a non-negative rate and decay"
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
        "a rate of zero leaves the weights unchanged",
        (draw.normal(rows, columns), draw.normal(rows, columns), draw.normal(rows, columns), 0.0, 0.1),
    )
    yield Case(
        "a different shape is rejected",
        (draw.normal(3, 4), draw.normal(4, 3), draw.normal(3, 4), 0.1, 0.1),
        refuse=True,
    )
    yield Case(
        "a momentum of a different shape is rejected",
        (draw.normal(3, 4), draw.normal(3, 4), draw.normal(1, 4), 0.1, 0.1),
        refuse=True,
    )
    yield Case(
        "a negative rate is rejected", (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4), -0.1, 0.1), refuse=True
    )
    yield Case(
        "a negative decay is rejected",
        (draw.normal(3, 4), draw.normal(3, 4), draw.normal(3, 4), 0.1, -0.1),
        refuse=True,
    )


def _one_shape(W, gradient, mean, rate, decay):
    if W.ndim != 2 or not W.shape == gradient.shape == mean.shape or rate < 0 or decay < 0:
        raise ValueError("W, gradient and mean must have the same shape, and rate and decay must not be negative")


def _even(X):
    return _rounds(_divided(X, X.square().sum().sqrt()), 5)


def _longer(W):
    return max(1.0, W.shape[0] / W.shape[1]) ** 0.5


@muon_update.mistake("you left out Nesterov's second step: mix in the gradient once more, after the momentum")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _longer(W) * _even(mean), mean


@muon_update.mistake("the momentum is a mean of gradients: return it as it was before orthogonalization")
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


@muon_update.mistake("a matrix with more rows than columns takes a larger step, by the square root of their ratio")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("a wide matrix does not take a smaller step: the factor is never below 1")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    longer = (W.shape[0] / W.shape[1]) ** 0.5
    return (1 - rate * decay) * W - rate * longer * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("you step along the gradient: step against it")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W + rate * _longer(W) * _even(0.95 * mean + 0.05 * gradient), mean


@muon_update.mistake("the norm of a matrix of zeros is 0, and 0 / 0 is NaN")
def _(W, gradient, mean, rate, decay):
    _one_shape(W, gradient, mean, rate, decay)
    mean = 0.95 * mean + 0.05 * gradient
    X = 0.95 * mean + 0.05 * gradient
    return (1 - rate * decay) * W - rate * _longer(W) * _rounds(X / X.square().sum().sqrt(), 5), mean


@muon_update.mistake("different shapes, or a negative rate or decay, must be rejected with a ValueError")
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
    # Use one formula: 0.9025 times the old momentum plus 0.0975 times the gradient
    _one_shape(W, gradient, mean, rate, decay)
    even = _even(0.9025 * mean + 0.0975 * gradient)
    return W - rate * decay * W - rate * _longer(W) * even, 0.95 * mean + 0.05 * gradient


# 22.3


@exercise(
    "22.3",
    "How much of a gradient is noise",
    task="Estimate the gradient noise scale from the gradients of single windows",
    points=3,
    difficulty=3,
    minutes=15,
    excused={
        "offset": "noise beside a gradient ten thousand times as large is lost in rounding",
        "dtype": "the difference of two nearly equal sums is lost in rounding",
        "tie": "windows with the same gradient have no noise, so only rounding errors remain",
        "levels": "the difference of two nearly equal sums is lost in rounding",
    },
    hints=(
        "You know two numbers: the mean squared length of the n gradients, and the squared length of their mean.",
        "By (22.11) the first is true + noise, and the second true + noise / n. Solve for both.",
        "true = (n * large - single) / (n - 1), noise = single - true. What if `true` is not above 0?",
    ),
)
def noise_in(gradients):
    """`gradients` (window, weight) are the gradients of n single windows. Apply equation (22.11) to batches of 1 and n
    to obtain unbiased estimates of $|\\nabla|^2$, the squared length of the true gradient, and of the noise, the mean
    squared distance between a window's gradient and the true one. Return the noise scale in windows, which is the
    noise divided by $|\\nabla|^2$, as a `float`.

    ```python
    >>> noise_in(torch.tensor([[3.0, 1.0], [1.0, -1.0]]))
    2.0
    ```

    ★
    - Raise a `ValueError` if there are fewer than two windows.
    - If the estimate of $|\\nabla|^2$ is not above 0, return `None`, because the noise scale cannot be estimated.
    """
    ### BEGIN SOLUTION
    if gradients.ndim != 2 or len(gradients) < 2:
        raise ValueError(f"gradients {tuple(gradients.shape)}: expected (window, weight), with at least two windows")
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
    yield Case("small gradients", (torch.tensor([[0.6, 0.2], [0.2, -0.2]], dtype=torch.float64),))
    yield Case(
        "the noise hides the gradient",
        (torch.tensor([[1.0, 0.0], [-1.0, 0.5]], dtype=torch.float64),),
        robust="in the lesson the true gradient is visible",
    )
    yield Case(
        "the estimate of the true gradient is exactly zero",
        (torch.eye(2, dtype=torch.float64),),
        robust="in the lesson the true gradient is visible",
    )
    yield Case("one window is rejected", (draw.normal(1, 4),), refuse=True)
    yield Case("a tensor that is not a matrix is rejected", (draw.normal(5),), refuse=True)


def _two(gradients):
    if gradients.ndim != 2 or len(gradients) < 2:
        raise ValueError("expected two windows")


def _ratio(noise, true):
    return None if true <= 0 else float(noise / true)


@noise_in.mistake(
    "the squared length of the mean of n gradients still contains a part of the noise, noise / n: subtract it"
)
def _(gradients):
    _two(gradients)
    large = gradients.mean(dim=0).square().sum()
    n, single = len(gradients), gradients.square().sum(dim=1).mean()
    return None if n * large <= single else _ratio(single - large, large)


@noise_in.mistake(
    "your estimate of the noise is unbiased, but that of the squared length is not: subtract noise / n from it"
)
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    return None if n * large <= single else _ratio(gradients.var(dim=0).sum(), large)


@noise_in.mistake("all weights share one noise scale: sum over the weights before you divide")
def _(gradients):
    _two(gradients)
    n = len(gradients)
    single, large = gradients.square().mean(dim=0), gradients.mean(dim=0).square()
    true = (n * large - single) / (n - 1)
    return None if true.sum() <= 0 else float(((single - true) / true).mean())


@noise_in.mistake("that is gradient over noise; the noise scale is noise over gradient, a number of windows")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / (n - 1)
    return None if true <= 0 else float(true / (single - true))


@noise_in.mistake("the noise scale compares squared lengths; you took a square root")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / (n - 1)
    return None if true <= 0 else float(((single - true) / true) ** 0.5)


@noise_in.mistake("return `None` if the estimate of the true squared length is not above 0")
def _(gradients):
    _two(gradients)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / (n - 1)
    return float((single - true) / true)


@noise_in.mistake("fewer than two windows must be rejected with a ValueError")
def _(gradients):
    gradients = gradients.reshape(len(gradients), -1)
    n, large, single = len(gradients), gradients.mean(dim=0).square().sum(), gradients.square().sum(dim=1).mean()
    true = (n * large - single) / max(n - 1, 1)
    return _ratio(single - true, true)


@noise_in.variant
def _(gradients):
    # Add up unbiased variances over all weights
    _two(gradients)
    noise = gradients.var(dim=0).sum()
    return _ratio(noise, gradients.mean(dim=0).square().sum() - noise / len(gradients))


@noise_in.variant
def _(gradients):
    # Products of different windows' gradients contain no noise, so their mean estimates the true squared length
    _two(gradients)
    n, products = len(gradients), gradients @ gradients.T
    true = (products.sum() - products.diagonal().sum()) / (n * (n - 1))
    return _ratio(products.diagonal().mean() - true, true)
