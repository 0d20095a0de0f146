"""Exercises for lesson 11: mixture of experts."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 11.1


@exercise(
    "11.1",
    "Two shares with a pencil",
    task="Work out the share of the best expert under two rules",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Which two scores are the largest?",
        "Exponentiating these scores needs no calculator, because e^(ln 6) = 6. You get 1, 3, 6 and 2.",
        "Both shares have the numerator 6. One divides by the sum over the chosen two, the other by the sum over all four.",
    ),
)
def two_gates():
    """A token's scores are $(0, \\ln 3, \\ln 6, \\ln 2)$, and it visits two experts. What is the best expert's share if
    shares are renormalised, as in `topk_softmax`, and what is it if they are raw, as in `softmax_topk` (11.3)? Return a
    pair of `float`s, the renormalised share first, accurate to at least four decimal places.
    """
    ### BEGIN SOLUTION
    chosen, everyone = 6 + 3, 1 + 3 + 6 + 2
    return 6 / chosen, 6 / everyone
    ### END SOLUTION


@two_gates.cases
def _(draw):
    yield Case("the shares of the best expert", (), tolerance=5e-5)


@two_gates.mistake("you answered with the rules in the wrong order: topk_softmax divides by the chosen two only")
def _():
    return 6 / 12, 6 / 9


@two_gates.mistake("softmax_topk divides by the sum over all four experts: only topk_softmax is renormalised")
def _():
    return 6 / 9, 6 / 9


@two_gates.mistake("topk_softmax divides by the sum over the chosen two, not over all four")
def _():
    return 6 / 12, 6 / 12


@two_gates.mistake("you divided scores by their sum: exponentiate them first")
def _():
    return math.log(6) / math.log(18), math.log(6) / math.log(36)


@two_gates.mistake("those are the shares of the second best expert: the best one has the score ln 6")
def _():
    return 3 / 9, 3 / 12


@two_gates.mistake("the score 0 belongs in the softmax over all experts: e^0 is 1")
def _():
    return 6 / 9, 6 / 11


@two_gates.mistake("a sigmoid of each score gives different shares: both rules of (11.3) exponentiate")
def _():
    return (6 / 7) / (6 / 7 + 3 / 4), (6 / 7) / (1 / 2 + 3 / 4 + 6 / 7 + 2 / 3)


@two_gates.variant
def _():
    z = torch.tensor([1.0, 3.0, 6.0, 2.0], dtype=torch.float64).log()
    return [z.topk(2).values.softmax(-1)[0].item(), z.softmax(-1).topk(2).values[0].item()]


@two_gates.variant
def _():
    return 0.6667, 0.5


# 11.2


@exercise(
    "11.2",
    "What a layer of experts costs",
    task="Count the parameters and FLOPs of a layer of experts",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"top_k": lambda d, d_ff, experts, top_k, shared: (1, experts), "shared": (0,)},
    robust={
        "more than a float can represent exactly": "no model is that large",
    },
    hints=(
        "One expert has 3 * d * d_ff parameters.",
        "Shared experts belong to the total and to the active parameters. The router has no scores for them.",
        "The whole router is active, too. Each active parameter takes one multiplication and one addition.",
    ),
)
def expert_layer_cost(d, d_ff, experts, top_k, shared):
    """Return `(total, active, flops)` for a layer: the number of all parameters, the number of active parameters, and
    the FLOPs of one token's forward pass. The layer has `experts` gated experts (a token visits `top_k` of them) and
    `shared` experts that every token visits. Each expert has three matrices of `d` x `d_ff`, and the router has no
    bias. Count only matrix products, with a multiplication and an addition as two FLOPs.

    ```python
    >>> expert_layer_cost(2, 3, 4, 1, 0)
    (80, 26, 52)
    ```

    ★
    - Raise a `ValueError` unless `1 <= top_k <= experts` and `shared >= 0`.
    - Return three `int`s that are exact beyond $2^{53}$.
    """
    ### BEGIN SOLUTION
    if not 1 <= top_k <= experts or shared < 0:
        raise ValueError(f"{top_k=}, {experts=}, {shared=}: expected 1 <= top_k <= experts and shared >= 0")
    network, router = 3 * d * d_ff, d * experts
    total = (experts + shared) * network + router
    active = (top_k + shared) * network + router
    return total, active, 2 * active
    ### END SOLUTION


@expert_layer_cost.cases
def _(draw):
    yield Case("one expert, always visited", (2, 3, 1, 1, 0))
    yield Case("two of five experts", (8, 12, 5, 2, 0))
    yield Case("with shared experts", (6, 10, 4, 1, 2))
    d, d_ff, experts, shared = draw.sizes(4, 3, 20)
    yield Case("any sizes", (d, d_ff, experts, draw.whole(2, experts), shared))
    yield Case("a layer of Mixtral", (4096, 14336, 8, 2, 0))
    yield Case("more choices than experts are rejected", (8, 12, 5, 6, 0), refuse=True)
    yield Case("a top_k of 0 is rejected", (8, 12, 5, 0, 0), refuse=True)
    yield Case("a negative number of shared experts is rejected", (8, 12, 5, 2, -1), refuse=True)
    yield Case("more than a float can represent exactly", (1, 2**53 + 1, 3, 1, 0))


def _sizes(experts, top_k, shared):
    if not 1 <= top_k <= experts or shared < 0:
        raise ValueError("expected 1 <= top_k <= experts and shared >= 0")


def _costs(d, d_ff, experts, top_k, shared, matrices=3, router=None):
    _sizes(experts, top_k, shared)
    router = d * experts if router is None else router
    active = (top_k + shared) * matrices * d * d_ff + router
    return (experts + shared) * matrices * d * d_ff + router, active, 2 * active


@expert_layer_cost.mistake("the router is missing: it has d parameters for each expert, all of them active")
def _(d, d_ff, experts, top_k, shared):
    return _costs(d, d_ff, experts, top_k, shared, router=0)


@expert_layer_cost.mistake("you left the experts out of the active parameters: add those that a token visits")
def _(d, d_ff, experts, top_k, shared):
    _sizes(experts, top_k, shared)
    return (experts + shared) * 3 * d * d_ff + d * experts, d * experts, 2 * d * experts


@expert_layer_cost.mistake("a gated expert has three matrices, not two")
def _(d, d_ff, experts, top_k, shared):
    return _costs(d, d_ff, experts, top_k, shared, matrices=2)


@expert_layer_cost.mistake("the shared experts are missing: they are in the total and in the active parameters")
def _(d, d_ff, experts, top_k, shared):
    _sizes(experts, top_k, shared)
    return _costs(d, d_ff, experts, top_k, 0)


@expert_layer_cost.mistake("every token visits the shared experts: count them as active, too")
def _(d, d_ff, experts, top_k, shared):
    total = _costs(d, d_ff, experts, top_k, shared)[0]
    active = _costs(d, d_ff, experts, top_k, 0)[1]
    return total, active, 2 * active


@expert_layer_cost.mistake("the router has no scores for shared experts: they are not chosen")
def _(d, d_ff, experts, top_k, shared):
    return _costs(d, d_ff, experts, top_k, shared, router=d * (experts + shared))


@expert_layer_cost.mistake(
    "the router scores all experts, not only the chosen ones, so all of its parameters are active"
)
def _(d, d_ff, experts, top_k, shared):
    total, active, _ = _costs(d, d_ff, experts, top_k, shared)
    active -= d * (experts - top_k)
    return total, active, 2 * active


@expert_layer_cost.mistake("you counted one FLOP per parameter: it takes a multiplication and an addition")
def _(d, d_ff, experts, top_k, shared):
    total, active, _ = _costs(d, d_ff, experts, top_k, shared)
    return total, active, active


@expert_layer_cost.mistake("you counted the FLOPs of all experts: only those a token visits are computed")
def _(d, d_ff, experts, top_k, shared):
    total, active, _ = _costs(d, d_ff, experts, top_k, shared)
    return total, active, 2 * total


@expert_layer_cost.mistake("your router has a bias: this one has none")
def _(d, d_ff, experts, top_k, shared):
    return _costs(d, d_ff, experts, top_k, shared, router=(d + 1) * experts)


@expert_layer_cost.mistake(
    "six FLOPs per parameter is the cost of training, with the backward pass: count the forward pass of one token"
)
def _(d, d_ff, experts, top_k, shared):
    total, active, _ = _costs(d, d_ff, experts, top_k, shared)
    return total, active, 6 * active


@expert_layer_cost.mistake("sizes out of range must raise a ValueError")
def _(d, d_ff, experts, top_k, shared):
    active = (top_k + shared) * 3 * d * d_ff + d * experts
    return (experts + shared) * 3 * d * d_ff + d * experts, active, 2 * active


@expert_layer_cost.variant
def _(d, d_ff, experts, top_k, shared):
    # Count one matrix at a time
    if top_k < 1 or top_k > experts or shared < 0:
        raise ValueError("bad sizes")
    total = active = d * experts
    for number in range(experts + shared):
        for matrix in ((d, d_ff), (d, d_ff), (d_ff, d)):
            numbers = math.prod(matrix)
            total += numbers
            active += numbers if number < top_k or number >= experts else 0
    return [total, active, active + active]


@expert_layer_cost.variant
def _(d, d_ff, experts, top_k, shared):
    if top_k not in range(1, experts + 1) or shared < 0:
        raise ValueError(f"{top_k} of {experts}, {shared} shared")
    flops = 2 * d * (3 * d_ff * (top_k + shared) + experts)
    return flops // 2 + 3 * d * d_ff * (experts - top_k), flops // 2, flops


# 11.3


@exercise(
    "11.3",
    "Each token to its experts and back",
    task="Send tokens to their experts and combine the outputs",
    points=4,
    difficulty=2,
    minutes=20,
    limits={"k": lambda x, logits, inner, outer, k: (1, len(inner))},
    excused={
        "tie": "no two scores of a token are equal",
    },
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "scores near 1000": "scores of the lesson are around 1",
    },
    hints=(
        "`best, chosen = logits.topk(k)`, both (token, top_k); the shares are a softmax of `best`.",
        "For each expert `e`, `rows, place = torch.where(chosen == e)` gives the tokens that chose it, and the columns of their shares.",
        "Add, never assign: `out.index_add(0, rows, shares[rows, place, None] * answers)`.",
    ),
)
def dispatch(x, logits, inner, outer, k):
    """Compute the output of a layer of experts, (11.2). `x` is (token, d_model), and `logits` (token, expert) are the
    router's scores. Expert $e$ is `relu(row @ inner[e]) @ outer[e]`, with `inner` (expert, d_model, d_ff) and `outer`
    (expert, d_ff, d_model). Return a tensor (token, d_model): for each token, the sum of the outputs of its `k` best
    experts, weighted with renormalised shares, as in `topk_softmax`. No residual is added. No two scores of a token are
    equal. Try to run each expert only once, on all rows that chose it.

    ```python
    >>> dispatch(torch.tensor([[1.0]]), torch.tensor([[0.0, 2.0]]), torch.ones(2, 1, 1), torch.tensor([[[3.0]], [[5.0]]]), 1)
    tensor([[5.]])
    ```

    ★
    - Raise a `ValueError` unless `1 <= k <=` number of experts.
    - Scores of 1,000 do not overflow.
    """
    ### BEGIN SOLUTION
    experts = len(inner)
    if not 1 <= k <= experts:
        raise ValueError(f"k={k}: expected a number from 1 to {experts}, the number of experts")
    best, chosen = logits.topk(k, dim=-1)
    shares, out = best.softmax(dim=-1), torch.zeros_like(x)
    for e in range(experts):
        rows, place = torch.where(chosen == e)
        answers = (x[rows] @ inner[e]).relu() @ outer[e]
        out = out.index_add(0, rows, shares[rows, place, None] * answers)
    return out
    ### END SOLUTION


def _layer(draw, tokens, d_model, d_ff, experts):
    logits = draw.normal(tokens, experts)
    return (
        draw.normal(tokens, d_model),
        logits,
        draw.normal(experts, d_model, d_ff),
        draw.normal(experts, d_ff, d_model),
    )


@dispatch.cases
def _(draw):
    yield Case("one expert for each of two tokens", (*_layer(draw, 2, 3, 4, 3), 1))
    yield Case("two experts for one token", (*_layer(draw, 1, 3, 8, 4), 2))
    tokens, d_model, d_ff, experts = draw.sizes(4, 4, 9)
    yield Case("any sizes", (*_layer(draw, tokens, d_model, d_ff, experts), draw.whole(2, experts - 1)))
    x, logits, inner, outer = _layer(draw, 6, 3, 5, 4)
    unvisited = torch.cat((logits[:, :3], -9 + 0 * logits[:, :1]), dim=1)
    yield Case("an expert that no token visits", (x, unvisited, inner, outer, 2))
    yield Case("all experts for every token", (x, logits, inner, outer, 4))
    yield Case("the gradients", (x, logits, inner, outer, 2), gradients=True)
    yield Case("scores near 1000", (x, 1000 + logits, inner, outer, 2))
    yield Case("k = 0 is rejected", (x, logits, inner, outer, 0), refuse=True)
    yield Case("more choices than experts are rejected", (x, logits, inner, outer, 5), refuse=True)


def _visits(x, logits, inner, outer, k):
    """Return the expert outputs (token, top_k, d_model) and scores (token, top_k) of all visits."""
    if not 1 <= k <= len(inner):
        raise ValueError("expected 1 <= k <= experts")
    best, chosen = logits.topk(k, dim=-1)
    hidden = torch.einsum("td,tkdf->tkf", x, inner[chosen]).relu()
    return torch.einsum("tkf,tkfd->tkd", hidden, outer[chosen]), best, chosen


@dispatch.mistake("the shares are missing: you add the experts' outputs without weights")
def _(x, logits, inner, outer, k):
    return _visits(x, logits, inner, outer, k)[0].sum(1)


@dispatch.mistake("you use raw shares from a softmax over all experts: divide by the sum over the chosen ones")
def _(x, logits, inner, outer, k):
    answers, _, chosen = _visits(x, logits, inner, outer, k)
    return (logits.softmax(-1).gather(1, chosen)[..., None] * answers).sum(1)


@dispatch.mistake("you took a softmax over all scores and another over the chosen ones: take only one")
def _(x, logits, inner, outer, k):
    answers, _, chosen = _visits(x, logits, inner, outer, k)
    return (logits.softmax(-1).gather(1, chosen).softmax(-1)[..., None] * answers).sum(1)


@dispatch.mistake("your weights are the raw scores: apply a softmax to them")
def _(x, logits, inner, outer, k):
    answers, best, _ = _visits(x, logits, inner, outer, k)
    return (best[..., None] * answers).sum(1)


@dispatch.mistake("you assign where you must add: a token's second expert overwrites its first")
def _(x, logits, inner, outer, k):
    answers, best, chosen = _visits(x, logits, inner, outer, k)
    weighted, last = best.softmax(-1)[..., None] * answers, chosen.argmax(-1)
    return weighted[torch.arange(len(x)), last]


@dispatch.mistake(
    "only one visit of each token remains: where a row occurs twice, `out[rows] += ...` adds only once; use index_add"
)
def _(x, logits, inner, outer, k):
    answers, best, _ = _visits(x, logits, inner, outer, k)
    return (best.softmax(-1)[..., None] * answers)[:, -1]


@dispatch.mistake("you use only the best expert: there are k of them")
def _(x, logits, inner, outer, k):
    _visits(x, logits, inner, outer, k)
    return _visits(x, logits, inner, outer, 1)[0][:, 0]


@dispatch.mistake("the outputs go to the wrong tokens: they are still sorted by expert")
def _(x, logits, inner, outer, k):
    answers, best, chosen = _visits(x, logits, inner, outer, k)
    order = chosen.flatten().argsort(stable=True)
    mixed = answers.flatten(0, 1)[order].view_as(answers)
    return (best.softmax(-1)[..., None] * mixed).sum(1)


@dispatch.mistake(
    "the shares belong to the wrong experts: topk orders experts by score, but a loop over the experts orders them by number"
)
def _(x, logits, inner, outer, k):
    answers, best, chosen = _visits(x, logits, inner, outer, k)
    by_number = chosen.argsort(-1)[..., None].expand_as(answers)
    return (best.softmax(-1)[..., None] * answers.gather(1, by_number)).sum(1)


@dispatch.mistake("your softmax runs over the tokens: each token's own shares add up to one")
def _(x, logits, inner, outer, k):
    answers, best, _ = _visits(x, logits, inner, outer, k)
    return (best.softmax(0)[..., None] * answers).sum(1)


@dispatch.mistake("no gradient reaches the router: your shares are detached, and the router learns only through them")
def _(x, logits, inner, outer, k):
    answers, best, _ = _visits(x, logits, inner, outer, k)
    return (best.softmax(-1)[..., None].detach() * answers).sum(1)


@dispatch.mistake("k = 0 must raise a ValueError: an empty sum is not an answer")
def _(x, logits, inner, outer, k):
    if k == 0:
        return torch.zeros_like(x)
    answers, best, _ = _visits(x, logits, inner, outer, k)
    return (best.softmax(-1)[..., None] * answers).sum(1)


@dispatch.variant
def _(x, logits, inner, outer, k):
    # Process one token at a time, exactly as in (11.2)
    if k < 1 or k > len(inner):
        raise ValueError(f"{k=}: expected at least 1 and at most the number of experts")
    out = []
    for row, z in zip(x, logits, strict=True):
        chosen = z.argsort(descending=True)[:k]
        powers = (z[chosen] - z.max()).exp()
        answers = torch.stack([torch.clamp(row @ inner[e], min=0) @ outer[e] for e in chosen])
        out.append((powers / powers.sum()) @ answers)
    return torch.stack(out)


@dispatch.variant
def _(x, logits, inner, outer, k):
    # Run every expert on every token and mask the gate weights, (11.6)
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"{k=}: expected at least 1 and at most the number of experts")
    least = logits.sort(dim=1, descending=True).values[:, k - 1 : k]
    shares = logits.masked_fill(logits < least, -math.inf).softmax(dim=1)
    return torch.einsum("te,tef,efd->td", shares, torch.einsum("td,edf->tef", x, inner).relu(), outer)


@dispatch.variant
def _(x, logits, inner, outer, k):
    # Sort the tokens by expert, so that each expert computes one matrix product; then restore the order
    if k not in range(1, len(inner) + 1):
        raise ValueError(f"{k=}: expected at least 1 and at most the number of experts")
    p, chosen = logits.softmax(-1).topk(k)
    order = chosen.flatten().argsort(stable=True)
    pieces = x[order // k].split(chosen.flatten().bincount(minlength=len(inner)).tolist())
    answers = torch.cat([(piece @ inner[e]).relu() @ outer[e] for e, piece in enumerate(pieces)])
    back = answers[order.argsort()].view(len(x), k, -1)
    return (p[..., None] * back).sum(1) / p.sum(1, keepdim=True)


# 11.4


@exercise(
    "11.4",
    "Balancing gradient without padding",
    task="Compute the gradient of the balancing loss, leaving out padding",
    points=4,
    difficulty=3,
    minutes=20,
    forbidden=("autograd", "backward", "requires_grad_", "func", "vjp", "jacrev"),
    exact_zero=True,
    excused={
        "edge": "if every expert is visited, a real token's terms cancel to exactly 0 in one order of summation and not in another",
        "tie": "no two scores of a token are equal",
        "nan": "padding rows do not affect the result, so an answer need not check them",
        "other": "only padding must give exact zeros: a real token's terms may cancel to 0 in one order of summation and not in another",
    },
    robust={
        "scores near 1000": "scores of the lesson are around 1",
    },
    hints=(
        "Count only the choices of real tokens, and divide by their number times k.",
        "In (11.9), count real tokens only. The load is counted, so it has no derivative.",
        "Multiply the rows of padding by zero.",
    ),
)
def balance_gradient(logits, real, k):
    """Return $\\partial L_{bal} / \\partial z$ of the balancing loss (11.8) with respect to `logits` (token, expert),
    when each token visits its `k` best experts. The deeper notebook derives this gradient, (D11.10). `real` (token) is
    a boolean tensor that is False for padding. The load $f$ (each expert's share of all visits by real tokens) and $P$
    (the mean of the router's probabilities) leave out padding, whose gradient is exactly 0. Do not use autograd.

    ```python
    >>> balance_gradient(torch.tensor([[1.0, 0.0], [5.0, 0.0]]).double(), torch.tensor([True, False]), 1)
    tensor([[ 0.3932, -0.3932],
            [ 0.0000, -0.0000]], dtype=torch.float64)
    ```

    ★
    - Raise a `ValueError` if the batch contains only padding.
    - Scores of 1,000 do not overflow. A NaN in a real token must appear in the result.
    """
    ### BEGIN SOLUTION
    tokens, experts = int(real.sum()), logits.shape[-1]
    if tokens == 0:
        raise ValueError("real: expected at least one real token, got none")
    visits = logits.topk(k, dim=-1).indices[real].flatten().bincount(minlength=experts)
    load = visits.double() / (tokens * k)
    p = logits.softmax(dim=-1)
    return experts / tokens * p * (load - p @ load[:, None]) * real[:, None]
    ### END SOLUTION


@balance_gradient.cases
def _(draw):
    yield Case("three tokens, two experts", (draw.normal(3, 2), torch.ones(3, dtype=torch.bool), 1))
    yield Case("two experts for each token", (draw.normal(5, 4), torch.ones(5, dtype=torch.bool), 2))
    real = torch.tensor([True, True, False, True, True, False, True])
    full = draw.normal(7, 4)
    full[~real] += torch.tensor([9.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # all padding chooses the first expert
    yield Case("padding does not count", (full, real, 1))
    tokens, experts = draw.whole(8, 12), draw.whole(3, 6)
    many = draw.uniform(tokens) > 0.3
    many[:2], many[2] = True, False
    logits = draw.normal(tokens, experts)
    logits[~many, -1] += 9.0
    # If the load happens to be even, the terms of a real token cancel to exactly 0 in one order of summation and not in another.
    yield Case("any tokens, with padding", (logits, many, 2), exact_zero=False)
    yield Case("scores near 1000", (1000 + full, real, 2))
    shunned = draw.normal(5, 4)
    shunned[:, -1] -= 9.0
    yield Case("an expert that no token chooses", (shunned, torch.ones(5, dtype=torch.bool), 2))
    yield Case("every expert visited", (full, real, 4), exact_zero=False)
    spoiled = full.clone()
    spoiled[1, 2] = math.nan
    yield Case("a NaN in a real token shows up in the result", (spoiled, real, 1), only_nan=True)
    yield Case(
        "a batch of nothing but padding is rejected",
        (draw.normal(3, 2), torch.zeros(3, dtype=torch.bool), 1),
        refuse=True,
    )
    low = torch.tensor([9.0, 0.0, -9.0, -18.0], dtype=torch.float64)
    yield Case("three of four experts that no token chooses", (draw.normal(3, 4) + low, torch.ones(3).bool(), 1))


def _balance(logits, real, k):
    """Return the correct p and f, and the number of real tokens."""
    if not real.any():
        raise ValueError("real: expected at least one token that is not padding")
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(k).indices, 1.0)[real]
    return logits.softmax(-1), chosen.sum(0) / chosen.sum(), len(chosen)


def _push(p, f, tokens):
    return p.shape[1] / tokens * p * (f - (p * f).sum(1, keepdim=True))


@balance_gradient.mistake("you count the padding as tokens: leave it out of f and N, and give it a gradient of 0")
def _(logits, real, k):
    _balance(logits, real, k)
    return _push(*_balance(logits, torch.ones_like(real), k))


@balance_gradient.mistake("padding has a gradient: multiply its rows by zero")
def _(logits, real, k):
    return _push(*_balance(logits, real, k))


@balance_gradient.mistake("your N counts the padding: P is a mean over real tokens")
def _(logits, real, k):
    p, f, _ = _balance(logits, real, k)
    return _push(p, f, len(logits)) * real[:, None]


@balance_gradient.mistake("the visits of padding are in your load f")
def _(logits, real, k):
    _, f, _ = _balance(logits, torch.ones_like(real), k)
    p, _, tokens = _balance(logits, real, k)
    return _push(p, f, tokens) * real[:, None]


@balance_gradient.mistake(
    "your sign is reversed: the gradient is positive where an expert has more load than the token expects"
)
def _(logits, real, k):
    return -_push(*_balance(logits, real, k)) * real[:, None]


@balance_gradient.mistake("your load is a share of tokens: divide the counts by N k, the number of visits")
def _(logits, real, k):
    return k * _push(*_balance(logits, real, k)) * real[:, None]


@balance_gradient.mistake("the factor n, the number of experts, is missing")
def _(logits, real, k):
    return _push(*_balance(logits, real, k)) * real[:, None] / logits.shape[1]


@balance_gradient.mistake("the factor 1 / N is missing: P is a mean, not a sum")
def _(logits, real, k):
    p, f, _ = _balance(logits, real, k)
    return _push(p, f, 1) * real[:, None]


@balance_gradient.mistake(
    "your probabilities cover only the chosen experts: P is the mean of the softmax over all of them"
)
def _(logits, real, k):
    _, f, tokens = _balance(logits, real, k)
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(k).indices, 1.0).bool()
    return _push(logits.masked_fill(~chosen, -math.inf).softmax(-1), f, tokens) * real[:, None]


@balance_gradient.mistake("the softmax's derivative has a second term: subtract the load that the token expects")
def _(logits, real, k):
    p, f, tokens = _balance(logits, real, k)
    return logits.shape[1] / tokens * p * f * real[:, None]


@balance_gradient.mistake(
    "your f is the mean of the probabilities, but f is the counted share of visits, which has no derivative"
)
def _(logits, real, k):
    p, _, tokens = _balance(logits, real, k)
    return _push(p, p[real].mean(0), tokens) * real[:, None]


@balance_gradient.mistake("a batch of nothing but padding must raise a ValueError")
def _(logits, real, k):
    return _push(*_balance(logits, real, k)) * real[:, None] if real.any() else torch.zeros_like(logits)


@balance_gradient.variant
def _(logits, real, k):
    # Use the Jacobian of each token's softmax
    rows = real.nonzero().flatten().tolist()
    if not rows:
        raise ValueError("real: expected at least one token that is not padding")
    experts = logits.shape[1]
    counts = [0] * experts
    for t in rows:
        for e in sorted(range(experts), key=lambda e: -logits[t, e].item())[:k]:
            counts[e] += 1
    load = torch.tensor([count / sum(counts) for count in counts], dtype=torch.float64)
    out = torch.zeros_like(logits)
    for t in rows:
        p = torch.softmax(logits[t], dim=0)
        out[t] = experts / len(rows) * (torch.diag(p) - torch.outer(p, p)) @ load
    return out


@balance_gradient.variant
def _(logits, real, k):
    # Compute only the rows of real tokens
    z = logits[real]
    if z.numel() == 0:
        raise ValueError("real: expected at least one token that is not padding")
    one_hot = torch.nn.functional.one_hot(z.argsort(dim=1)[:, -k:], z.shape[1])
    f = one_hot.double().mean(dim=(0, 1))
    p = z.log_softmax(dim=1).exp()
    slope = torch.einsum("te,e->te", p, f) - torch.einsum("te,tj,j->te", p, p, f)
    return torch.zeros_like(logits).masked_scatter(real[:, None], slope * (z.shape[1] / len(z)))


# 11.5


@exercise(
    "11.5",
    "First come, first served",
    task="Assign the experts' slots in the order of the tokens",
    points=3,
    difficulty=2,
    minutes=15,
    robust={
        "a number of slots just above 2": "the difference is too small to matter in the lesson",
    },
    hints=(
        "How many slots does an expert have? The number contains k, and is rounded up.",
        "Use one counter for each expert.",
        "Go row by row and column by column. If this expert has a slot left, the visit takes it.",
    ),
)
def stays(chosen, experts, capacity):
    """`chosen` (token, top_k) is an `int64` tensor with the indices of the experts that each token chose, from 0 to
    `experts - 1` and all different within a row. Each expert has $\\lceil \\text{capacity} \\cdot N k / n \\rceil$
    slots, (D11.17) of the deeper notebook, with $N$ tokens, $k$ columns and $n$ = `experts`. Slots are assigned token
    by token in order, and column by column within a token. Which visits get a slot? Return a boolean tensor (token,
    top_k) that is True for these visits. You may use a Python loop.

    ```python
    >>> stays(torch.tensor([[0], [0], [1], [0]]), 2, 1.0)
    tensor([[ True],
            [ True],
            [ True],
            [False]])
    ```

    ★
    - Raise a `ValueError` if `capacity` is not above 0.
    """
    ### BEGIN SOLUTION
    if not capacity > 0:
        raise ValueError(f"capacity={capacity}: expected a number above 0")
    places = math.ceil(capacity * chosen.numel() / experts)
    taken, kept = [0] * experts, []
    for e in chosen.flatten().tolist():
        kept.append(taken[e] < places)
        taken[e] += 1
    return torch.tensor(kept).view_as(chosen)
    ### END SOLUTION


@stays.cases
def _(draw):
    # Use powers of two for the number of experts and multiples of 1/4 for the capacity, so that the number of slots has
    # no rounding error
    yield Case("one expert for each token", (torch.tensor([[0], [0], [1], [0]]), 2, 1.0))
    chosen = torch.tensor([[0, 1], [0, 2], [0, 1], [1, 0], [0, 3]])
    yield Case("two experts for each token", (chosen, 4, 1.0))
    yield Case("half the slots", (chosen, 4, 0.5))
    yield Case("slots for all visits", (chosen, 4, 2.0))
    tokens, k = draw.whole(9, 15), draw.whole(2, 3)
    crowd = draw.uniform(tokens, 8)
    crowd[:, :2] += 0.5  # many tokens want the first two experts
    yield Case("any choices", (crowd.argsort(dim=1, descending=True)[:, :k], 8, draw.whole(2, 4) / 4))
    yield Case("a capacity of 0 is rejected", (chosen, 4, 0.0), refuse=True)
    yield Case("a capacity below 0 is rejected", (chosen, 4, -1.0), refuse=True)
    yield Case("a number of slots just above 2", (torch.tensor([[0], [0], [0], [1]]), 2, 1 + 1e-12))


def _kept(chosen, places, visits=None):
    """Assign slots first come, first served, in the order of the flattened `visits`."""
    flat, taken, kept = chosen.flatten().tolist(), {}, [False] * chosen.numel()
    for v in range(len(flat)) if visits is None else visits:
        taken[flat[v]] = taken.get(flat[v], 0) + 1
        kept[v] = taken[flat[v]] <= places
    return torch.tensor(kept).view_as(chosen)


def _places(chosen, experts, capacity):
    if capacity <= 0:
        raise ValueError("expected a capacity above 0")
    return math.ceil(capacity * chosen.numel() / experts)


@stays.mistake("the k is missing from your number of slots: a token makes k visits")
def _(chosen, experts, capacity):
    _places(chosen, experts, capacity)
    return _kept(chosen, math.ceil(capacity * len(chosen) / experts))


@stays.mistake("you rounded the number of slots down: round up")
def _(chosen, experts, capacity):
    _places(chosen, experts, capacity)
    return _kept(chosen, int(capacity * chosen.numel() / experts))


@stays.mistake("each expert takes one visit too many: check that a slot is left before you take it")
def _(chosen, experts, capacity):
    return _kept(chosen, _places(chosen, experts, capacity) + 1)


@stays.mistake("each expert takes one visit too few: the last slot may be taken, too")
def _(chosen, experts, capacity):
    return _kept(chosen, _places(chosen, experts, capacity) - 1)


@stays.mistake("you serve all first choices before all second choices: go token by token")
def _(chosen, experts, capacity):
    places = _places(chosen, experts, capacity)
    visits = torch.arange(chosen.numel()).view_as(chosen).T.flatten().tolist()
    return _kept(chosen, places, visits)


@stays.mistake("you start with the last token")
def _(chosen, experts, capacity):
    return _kept(chosen, _places(chosen, experts, capacity), range(chosen.numel() - 1, -1, -1))


@stays.mistake("you mark the dropped visits: True means that a visit takes place")
def _(chosen, experts, capacity):
    return ~_kept(chosen, _places(chosen, experts, capacity))


@stays.mistake("one counter for all experts is not enough: each has its own slots")
def _(chosen, experts, capacity):
    places = _places(chosen, experts, capacity)
    return (torch.arange(chosen.numel()) < places).view_as(chosen)


@stays.mistake("a full expert drops only its own visit, not the token's visits to other experts")
def _(chosen, experts, capacity):
    kept = _kept(chosen, _places(chosen, experts, capacity))
    return kept.all(dim=1, keepdim=True).expand_as(kept).clone()


@stays.mistake("you let any expert use all slots: each expert has 1 / n of them")
def _(chosen, experts, capacity):
    _places(chosen, experts, capacity)
    return _kept(chosen, math.ceil(capacity * chosen.numel()))


@stays.mistake("your answer is not boolean: return a boolean tensor")
def _(chosen, experts, capacity):
    return _kept(chosen, _places(chosen, experts, capacity)).long()


@stays.mistake("a capacity of 0 or below must raise a ValueError")
def _(chosen, experts, capacity):
    return _kept(chosen, math.ceil(capacity * chosen.numel() / experts))


@stays.variant
def _(chosen, experts, capacity):
    # Number the visits to the same expert with a running sum
    if not capacity > 0:
        raise ValueError("bad capacity")
    tokens, k = chosen.shape
    visits = torch.nn.functional.one_hot(chosen.reshape(-1), experts)
    number = (visits.cumsum(dim=0) * visits).sum(dim=1)
    return (number <= -(-capacity * tokens * k // experts)).reshape(tokens, k)


@stays.variant
def _(chosen, experts, capacity):
    # Process one expert at a time
    if not capacity > 0:
        raise ValueError("bad capacity")
    places = math.ceil(capacity * (chosen.shape[0] * chosen.shape[1] / experts))
    kept = torch.zeros_like(chosen, dtype=torch.bool)
    for e in range(experts):
        rows, columns = (chosen == e).nonzero(as_tuple=True)
        kept[rows[:places], columns[:places]] = True
    return kept
