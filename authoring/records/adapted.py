"""Part of the record for lesson 20: SmolLM2 with adapters, fine-tuned on sums with and without working.

The runs use the lesson's own cells and need the model (`companion get smollm2`). Results are stored in a folder and
reused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from authoring.comparisons.cells import names_of
from authoring.records.stored import stored
from companion_school.study.real import real_model

RUNS = tuple(
    (kind, updates, start) for kind in ("straight", "with working") for updates in (15, 30) for start in (0, 1, 2)
)
"""Kind of answers, number of updates and seed of each run."""
ASKED = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
CELLS = (
    "setup", "sets-up-words", "sets-up-write", "sets-up-books", "template", "sets-up-templates", "sets-up-counts",
    "answers", "sets-up-people", "fine-tune", "adapter", "sets-up-names", "sets-up-sums", "tuned",
)  # fmt: skip


def adapted(folder: Path) -> list[dict[str, Any]]:
    """Return each run's record: the share of right answers to 100 unseen sums, and an answer on another subject.

    The first run makes no updates, so it shows the model before fine-tuning.

    Raises:
        ValueError: If SmolLM2 is not on this machine.
    """
    return [run("before", 0, 0, folder)] + [run(*one, folder) for one in RUNS]


def run(kind: str, updates: int, start: int, folder: Path) -> dict[str, Any]:
    """Return the record of a run. If it is not stored yet, train and measure first."""
    file = folder / f"smollm2-{kind.replace(' ', '-')}-{updates}-{start}.json"

    def make() -> dict[str, Any]:
        if (opened := real_model("smollm2")) is None:
            raise ValueError("SmolLM2 is not on this machine; `companion get smollm2` downloads it")
        model, tokenizer = opened
        lesson = names_of("20", *CELLS)
        if updates:
            model = lesson["tuned"](model, tokenizer, kind == "with working", start, updates)
        found = {"kind": kind, "updates": updates, "start": start}
        found |= {"right": lesson["right_sums"](model, tokenizer)}
        found |= {"says": lesson["continued"](model, tokenizer, ASKED)[0]}
        found |= {"learned": sum(w.numel() for w in model.parameters() if w.requires_grad) if updates else 0}
        return found

    return stored(file, make)
