"""What a model would say next if it ended after a layer (the logit lens, nostalgebraist 2020): for passes that Python
computes; the page's own engine has it in `engine.js`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from companion_school.explorer.activations import Rows

LENS = 3
"""How many tokens it names."""


@torch.no_grad()
def logit_lens(model: Any, states: Rows) -> dict[str, list[list[list[float]]]]:
    """Of each state of the stream the likeliest tokens with their chances, by the last norm and the head."""

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
