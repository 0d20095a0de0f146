"""Moving figure of pipeline parallelism: when each stage works, and when it is idle in the bubble (lesson 26)."""

from __future__ import annotations

from companion_school.study import figures
from companion_school.study.live import moving

MOST_STAGES, MOST_MICRO_BATCHES = 8, 16
FORWARD, BACKWARD = 1, 2  # units of time

Task = tuple[str, int, int, int]
"""Direction ("F" or "B"), micro-batch, stage and start time."""


def pipeline(*, stages: int = 4, micro_batches: int = 4, caption: str = "") -> None:
    """Show when each stage of a pipeline runs the forward and backward passes of each micro-batch.

    Args:
        stages: Initial number of stages, 1 to 8.
        micro_batches: Initial number of micro-batches, 1 to 16.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: A number is out of range.
    """
    if stages not in range(1, MOST_STAGES + 1):
        raise ValueError(f"stages={stages}: expected 1 to {MOST_STAGES}")
    if micro_batches not in range(1, MOST_MICRO_BATCHES + 1):
        raise ValueError(f"micro_batches={micro_batches}: expected 1 to {MOST_MICRO_BATCHES}")
    tasks = schedule(stages, micro_batches)
    end = max(start + _length(kind) for kind, _, _, start in tasks)
    fig, ax = figures.subplots(width=7.2, height=0.42 * stages + 1.1)
    for kind, micro, stage, start in tasks:
        color, alpha = ("white", 1.0) if kind == "F" else (figures.PALETTE["blue"], 0.45)
        ax.barh(stage, _length(kind), left=start, height=0.9, color=color, alpha=alpha, edgecolor="black")
        ax.text(start + _length(kind) / 2, stage, str(micro), ha="center", va="center", fontsize=9)
    ax.set(xlim=(0, end), xticks=range(0, end + 1, 3), xlabel="time")
    ax.set(ylim=(stages - 0.4, -0.6), yticks=range(stages), ylabel="stage")
    ax.grid(False)
    bubble = 1 - micro_batches * (FORWARD + BACKWARD) / end
    moving.show(
        "pipeline",
        {"stages": stages, "micro": micro_batches, "most": [MOST_STAGES, MOST_MICRO_BATCHES]},
        fig,
        alt="A row for each stage of a pipeline, with boxes over time. Light boxes, forward, run down the stages like "
        "stairs; dark ones, backward, run up again. The corners are empty. The numbers of stages and micro-batches "
        "and the order move.",
        caption=caption,
        numbers={"stages": [stages], "micro-batches": [micro_batches], "bubble": [f"{bubble:.1%}"]},
        colors=8,
    )  # fmt: skip


def schedule(stages: int, micro_batches: int) -> list[Task]:
    """Return the tasks of a pipeline that runs the forward pass of all micro-batches before any backward pass."""
    tasks: list[Task] = []
    clock = [0] * stages
    for micro in range(micro_batches):
        ready = 0
        for stage in range(stages):
            start = max(clock[stage], ready)
            tasks.append(("F", micro, stage, start))
            clock[stage] = ready = start + FORWARD
    for micro in range(micro_batches):
        ready = 0
        for stage in reversed(range(stages)):
            start = max(clock[stage], ready)
            tasks.append(("B", micro, stage, start))
            clock[stage] = ready = start + BACKWARD
    return tasks


def _length(kind: str) -> int:
    return FORWARD if kind == "F" else BACKWARD
