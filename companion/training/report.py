"""Messages about a run: its data, the baselines, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.ground.display import count, table

if TYPE_CHECKING:
    from companion.costs.chips import Peak
    from companion.training.run_folder import RunFolder
    from companion.training.tasks.task import Task
    from companion.training.trainer import Trainer


def head(task: Task, trainer: Trainer, folder: RunFolder, peak: Peak | None = None) -> str:
    """Describe the model to train, the data and the machine, including the machine's `peak` if it is known."""
    config = task.config
    stacks = "2 x " if config.stack == "encoder_decoder" else ""
    rows = [
        *task.facts(),
        (
            "model",
            f"{trainer.parameters:,} parameters: {stacks}{config.layers} layers, "
            f"d_model {config.d_model}, {config.attention.heads} heads, context {config.context}",
        ),
        ("training", task.amount(trainer.config.updates)),
        ("machine", f"{_device_name(trainer)}, {trainer.precision}"),
        *([] if peak is None else [("", str(peak))]),
        ("run", str(folder.path)),
    ]
    return "".join(f"{f'{name:<9} {value}'.rstrip()}\n" for name, value in rows)


def _device_name(trainer: Trainer) -> str:
    import torch

    if trainer.device.type == "cuda":
        name = torch.cuda.get_device_name(trainer.device)
    else:
        name = f"{trainer.device.type}, {count(torch.get_num_threads(), 'thread')}"
    return name if trainer.parallel.world == 1 else f"{trainer.parallel}, each on {name}"


def baseline_table(marks: Mapping[str, float], own: float | None = None) -> str:
    """Format the baselines as a table, followed by the model's own bits per byte if they are known."""
    rows = list(marks.items()) + ([("this model", own)] if own is not None else [])
    best = min(value for _, value in rows)
    cells = [(name, f"{value:.3f}", "the best" if own is not None and value == best else "") for name, value in rows]
    return f"bits per byte of the text it is measured on (lower is better)\n{table(cells, left=(0, 2))}\n"


def text_verdict(marks: Mapping[str, float], result: Mapping[str, Any]) -> str:
    """Report how a finished text run compares with the baselines, whether or not it beats them.

    Without baselines, only the run's result is reported.
    """
    perplexity = f"Perplexity {result['perplexity']:.1f} per token over {result['tokens']:,} tokens."
    if not marks:
        return f"{baseline_table(marks, result['bits_per_byte'])}\n{perplexity}"
    name, best = min(marks.items(), key=lambda item: item[1])
    own = result["bits_per_byte"]
    if own < best:
        verdict = f"The model needs {1 - own / best:.1%} fewer bits than the best baseline ({name})."
    else:
        verdict = f"{name} needs {1 - best / own:.1%} fewer bits than the model: give the model more text or updates."
    return f"{baseline_table(marks, own)}\n{verdict}\n{perplexity}"
