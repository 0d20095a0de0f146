"""What lesson 01 compares: the loss of an untrained table, by the deviation of its numbers and its width."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from authoring.comparisons.cells import row


def sizes() -> dict[tuple[str, int], list[float]]:
    """The loss before training, from three starts, by deviation and width."""
    found = {}
    for width in (64, 256, 1024):
        for name, sigma in (("1/sqrt(d)", width**-0.5), ("1", 1.0), ("0.02", 0.02)):
            losses = []
            for start in range(3):
                draw = torch.Generator().manual_seed(start)
                state = F.normalize(torch.randn(400, width, generator=draw), dim=1) * width**0.5
                logits = state @ (sigma * torch.randn(4000, width, generator=draw)).T
                losses.append(F.cross_entropy(logits, torch.randint(4000, (400,), generator=draw)).item())
            print(row(f"deviation {name}", f"width {width}", "loss", losses), flush=True)
            found[name, width] = losses
    return found
