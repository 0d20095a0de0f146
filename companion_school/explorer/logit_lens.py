"""Logit lens (nostalgebraist 2020): the predictions that a model would make if it ended after a given layer.

This module is for passes computed in Python. The logit lens of the page's own engine is in `engine.js`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from companion_school.explorer.activations import Rows

LENS = 3
"""Number of predicted tokens per state."""


@torch.no_grad()
def logit_lens(model: Any, states: Rows) -> dict[str, list[list[list[float]]]]:
    """Apply the final norm and the output head to each state of the residual stream.

    Args:
        model: The model.
        states: States of all positions, keyed by name.

    Returns:
        For each name and position, the `LENS` most probable tokens as [id, probability].
    """

    def head(x: Tensor) -> Tensor:
        x = model.decoder.norm(x)
        return model.head(x) if hasattr(model, "head") else x @ model.embedding.weight.T

    found = {}
    for name, rows in states.items():
        chances = head(torch.stack(rows)[None])[0].float().softmax(-1).topk(LENS, -1)
        found[name] = [
            [[int(id), float(p)] for id, p in zip(ids, ps, strict=True)]
            for ids, ps in zip(chances.indices, chances.values, strict=True)
        ]
    return found
