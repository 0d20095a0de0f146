"""Exercises of lesson 26: more than one chip."""

import math

import torch

from companion_school.checking.exercise import Case, exercise

# 26.1


@exercise(
    "26.1",
    "A gradient on a ring",
    task="Compute how long an all-reduce takes",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "How many bytes does the gradient have?",
        "On a ring, each process sends 2 (processes - 1) / processes times these bytes.",
        "Divide the bytes that one process sends by the bandwidth.",
    ),
)
def seconds_of_a_ring():
    """A model has 70 billion parameters. 16 GPUs all-reduce its gradient on a ring, with 4 bytes per element, and each
    GPU sends 50 GB (of $10^9$ bytes each) per second. How many seconds does the all-reduce take, ignoring latency?
    Return a `float` that is accurate to at least three decimal places.
    """
    ### BEGIN SOLUTION
    size = 70e9 * 4
    sent = 2 * (16 - 1) / 16 * size
    return sent / 50e9
    ### END SOLUTION


@seconds_of_a_ring.cases
def _(draw):
    yield Case("the number of seconds", (), tolerance=5e-4)


@seconds_of_a_ring.mistake("that is only one of the two trips around the ring: reduce-scatter, then all-gather")
def _():
    return 15 / 16 * 280e9 / 50e9


@seconds_of_a_ring.mistake("you include the part that stays with its process: the factor is 15/16")
def _():
    return 2 * 280e9 / 50e9


@seconds_of_a_ring.mistake("you left out the 4 bytes of each element")
def _():
    return 2 * 15 / 16 * 70e9 / 50e9


@seconds_of_a_ring.mistake("that is the time for what all 16 GPUs send; they send at the same time")
def _():
    return 2 * 15 * 280e9 / 50e9


@seconds_of_a_ring.variant
def _():
    return 30 * (280 / 16) / 50


@seconds_of_a_ring.variant
def _():
    return 10.5


# 26.2


@exercise(
    "26.2",
    "The bytes of ZeRO",
    task="Count the bytes that each process stores",
    points=2,
    difficulty=1,
    minutes=8,
    limits={"parameters": (1,), "processes": (1,), "stage": (0, 3)},
    hints=(
        "A parameter takes 4 bytes for itself, 4 for its gradient, and 8 for Adam's two running means.",
        "Stage 1 divides the running means, stage 2 also divides the gradient, and stage 3 divides everything.",
        "The largest part has `math.ceil(parameters / processes)` parameters.",
    ),
)
def zero_bytes(parameters, processes, stage):
    """Return the number of bytes, an `int`, that weights, gradients and running means take up in the process that
    stores the most. Each element takes 4 bytes, and Adam has two running means for each parameter. At `stage` 0 each
    process stores everything. Stage 1 divides the running means among the processes, stage 2 also divides the
    gradients, and stage 3 also divides the weights. If `parameters` is not divisible by `processes`, the size of a part
    is rounded up.

    ```python
    >>> [zero_bytes(10, 4, stage) for stage in range(4)]
    [160, 104, 76, 48]
    ```

    ★
    - Raise a `ValueError` if `stage` is not 0, 1, 2 or 3, or if `parameters` or `processes` is below 1.
    - The result is exact, even for trillions of parameters.
    """
    ### BEGIN SOLUTION
    if stage not in (0, 1, 2, 3) or parameters < 1 or processes < 1:
        raise ValueError(
            f"parameters={parameters}, processes={processes}, stage={stage}: expected at least one parameter and one process, and a stage from 0 to 3"
        )
    part = -(-parameters // processes)  # rounded up without a float
    weights = part if stage >= 3 else parameters
    gradients = part if stage >= 2 else parameters
    means = part if stage >= 1 else parameters
    return 4 * weights + 4 * gradients + 8 * means
    ### END SOLUTION


@zero_bytes.cases
def _(draw):
    processes = draw.whole(2, 9)
    parts = draw.whole(3, 50)
    for stage in range(4):
        yield Case(f"stage {stage}, equal parts", (processes * parts, processes, stage))
    for stage in range(4):
        yield Case(f"stage {stage}, a part is rounded up", (processes * parts + 1, processes, stage))
    yield Case("one process stores everything", (parts, 1, 3))
    yield Case("more processes than parameters", (3, 8, 3), robust="no one does this")
    large = 10**16 + 1
    yield Case("ten thousand trillion parameters", (large, 2, 2), robust="beyond the range where a float is exact")
    yield Case("stage 4 is rejected", (10, 2, 4), refuse=True)
    yield Case("a negative stage is rejected", (10, 2, -1), refuse=True)
    yield Case("zero processes are rejected", (10, 0, 1), refuse=True)
    yield Case("zero parameters are rejected", (0, 2, 1), refuse=True)


def _zero(parameters, processes, stage, part=None, sizes=(4, 4, 8), from_stage=(3, 2, 1)):
    if stage not in (0, 1, 2, 3) or parameters < 1 or processes < 1:
        raise ValueError("parameters, processes, stage")
    part = -(-parameters // processes) if part is None else part
    return sum(size * (part if stage >= first else parameters) for size, first in zip(sizes, from_stage, strict=True))


@zero_bytes.mistake("round the part up: some process stores the remainder")
def _(parameters, processes, stage):
    return _zero(parameters, processes, stage, part=parameters // processes if processes > 0 else 0)


@zero_bytes.mistake("you counted one running mean per parameter: there are two, 8 bytes together")
def _(parameters, processes, stage):
    return _zero(parameters, processes, stage, sizes=(4, 4, 4))


@zero_bytes.mistake("the stages divide running means, then gradients, then weights: stage 1 leaves the weights whole")
def _(parameters, processes, stage):
    return _zero(parameters, processes, stage, from_stage=(1, 2, 3))


@zero_bytes.mistake("stage 1 already divides something: only stage 0 stores everything")
def _(parameters, processes, stage):
    return _zero(parameters, processes, max(stage - 1, 0) if stage in (0, 1, 2, 3) else stage)


@zero_bytes.mistake("you left out the gradients, which take 4 bytes, too")
def _(parameters, processes, stage):
    return _zero(parameters, processes, stage, sizes=(4, 0, 8))


@zero_bytes.mistake("floating-point division is not exact for that many parameters: use `//`")
def _(parameters, processes, stage):
    part = math.ceil(parameters / processes) if processes > 0 else 0
    return _zero(parameters, processes, stage, part=part)


@zero_bytes.mistake("a stage other than 0 to 3 must be rejected with a ValueError")
def _(parameters, processes, stage):
    return _zero(parameters, processes, min(max(stage, 0), 3))


@zero_bytes.variant
def _(parameters, processes, stage):
    # Count what is whole, and then what is divided
    if stage not in range(4) or min(parameters, processes) < 1:
        raise ValueError("expected stages 0 to 3")
    whole = (16, 8, 4, 0)[stage]
    return whole * parameters + (16 - whole) * ((parameters + processes - 1) // processes)


@zero_bytes.variant
def _(parameters, processes, stage):
    # Compute the size of the largest part
    if not (0 <= stage <= 3 and parameters >= 1 and processes >= 1):
        raise ValueError("expected stages 0 to 3")
    most, rest = divmod(parameters, processes)
    most += rest > 0
    cut = {0: 0, 1: 8, 2: 12, 3: 16}[stage]
    return (16 - cut) * parameters + cut * most


# 26.3


@exercise(
    "26.3",
    "An uneven pipeline",
    task="Time a pipeline whose stages are not equally fast",
    points=2,
    difficulty=2,
    minutes=15,
    hints=(
        "A stage begins a micro-batch when it has finished the previous micro-batch and the previous stage has finished this one.",
        "Keep a list with the time when each stage last finished.",
        "For each micro-batch go through the stages: `start = max(free[stage], ready)`.",
    ),
)
def pipeline_seconds(stages, micro_batches):
    """Micro-batches pass through a pipeline, forward only. `stages` lists the seconds that each stage needs for a
    micro-batch. A stage works on one micro-batch at a time, in order, and hands it on immediately. Return `(seconds,
    bubble)`: the time when the last micro-batch leaves the last stage, and the fraction of that time that the stages
    spend idle, averaged over all stages.

    ```python
    >>> pipeline_seconds([1.0, 3.0], 4)
    (13.0, 0.3846153846153846)
    ```

    ★
    - Raise a `ValueError` if there is no stage, if a stage's time is not above 0, or if the number of micro-batches is
      below 1.
    - Do not change the list.
    """
    ### BEGIN SOLUTION
    if not stages or min(stages) <= 0 or micro_batches < 1:
        raise ValueError(
            f"stages={stages}, micro_batches={micro_batches}: expected times above 0 and at least one micro-batch"
        )
    free = [0.0] * len(stages)
    for _ in range(micro_batches):
        ready = 0.0
        for stage, needs in enumerate(stages):
            ready = free[stage] = max(free[stage], ready) + needs
    return free[-1], 1 - micro_batches * sum(stages) / (len(stages) * free[-1])
    ### END SOLUTION


@pipeline_seconds.cases
def _(draw):
    yield Case("two stages, the second is slow", ([1.0, 2.0], 3))
    yield Case("two stages, the first is slow", ([2.0, 1.0], 3))
    stages, micro = draw.sizes(2, 2, 7)
    yield Case("equal stages", ([1.0] * stages, micro))
    times = [0.25 * draw.whole(1, 12) for _ in range(stages)]
    yield Case("unequal stages", (times, micro))
    yield Case("one micro-batch", (times, 1))
    yield Case("one stage has no bubble", ([0.5], micro))
    yield Case("the slowest stage is in the middle", ([1.0, 4.0, 2.0, 1.0], micro + 5))
    yield Case("zero stages are rejected", ([], 3), refuse=True)
    yield Case("zero micro-batches are rejected", ([1.0, 2.0], 0), refuse=True)
    yield Case("a stage time of 0 is rejected", ([1.0, 0.0], 2), refuse=True)
    yield Case("a negative time is rejected", ([1.0, -1.0, 1.0], 2), refuse=True)


def _times(stages, micro_batches):
    if not stages or min(stages) <= 0 or micro_batches < 1:
        raise ValueError("expected stages")
    return sum(stages), max(stages)


def _idle(stages, micro_batches, seconds):
    return seconds, 1 - micro_batches * sum(stages) / (len(stages) * seconds)


@pipeline_seconds.mistake("the stages work at the same time, but yours take turns")
def _(stages, micro_batches):
    whole, _ = _times(stages, micro_batches)
    return _idle(stages, micro_batches, micro_batches * whole)


@pipeline_seconds.mistake("the slowest stage sets the rhythm, not the mean")
def _(stages, micro_batches):
    whole, _ = _times(stages, micro_batches)
    return _idle(stages, micro_batches, whole + (micro_batches - 1) * whole / len(stages))


@pipeline_seconds.mistake("the slowest stage sets the rhythm, not the last one")
def _(stages, micro_batches):
    whole, _ = _times(stages, micro_batches)
    return _idle(stages, micro_batches, whole + (micro_batches - 1) * stages[-1])


@pipeline_seconds.mistake("the slowest stage sets the rhythm, not the first one")
def _(stages, micro_batches):
    whole, _ = _times(stages, micro_batches)
    return _idle(stages, micro_batches, whole + (micro_batches - 1) * stages[0])


@pipeline_seconds.mistake("you count one micro-batch too many: the sum of the stages already includes the first")
def _(stages, micro_batches):
    whole, most = _times(stages, micro_batches)
    return _idle(stages, micro_batches, whole + micro_batches * most)


@pipeline_seconds.mistake("(stages - 1) / (micro-batches + stages - 1) holds only if all stages are equally fast")
def _(stages, micro_batches):
    whole, most = _times(stages, micro_batches)
    return whole + (micro_batches - 1) * most, (len(stages) - 1) / (micro_batches + len(stages) - 1)


@pipeline_seconds.mistake("that is the fraction of the time in which the stages work: return the rest")
def _(stages, micro_batches):
    whole, most = _times(stages, micro_batches)
    seconds, idle = _idle(stages, micro_batches, whole + (micro_batches - 1) * most)
    return seconds, 1 - idle


@pipeline_seconds.mistake(
    "a pipeline without stages or micro-batches, or with a time of 0, must be rejected with a ValueError"
)
def _(stages, micro_batches):
    most = max(stages, default=1.0)
    seconds = sum(stages) + (micro_batches - 1) * most
    return seconds, 1 - micro_batches * sum(stages) / max(len(stages) * seconds, 1e-9)


@pipeline_seconds.variant
def _(stages, micro_batches):
    # Use a closed form: the first micro-batch passes through all stages, and the others follow at the pace of the
    # slowest stage
    if micro_batches < 1 or len(stages) == 0 or any(needs <= 0 for needs in stages):
        raise ValueError("expected stages with times above 0")
    seconds = sum(stages) + (micro_batches - 1) * max(stages)
    return seconds, (len(stages) * seconds - micro_batches * sum(stages)) / (len(stages) * seconds)


@pipeline_seconds.variant
def _(stages, micro_batches):
    # Compute the times when micro-batches end, one stage at a time
    if len(stages) < 1 or min(stages) <= 0 or micro_batches < 1:
        raise ValueError("expected stages with times above 0")
    arrives = [0.0] * micro_batches
    for needs in stages:
        before = 0.0
        for at in range(micro_batches):
            before = arrives[at] = max(before, arrives[at]) + needs
    worked = sum(stages) * micro_batches
    return arrives[-1], 1 - worked / (arrives[-1] * len(stages))


# 26.4


@exercise(
    "26.4",
    "A block on several processes",
    task="Cut a gated feed-forward block by its hidden units",
    points=3,
    difficulty=2,
    minutes=12,
    hints=(
        "The first two matrices are cut by columns, and the third by rows, at the same hidden units.",
        "`gate.chunk(processes, dim=1)` gives the columns of each process.",
        "Each process computes `(silu(x @ gate) * (x @ up)) @ down` with its parts.",
    ),
)
def tensor_parallel(x, gate, up, down, processes):
    """`x` (token, d_model) passes through a gated feed-forward block: `(silu(x @ gate) * (x @ up)) @ down`, with `gate`
    and `up` (d_model, d_ff) and `down` (d_ff, d_model). The hidden units are cut into equal parts, in order, and
    process `r` has part `r`. Return what each of the `processes` processes computes before the all-reduce, (process,
    token, d_model). The sum over the processes is the output of the block.

    ```python
    >>> one = torch.eye(2)
    >>> tensor_parallel(torch.tensor([[2.0, 1.0]]), one, one, one, 2)[:, 0]
    tensor([[3.5232, 0.0000],
            [0.0000, 0.7311]])
    ```

    ★
    - Raise a `ValueError` if `processes` is below 1 or does not divide the number of hidden units.
    """
    ### BEGIN SOLUTION
    if processes < 1 or gate.shape[1] % processes:
        raise ValueError(f"processes={processes}: expected a divisor of {gate.shape[1]} hidden units")
    parts = zip(gate.chunk(processes, 1), up.chunk(processes, 1), down.chunk(processes, 0), strict=True)
    return torch.stack([(torch.nn.functional.silu(x @ g) * (x @ u)) @ d for g, u, d in parts])
    ### END SOLUTION


@tensor_parallel.cases
def _(draw):
    one = torch.eye(2, dtype=torch.float64)
    yield Case("two hidden units, two processes", (torch.tensor([[2.0, 1.0]], dtype=torch.float64), one, one, one, 2))
    tokens, width, each = draw.sizes(3, 2, 6)
    for processes in (2, 3, 1):
        hidden = each * processes
        weights = draw.normal(width, hidden), draw.normal(width, hidden), draw.normal(hidden, width)
        shows = "one process has everything" if processes == 1 else f"{processes} processes"
        yield Case(shows, (draw.normal(tokens, width), *weights, processes))
    weights = draw.normal(width, 6), draw.normal(width, 6), draw.normal(6, width)
    yield Case("a process for each hidden unit", (draw.normal(tokens, width), *weights, 6))
    yield Case(
        "hidden units that cannot be divided equally are rejected",
        (draw.normal(tokens, width), *weights, 4),
        refuse=True,
    )
    yield Case("zero processes are rejected", (draw.normal(tokens, width), *weights, 0), refuse=True)


def _silu(x):
    return x * torch.sigmoid(x)


def _checked(gate, processes):
    if processes < 1 or gate.shape[1] % processes:
        raise ValueError("processes: expected a divisor")


@tensor_parallel.mistake("each process returns the whole output: it has only its own hidden units")
def _(x, gate, up, down, processes):
    _checked(gate, processes)
    return ((_silu(x @ gate) * (x @ up)) @ down).expand(processes, -1, -1).clone()


@tensor_parallel.mistake("the outputs of the processes are added up, not averaged: do not divide by their number")
def _(x, gate, up, down, processes):
    return tensor_parallel.reference(x, gate, up, down, processes) / processes


@tensor_parallel.mistake("each process has neighbouring hidden units, not every second or third one")
def _(x, gate, up, down, processes):
    _checked(gate, processes)
    hidden = _silu(x @ gate) * (x @ up)
    return torch.stack([hidden[:, r::processes] @ down[r::processes] for r in range(processes)])


@tensor_parallel.mistake("apply the nonlinearity to the gate only")
def _(x, gate, up, down, processes):
    return tensor_parallel.reference(x, up, gate, down, processes)


@tensor_parallel.mistake("the gate is missing: silu(x @ gate) times (x @ up)")
def _(x, gate, up, down, processes):
    _checked(gate, processes)
    parts = zip(gate.chunk(processes, 1), down.chunk(processes, 0), strict=True)
    return torch.stack([_silu(x @ g) @ d for g, d in parts])


@tensor_parallel.mistake("you added up the results: return what each process computed, stacked along a new first axis")
def _(x, gate, up, down, processes):
    return tensor_parallel.reference(x, gate, up, down, processes).sum(0)


@tensor_parallel.mistake("hidden units that cannot be divided among the processes must be rejected with a ValueError")
def _(x, gate, up, down, processes):
    hidden = _silu(x @ gate) * (x @ up)
    parts = zip(hidden.tensor_split(max(processes, 1), 1), down.tensor_split(max(processes, 1), 0), strict=True)
    return torch.stack([h @ d for h, d in parts])


@tensor_parallel.variant
def _(x, gate, up, down, processes):
    # Compute all hidden units at once, with an axis for the processes
    if processes < 1 or down.shape[0] % processes != 0:
        raise ValueError("processes: expected a divisor")
    hidden = torch.sigmoid(x @ gate) * (x @ gate) * (x @ up)
    hidden = hidden.reshape(x.shape[0], processes, -1).transpose(0, 1)
    return hidden @ down.reshape(processes, -1, down.shape[1])


@tensor_parallel.variant
def _(x, gate, up, down, processes):
    # Use slices
    if processes < 1 or gate.shape[1] % processes != 0:
        raise ValueError("processes: expected a divisor")
    each, found = gate.shape[1] // processes, []
    for rank in range(processes):
        mine = slice(rank * each, (rank + 1) * each)
        found.append((_silu(x @ gate[:, mine]) * (x @ up[:, mine])) @ down[mine])
    return torch.stack(found)


# 26.5


@exercise(
    "26.5",
    "What a ring has found",
    task="Merge the attention outputs of several processes",
    points=3,
    difficulty=3,
    minutes=20,
    hints=(
        "Each process divided its output by its own sum of exponentials. Multiply it by that sum again, and divide by the sum over all processes.",
        "`log_sums` are logarithms of these sums: weight process p by exp(log_sums[p] - logsumexp over all processes).",
        "If no process has a visible key for a query, all its `log_sums` are -inf, and -inf minus -inf is NaN. Subtract 0 in that case.",
    ),
)
def merge(outputs, log_sums):
    """Several processes have computed attention for the same queries, each with its own keys. `outputs` (process,
    query, d_v) holds their outputs, each of which is a mean of the process's values with weights that add up to one.
    `log_sums` (process, query) holds the logarithms of the sums of exp(score) over each process's keys. Return the output of
    attention with all keys, (query, d_v).

    ```python
    >>> merge(torch.tensor([[[8.0]], [[0.0]]]), torch.tensor([[0.0], [1.0986]]))
    tensor([[2.0000]])
    ```

    ★
    - Scores may be as large as a million.
    - If a process has no visible key, its `log_sums` is `-inf`, and its output must have no effect, even if it is NaN.
    - A query without a visible key in any process gets zeros.
    """
    ### BEGIN SOLUTION
    largest = log_sums.amax(0, keepdim=True)
    powers = (log_sums - torch.where(largest == -torch.inf, 0.0, largest)).exp()  # (process, query), at most 1
    total = powers.sum(0)
    weights = powers / torch.where(total == 0, 1.0, total)
    kept = torch.where((log_sums == -torch.inf)[..., None], 0.0, outputs)
    return (weights[..., None] * kept).sum(0)
    ### END SOLUTION


@merge.cases
def _(draw):
    double = torch.float64
    yield Case(
        "one query, two processes",
        (torch.tensor([[[8.0]], [[0.0]]], dtype=double), torch.tensor([[0.0], [math.log(3)]], dtype=double)),
    )
    processes, queries, width = draw.sizes(3, 2, 6)
    outputs, sums = draw.normal(processes, queries, width), draw.normal(processes, queries)
    yield Case("several queries", (outputs, sums))
    yield Case("a single process", (outputs[:1], sums[:1]))
    yield Case("equal sums: the mean", (outputs, torch.zeros(processes, queries, dtype=double)))
    hidden = sums.clone()
    hidden[0] = -math.inf
    yield Case(
        "everything is hidden in one process",
        (outputs, hidden),
        right="in a causal ring the first queries meet such processes",
    )
    nan = outputs.clone()
    nan[0] = math.nan
    yield Case(
        "the output of a process without visible keys may be NaN",
        (nan, hidden),
        robust="a careless process divides 0 by 0",
    )
    yield Case("large scores", (outputs, 1e6 + sums), robust="the lesson has no such scores")
    nobody = sums.clone()
    nobody[:, 0] = -math.inf
    yield Case("a query without any visible key", (outputs, nobody), robust="a causal query sees itself")


def _kept(outputs, log_sums):
    return torch.where((log_sums == -torch.inf)[..., None], 0.0, outputs)


def _weighted(outputs, log_sums, powers):
    total = powers.sum(0)
    return ((powers / torch.where(total == 0, 1.0, total))[..., None] * _kept(outputs, log_sums)).sum(0)


def _powers(log_sums):
    largest = log_sums.amax(0, keepdim=True)
    return (log_sums - torch.where(largest == -torch.inf, 0.0, largest)).exp()


@merge.mistake("weight the processes by their sums of exponentials: a plain mean weights all equally")
def _(outputs, log_sums):
    return _kept(outputs, log_sums).mean(0)


@merge.mistake("your weights add up to more than one: divide them by their sum")
def _(outputs, log_sums):
    return (_powers(log_sums)[..., None] * _kept(outputs, log_sums)).sum(0)


@merge.mistake("`log_sums` are logarithms: take the exponential before you use them as weights")
def _(outputs, log_sums):
    finite = torch.where(log_sums == -torch.inf, 0.0, log_sums)
    return (finite[..., None] * _kept(outputs, log_sums)).sum(0) / finite.sum(0)[..., None]


@merge.mistake("the softmax runs over the processes, not over the queries")
def _(outputs, log_sums):
    largest = log_sums.amax(1, keepdim=True)
    powers = (log_sums - torch.where(largest == -torch.inf, 0.0, largest)).exp()
    return ((powers / powers.sum(1, keepdim=True).clamp(min=1e-300))[..., None] * _kept(outputs, log_sums)).sum(0)


@merge.mistake("exp of a large score overflows: subtract the largest first")
def _(outputs, log_sums):
    return _weighted(outputs, log_sums, log_sums.exp())


@merge.mistake("if no process has a visible key for a query, -inf minus -inf is NaN: return zeros for such a query")
def _(outputs, log_sums):
    weights = torch.softmax(log_sums, 0)
    return (weights[..., None] * _kept(outputs, log_sums)).sum(0)


@merge.mistake("0 times NaN is NaN: replace an output that must have no effect, instead of multiplying it by 0")
def _(outputs, log_sums):
    powers = _powers(log_sums)
    total = powers.sum(0)
    return ((powers / torch.where(total == 0, 1.0, total))[..., None] * outputs).sum(0)


@merge.variant
def _(outputs, log_sums):
    # Use a softmax over the processes, and zeros if no process has a key
    kept = torch.where(log_sums[..., None] == -torch.inf, 0.0, outputs)
    nobody = (log_sums == -torch.inf).all(0)
    weights = torch.softmax(torch.where(nobody, 0.0, log_sums), 0)
    return torch.where(nobody[:, None], 0.0, torch.einsum("pq,pqd->qd", weights, kept))


@merge.variant
def _(outputs, log_sums):
    # Merge one process after the other, as on the ring
    mixture, largest, total = (
        torch.zeros_like(outputs[0]),
        torch.full_like(log_sums[0], -torch.inf),
        torch.zeros_like(log_sums[0]),
    )
    for output, own in zip(outputs, log_sums, strict=True):
        new = torch.maximum(largest, own)
        safe = torch.where(new == -torch.inf, 0.0, new)
        shrink, power = (largest - safe).exp(), (own - safe).exp()
        mixture = mixture * shrink[:, None] + power[:, None] * torch.where((own == -torch.inf)[:, None], 0.0, output)
        total, largest = total * shrink + power, new
    return mixture / torch.where(total == 0, 1.0, total)[:, None]
