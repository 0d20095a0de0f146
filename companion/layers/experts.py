"""Compute expert outputs, with tokens sorted by expert or matrices gathered by token (lesson 11)."""

# No "from __future__ import annotations": the operators' schemas are read from the annotations.

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Implementation = Literal["auto", "loop", "grouped", "gather", "every"]
"""Implementations of the experts (see `answers_of`). All of them give the same results."""


class Networks(NamedTuple):
    """Feed-forward networks of the same size: all experts of a layer, or one network for each row.

    Attributes:
        hidden: The function between the matrix products, from `feedforward.hidden`.
        gate: (expert, d_model, d_ff), or `None`.
        inner: (expert, d_model, d_ff).
        outer: (expert, d_ff, d_model).
        biases: Biases of gate, inner and outer, (expert, d_ff), (expert, d_ff) and (expert, d_model); each may be
            `None`.
    """

    hidden: Callable[..., Tensor]
    gate: Tensor | None
    inner: Tensor
    outer: Tensor
    biases: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)


def network_of(networks: Networks, index: int | Int[Tensor, "visit"]) -> Networks:
    """Select the network of one expert, or copy one network for each visit."""
    gate, *biases = (None if tensor is None else tensor[index] for tensor in (networks.gate, *networks.biases))
    first, second, third = biases
    return Networks(networks.hidden, gate, networks.inner[index], networks.outer[index], (first, second, third))


def _affine(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    out = x @ matrix
    return out if bias is None else out + bias.unsqueeze(-2)


def _affine_grouped(ends: Tensor, key: Tensor, rows: Tensor, matrices: Tensor, bias: Tensor | None) -> Tensor:
    out = grouped(rows, matrices, ends)
    return out if bias is None else out + F.pad(bias, (0, 0, 0, 1))[key]  # dropped visits use the padded last row


def outputs(
    networks: Networks,
    x: Float[Tensor, "*expert row d_model"],
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _affine,
) -> Float[Tensor, "*expert row d_model"]:
    """Apply the networks to x.

    Args:
        networks: The networks to apply.
        x: Their inputs, (..., row, d_model).
        product: Function that computes x @ matrix + bias for one matrix or for many at once.
    """
    of_gate, of_inner, of_outer = networks.biases
    inner = product(x, networks.inner, of_inner)
    if networks.gate is None:
        return product(networks.hidden(inner), networks.outer, of_outer)
    return product(networks.hidden(product(x, networks.gate, of_gate), inner), networks.outer, of_outer)


def answers_of(
    networks: Networks,
    tokens: Float[Tensor, "row d_model"],
    chosen: Int[Tensor, "row top_k"],
    kept: Bool[Tensor, "*batch top_k"] | None = None,
    way: Implementation = "auto",
) -> Float[Tensor, "row top_k d_model"]:
    """Compute the output of each chosen expert for each token, without the routing weights.

    The implementations give the same results:

    `"loop"`     Sort the tokens by expert and run one expert after the other. It supports any dtype and size, but has
                 to wait for the device to read the number of tokens per expert.
    `"grouped"`  Do the same in one call of `F.grouped_mm`, without waiting. It needs fp32, bf16 or fp16, and rows of
                 d_model and of d_ff elements that are multiples of 16 bytes.
    `"gather"`   Copy the matrices of each token's experts, without waiting. It is meant for a few tokens on a GPU,
                 and allows at most as many visits as there are experts, so that the copies are never larger than
                 the originals.
    `"every"`    Run every expert on every token and discard what was not chosen: expert / top_k times the work. The
                 operations do not depend on the data, which `torch.func` and the device "meta" require.
    `"auto"`     Choose the fastest implementation that supports the call.

    Args:
        networks: The experts.
        tokens: Expert inputs, (row, d_model).
        chosen: Indices of experts, (row, top_k).
        kept: Which visits take place, where a visit is one token at one of its experts, (row, top_k); `None` means all.
        way: The implementation, as above.

    Returns:
        Expert outputs, (row, top_k, d_model), undefined for visits that were dropped.

    Raises:
        ValueError: If the implementation does not support the call.
    """
    way = _way(networks, tokens, chosen, way)
    if way == "every":
        answers = outputs(networks, tokens.expand(networks.inner.shape[0], *tokens.shape)).transpose(0, 1)
        return answers.gather(1, chosen[..., None].expand(*chosen.shape, tokens.shape[1]))
    if way == "gather":
        rows = tokens[:, None].expand(*chosen.shape, -1).reshape(chosen.numel(), 1, -1)
        return outputs(network_of(networks, chosen.flatten()), rows).view(*chosen.shape, -1)
    if way == "loop" and tokens.shape[0] == 1:  # nothing to sort
        return torch.stack([outputs(network_of(networks, e), tokens) for e in chosen.flatten().tolist()], dim=1)
    key, order, inverse = by_expert(chosen, kept, len(networks.inner))
    rows = Reordered.apply(tokens, order, inverse, chosen.shape[1])
    if way == "grouped":
        if kept is not None:  # the kernel leaves the results and gradients of dropped visits undefined
            rows = rows.masked_fill((key == len(networks.inner))[:, None], 0)
        ends = _ends(networks, key).to(torch.int32)
        answers = outputs(networks, rows, partial(_affine_grouped, ends, key))
    else:
        answers = _in_turn(networks, rows, _ends(networks, key))
    return Reordered.apply(answers, inverse, order, 1).view(*chosen.shape, tokens.shape[1])


def _ends(networks: Networks, key: Int[Tensor, "visit"]) -> Int[Tensor, "expert"]:
    """Return the index after each expert's last visit, for visits that are sorted by expert."""
    return torch.searchsorted(key, torch.arange(len(networks.inner), device=key.device), right=True)


def _in_turn(networks: Networks, rows: Float[Tensor, "visit d_model"], ends: Int[Tensor, "expert"]) -> Tensor:
    """Run the experts one after the other, each on its own rows."""
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    *pieces, dropped = rows.split([*sizes, len(rows) - sum(sizes)])
    # Indexing is avoided, because the gradient of each inner[e] would be as large as inner itself.
    gates, b1, b2, b3 = (
        [None] * len(pieces) if tensor is None else tensor.unbind() for tensor in (networks.gate, *networks.biases)
    )
    biases = zip(b1, b2, b3, strict=True)
    each = zip(gates, networks.inner.unbind(), networks.outer.unbind(), biases, pieces, strict=True)
    # Experts without tokens are skipped, unless no expert has any.
    visited = [
        outputs(Networks(networks.hidden, gate, inner, outer, added), piece)
        for gate, inner, outer, added, piece in each
        if len(piece) or not sum(sizes)
    ]
    return torch.cat([*visited, torch.zeros_like(dropped)])


def _way(networks: Networks, tokens: Tensor, chosen: Tensor, wanted: Implementation) -> Implementation:
    """Choose the implementation. The tokens must already have the dtype of the matrix products."""
    if wanted not in get_args(Implementation):
        raise ValueError(f"experts={wanted!r}: expected 'auto', 'loop', 'grouped', 'gather' or 'every'")
    (number, d_model, d_ff), visits, top_k = networks.inner.shape, chosen.numel(), chosen.shape[1]
    size = tokens.element_size()
    if wanted == "gather" and visits > number:
        raise ValueError(
            f"experts='gather': expected at most {number} visits, one for each expert, got {visits}; "
            "with more, the copied matrices would be larger than the experts, so use 'grouped'"
        )
    fits = tokens.dtype in (torch.float32, torch.bfloat16, torch.float16)
    aligned = d_model * size % 16 == 0 and d_ff * size % 16 == 0
    if wanted == "grouped" and not fits:
        raise ValueError(f"experts='grouped': expected float32, bfloat16 or float16, got {tokens.dtype}; use 'loop'")
    if wanted == "grouped" and not aligned:
        raise ValueError(
            f"experts='grouped': expected d_model and d_ff to be multiples of {16 // size} (16 bytes), got "
            f"{d_model} and {d_ff}; use 'loop'"
        )
    if wanted == "auto" and (tokens.is_meta or _transformed(tokens)):
        return "every"
    if wanted != "auto":
        return wanted if visits else "loop"  # kernels need not support an empty call
    if tokens.is_cuda and visits <= top_k:
        return "gather"
    if not (fits and aligned and visits):
        return "loop"
    if torch.compiler.is_compiling():
        return "grouped"  # a loop would be compiled again for every routing
    # A CPU has no device to wait for, and its cache holds the matrices or activations of one expert but not of all.
    return "loop" if tokens.device.type == "cpu" and not top_k < visits < 8192 else "grouped"


def _transformed(tokens: Tensor) -> bool:
    """Return whether the tensor is inside a `torch.func` transform, so that Python code cannot read its values."""
    return not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(tokens)


def by_expert(
    chosen: Int[Tensor, "row top_k"], kept: Bool[Tensor, "*batch top_k"] | None, experts: int
) -> tuple[Int[Tensor, "visit"], Int[Tensor, "visit"], Int[Tensor, "visit"]]:
    """Sort all visits by expert.

    A dropped visit is assigned to expert number `experts`, which comes after the last one and computes nothing.

    Returns:
        The experts in sorted order, the visit at each sorted index (visit v belongs to row v // top_k), and the inverse
        permutation.
    """
    key = chosen.flatten()
    if kept is not None:
        key = key.masked_fill(~kept.flatten(), experts)
    order = key.argsort(stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    return key[order], order, inverse


class Reordered(torch.autograd.Function):
    """Reorder rows, with each row of x repeated `copies` times: row i of the result is row order[i] // copies of x.

    The backward pass gathers by the inverse order instead of scattering, so that the sum has the same order every time,
    even on a GPU.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "row wide"],
        order: Int[Tensor, " visit"],
        inverse: Int[Tensor, " visit"],
        copies: int,
    ) -> Float[Tensor, "visit wide"]:
        """Return the rows in their new order; `inverse` is the inverse permutation, with inverse[order[i]] = i."""
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return x.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "visit wide"]) -> tuple[Float[Tensor, "row wide"], None, None, None]:
        """Sum the gradients of each row's copies."""
        (inverse,) = ctx.saved_tensors
        back = grad.index_select(0, inverse)
        return back if ctx.copies == 1 else back.unflatten(0, (-1, ctx.copies)).sum(1), None, None, None


def grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Compute `F.grouped_mm(rows, matrices, offs=ends)`: groups of rows, each times its own matrix.

    PyTorch 2.13 compiles `grouped_mm` only in half precision. In fp32 it would compile a loop over the experts and
    treat each expert's number of tokens as a constant, so that every routing would need a new program. Therefore the
    compiler gets one opaque operator in fp32.
    """
    if torch.compiler.is_compiling() and rows.dtype == torch.float32:
        return grouped_operator(rows, matrices, ends)
    return F.grouped_mm(rows, matrices, offs=ends)


@torch.library.custom_op("companion::grouped", mutates_args=())
def grouped_operator(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Compute rows[i] @ matrices[group of i], from (row, width) and (group, width, out) to (row, out).

    `ends` contains the index after each group's last row, in int32. The results of rows after the last group are
    undefined.
    """
    return F.grouped_mm(rows, matrices, offs=ends)


@grouped_operator.register_fake
def _(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@torch.library.custom_op("companion::grouped_outer", mutates_args=())
def grouped_outer(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """Compute rows^T gradient for each group, from (row, width) and (row, out) to (group, width, out)."""
    return F.grouped_mm(rows.T, gradient, offs=ends)


@grouped_outer.register_fake
def _(rows: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], gradient.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, matrices, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    return grouped_operator(gradient, matrices.transpose(1, 2), ends), grouped_outer(rows, gradient, ends), None


grouped_operator.register_autograd(_backward, setup_context=_keep)
