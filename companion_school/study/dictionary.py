"""A lookup task that attention alone can solve, and a model with a single head that learns it.

Each example is a new random dictionary. An entry is a token that means "key 17 has value 5", and a question is a token
that means "key 17?". The order of the tokens is irrelevant. No example is seen twice, so the accuracy during training
is the same as a test accuracy. Lesson 02 trains the head.

    keys, values, asked = dictionaries(torch.Generator().manual_seed(0))
    logits = Lookup(start=0, divisor=8)(keys, values, asked)
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

KEYS, VALUES, WIDTH = 128, 16, 64


class Lookup(nn.Module):
    """One attention head of width 64, with embeddings for the keys and values and an output layer over the 16 values.

    Args:
        start: Seed for the initial weights: embeddings with variance 1, and matrices that preserve that variance.
        divisor: Number by which the scores are divided; the square root of the width is 8.
    """

    def __init__(self, start: int, divisor: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(start)
        sizes = [(KEYS, WIDTH), (VALUES, WIDTH), *[(WIDTH, WIDTH)] * 3, (WIDTH, VALUES)]
        deviations = [1.0, 1.0, *[WIDTH**-0.5] * 4]
        drawn = [torch.randn(*size, generator=generator) * std for size, std in zip(sizes, deviations, strict=True)]
        self.key, self.value, self.W_q, self.W_k, self.W_v, self.out = map(nn.Parameter, drawn)
        self.divisor = divisor

    def weights(
        self, keys: Int[Tensor, "batch entry"], values: Int[Tensor, "batch entry"], asked: Int[Tensor, "batch query"]
    ) -> tuple[Float[Tensor, "batch query entry"], Float[Tensor, "batch entry width"]]:
        """Compute each question's attention weights over the entries, and the entries' value vectors.

        Args:
            keys: Key of each entry.
            values: Value of each entry.
            asked: Index of the entry that each question asks for.
        """
        entry = (self.key[keys] + self.value[values]) / 2**0.5
        q, k = self.key[keys.gather(1, asked)] @ self.W_q, entry @ self.W_k
        return torch.softmax(q @ k.transpose(-2, -1) / self.divisor, dim=-1), entry @ self.W_v

    def forward(
        self, keys: Int[Tensor, "batch entry"], values: Int[Tensor, "batch entry"], asked: Int[Tensor, "batch query"]
    ) -> Float[Tensor, "batch query value"]:
        """Return the logits over the values for each question. The arguments are those of `weights`."""
        a, v = self.weights(keys, values, asked)
        return a @ v @ self.out


def dictionaries(
    generator: torch.Generator, batch: int = 32, questions: int = 8, entries: int = 64
) -> tuple[Int[Tensor, "batch entry"], Int[Tensor, "batch entry"], Int[Tensor, "batch query"]]:
    """Draw examples: distinct keys, their values, and for each question the index of the entry that answers it."""
    keys = torch.rand(batch, KEYS, generator=generator).argsort(dim=-1)[:, :entries]
    values = torch.randint(VALUES, (batch, entries), generator=generator)
    return keys, values, torch.randint(entries, (batch, questions), generator=generator)
