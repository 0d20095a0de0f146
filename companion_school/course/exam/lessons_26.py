"""Examination questions on lesson 26."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason


@number("26.ring")
def _(draw: Random) -> Asked:
    billions, processes = draw.choice([3, 7, 13, 70]), draw.choice([4, 8, 16, 64])
    wide, gigabytes = draw.choice([2, 4]), draw.choice([25, 50, 450])
    text = (
        f"{processes} GPUs all-reduce the gradient of a model with {billions} billion parameters on a ring. Each "
        f"element takes {wide} bytes, and each GPU sends {gigabytes} GB ($10^9$ bytes each) per second. How many "
        "seconds does this take, without latency?"
    )
    key = (
        f"Reduce-scatter and all-gather: each sends $2 \\cdot \\frac{{{processes - 1}}}{{{processes}}}$ of "
        f"{billions * wide} GB, divided by {gigabytes} GB per second."
    )
    return Asked(text, key, 2 * (processes - 1) / processes * billions * wide / gigabytes)


@number("26.bubble", points=2)
def _(draw: Random) -> Asked:
    stages, micro, percent = draw.choice([4, 8, 16]), draw.choice([8, 16, 24]), draw.choice([10, 20])
    text = (
        f"A pipeline with {stages} equally fast stages runs {micro} micro-batches in each update. By how many percent "
        "does the time of an update shrink if the same batch is cut into as many micro-batches as are needed for a "
        f"bubble of {percent} %? (A micro-batch's time is proportional to its size. Their number need not be whole.)"
    )
    key = (
        "The work of a stage takes the same time as before, and its share is 1 minus the bubble. The old bubble is "
        f"${stages - 1} / ({micro} + {stages - 1})$. So the new time is $(1 - \\text{{old bubble}}) / (1 - "
        f"{percent / 100})$ of the old one, and the answer is 1 minus this, in percent."
    )
    old = (stages - 1) / (micro + stages - 1)
    return Asked(text, key, 100 * (1 - (1 - old) / (1 - percent / 100)))


reason(
    "26.mesh",
    "A model is trained on servers with eight GPUs each. Inside a server each GPU sends 450 GB per second, and "
    "between servers 50. Say where you would put tensor parallelism, pipeline parallelism and data parallelism, and "
    "for each of them what it sends and whether this can overlap with computation.",
    "Tensor parallelism inside a server: two all-reduces of the stream per layer in the forward pass and two in the "
    "backward pass, and the next product needs their result, so hardly anything overlaps (1). Pipeline parallelism "
    "across servers: it sends the stream of a micro-batch between neighbouring stages, which is little, and its cost "
    "is the bubble (1). Data parallelism across servers: it sends the gradient once per update (1), which overlaps "
    "with the backward pass if each chip has enough tokens, whatever the number of parameters (1).",
)
broken(
    "26.scatter",
    "`columns` (process, part, number) holds the initial data of each process. The function simulates a "
    "reduce-scatter on a ring: in each step a process sends a parcel to the next one, which adds its own part. At "
    "the end process `rank` should hold the sum of part `rank`.",
    """
def reduce_scatter(columns):
    n = len(columns)
    parcels = [columns[rank, rank - 1] for rank in range(n)]
    for step in range(1, n):
        arrived = [parcels[rank - 1] for rank in range(n)]
        parcels = [arrived[rank] + columns[rank, (rank - step) % n] for rank in range(n)]
    return torch.stack(parcels)
""",
    """
def reduce_scatter(columns):
    n = len(columns)
    parcels = [columns[rank, rank - 1] for rank in range(n)]
    for step in range(1, n):
        arrived = [parcels[rank - 1] for rank in range(n)]
        parcels = [arrived[rank] + columns[rank, (rank - step - 1) % n] for rank in range(n)]
    return torch.stack(parcels)
""",
    "columns = torch.arange(24.0).view(3, 4, 2)[:, :3]\nassert torch.equal(reduce_scatter(columns), columns.sum(0))",
    "The parcel that arrives after `step` steps began `step` processes to the left, with the part one below that "
    "process's number, so it holds part rank - step - 1. The process has to add its own copy of this part. With rank "
    "- step it adds another part, and the sums mix several parts.",
)
