"""What a run prints about itself: what it trains on, what it has to beat, and how it came out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from companion.training.folder import RunFolder
    from companion.training.loop import Trainer
    from companion.training.run import Prepared


def print_head(prepared: Prepared, trainer: Trainer, folder: RunFolder) -> None:
    """What is about to be trained, on what, where."""
    from companion.training.run import total_bytes

    text, config, settings = prepared.text, prepared.config, prepared.settings
    train, held_out = text.split.train, text.split.held_out
    tokens = sum(len(ids) - 1 for ids in prepared.train)
    per_update = settings.batch * settings.accumulate * config.context
    updates = trainer.config.updates
    rows = [
        ("text", f"{text.corpus.title}: {count(text.corpus.documents, 'document')}, {text.corpus.bytes:,} bytes"),
        *(("", note) for note in (*text.corpus.notes, *text.split.notes)),
        ("", f"learns from {count(train, 'document')} ({total_bytes(train):,} bytes)"),
        ("", f"measured on {count(held_out, 'other document')} ({total_bytes(held_out):,} bytes)"),
        ("tokens", f"{config.vocab:,} kinds, {prepared.bytes_per_token:.2f} bytes each; {tokens:,} to learn from"),
        (
            "model",
            f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters: {config.layers} layers, "
            f"d_model {config.d_model}, {config.attention.heads} heads, context {config.context}",
        ),
        (
            "training",
            f"{updates:,} updates of {per_update:,} tokens, "
            f"{prepared.batches.epochs(updates * settings.accumulate):.1f} times through the text",
        ),
        ("machine", f"{_device_name(trainer)}, {trainer.precision}"),
        ("run", str(folder.path)),
    ]
    for name, value in rows:
        print(f"{name:<9} {value}".rstrip())
    print(flush=True)


def _device_name(trainer: Trainer) -> str:
    import torch

    if trainer.device.type == "cuda":
        return torch.cuda.get_device_name(trainer.device)
    return f"{trainer.device.type}, {torch.get_num_threads()} threads"


def count(items: Sequence[Any], noun: str) -> str:
    """`3 documents`."""
    return f"{len(items):,} {noun}{'' if len(items) == 1 else 's'}"


def print_yardsticks(marks: dict[str, float], own: float | None = None) -> None:
    """The yardsticks as a table, with the model's own bits per byte under them when it is known."""
    print("bits per byte of the text it is measured on (lower is better)")
    rows = list(marks.items()) + ([("this model", own)] if own is not None else [])
    best = min(value for _, value in rows)
    for name, value in rows:
        print(f"  {name:<40} {value:.3f}{'   the best' if own is not None and value == best else ''}")
    print(flush=True)


def print_result(record: dict[str, Any], result: dict[str, Any]) -> None:
    """How a finished run compares, whichever way it came out."""
    print_yardsticks(record["yardsticks"], result["bits_per_byte"])
    name, best = min(record["yardsticks"].items(), key=lambda item: item[1])
    own = result["bits_per_byte"]
    if own < best:
        print(f"The model needs {1 - own / best:.1%} fewer bits than the best yardstick ({name}).")
    else:
        print(f"{name} needs {1 - best / own:.1%} fewer bits than the model: give it more text, updates or parameters.")
    print(f"Perplexity {result['perplexity']:.1f} per token over {result['tokens']:,} tokens.")


def print_next(folder: RunFolder) -> None:
    """The command that makes the model write."""
    print(f'Next: companion generate --run {shlex.quote(str(folder.path))} --prompt "The "')
