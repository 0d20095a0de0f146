"""Record for lesson 15: kinds of attention with caches of equal size, for two budgets and three seeds.

The runs use the lesson's own `trained` and `loss_of`. Results are stored in `build/records/cache` and reused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from authoring.records.stored import LessonRuns, stored
from companion.config.model import AttentionConfig, LatentConfig

STARTS = (0, 1, 2)
KINDS = {
    "MHA": AttentionConfig(8, d_head=16),
    "GQA, 2 groups": AttentionConfig(8, 2, d_head=16),
    "MQA": AttentionConfig(8, 1, d_head=16),
    "MLA, 48 + 16": AttentionConfig(8, d_head=16, latent=LatentConfig(kv_lora_rank=48, d_rope=16)),
    "MLA, 16 + 16": AttentionConfig(8, d_head=16, latent=LatentConfig(kv_lora_rank=16, d_rope=16)),
    "MLA, 24 + 8": AttentionConfig(8, d_head=16, latent=LatentConfig(kv_lora_rank=24, d_rope=8)),
}

BUDGETS = {300: tuple(KINDS), 900: tuple(KINDS)[:-1]}
"""The kinds that are trained, by the number of updates."""


class Runs(LessonRuns):
    """The lesson's training runs, whose results are stored in a folder."""

    number, cells = "15", ("setup", "sets-up-text")

    def __call__(self, kind: str, start: int, updates: int) -> dict[str, Any]:
        """Return a run's record: values cached per token and layer, attention parameters, and loss on unseen text."""
        file = self.folder / f"{kind.replace(' ', '').replace(',', '_')}-{start}-{updates}.json"

        def make() -> dict[str, Any]:
            config = self.lesson["small_decoder"](KINDS[kind])
            model = self.lesson["trained"](config, start, updates)
            with torch.no_grad():
                loss = self.lesson["loss_of"](model)
            return {
                "kind": kind,
                "start": start,
                "updates": updates,
                "kept": config.sizes.kept_numbers,
                "weights": sum(p.numel() for p in model.decoder.blocks[0].attention.parameters()),
                "loss": round(loss, 4),
            }

        return stored(file, make)


def cache(folder: Path) -> dict[str, Any]:
    """Return the record, which is a list of runs."""
    run = Runs(folder)
    asked = ((kind, start, updates) for updates, kinds in BUDGETS.items() for start in STARTS for kind in kinds)
    return {"runs": [run(*one) for one in asked]}
