"""Stage 20, first.py: the smallest model that learns, and gradient descent (lessons 01, 03 and 05).

One layer of attention between an embedding and a head, and a training loop of five lines.
"""

from collections.abc import Callable, Iterator

import torch
from attention import Attention
from positions import waves
from torch import Tensor, nn


class FirstModel(nn.Module):
    """Computes scores of all symbols at every position. It adds waves to the `embedding`, applies `attention` with as
    many key heads as query heads, and then applies `head`, a linear layer without bias."""

    def __init__(self, vocab: int, d_model: int, heads: int = 1):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d_model)
        self.attention = Attention(d_model, heads, heads)
        self.head = nn.Linear(d_model, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, token) -> (batch, token, vocab). There is no mask, so each token attends to all tokens. The positions
        are 0, 1, ..., on the device of `ids`."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.attention(self.embedding(ids) + waves(positions, self.embedding.embedding_dim)))


def descend(model: nn.Module, loss_at: Callable[[int], Tensor], updates: int, rate: float) -> Iterator[float]:
    """Gradient descent. Yields the loss of each update as a number. `loss_at(n)` computes the loss of update n = 0, 1,
    ...; then each weight that has a gradient moves downhill by `rate` times its gradient, and the gradients are
    cleared."""
    for n in range(updates):
        loss = loss_at(n)
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= rate * weight.grad
                    weight.grad = None
        yield loss.item()
