"""The machines that `sitecustomize` simulates. Only tests import this; the package knows nothing of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LINE = 64  # bytes: PyTorch's own allocations begin at a multiple of it
MACHINES = ("odd-loads", "other-sums")


def install(machine: str) -> None:
    """Make this process behave like the machine. Raises `ValueError` for a name that is not one of `MACHINES`."""
    if machine not in MACHINES:
        raise ValueError(f"COMPANION_MACHINE={machine!r}: expected one of {', '.join(MACHINES)}")
    _at_odd_addresses()
    if machine == "other-sums":
        torch.backends.cuda.enable_flash_sdp(False)  # of the CPU, too: attention by products and softmax, seen below
        OtherSums().__enter__()


# --- tensors at odd addresses


def oddly_aligned(tensor: Tensor) -> Tensor:
    """A copy whose first number lies at a multiple of an element's size, and of no larger power of two."""
    size = tensor.element_size()
    room = torch.empty(tensor.numel() * size + 2 * LINE, dtype=torch.uint8)
    start = -room.data_ptr() % LINE + size
    copy = room[start : start + tensor.numel() * size].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def _at_odd_addresses() -> None:
    load_file = safetensors.torch.load_file

    def load(*arguments: Any, **named: Any) -> dict[str, Tensor]:
        tensors = load_file(*arguments, **named)
        return {name: oddly_aligned(t) if t.device.type == "cpu" else t for name, t in tensors.items()}

    safetensors.torch.load_file = load


# --- sums in another order

aten = torch.ops.aten
_NAMES = """
    exp expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan atan2 erf erfc sigmoid silu gelu
    softplus elu pow logaddexp logcumsumexp cumsum cumprod prod _softmax _log_softmax logsumexp var std var_mean
    linalg_vector_norm rsqrt native_layer_norm _fused_rms_norm mse_loss nll_loss_forward
    binary_cross_entropy_with_logits softplus_backward sigmoid_backward tanh_backward gelu_backward silu_backward
    _softmax_backward_data _log_softmax_backward_data native_layer_norm_backward _fused_rms_norm_backward
"""
_ROUGH = frozenset(_NAMES.split())
"""Operations whose last bit differs between libraries, vector lengths, and a vector's middle and its rest."""

_LOW_BITS = {torch.float32: (torch.int32, 0xFFF), torch.float64: (torch.int64, 0xFFFFFFF)}
_SIGNS = torch.randint(-1, 2, (1 << 16,), generator=torch.Generator().manual_seed(0), dtype=torch.int8)


class OtherSums(TorchDispatchMode):
    """Every operation that adds, or that a library approximates, gives what another kernel might have given.

    What is exact on every machine stays exact: sums that need no rounding, numbers with few digits.
    The same operation on the same memory gives the same bits.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        first = next((a for a in args if isinstance(a, Tensor)), None)
        if first is None or first.device.type != "cpu" or first.dtype not in _LOW_BITS or not first.numel():
            return func(*args, **kwargs)
        if name in _PARTS and "out" not in kwargs:
            return _PARTS[name](func, args, kwargs)
        result = func(*args, **kwargs)
        if name.removesuffix("_") in _ROUGH:
            for number, tensor in enumerate(result if isinstance(result, tuple | list) else [result]):
                if isinstance(tensor, Tensor) and tensor.dtype in _LOW_BITS:
                    _nudge(tensor, _place(name, args) + number)
        return result


def _place(name: str, args: Sequence[Any]) -> int:
    """A number that is the same for the same operation, on operands of these shapes that lie like these."""
    told = [(tuple(a.shape), a.stride(), a.data_ptr() % LINE) for a in args if isinstance(a, Tensor)]
    return zlib.crc32(repr((name, told)).encode())


def _border(name: str, args: Sequence[Any], size: int) -> int:
    return 1 + _place(name, args) % (size - 1)


def _nudge(tensor: Tensor, place: int) -> None:
    """Move every number by a last bit up, down or not at all, if its digits fill it."""
    whole, mask = _LOW_BITS[tensor.dtype]
    flat = tensor if tensor.is_contiguous() else tensor.contiguous()
    bits = flat.view(whole).flatten()
    start = place % (len(_SIGNS) // 2)
    signs = _SIGNS[start : start + min(len(bits), len(_SIGNS) // 2)]
    signs = signs.repeat(-(-len(bits) // len(signs)))[: len(bits)]
    full = (bits & mask != 0) & flat.flatten().isfinite()
    tensor.copy_((bits + full * signs.to(whole)).view(tensor.dtype).view(tensor.shape))


def _product(func: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """A matrix product, as the sum of two."""
    a, b = args[:2]
    name, k = func.overloadpacket.__name__, a.shape[-1]
    if k < 2 or k != b.shape[max(b.ndim - 2, 0)]:  # PyTorch's own words for what does not fit
        return func(*args, **kwargs)
    s = _border(name, args, k)
    head, tail = (b[..., :s, :], b[..., s:, :]) if b.ndim > 1 else (b[:s], b[s:])
    return func(a[..., :s], head) + func(a[..., s:], tail)


def _added_product(func: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    c, a, b = args[:3]
    k, beta = a.shape[-1], kwargs.get("beta", 1)
    if k < 2 or k != b.shape[max(b.ndim - 2, 0)]:
        return func(*args, **kwargs)
    s = _border("added", args, k)
    head, tail = (b[..., :s, :], b[..., s:, :]) if b.ndim > 1 else (b[:s], b[s:])
    kwargs = {**kwargs, "beta": 1}
    c = c if beta == 1 else c * beta
    return func(func(c, a[..., s:], tail, **kwargs), a[..., :s], head, **kwargs)


def _total(func: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """A sum or a mean over axes: of the first that has several numbers, two parts."""
    x, mean = args[0], func.overloadpacket.__name__ == "mean"
    axes = args[1] if len(args) > 1 and args[1] else range(x.ndim)
    axes = [axes] if isinstance(axes, int) else [axis % x.ndim for axis in axes] if x.ndim else []
    keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    several = [axis for axis in axes if x.shape[axis] > 1]
    if not several or not x.dtype.is_floating_point:
        return func(*args, **kwargs)
    axis, dtype = several[0], kwargs.get("dtype")
    s = _border("sum", args[:1], x.shape[axis])
    parts = x.split([s, x.shape[axis] - s], dim=axis)
    head, tail = (aten.sum.dim_IntList(part, axes, keep, dtype=dtype) for part in parts)
    count = 1
    for size in (x.shape[axis] for axis in axes):
        count *= size
    return (head + tail) / count if mean else head + tail


_PARTS: dict[str, Callable[[Callable, Sequence[Any], dict[str, Any]], Tensor]] = {
    "mm": _product, "bmm": _product, "mv": _product, "dot": _product,
    "addmm": _added_product, "baddbmm": _added_product, "addmv": _added_product,
    "sum": _total, "mean": _total,
}  # fmt: skip
