"""Heads that predict later tokens from the state that predicts the next token (lesson 18)."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class MedusaHeads(nn.Module):
    """Medusa heads. Head i predicts the token i positions after the next one.

    From the state h that predicts the next token, head i of `count`, counted from 1, computes

        h_i = h + silu(W_i h + b_i),    and the model's own output head computes logits from h_i

    (Cai et al. 2024, "Medusa", section 2.1.1). The heads are trained together with the model, as in multi-token
    prediction (Gloeckle et al. 2024, section 2). No head sees the predictions of the others.
    """

    def __init__(self, d_model: int, count: int) -> None:
        super().__init__()
        self.moves = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(count))

    def forward(self, stream: Float[Tensor, "*batch d_model"]) -> Iterator[Float[Tensor, "*batch d_model"]]:
        """Yield h_1, h_2, ..., each computed on demand."""
        return (stream + F.silu(move(stream)) for move in self.moves)
