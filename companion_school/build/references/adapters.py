"""Stage 17, adapters.py: a frozen model learns to answer (lesson 20).

Each frozen matrix gets a trainable low-rank change, and only the answers count in the loss.
"""

import torch
from torch import Tensor, nn


class LoRA(nn.Module):
    """A linear layer, `linear`, plus a low-rank change: linear(x) + alpha / rank * up(down(x)).

    `down` (to `rank`) and `up` (from `rank`) are linear layers without bias. `up` is initialized to zero, so the
    layer's output does not change at first.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.linear, self.scale = linear, alpha / rank
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale * self.up(self.down(x))

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return the linear layer with the change added to its weight."""
        self.linear.weight += self.scale * self.up.weight @ self.down.weight
        return self.linear


def put_adapters(model: nn.Module, rank: int, alpha: float) -> nn.Module:
    """Return the same model with all weights frozen and a `LoRA` in place of every linear layer of its decoder."""
    model.requires_grad_(False)
    for module in list(model.decoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, LoRA(child, rank, alpha))
    return model


def merge_adapters(model: nn.Module) -> nn.Module:
    """Return the same model with every `LoRA` replaced by its merged linear layer."""
    for module in list(model.decoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoRA):
                setattr(module, name, child.merged())
    return model


def example(question: list[int], answer: list[int], stop: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets, both (length), for a question and its answer, followed by `stop`.

    Targets are the ids shifted by one position. Targets in the question and after `stop` are -100, which `loss_of`
    ignores; the remaining inputs are `stop`. Raises `ValueError` if there are more than `length` inputs.
    """
    ids = [*question, *answer, stop]
    if len(ids) - 1 > length:
        raise ValueError(f"an example of {len(ids) - 1} tokens: expected at most {length}")
    blank = length - len(ids) + 1
    targets = [-100] * (len(question) - 1) + [*answer, stop] + [-100] * blank
    return torch.tensor(ids[:-1] + [stop] * blank), torch.tensor(targets)
