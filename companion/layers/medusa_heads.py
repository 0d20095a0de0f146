"""Heads for later tokens: what comes after the next one, guessed from the same state (lesson 18)."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class LaterHeads(nn.Module):
    """Head i of `count`, from 1 on, guesses the token i places after the next, from the state h that the next token
    comes of:

        h_i = h + silu(W_i h + b_i),    and the model's own output head makes logits of h_i

    (Cai et al. 2024, "Medusa", section 2.1.1; learned together with the model: Gloeckle et al. 2024, section 2). No
    head knows what the others guess.
    """

    def __init__(self, d_model: int, count: int) -> None:
        super().__init__()
        self.moves = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(count))

    def forward(self, stream: Float[Tensor, "*batch d_model"]) -> Iterator[Float[Tensor, "*batch d_model"]]:
        """h_1, h_2, ..., each made when it is asked for."""
        return (stream + F.silu(move(stream)) for move in self.moves)
