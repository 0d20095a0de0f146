"""Exercises of lesson 23: how large should it be?"""

import math
from itertools import pairwise

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, exercise

# 23.1


@exercise(
    "23.1",
    "A run on paper",
    task="Compute how long a training run takes",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "How many tokens does the model read?",
        "Training costs six operations for each parameter and token.",
        "The GPU reaches 40 % of its peak. A day has 86,400 seconds.",
    ),
)
def days_of_a_run():
    """A model of 350 million parameters reads 20 tokens for each parameter. It trains on one GPU, which reaches 40 % of its peak of $10^{15}$
    operations per second. How many days does the run take? Return a `float` that is accurate to at least four decimal
    places.
    """
    ### BEGIN SOLUTION
    parameters = 350e6
    operations = 6 * parameters * 20 * parameters
    return operations / (0.4 * 1e15) / 86_400
    ### END SOLUTION


@days_of_a_run.cases
def _(draw):
    yield Case("the number of days", (), tolerance=5e-5)


@days_of_a_run.mistake("you counted only the forward pass: training takes 6 operations, not 2")
def _():
    return 2 * 350e6 * 7e9 / 4e14 / 86_400


@days_of_a_run.mistake("the factor of 6 is missing")
def _():
    return 350e6 * 7e9 / 4e14 / 86_400


@days_of_a_run.mistake("the GPU reaches 40 % of its peak, not all of it")
def _():
    return 6 * 350e6 * 7e9 / 1e15 / 86_400


@days_of_a_run.mistake("you multiplied by 40 %: a slower chip takes longer, so divide")
def _():
    return 6 * 350e6 * 7e9 / 1e15 * 0.4 / 86_400


@days_of_a_run.mistake("those are hours: divide by 24")
def _():
    return 6 * 350e6 * 7e9 / 4e14 / 3600


@days_of_a_run.mistake("those are seconds: divide by 86,400")
def _():
    return 6 * 350e6 * 7e9 / 4e14


@days_of_a_run.mistake("you took 20 tokens in total, not 20 for each parameter")
def _():
    return 6 * 350e6 * 20 / 4e14 / 86_400


@days_of_a_run.variant
def _():
    return 120 * 0.35**2 * 1e18 / 4e14 / (24 * 60 * 60)


@days_of_a_run.variant
def _():
    return 0.42535


# 23.2


@exercise(
    "23.2",
    "Three products for each matrix",
    task="Count the operations of a training step",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"tokens": (1,)},
    hints=(
        "For each token, a matrix of `inputs` x `outputs` takes a multiplication and an addition per entry.",
        "The backward pass has two products of the same size: one for the gradient of the inputs and one for that of the matrix.",
        "The first matrix needs no gradient of its inputs. A frozen matrix needs no gradient of its own, but passes one on to the matrices before it.",
    ),
)
def training_operations(matrices, tokens, frozen=()):
    """Each token passes through several matrices in turn, and `matrices` lists their sizes as `(inputs, outputs)`. Return
    `(forward, backward)`, the numbers of operations in the matrix products for `tokens` tokens, counting a
    multiplication and an addition as two operations. The gradient with respect to the first matrix's input is not
    needed. Matrices whose indices are in `frozen` are not trained, so their own gradients are not computed. A gradient
    is passed back only as far as a trained matrix needs it.

    ```python
    >>> training_operations([(3, 4), (4, 2)], 5)
    (200, 280)
    ```

    ★
    - Raise a `ValueError` if `tokens < 1`, if an index in `frozen` does not belong to a matrix, or if the outputs of a matrix do not match the
      inputs of the next.
    - An empty list costs nothing. Do not change the arguments.
    """
    ### BEGIN SOLUTION
    fits = all(matrices[at][1] == matrices[at + 1][0] for at in range(len(matrices) - 1))
    if tokens < 1 or not fits or any(at not in range(len(matrices)) for at in frozen):
        raise ValueError(
            f"tokens={tokens}, matrices={matrices}, frozen={frozen}: expected tokens >= 1, matching sizes, and indices of matrices in frozen"
        )
    forward = backward = 0
    needed = False  # does any matrix before this one need a gradient?
    for at, (inputs, outputs) in enumerate(matrices):
        product = 2 * tokens * inputs * outputs
        forward += product
        backward += product * needed + product * (at not in frozen)
        needed = needed or at not in frozen
    return forward, backward
    ### END SOLUTION


@training_operations.cases
def _(draw):
    a, b, c, d = draw.sizes(4, 2, 9)
    tokens = draw.whole(2, 12)
    yield Case("one matrix: its inputs need no gradient", ([(a, b)], tokens))
    yield Case("two matrices", ([(a, b), (b, c)], tokens))
    yield Case("three matrices", ([(a, b), (b, c), (c, d)], tokens))
    yield Case("the last matrix is frozen and passes the gradient on", ([(a, b), (b, c)], tokens, (1,)))
    yield Case("the first matrix is frozen: no gradient goes through the second", ([(a, b), (b, c)], tokens, (0,)))
    yield Case("the middle one of three is frozen", ([(a, b), (b, c), (c, d)], tokens, (1,)))
    yield Case("all matrices are frozen: no gradient flows back", ([(a, b), (b, c)], tokens, (0, 1)))
    yield Case("an empty list costs nothing", ([], tokens), robust="no model in the lesson is without matrices")
    yield Case("one token", ([(a, b), (b, c)], 1))
    widths = draw.wholes(2, 9, 41).tolist()
    yield Case(LARGE, ([*pairwise(widths)], tokens, (0, draw.whole(1, 39))))
    yield Case("zero tokens are rejected", ([(a, b)], 0), refuse=True)
    yield Case("a frozen matrix that does not exist is rejected", ([(a, b)], tokens, (1,)), refuse=True)
    yield Case("a negative index is rejected", ([(a, b)], tokens, (-1,)), refuse=True)
    yield Case("matrices that do not match are rejected", ([(a, b), (b + 1, c)], tokens), refuse=True)


def _products(matrices, tokens, frozen):
    fits = all(matrices[at][1] == matrices[at + 1][0] for at in range(len(matrices) - 1))
    if tokens < 1 or not fits or any(at not in range(len(matrices)) for at in frozen):
        raise ValueError("expected tokens >= 1, sizes that match, and the indices of matrices in frozen")
    return [2 * tokens * inputs * outputs for inputs, outputs in matrices]


def _backward(products, frozen, *, first=False, through=None, own=True):
    """Count the operations of the backward pass, correctly by default; the options introduce mistakes."""
    trained = [at for at in range(len(products)) if at not in frozen]
    lowest = min(trained, default=len(products))
    total = 0
    for at, product in enumerate(products):
        passes = at > lowest if through is None else through(at, lowest)
        total += product * (passes or (first and at == 0 and at in trained))
        total += product * (at in trained or not own)
    return total


@training_operations.mistake(
    "twice the forward pass includes the gradient of the first matrix's inputs, which is not needed"
)
def _(matrices, tokens, frozen=()):
    products = _products(matrices, tokens, frozen)
    return sum(products), _backward(products, frozen, first=True)


@training_operations.mistake("you counted one operation per entry: a multiplication and an addition are two")
def _(matrices, tokens, frozen=()):
    products = [product // 2 for product in _products(matrices, tokens, frozen)]
    return sum(products), _backward(products, frozen)


@training_operations.mistake(
    "the backward pass has two products for each matrix: you counted only the gradient of the matrix"
)
def _(matrices, tokens, frozen=()):
    products = _products(matrices, tokens, frozen)
    return sum(products), _backward(products, frozen, through=lambda at, lowest: False)


@training_operations.mistake("a frozen matrix has no gradient of its own")
def _(matrices, tokens, frozen=()):
    products = _products(matrices, tokens, frozen)
    return sum(products), _backward(products, frozen, own=False)


@training_operations.mistake("a frozen matrix still passes the gradient on to trained ones before it")
def _(matrices, tokens, frozen=()):
    products = _products(matrices, tokens, frozen)
    return sum(products), _backward(products, frozen, through=lambda at, lowest: at > lowest and at not in frozen)


@training_operations.mistake("a gradient need not pass through a matrix if nothing before it is trained")
def _(matrices, tokens, frozen=()):
    products = _products(matrices, tokens, frozen)
    return sum(products), _backward(products, frozen, through=lambda at, lowest: at > 0)


@training_operations.mistake("that is for one token: multiply by the number of tokens")
def _(matrices, tokens, frozen=()):
    products = [product // tokens for product in _products(matrices, tokens, frozen)]
    return sum(products), _backward(products, frozen)


@training_operations.mistake("a matrix has inputs times outputs entries, not inputs plus outputs")
def _(matrices, tokens, frozen=()):
    _products(matrices, tokens, frozen)
    products = [2 * tokens * (inputs + outputs) for inputs, outputs in matrices]
    return sum(products), _backward(products, frozen)


@training_operations.mistake("matrices that do not match must be rejected with a ValueError")
def _(matrices, tokens, frozen=()):
    if tokens < 1 or any(at not in range(len(matrices)) for at in frozen):
        raise ValueError("tokens, frozen")
    products = [2 * tokens * inputs * outputs for inputs, outputs in matrices]
    return sum(products), _backward(products, frozen)


@training_operations.variant
def _(matrices, tokens, frozen=()):
    # Go from the last matrix to the first
    products = _products(matrices, tokens, frozen)
    trained = [at not in frozen for at in range(len(products))]
    backward = 0
    for at in reversed(range(len(products))):
        backward += products[at] * (int(any(trained[:at])) + int(trained[at]))
    return sum(products), backward


@training_operations.variant
def _(matrices, tokens, frozen=()):
    # Count both products of each matrix, minus those that are not needed
    products = _products(matrices, tokens, frozen)
    first = next((at for at in range(len(products)) if at not in frozen), len(products))
    own = sum(product for at, product in enumerate(products) if at not in frozen)
    return sum(products), own + sum(products[first + 1 :])


# 23.3


@exercise(
    "23.3",
    "The factors of a law",
    task="Fit the two factors of a scaling law",
    points=2,
    difficulty=2,
    minutes=15,
    excused={
        "dtype": "a fit in single precision would lose digits, so correct answers compute in float64",
        "scale": "no law has exponents in the thousands, where all powers would underflow",
    },
    hints=(
        "Given the floor and both exponents, the law is linear in the two factors.",
        "A row of the least-squares problem contains parameters^-alpha and tokens^-delta; its right-hand side is the score minus the floor.",
        "The error is the square root of the mean of the squared differences.",
    ),
)
def fit_factors(parameters, tokens, scores, floor, alpha, delta):
    """The tensors `parameters`, `tokens` and `scores` (run) describe several runs. For the given `floor` and exponents, find the factors of
    $\\text{floor} + \\text{factor}_1 / \\text{parameters}^\\alpha + \\text{factor}_2 / \\text{tokens}^\\delta$ by least squares. Return
    `(factor_1, factor_2, error)`, three floats; `error` is the root mean square of the residuals.

    ```python
    >>> found = fit_factors(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 1.0]), torch.tensor([6.0, 5.0]), 1.0, 0.5, 0.5)
    >>> [round(number, 4) for number in found]
    [2.0, 3.0, 0.0]
    ```

    ★
    - Raise a `ValueError` for fewer than two runs, or for tensors of different lengths.
    - Do not change the arguments.
    """
    ### BEGIN SOLUTION
    if not len(parameters) == len(tokens) == len(scores) >= 2:
        raise ValueError(
            f"lengths {len(parameters)}, {len(tokens)}, {len(scores)}: expected equal lengths, and at least two runs"
        )
    n, t, seen = parameters.double(), tokens.double(), scores.double()
    columns = torch.stack([n**-alpha, t**-delta], dim=1)
    q, r = torch.linalg.qr(columns)  # least squares: columns = q r, so r factors = q^T (scores - floor)
    factors = torch.linalg.solve_triangular(r, q.T @ (seen - floor)[:, None], upper=True)[:, 0]
    missed = columns @ factors + floor - seen
    return factors[0].item(), factors[1].item(), missed.square().mean().sqrt().item()
    ### END SOLUTION


def _runs(draw, count):
    n = torch.tensor([10.0 * draw.whole(100, 9000) + at for at in range(count)]).double()
    t = torch.tensor([100.0 * draw.whole(100, 9000) + at for at in range(count)]).double()
    return n, t


@fit_factors.cases
def _(draw):
    n, t = torch.tensor([100.0, 400, 100, 400]).double(), torch.tensor([10_000.0, 10_000, 40_000, 40_000]).double()
    yield Case("a law without noise", (n, t, 1 + 20 / n**0.5 + 100 / t**0.5, 1.0, 0.5, 0.5))
    yield Case("a different floor for the same runs", (n, t, 1 + 20 / n**0.5 + 100 / t**0.5, 0.0, 0.5, 0.5))
    count = draw.whole(6, 10)
    n, t = _runs(draw, count)
    scores = 1.5 + 30 / n**0.4 + 200 / t**0.6 + 0.05 * draw.normal(count)
    yield Case("runs with noise", (n, t, scores, 1.5, 0.4, 0.6))
    yield Case("the wrong exponents", (n, t, scores, 1.2, 0.3, 0.7))
    yield Case("two runs are matched exactly", (n[:2], t[:2], scores[:2], 1.0, 0.4, 0.6))
    yield Case("one run is rejected", (n[:1], t[:1], scores[:1], 1.0, 0.4, 0.6), refuse=True)
    yield Case("tensors of different length are rejected", (n, t[:-1], scores, 1.0, 0.4, 0.6), refuse=True)
    yield Case("one score too few is rejected", (n, t, scores[:-1], 1.0, 0.4, 0.6), refuse=True)


def _fit(parameters, tokens, scores, floor, alpha, delta, swap=False, sign=-1, root=True, mean=True, level=True):
    if not len(parameters) == len(tokens) == len(scores) >= 2:
        raise ValueError("runs")
    n, t = (tokens, parameters) if swap else (parameters, tokens)
    columns = torch.stack([n.double() ** (sign * alpha), t.double() ** (sign * delta)], dim=1)
    right = scores.double() - (floor if level else 0)
    q, r = torch.linalg.qr(columns)
    factors = torch.linalg.solve_triangular(r, q.T @ right[:, None], upper=True)[:, 0]
    missed = (columns @ factors - right).square()
    error = missed.mean() if mean else missed.sum()
    return factors[0].item(), factors[1].item(), (error.sqrt() if root else error).item()


@fit_factors.mistake("subtract the floor from the scores before you fit")
def _(*given):
    return _fit(*given, level=False)


@fit_factors.mistake("the exponents are swapped: alpha belongs to the parameters")
def _(*given):
    return _fit(*given, swap=True)


@fit_factors.mistake("the powers are in the denominator: the score falls as parameters grow")
def _(*given):
    return _fit(*given, sign=1)


@fit_factors.mistake("that is the mean square: take its square root")
def _(*given):
    return _fit(*given, root=False)


@fit_factors.mistake("that is the square root of the sum of squares: take their mean first")
def _(*given):
    return _fit(*given, mean=False)


@fit_factors.mistake("the two factors are swapped: the first belongs to the parameters")
def _(*given):
    one, two, error = _fit(*given)
    return two, one, error


@fit_factors.mistake("fewer than two runs, and tensors of different lengths, must be rejected with a ValueError")
def _(parameters, tokens, scores, floor, alpha, delta):
    count = min(len(parameters), len(tokens), len(scores))
    rows = [torch.cat([x[:count], x[:count]]) for x in (parameters, tokens, scores)]
    return _fit(*rows, floor, alpha, delta)


@fit_factors.mistake("you fitted one factor for both fractions: there are two")
def _(parameters, tokens, scores, floor, alpha, delta):
    _fit(parameters, tokens, scores, floor, alpha, delta)
    column = parameters.double() ** -alpha + tokens.double() ** -delta
    factor = (column @ (scores.double() - floor) / (column @ column)).item()
    return factor, factor, (factor * column + floor - scores.double()).square().mean().sqrt().item()


@fit_factors.variant
def _(parameters, tokens, scores, floor, alpha, delta):
    # Solve the normal equations by hand
    if len({len(parameters), len(tokens), len(scores)}) > 1 or len(scores) < 2:
        raise ValueError("runs")
    x, y = parameters.double().pow(-alpha), tokens.double().pow(-delta)
    left = scores.double() - floor
    xx, yy, xy, xl, yl = x @ x, y @ y, x @ y, x @ left, y @ left
    under = xx * yy - xy * xy
    one, two = (yy * xl - xy * yl) / under, (xx * yl - xy * xl) / under
    error = torch.linalg.vector_norm(one * x + two * y - left) / math.sqrt(len(left))
    return one.item(), two.item(), error.item()


@fit_factors.variant
def _(parameters, tokens, scores, floor, alpha, delta):
    # First remove what the second column explains, then fit the first column
    if not len(parameters) == len(tokens) == len(scores) or len(tokens) < 2:
        raise ValueError("runs")
    x, y = torch.exp(-alpha * parameters.double().log()), torch.exp(-delta * tokens.double().log())
    left = scores.double() - floor
    apart = x - (x @ y) / (y @ y) * y
    one = (apart @ left) / (apart @ apart)
    two = (y @ (left - one * x)) / (y @ y)
    missed = left - one * x - two * y
    return float(one), float(two), (missed @ missed / len(missed)).item() ** 0.5


# 23.4


@exercise(
    "23.4",
    "The best size for a budget",
    task="Compute the compute-optimal size",
    points=2,
    difficulty=2,
    minutes=15,
    hints=(
        "A fixed compute budget leaves one choice: tokens = compute / (6 parameters).",
        "At the best size, alpha factor_1 / parameters^alpha equals delta factor_2 / tokens^delta.",
        "Substitute the tokens and solve for the parameters: they are a power of (alpha factor_1) / (delta factor_2) times a power of compute / 6.",
    ),
)
def best_size(compute, alpha, delta, factor_1, factor_2):
    """Return `(parameters, tokens)`, two floats with `6 * parameters * tokens == compute` that minimize the score of the
    scaling law $\\text{floor} + \\text{factor}_1 / \\text{parameters}^\\alpha + \\text{factor}_2 / \\text{tokens}^\\delta$. The
    floor does not matter.

    ```python
    >>> best_size(600.0, 0.5, 0.5, 2.0, 2.0)
    (10.0, 10.0)
    ```

    ★
    - Raise a `ValueError` if an argument is not above 0.
    """
    ### BEGIN SOLUTION
    if min(compute, alpha, delta, factor_1, factor_2) <= 0:
        raise ValueError(f"{compute}, {alpha}, {delta}, {factor_1}, {factor_2}: expected numbers above 0")
    ratio = alpha * factor_1 / (delta * factor_2)
    parameters = ratio ** (1 / (alpha + delta)) * (compute / 6) ** (delta / (alpha + delta))
    return parameters, compute / 6 / parameters
    ### END SOLUTION


@best_size.cases
def _(draw):
    yield Case("a law with two equal terms", (600.0, 0.5, 0.5, 2.0, 2.0))
    yield Case("four times the budget", (2400.0, 0.5, 0.5, 2.0, 2.0))
    yield Case("the law of 2022, for Chinchilla's compute", (5.76e23, 0.34, 0.28, 406.4, 410.7))
    one, two = draw.whole(2, 9) / 10, draw.whole(11, 15) / 10
    yield Case(
        "other exponents", (6.0 * draw.whole(100, 900), one, two, 1.0 * draw.whole(2, 90), 1.0 * draw.whole(2, 90))
    )
    yield Case("a budget of 6", (6.0, one, two, 3.0, 5.0))
    for at, name in enumerate(("budget", "first exponent", "second exponent", "first factor", "second factor")):
        given = [600.0, 0.5, 0.5, 2.0, 2.0]
        given[at] = 0.0
        yield Case(f"a {name} of zero is rejected", tuple(given), refuse=True)


def _positive(*given):
    if min(given) <= 0:
        raise ValueError("expected numbers above 0")
    return given


@best_size.mistake("compute is 6 · parameters · tokens: the 6 is missing")
def _(*given):
    compute, alpha, delta, one, two = _positive(*given)
    n = (alpha * one / (delta * two)) ** (1 / (alpha + delta)) * compute ** (delta / (alpha + delta))
    return n, compute / n


@best_size.mistake("parameters and tokens are swapped")
def _(*given):
    compute, alpha, delta, one, two = _positive(*given)
    n = (alpha * one / (delta * two)) ** (1 / (alpha + delta)) * (compute / 6) ** (delta / (alpha + delta))
    return compute / 6 / n, n


@best_size.mistake("both exponents are missing: the derivative of a power has its exponent as a factor")
def _(*given):
    compute, alpha, delta, one, two = _positive(*given)
    n = (one / two) ** (1 / (alpha + delta)) * (compute / 6) ** (delta / (alpha + delta))
    return n, compute / 6 / n


@best_size.mistake(
    "your exponent of the compute is wrong: for the parameters, the numerator is delta, which belongs to the tokens"
)
def _(*given):
    compute, alpha, delta, one, two = _positive(*given)
    n = (alpha * one / (delta * two)) ** (1 / (alpha + delta)) * (compute / 6) ** (alpha / (alpha + delta))
    return n, compute / 6 / n


@best_size.mistake("the fraction is upside down: a larger first factor needs more parameters")
def _(*given):
    compute, alpha, delta, one, two = _positive(*given)
    n = (delta * two / (alpha * one)) ** (1 / (alpha + delta)) * (compute / 6) ** (delta / (alpha + delta))
    return n, compute / 6 / n


@best_size.mistake("that is 20 tokens for each parameter, whatever the law says")
def _(*given):
    compute, *_ = _positive(*given)
    n = (compute / 120) ** 0.5
    return n, 20 * n


@best_size.mistake("numbers that are not above 0 must be rejected with a ValueError")
def _(compute, alpha, delta, one, two):
    compute, alpha, delta, one, two = (max(x, 1e-3) for x in (compute, alpha, delta, one, two))
    n = (alpha * one / (delta * two)) ** (1 / (alpha + delta)) * (compute / 6) ** (delta / (alpha + delta))
    return n, compute / 6 / n


@best_size.variant
def _(*given):
    # Use bisection on the difference between the two sides, in logarithms
    compute, alpha, delta, one, two = _positive(*given)
    low, high = -200.0, 200.0
    whole = math.log(compute / 6)
    for _ in range(200):
        middle = (low + high) / 2
        left = math.log(alpha * one) - alpha * middle
        right = math.log(delta * two) - delta * (whole - middle)
        low, high = (middle, high) if left > right else (low, middle)
    return math.exp(low), math.exp(whole - low)


@best_size.variant
def _(*given):
    # Compute the tokens first, by swapping the roles of the two fractions
    compute, alpha, delta, one, two = _positive(*given)
    products, both = compute / 6, alpha + delta
    tokens = (delta * two / (alpha * one)) ** (1 / both) * products ** (alpha / both)
    return products / tokens, tokens


# 23.5


@exercise(
    "23.5",
    "The cheapest of equals",
    task="Choose the model with the lowest total cost",
    points=1,
    difficulty=2,
    minutes=10,
    hints=(
        "Training costs 6 operations for each parameter and token read. Writing costs 2 for each parameter and token written.",
        "Compute the sum for each model, and take the smallest.",
        "The costs are straight lines in the tokens written. Two lines cross where cheaper writing makes up for the more expensive training.",
    ),
)
def cheapest(models, written):
    """`models` is a list of `(parameters, tokens read)`, and all of them are equally good. Return the index of the
    model that takes the fewest operations in total for its training and for writing `written` tokens afterwards. If
    several tie, return the first.

    ```python
    >>> cheapest([(10, 20), (5, 60)], 100)
    1
    ```

    ★
    - Raise a `ValueError` for an empty list or a negative number of tokens.
    """
    ### BEGIN SOLUTION
    if not models or written < 0:
        raise ValueError(f"models={models}, written={written}: expected at least one model, and written >= 0")
    costs = [6 * parameters * read + 2 * parameters * written for parameters, read in models]
    return costs.index(min(costs))
    ### END SOLUTION


@cheapest.cases
def _(draw):
    pair = [(10, 20), (5, 60)]
    yield Case("if little is written, the model that was cheaper to train wins", (pair, 10))
    yield Case("just before the two lines cross", (pair, 59))
    yield Case("where they cross, the first one wins", (pair, 60))
    yield Case("just after that, the smaller one wins", (pair, 61))
    yield Case("nothing is written: only training counts", ([(7, 30), (10, 20), (4, 90)], 0))
    sizes = draw.sizes(4, 5, 60)
    models = [(size, draw.whole(200, 900)) for size in sizes]
    yield Case("four models", (models, draw.whole(100, 900)))
    yield Case("four models, and a lot to write", (models, 10**6))
    yield Case("a single model", (models[:1], 5))
    yield Case("a tie: the first wins", ([(5, 10), (5, 10)], 5))
    yield Case("an empty list is rejected", ([], 5), refuse=True)
    yield Case("a negative number of tokens is rejected", (pair, -1), refuse=True)


def _least(models, written, cost):
    if not models or written < 0:
        raise ValueError("models, written")
    costs = [cost(parameters, read) for parameters, read in models]
    return costs.index(min(costs))


@cheapest.mistake("a token that is read in training costs three times as much as one that is written: 6 to 2")
def _(models, written):
    return _least(models, written, lambda p, read: 6 * p * (read + written))


@cheapest.mistake("you left out the writing")
def _(models, written):
    return _least(models, written, lambda p, read: 6 * p * read)


@cheapest.mistake("you left out the training")
def _(models, written):
    return _least(models, written, lambda p, read: 2 * p * written)


@cheapest.mistake("that is the most expensive one")
def _(models, written):
    return _least(models, written, lambda p, read: -(6 * p * read + 2 * p * written))


@cheapest.mistake("if several tie, return the first of them, not the last")
def _(models, written):
    _least(models, written, lambda p, read: 0)
    costs = [6 * p * read + 2 * p * written for p, read in models]
    return max(at for at, cost in enumerate(costs) if cost == min(costs))


@cheapest.mistake("the smallest model is not always the cheapest: it has read more")
def _(models, written):
    return _least(models, written, lambda p, read: p)


@cheapest.mistake("an empty list, or a negative number of tokens, must be rejected with a ValueError")
def _(models, written):
    costs = [6 * p * read + 2 * p * max(written, 0) for p, read in models] or [0]
    return costs.index(min(costs))


@cheapest.variant
def _(models, written):
    if len(models) == 0 or written < 0:
        raise ValueError("models is empty: expected at least one")
    return min(range(len(models)), key=lambda at: models[at][0] * (3 * models[at][1] + written))


@cheapest.variant
def _(models, written):
    if written < 0:
        raise ValueError("written")
    best, least = None, math.inf
    for at, (parameters, read) in enumerate(models):
        cost = 2 * parameters * written
        cost += 2 * parameters * read + 4 * parameters * read
        if cost < least:
            best, least = at, cost
    if best is None:
        raise ValueError("models")
    return best
