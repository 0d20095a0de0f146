"""Products of groups of rows, each group with a matrix of its own, as one operation that compilers do not look into.

PyTorch 2.13 compiles `F.grouped_mm` in half precision alone. In fp32 there would be a loop over the experts, whose
sizes a compiler takes for constants: a new program for every routing.
"""

# No "from __future__ import annotations": the operators' schemas are read from the annotations.

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """`F.grouped_mm(rows, matrices, offs=ends)`, of which a compiler sees one operation where it cannot compile it."""
    if torch.compiler.is_compiling() and rows.dtype == torch.float32:
        return whole(rows, matrices, ends)
    return F.grouped_mm(rows, matrices, offs=ends)


@torch.library.custom_op("companion::grouped", mutates_args=())
def whole(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """rows[i] @ matrices[group of i]: (row, wide) and (group, wide, out) to (row, out).

    ends: behind each group's last row, int32; rows behind all groups give anything at all.
    """
    return F.grouped_mm(rows, matrices, offs=ends)


@whole.register_fake
def _(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@torch.library.custom_op("companion::grouped_outer", mutates_args=())
def grouped_outer(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Of each group rows^T gradient: (row, wide) and (row, out) to (group, wide, out)."""
    return F.grouped_mm(rows.T, gradient, offs=ends)


@grouped_outer.register_fake
def _(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], gradient.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, matrices, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    return whole(gradient, matrices.transpose(1, 2), ends), grouped_outer(rows, gradient, ends), None


whole.register_autograd(_backward, setup_context=_keep)
