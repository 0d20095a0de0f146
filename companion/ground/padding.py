"""Pad sequences of unequal lengths on the right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def padded(rows: Sequence[Sequence[int] | Tensor], filler: int = 0) -> Int[Tensor, "batch token"]:
    """Pad nonempty rows to the length of the longest row, and return them as one tensor."""
    return pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=filler)
