"""What lesson 01 compares: the loss of an untrained table, and which rows become alike in training."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from authoring.comparisons.cells import names_of, row


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


def alike() -> dict[int, list[float]]:
    """By how much the mean cosine within the lesson's five groups is above that between them, by updates."""
    lesson = names_of("01", "setup", "data")
    follows, small = lesson["follows"], lesson["small"]
    groups = [["0", "1", "2", "7"], [")", "]", "}"], [" is", " are"], [" in", " of"], [" head", " row"]]
    spelled = {small.bytes_of(i): i for i in range(512)}
    rows = [spelled[token.encode()] for group in groups for token in group]
    of = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    same = of[:, None] == of
    within, found = same & ~torch.eye(len(rows), dtype=torch.bool), {}
    for updates in (200, 400):
        gaps = []
        for start in range(3):
            draw = torch.Generator().manual_seed(start)
            table, matrix = (
                (torch.randn(size, 32, generator=draw, dtype=follows.dtype) / 32**0.5).requires_grad_()
                for size in (512, 32)
            )
            adam = torch.optim.Adam([table, matrix], lr=0.02)
            for _ in range(updates):
                log_p = torch.log_softmax(32**0.5 * table @ matrix @ table.T, dim=1)
                adam.zero_grad()
                (-(follows * log_p).sum() / follows.sum()).backward()
                adam.step()
            unit = F.normalize(table.detach()[rows], dim=1)
            cosine = unit @ unit.T
            gaps.append((cosine[within].mean() - cosine[~same].mean()).item())
        print(row("five groups", f"{updates} updates", "cosine within - between", gaps), flush=True)
        found[updates] = gaps
    return found
