"""Comparisons for lesson 16: changes to the transformer block.

The changes are limits on scores at a high learning rate, a gate on a head, partial rotary positions, norms around
branches, balancing by a loss or a bias, and the mixing of four streams in 30 layers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from authoring.comparisons.cells import names_of, row

STARTS = range(3)
BUDGETS = (150, 450)


def _noted(found: dict[Any, list[float]], setting: str, budget: str, measure: str, values: list[float]) -> None:
    found[setting, budget, measure] = values
    print(row(setting, budget, measure, values), flush=True)


def held() -> dict[Any, list[float]]:
    """Measure bits per held-out byte and the largest score in an update, at the usual and at a high learning rate."""
    cells = ("setup", "sets-up-text", "qk-clip", "sets-up-learn", "sets-up-watch", "sets-up-held")
    lesson, found = names_of("16", *cells), {}
    for rate in (lesson["usual"], lesson["high"]):
        for setting, (config, more) in lesson["holds"].items():
            runs = [lesson["learn"](config, start, rate, BUDGETS, **more) for start in STARTS]
            for at, budget in enumerate(BUDGETS):
                said = f"{budget} at {rate:g}"
                _noted(found, setting, said, "bits a held-out byte", [run.bits[at] for run in runs])
                _noted(found, setting, said, "the largest score", [run.score[budget - 1] for run in runs])
    return found


def silent() -> dict[Any, list[float]]:
    """Measure the behavior of a head at tokens that ask for an answer and at others, with and without a gate."""
    lesson, found, budgets = names_of("16", "setup", "sets-up-signs", "one-head", "sets-up-repeat"), {}, (200, 600)
    said = {"first": "weight of first sign", "open": "gate open", "wrong without it": "wrong, first hidden"}
    for name, gated in (("no gate", False), ("with a gate", True)):
        runs = [lesson["repeat"](gated, start, budgets)[1] for start in STARTS]
        for at, budget in enumerate(budgets):
            for measure in runs[0][at]:
                for part, where in enumerate(("asked", "not asked")):
                    values = [run[at][measure][part] for run in runs]
                    _noted(found, f"{name}, {where}", f"{budget} updates", said.get(measure, measure), values)
    return found


def balanced() -> dict[Any, list[float]]:
    """Measure bits per held-out byte and load balance without balancing, with the loss and with the bias."""
    cells = "setup", "sets-up-text", "sets-up-learn", "sets-up-watch", "sets-up-held", "sets-up-experts"
    lesson, found = names_of("16", *cells), {}
    for setting, (config, more) in lesson["remedies"].items():
        runs = [lesson["learn"](config, start, lesson["usual"], BUDGETS, **more) for start in STARTS]
        for at, budget in enumerate(BUDGETS):
            said, loads = f"{budget} updates", [SimpleNamespace(load=run.load[:budget]) for run in runs]
            _noted(found, setting, said, "bits a held-out byte", [run.bits[at] for run in runs])
            _noted(found, setting, said, "as even as", [lesson["evenness"](load) for load in loads])
    return found


def placed() -> dict[Any, list[float]]:
    """Measure bits per held-out byte in windows of 64 tokens, as in training, and of 256 tokens.

    The models rotate whole heads, half of each head, or whole heads in all but every fourth layer.
    """
    cells = "setup", "sets-up-text", "sets-up-learn", "sets-up-watch", "sets-up-held", "sets-up-places"
    lesson, found = names_of("16", *cells), {}
    for setting, config in lesson["places"].items():
        for budget in BUDGETS:
            models = [lesson["learn"](config, start, lesson["usual"], (budget,)).model for start in STARTS]
            for window in (64, 256):
                values = [lesson["bits"](model, window, window) for model in models]
                _noted(found, setting, f"{budget} updates", f"bits, windows of {window}", values)
    return found


def mixed() -> dict[Any, list[float]]:
    """Train 30 layers with four streams, and multiply their 60 doubly stochastic mixing matrices.

    Measure the mean of the matrices' diagonals, and the smallest entry, the largest entry and the second singular value
    of their product. The second singular value is the share of a difference between streams that survives all layers.
    The matrices begin near the identity, because their scores have 5 on the diagonal.
    """
    lesson, found = names_of("16", "setup", "sets-up-text"), {}
    runs = [_train_streams(lesson, 5.0, start, (50, 100)) for start in STARTS]
    for at, budget in enumerate((0, 50, 100)):
        for measure in runs[0][at]:
            values = [run[at][measure] for run in runs]
            _noted(found, "four streams", f"{budget} updates", measure, values)
    return found


class _Streams(nn.Module):
    """A decoder with four residual streams. The weights for reading, writing and mixing do not depend on the state."""

    def __init__(self, model: Any, count: int, diagonal: float) -> None:
        super().__init__()
        self.model, branches = model, 2 * len(model.decoder.blocks)
        self.reads, self.writes = nn.Parameter(torch.zeros(branches, count)), nn.Parameter(torch.randn(branches, count))
        self.scores = nn.Parameter(diagonal * torch.eye(count).repeat(branches, 1, 1))

    def mixings(self) -> Tensor:
        """Return doubly stochastic matrices (branch, stream, stream), computed by 20 Sinkhorn iterations."""
        C = self.scores.exp()
        for _ in range(20):
            C = C / C.sum(-1, keepdim=True)
            C = C / C.sum(-2, keepdim=True)
        return C

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits for each next token."""
        C, a, b = self.mixings(), self.reads.softmax(-1), 2 * self.writes.sigmoid()
        x, positions = self.model.embedding(ids), torch.arange(ids.shape[1])
        X = torch.stack(4 * [x], dim=-2)  # (batch, token, stream, d_model)
        branches = [branch for block in self.model.decoder.blocks for branch in (block, block.feed_forward)]
        for at, branch in enumerate(branches):
            read = a[at] @ X
            if at % 2 == 0:
                q, k, v = branch.attention.project(branch.attention_norm(read), positions)
                heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                said = branch.attention.output(heads.transpose(1, 2).flatten(2))
            else:
                said = branch(branches[at - 1].feed_forward_norm(read))
            X = C[at] @ X + b[at][:, None] * said[..., None, :]
        return self.model.head(self.model.decoder.norm(X.mean(-2)))


def _train_streams(lesson: dict[str, Any], diagonal: float, start: int, budgets: tuple[int, ...]) -> list[Any]:
    torch.manual_seed(start)
    attention, network = lesson["AttentionConfig"](2), lesson["FeedForwardConfig"](43)
    config = lesson["small"].with_(d_model=16, layers=30, attention=attention, feed_forward=network)
    model = _Streams(lesson["Transformer"](config), 4, diagonal)
    windows = lesson["TrainingBatches"](lesson["train"], context=48, batch=6, seed=start)
    others = [weight for weight in model.parameters() if weight is not model.scores]
    groups = [{"params": others, "rate": 3e-3}, {"params": [model.scores], "rate": 5e-2}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)

    def measures() -> dict[str, float]:
        with torch.no_grad():
            C = model.mixings()
            product = torch.linalg.multi_dot(list(C.flip(0)))
        low, high = product.min().item(), product.max().item()
        passes = torch.linalg.svdvals(product)[1].item()
        diagonals = C.diagonal(dim1=-2, dim2=-1).mean().item()
        return {"mean diagonal": diagonals, "smallest": low, "largest": high, "passes": passes}

    noted = [measures()]
    for step in range(1, max(budgets) + 1):
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * min(1, step / 20)
        ids, targets = windows(step)
        loss = F.cross_entropy(model(ids).mT, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in budgets:
            noted.append(measures())
            print(f"start {start}, {step} updates: loss {loss.item():.2f}", flush=True)
    return noted
