"""The products of linear layers in training on a CPU, by oneDNN where PyTorch's own library leaves speed unused.

PyTorch hands x W^T in fp32, and the two products of its backward pass, to MKL. MKL takes its kernels for AVX-512 on
Intel's processors alone; on others those of AVX2. oneDNN, which comes with PyTorch too, asks what the processor can do
and not who made it. That is a tenth of the time of a product where AVX-512 runs on the units of AVX2 (measured on a
Zen 4), and should be more where its units are twice as wide.

The results differ in their last digits. So which library calculates follows from the machine and the size of the model
alone, and is never timed: a run that is stopped and goes on calculates as one that was not stopped.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from companion.ground.processor import SETTINGS, maker

LARGE = 2**20
"""Parameters of a model from which on kernels are chosen for speed. Smaller ones, as the lessons train, take the plain
ones everywhere: what is printed of them has the same digits."""
PRODUCT = 2**24
"""Multiplications in a product from which on oneDNN takes it; below, the two are as fast as each other."""


def is_large(parameters: int) -> bool:
    """Whether a model of so many parameters is worth other kernels than the plain ones."""
    return parameters >= LARGE


def onednn_pays() -> bool:
    """Whether this is a machine on which oneDNN multiplies faster than MKL: a processor of AMD with AVX-512.

    Not where the environment chooses kernels (`SETTINGS`): who does so wants those.
    """
    wide = maker() == "AuthenticAMD" and torch.backends.cpu.get_cpu_capability() == "AVX512"
    chosen = any(name in os.environ for name in SETTINGS)
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return wide and not chosen and both and bool(torch.backends.mkldnn.enabled)


def products(parameters: int, device: torch.device, precision: str, *, plain: bool) -> AbstractContextManager[Any]:
    """What to compute a loss in: `ByOneDNN` where it pays for a model of so many parameters, else
    nothing. It can be entered again and again.

    plain: the model runs as it is written, and in this process alone: neither compiled nor spread over several.
    """
    pays = plain and device.type == "cpu" and precision == "fp32" and is_large(parameters) and onednn_pays()
    return ByOneDNN() if pays else nullcontext()


class ByOneDNN(TorchFunctionMode):
    """In this block `F.linear`, and so `nn.Linear`, calculates large products of fp32 by oneDNN, and so will their
    backward pass. The modules and their parameters stay as they are. Whatever is no plain tensor on a CPU is left to
    PyTorch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and _fits(*(given := _given(*args, **(kwargs or {})))):
            return _Linear.apply(*given)
        return func(*args, **(kwargs or {}))


def _given(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    return input, weight, bias


def _fits(input: Any, weight: Any, bias: Any) -> bool:
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    for tensor in (input, weight) if bias is None else (input, weight, bias):
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == torch.float32 and tensor.is_cpu
        if not plain or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
    right = input.ndim > 1 and weight.ndim == 2 and weight.is_contiguous() and input.shape[-1] == weight.shape[1]
    return right and input.numel() * weight.shape[0] >= PRODUCT


def _product(a: Float[Tensor, "*axes d"], b: Float[Tensor, "n d"], bias: Tensor | None = None) -> Tensor:
    """a b^T + bias, (*axes, n). `b` may be a transposed matrix, `a` is laid out anew if it is one."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """`F.linear` by oneDNN. Where a gradient is to be differentiated again, it is made of PyTorch's own products."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.biased = bias is not None
        return _product(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "*axes out"]) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        again = torch.is_grad_enabled()
        wants = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * 3
        grad = grad.contiguous()  # here, and not in each of the products
        if wants[0]:
            found[0] = grad @ weight if again else _product(grad, weight.t())
        rows, entering = grad.flatten(0, -2), input.flatten(0, -2)
        if wants[1]:
            found[1] = rows.t() @ entering if again else _outer(rows, entering)
        if ctx.biased and wants[2]:
            found[2] = rows.sum(0)
        return tuple(found)


def _outer(rows: Float[Tensor, "row out"], entering: Float[Tensor, "row d_in"]) -> Float[Tensor, "out d_in"]:
    """rows^T entering. The kernel lays its first factor out anew; that is to be the smaller one."""
    if rows.shape[1] <= entering.shape[1]:
        return _product(rows.t(), entering.t())
    return _product(entering.t(), rows.t()).t().contiguous()
