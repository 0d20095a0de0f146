"""Use one layer of the package in a module of your own.

    python -m companion.examples.one_layer

`Attention` is an ordinary `nn.Module`, whose input and output both have the shape (batch, token, d_model). Here it is
combined with PyTorch's layers in a small classifier. It uses grouped queries and rotary positions, but no causal mask.
The classifier learns to tell whether a row of symbols contains the same symbol twice in succession, which no single
token reveals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from companion import Attention, AttentionConfig, PositionConfig, RMSNorm

SYMBOLS, LENGTH = 8, 6


class Twice(nn.Module):
    """Classifier that maps rows of symbols (batch, token) to logits of "no" and "yes": embedding, attention, network,
    maximum over tokens."""

    def __init__(self, d_model: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, d_model)
        self.norm = RMSNorm(d_model)
        config = AttentionConfig(heads=4, kv_heads=2)
        self.attention = Attention(d_model, config, causal=False, positions=PositionConfig("rotary"))
        self.network = nn.Sequential(nn.Linear(d_model, 96), nn.GELU(), nn.Linear(96, 2))

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.embedding(symbols)
        x = x + self.attention(self.norm(x))
        return self.network(x).amax(dim=1)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Return rows of symbols (batch, token) and, for each row, whether two neighbors are the same."""
    symbols = torch.randint(SYMBOLS, (rows, LENGTH))
    return symbols, (symbols[:, 1:] == symbols[:, :-1]).any(dim=1).long()


def main(updates: int = 600) -> None:
    torch.manual_seed(0)
    model = Twice()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for update in range(1, updates + 1):
        symbols, answers = batch(128)
        loss = nn.functional.cross_entropy(model(symbols), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 200 == 0 or update == updates:
            symbols, answers = batch(2000)
            right = (model(symbols).argmax(dim=-1) == answers).double().mean()
            print(f"update {update:4}: {right:.0%} of 2,000 new rows are right")


if __name__ == "__main__":
    main()
