"""Exercises of lesson 14: train the final model."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 14.1


@exercise(
    "14.1",
    "Bits per byte with a pencil",
    task="Convert a loss per token to bits per byte",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "How many nats does the whole text cost?",
        "A bit is ln 2 nats: divide by ln 2.",
        "Divide the bits by the number of bytes, not of tokens.",
    ),
)
def bits_of_a_text():
    """A model's mean loss on a text of 600 bytes, which its tokenizer cuts into 200 tokens, is 2.5 nats per token. How many bits per byte is
    that? Return a `float` that is accurate to at least four decimal places.
    """
    ### BEGIN SOLUTION
    nats = 200 * 2.5
    bits = nats / math.log(2)
    return bits / 600
    ### END SOLUTION


@bits_of_a_text.cases
def _(draw):
    yield Case("bits per byte", (), tolerance=5e-5)


@bits_of_a_text.mistake("those are bits per token: divide the bits by the number of bytes")
def _():
    return 2.5 / math.log(2)


@bits_of_a_text.mistake("those are nats per byte: a bit is ln 2 nats")
def _():
    return 200 * 2.5 / 600


@bits_of_a_text.mistake("you multiplied by ln 2: there are more bits than nats, so divide")
def _():
    return 200 * 2.5 / 600 * math.log(2)


@bits_of_a_text.mistake("you multiplied by the bytes per token, but a byte costs less than a token")
def _():
    return 2.5 / math.log(2) * 3


@bits_of_a_text.mistake("that is the perplexity per token")
def _():
    return math.exp(2.5)


@bits_of_a_text.mistake("that is the number of bits for the whole text: divide by its number of bytes")
def _():
    return 500 / math.log(2)


@bits_of_a_text.mistake("you divided by eight: return bits per byte of the text, not per bit")
def _():
    return 500 / math.log(2) / 4800


@bits_of_a_text.variant
def _():
    return math.log2(math.exp(2.5)) / 3


@bits_of_a_text.variant
def _():
    return 1.2022


# 14.2


@exercise(
    "14.2",
    "Micro-batches of unequal size",
    task="Combine the gradients of unequal micro-batches",
    points=2,
    difficulty=2,
    minutes=10,
    excused={
        "dtype": "one of the correct answers always computes in float64",
        "nan": "a micro-batch without tokens may contain NaN, which has no effect",
    },
    hints=(
        "The loss of the whole batch is a sum over all its tokens, divided by their number.",
        "The gradient of a mean loss, times its number of tokens, is the gradient of the summed loss.",
        "Add up these gradients and divide once. A micro-batch without tokens contributes nothing, so leave it out, whatever its gradient contains.",
    ),
)
def whole_gradient(gradients, tokens):
    """Micro-batch $i$ has `tokens[i]` scored tokens, and the tensor `gradients[i]` is the gradient of its *mean* loss per token. Return the
    gradient of the mean loss over all tokens of the whole batch. A micro-batch that contains only padding has 0 tokens
    and a gradient of NaN (0/0), which must not spoil the result.

    ```python
    >>> whole_gradient([torch.tensor([1.0]), torch.tensor([5.0])], [3, 1])
    tensor([2.])
    ```

    ★
    - Raise a `ValueError` if the lists have different lengths, or if there are no tokens at all.
    - If a micro-batch with tokens has a NaN in its gradient, this NaN must appear in the result.
    - Do not change the arguments.
    """
    ### BEGIN SOLUTION
    if len(gradients) != len(tokens) or sum(tokens) == 0:
        raise ValueError(
            f"{len(gradients)} gradients, tokens={tokens}: expected one token count per gradient, and at least one token"
        )
    total = torch.zeros_like(gradients[0])
    for gradient, count in zip(gradients, tokens, strict=True):
        if count:
            total = total + count * gradient
    return total / sum(tokens)
    ### END SOLUTION


@whole_gradient.cases
def _(draw):
    yield Case("one micro-batch", ([draw.normal(2)], [3]))
    yield Case("two of equal size", ([draw.normal(2), draw.normal(2)], [3, 3]))
    yield Case("two of unequal size", ([draw.normal(3), draw.normal(3)], [5, 1]))
    rows, columns, first, second, third = draw.sizes(5, 2, 9)
    gradients = [draw.normal(rows, columns) for _ in range(3)]
    yield Case("three, with matrices as gradients", (gradients, [first, second, third]))
    nan = torch.full((rows, columns), math.nan, dtype=torch.float64)
    yield Case(
        "one of padding only, whose gradient is NaN",
        ([gradients[0], nan, gradients[2]], [first, 0, third]),
    )
    yield Case(
        "a NaN appears in the result if there are tokens",
        ([gradients[0], nan, gradients[2]], [first, 1, third]),
        only_nan=True,
    )
    yield Case("zero tokens in total are rejected", ([nan, nan], [0, 0]), refuse=True)
    yield Case("lists of unequal length are rejected", (gradients, [first, second]), refuse=True)
    yield Case("the first contains only padding", ([nan[:1], gradients[1][:1], nan[:1]], [0, second, 0]))
    yield Case("a batch that contains only padding is rejected", ([nan], [0]), refuse=True)
    yield Case("more counts than gradients are rejected", ([torch.ones(2, dtype=torch.float64)], [1, 2]), refuse=True)


def _same_length(gradients, tokens):
    if len(gradients) != len(tokens) or sum(tokens) == 0:
        raise ValueError("expected one gradient for each count, and at least one token")
    return [(g, n) for g, n in zip(gradients, tokens, strict=True) if n]


@whole_gradient.mistake(
    "you averaged the means: a token in a small micro-batch then counts more than a token in a large one"
)
def _(gradients, tokens):
    kept = _same_length(gradients, tokens)
    return sum(g for g, _ in kept) / len(kept)


@whole_gradient.mistake("you averaged the means and included the micro-batch without tokens")
def _(gradients, tokens):
    kept = _same_length(gradients, tokens)
    return sum(g for g, _ in kept) / len(tokens)


@whole_gradient.mistake("you added up the gradients and did not divide")
def _(gradients, tokens):
    return sum(g for g, _ in _same_length(gradients, tokens))


@whole_gradient.mistake("that is the gradient of the summed loss: divide by all tokens")
def _(gradients, tokens):
    return sum(g * n for g, n in _same_length(gradients, tokens))


@whole_gradient.mistake("you divided by the number of micro-batches: divide the weighted sum by the tokens")
def _(gradients, tokens):
    return sum(g * n for g, n in _same_length(gradients, tokens)) / len(tokens)


@whole_gradient.mistake("you divided the means by their numbers of tokens: multiply instead, to get sums")
def _(gradients, tokens):
    return sum(g / n for g, n in _same_length(gradients, tokens)) / sum(tokens)


@whole_gradient.mistake("0 times NaN is NaN: leave out a micro-batch without tokens")
def _(gradients, tokens):
    _same_length(gradients, tokens)
    return sum(g * n for g, n in zip(gradients, tokens, strict=True)) / sum(tokens)


@whole_gradient.mistake("that is the gradient of only the last micro-batch: add up all gradients")
def _(gradients, tokens):
    return _same_length(gradients, tokens)[-1][0].clone()


@whole_gradient.mistake("a batch without tokens has no mean: raise a ValueError")
def _(gradients, tokens):
    if len(gradients) != len(tokens):
        raise ValueError("gradients and tokens have different lengths")
    kept = [(g, n) for g, n in zip(gradients, tokens, strict=True) if n]
    return sum((g * n for g, n in kept), torch.zeros_like(gradients[0])) / max(sum(tokens), 1)


@whole_gradient.variant
def _(gradients, tokens):
    if len(gradients) != len(tokens) or not any(tokens):
        raise ValueError("expected one gradient for each number of tokens, and at least one token")
    counts = torch.tensor(tokens, dtype=torch.float64)
    shares = counts / counts.sum()
    stacked = torch.stack(gradients)
    stacked[counts == 0] = 0.0
    return torch.tensordot(shares, stacked, dims=1)


@whole_gradient.variant
def _(gradients, tokens):
    if len(gradients) != len(tokens):
        raise ValueError("lengths")
    # Keep a running mean
    mean, seen = None, 0
    for gradient, count in zip(gradients, tokens, strict=True):
        if count == 0:
            continue
        seen += count
        mean = gradient.clone() if mean is None else mean + (gradient - mean) * (count / seen)
    if mean is None:
        raise ValueError("expected at least one token")
    return mean


# 14.3


@exercise(
    "14.3",
    "One norm for all",
    task="Clip gradients by their global norm",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"most": lambda gradients, most: (math.hypot(*torch.cat([g.flatten() for g in gradients]).tolist()),)},
    excused={
        "memory": "gradients below the limit do not change",
    },
    robust={
        "a norm of 5e200 is finite, but its square is not": "no gradient is that large",
        "a norm of 5e-170, cut to 1e-170": "no gradient is that small",
        "no limit": "an infinite limit is no limit",
        "tensors without axes": "parameters have axes",
    },
    hints=(
        "The global norm is the square root of the sum of all squares, over all tensors.",
        "Every tensor is multiplied by the same factor, so that the direction does not change.",
        "The factor is most / norm if the norm is above `most`, and 1 otherwise: clipping never lengthens a gradient.",
    ),
    forbidden=("clip_grad_norm_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm"),
)
def clipped(gradients, most):
    """The list `gradients` holds tensors of any shape. Their global norm is the norm of all elements, treated as one
    vector. If it is above `most`, scale all gradients by the same factor, so that the norm becomes `most`. Otherwise
    return the gradients unchanged, even if they are all zero. Return `(gradients, norm)`: the list of clipped
    gradients, and the norm before clipping.

    ```python
    >>> clipped([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    ([tensor([0.6000]), tensor([0.8000])], 5.0)
    ```

    ★
    - Raise a `ValueError` if `most <= 0`, or if the norm is not finite.
    - A norm of 5e200 or of 5e-170 is valid, although its square is out of range.
    - Do not change the arguments.
    """
    ### BEGIN SOLUTION
    norm = math.hypot(
        *(number for gradient in gradients for number in gradient.flatten().tolist())
    )  # no square overflows
    if not most > 0 or not math.isfinite(norm):
        raise ValueError(f"most={most}, norm={norm}: expected a positive number and a finite norm")
    share = most / norm if norm > most else 1.0
    return [share * gradient for gradient in gradients], norm
    ### END SOLUTION


@clipped.cases
def _(draw):
    three_four = torch.tensor([3.0, 4.0], dtype=torch.float64)
    yield Case("a norm of 5, cut to 1", ([three_four], 1.0))
    yield Case("a norm of 5 is below 6: nothing changes", ([three_four], 6.0))
    rows, columns, length = draw.sizes(3, 2, 8)
    several = [draw.normal(rows, columns), 3 * draw.normal(length), draw.normal(columns, rows, 2)]
    yield Case("tensors of several shapes share one norm", (several, 1.5))
    huge = 1e200 * three_four
    yield Case("a norm of 5e200 is finite, but its square is not", ([huge], 1.0))
    yield Case("all zeros stay zeros", ([torch.zeros(length, dtype=torch.float64)], 1.0))
    spoiled = [several[0], torch.full((length,), math.inf, dtype=torch.float64)]
    yield Case("an infinite gradient is rejected", (spoiled, 1.0), refuse=True)
    yield Case("a limit of zero is rejected", (several, 0.0), refuse=True)
    yield Case("a norm of 5e-170, cut to 1e-170", ([1e-170 * three_four], 1e-170))
    yield Case("tensors without axes", ([three_four[0].clone(), three_four[1].clone()], 1.0))
    yield Case("no limit", ([three_four], math.inf))
    yield Case("a NaN gradient is rejected", ([three_four * math.nan], 1.0), refuse=True)
    yield Case("a negative limit is rejected", (several, -1.0), refuse=True)


def _norm(gradients, most):
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
    if most <= 0 or not math.isfinite(norm):
        raise ValueError("expected most > 0 and a finite norm")
    return norm


@clipped.mistake("you clip each tensor by its own norm, which changes the direction of the whole gradient")
def _(gradients, most):
    norm = _norm(gradients, most)
    return [g * min(1.0, most / max(g.norm().item(), 1e-300)) for g in gradients], norm


@clipped.mistake("you clip each element, which changes the direction of the gradient")
def _(gradients, most):
    return [g.clamp(-most, most) for g in gradients], _norm(gradients, most)


@clipped.mistake("a gradient below the limit stays as it is: you scaled it up")
def _(gradients, most):
    norm = _norm(gradients, most)
    return [g * (most / max(norm, 1e-300)) for g in gradients], norm


@clipped.mistake("that is the squared norm: take the square root of the sum")
def _(gradients, most):
    norm = _norm(gradients, most) ** 2
    return [g * min(1.0, most / max(norm, 1e-300)) for g in gradients], norm


@clipped.mistake("norms do not add up: sum the squares of all tensors, then take one square root")
def _(gradients, most):
    _norm(gradients, most)
    norm = sum(g.norm().item() for g in gradients)
    return [g * min(1.0, most / max(norm, 1e-300)) for g in gradients], norm


@clipped.mistake("return the norm before clipping: afterwards it is at most the limit")
def _(gradients, most):
    norm = _norm(gradients, most)
    share = min(1.0, most / max(norm, 1e-300))
    return [g * share for g in gradients], norm * share


@clipped.mistake("zero divided by zero is NaN: a gradient of zeros stays zero")
def _(gradients, most):
    norm = torch.tensor(_norm(gradients, most), dtype=torch.float64)
    share = torch.where(norm == 0, math.nan, most / norm).clamp(max=1.0)
    return [g * share for g in gradients], norm


@clipped.mistake(
    "the square of a large number is infinite although the norm is not: divide by the largest element first"
)
def _(gradients, most):
    norm = _norm(gradients, most)
    share = most / norm if norm > most else 1.0
    return [share * g for g in gradients], norm


@clipped.mistake("the sum of the absolute values is another norm: square, add, and take the square root")
def _(gradients, most):
    _norm(gradients, most)
    norm = sum(g.abs().sum().item() for g in gradients)
    return [g * min(1.0, most / max(norm, 1e-300)) for g in gradients], norm


@clipped.mistake("nothing is scaled")
def _(gradients, most):
    return [g.clone() for g in gradients], _norm(gradients, most)


@clipped.mistake("a norm that is not finite must be rejected with a ValueError")
def _(gradients, most):
    if most <= 0:
        raise ValueError("most")
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
    share = most / norm if norm > most else 1.0
    return [share * g for g in gradients], norm


@clipped.variant
def _(gradients, most):
    if most <= 0:
        raise ValueError("most")
    numbers = torch.cat([g.flatten() for g in gradients])
    largest = numbers.abs().max().clamp(min=1e-300)
    norm = (numbers / largest).norm() * largest
    if not torch.isfinite(norm):
        raise ValueError("norm")
    return [g / torch.clamp(norm / most, min=1.0) for g in gradients], norm


@clipped.variant
def _(gradients, most):
    if most <= 0:
        raise ValueError("most")
    numbers = [number for g in gradients for number in g.flatten().tolist()]
    norm = torch.tensor(math.dist(numbers, [0.0] * len(numbers)), dtype=torch.float64)
    if norm.isnan() or norm.isinf():
        raise ValueError("norm")
    return tuple(g if norm <= most else g * most / norm for g in gradients), norm.item()


# 14.4


@exercise(
    "14.4",
    "A step of AdamW",
    task="Write one update of AdamW",
    points=3,
    difficulty=2,
    minutes=20,
    limits={"t": (1,)},
    excused={"dtype": "one of the correct answers always computes in float64"},
    hints=(
        "Update both running means first, with the gradient as it is. Weight decay does not enter them.",
        "Divide the first by 1 - beta1^t and the second by 1 - beta2^t. Epsilon is added after the square root.",
        "Multiply the weight by 1 - rate * decay, independently of Adam's step.",
    ),
    forbidden=("optim", "AdamW", "adamw"),
)
def adamw_step(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    """Compute update number `t` (the first is 1) of AdamW (Loshchilov and Hutter, 2019). `weight`, `gradient`, `first` and `second` have the same
    shape. `first` and `second` are the running means of the gradient and of its square, which start at zero. `rate` is
    the learning rate, and `betas` is the pair of coefficients for these means. The means are corrected for their start
    at zero, `epsilon` is added after the square root, and `decay` is decoupled and multiplied by the rate, as in
    `torch.optim.AdamW`. Return the new `(weight, first, second)`.

    ```python
    >>> adamw_step(torch.tensor([1.0]), torch.tensor([4.0]), torch.zeros(1), torch.zeros(1), 1, 0.1, (0.9, 0.99), 0.0, 0.0)
    (tensor([0.9000]), tensor([0.4000]), tensor([0.1600]))
    ```

    ★
    - Raise a `ValueError` if `t < 1`.
    - Do not change the arguments.
    """
    ### BEGIN SOLUTION
    if t < 1:
        raise ValueError(f"t={t}: expected at least 1")
    beta1, beta2 = betas
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient**2
    mean = first / (1 - beta1**t)
    square = second / (1 - beta2**t)
    weight = (1 - rate * decay) * weight - rate * mean / (square.sqrt() + epsilon)
    return weight, first, second
    ### END SOLUTION


@adamw_step.cases
def _(draw):
    one = torch.ones(1, dtype=torch.float64)
    nothing = torch.zeros(1, dtype=torch.float64)
    yield Case(
        "the first update of one weight, no decay", (one, 2 * one, nothing, nothing, 1, 0.1, (0.9, 0.99), 0.0, 0.0)
    )
    yield Case("the first update, with decay", (one, 2 * one, nothing, nothing, 1, 0.1, (0.9, 0.99), 0.0, 0.5))
    rows, columns = draw.sizes(2, 2, 6)
    weight, gradient, first = (draw.normal(rows, columns) for _ in range(3))
    second = draw.uniform(rows, columns)
    yield Case("a later update", (weight, gradient, first, second, 4, 0.2, (0.8, 0.95), 0.3, 0.7))
    zero = torch.zeros(rows, columns, dtype=torch.float64)
    yield Case("without a gradient the weight still decays", (weight, zero, zero, zero, 3, 0.2, (0.8, 0.95), 0.3, 0.7))
    yield Case(
        "an update number of 0 is rejected", (one, one, nothing, nothing, 0, 0.1, (0.9, 0.99), 1e-8, 0.0), refuse=True
    )
    one = torch.tensor([1.0, -2.0], dtype=torch.float64)
    yield Case("update 2,000", (one, one.flip(0), one / 8, one.square() / 9, 2000, 0.1, (0.9, 0.9999), 1e-8, 0.01))
    yield Case(
        "betas of 0: the means have no memory", (one, one.flip(0), one, one.square(), 3, 0.1, (0.0, 0.0), 1e-8, 0.01)
    )


def _adamw(
    weight, gradient, first, second, t, rate, betas, epsilon, decay, *, l2=False, bias=(True, True), inside=False
):
    if t < 1:
        raise ValueError("t")
    if l2:
        gradient = gradient + decay * weight
    first = betas[0] * first + (1 - betas[0]) * gradient
    second = betas[1] * second + (1 - betas[1]) * gradient**2
    mean = first / (1 - betas[0] ** t) if bias[0] else first
    square = second / (1 - betas[1] ** t) if bias[1] else second
    root = (square + epsilon).sqrt() if inside else square.sqrt() + epsilon
    kept = weight if l2 else (1 - rate * decay) * weight
    return kept - rate * mean / root, first, second


@adamw_step.mistake("neither running mean is corrected for its start at zero")
def _(*given):
    return _adamw(*given, bias=(False, False))


@adamw_step.mistake("the running mean of the squares is not corrected for its start at zero")
def _(*given):
    return _adamw(*given, bias=(True, False))


@adamw_step.mistake("the running mean of the gradient is not corrected for its start at zero")
def _(*given):
    return _adamw(*given, bias=(False, True))


@adamw_step.mistake("you added the decay to the gradient: that is Adam with L2, where large gradients reduce the decay")
def _(*given):
    return _adamw(*given, l2=True)


@adamw_step.mistake("epsilon belongs outside the square root")
def _(*given):
    return _adamw(*given, inside=True)


@adamw_step.mistake("the decay is multiplied by the learning rate: with a rate of zero, nothing decays")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    new, first, second = _adamw(weight, gradient, first, second, t, rate, betas, epsilon, 0.0)
    return new - decay * weight, first, second


@adamw_step.mistake("the decay is missing")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    return _adamw(weight, gradient, first, second, t, rate, betas, epsilon, 0.0)


@adamw_step.mistake("the decay acts on the weight before the step, not after it")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    new, first, second = _adamw(weight, gradient, first, second, t, rate, betas, epsilon, 0.0)
    return (1 - rate * decay) * new, first, second


@adamw_step.mistake("your signs are reversed: the weight moves against the gradient, and the decay makes it smaller")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    new, first, second = _adamw(weight, gradient, first, second, t, rate, betas, epsilon, decay)
    return 2 * weight - new, first, second


@adamw_step.mistake("the square root is missing: divide by the square root of the averaged square")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    _, first, second = _adamw(weight, gradient, first, second, t, rate, betas, epsilon, decay)
    mean, square = first / (1 - betas[0] ** t), second / (1 - betas[1] ** t)
    return (1 - rate * decay) * weight - rate * mean / (square + max(epsilon, 1e-12)), first, second


@adamw_step.mistake("the betas are swapped: the first belongs to the gradient, the second to its square")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    return _adamw(weight, gradient, first, second, t, rate, betas[::-1], epsilon, decay)


@adamw_step.mistake("the first update has t = 1: your correction counts one update too many")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    if t < 1:
        raise ValueError("t")
    return _adamw(weight, gradient, first, second, t + 1, rate, betas, epsilon, decay)


@adamw_step.mistake("update 0 must be rejected with a ValueError: the first update is 1")
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    return _adamw(weight, gradient, first, second, max(t, 1), rate, betas, epsilon, decay)


@adamw_step.variant
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    # As in PyTorch's own code, put the corrections into the step size and the square root
    if not t >= 1:
        raise ValueError("t")
    first = first.lerp(gradient, 1 - betas[0])
    second = second.mul(betas[1]).addcmul(gradient, gradient, value=1 - betas[1])
    root = second.sqrt() / math.sqrt(1 - betas[1] ** t) + epsilon
    return weight.mul(1 - rate * decay).addcdiv(first, root, value=-rate / (1 - betas[0] ** t)), first, second


@adamw_step.variant
def _(weight, gradient, first, second, t, rate, betas, epsilon, decay):
    # Process one element at a time
    if t <= 0:
        raise ValueError("t")
    out = []
    for w, g, m, s in zip(*(x.flatten().tolist() for x in (weight, gradient, first, second)), strict=True):
        m = betas[0] * m + (1 - betas[0]) * g
        s = betas[1] * s + (1 - betas[1]) * g * g
        step = rate * (m / (1 - betas[0] ** t)) / (math.sqrt(s / (1 - betas[1] ** t)) + epsilon)
        out.append((w - rate * decay * w - step, m, s))
    columns = zip(*out, strict=True)
    return tuple(torch.tensor(column, dtype=torch.float64).view_as(weight) for column in columns)
