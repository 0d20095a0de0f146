"""Matrix products in each format of `companion.quantization.weights`, using the fastest kernel for one row.

On a CPU, kernels that pack their matrix once (fbgemm, oneDNN) read it two to five times as fast as kernels that use the
ordinary layout. PyTorch has such kernels for some processors. On other processors and on GPUs, plain kernels compute
the same products. For fp32 the library behind NumPy may be faster; on AMD processors it reads twice as fast as
PyTorch's library.
"""

from __future__ import annotations

import math
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from companion.quantization.rounding import GROUP, FourBits, in_eight_bits, in_four_bits

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST_FP16 = torch.finfo(torch.float16).max
LEVELS = 63
"""The input of an int8 product is split into two digits, each with this many levels on either side of zero. With 7
bits, sums of two products stay below 2^15, above which processors without integer dot products would saturate.
"""


class Product(nn.Module):
    """Matrix product x W^T with W (out, in) in one of the formats; x and the result have the stream's dtype.

    With several W of the same width, their products are concatenated.

    Args:
        weights: W, or several W.
        form: the weight format.
        packed: whether to use the kernel that packs W (for fp32, NumPy's), if there is one. `None` means yes if that
            kernel is correct on this machine and, for fp32, also faster.
        rounded: for int4, the quantized form of each W. `None` means rounding to the nearest levels.
    """

    def __init__(
        self,
        weights: Tensor | list[Tensor],
        form: str,
        packed: bool | None = None,
        rounded: Sequence[FourBits] | None = None,
    ) -> None:
        super().__init__()
        weights = [weights] if isinstance(weights, Tensor) else weights
        weight = _whole(weights)
        if form not in ("fp32", *HALF) and weight.shape[1] % GROUP:  # rows do not fit the kernels' blocks
            form = "bf16"
        if form == "fp16" and float(weight.abs().max()) > LARGEST_FP16:
            form = "bf16"
        self.form, self.out = form, weight.shape[0]
        if packed is None:
            packed = weight.device.type == "cpu" and packs(form)
        self.packed = packed
        make = PACKED[form] if packed else PLAIN[form]
        if form == "int4" and rounded is not None:
            levels, scale, middle = map(torch.cat, zip(*(one[:3] for one in rounded), strict=True))
            factor = rounded[0].factor  # all layers that read the same x share it
            make = partial(_int4, rounded=FourBits(levels, scale, middle, factor))
        self.function, stored, self.bytes, self.numbers = make(weight)
        self.compute: Compute = partial(self.function, *stored)
        self.mark = None if self.numbers is not None else mark_of(weights)
        # The compiler reads these as buffers, so that a stored program does not contain them.
        self.places = [f"stored_{place}" for place in range(len(stored))]
        for place, tensor in zip(self.places, stored, strict=True):
            self.register_buffer(place, tensor, persistent=False)
        number = next(_numbers)
        self.register_buffer("number", torch.tensor(number), persistent=False)
        _products[number] = self

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes out"]:
        """Compute the product with all rows of the weights."""
        return self.part(x)

    def part(self, x: Float[Tensor, "*axes d_in"], place: int = 0) -> Float[Tensor, "*axes out"]:
        """Return the product for the single layer. `FusedProduct` has the same method for several layers."""
        if not torch.compiler.is_compiling():
            if self.numbers is not None and x.dtype == torch.float32:
                return self.compute(x)
            out = self.compute(x.reshape(-1, x.shape[-1]).float())
            return out.view(*x.shape[:-1], self.out).to(x.dtype)
        flat = x.reshape(-1, x.shape[-1]).float()
        if self.packed:  # the compiler cannot look into a packed matrix, so it sees one custom operation
            out = packed_product(flat, self.number, self.out)
        else:
            out = self.function(*(getattr(self, place) for place in self.places), flat)
        return out.view(*x.shape[:-1], self.out).to(x.dtype)

    def is_of(self, weights: Sequence[Tensor]) -> bool:
        """Return whether this product was computed from weights with exactly these elements.

        All elements are read, because some ways of changing a parameter, such as a fused optimizer, leave no trace.
        """
        if self.numbers is None:
            return self.mark == mark_of(weights)
        rows = self.numbers.split([len(weight) for weight in weights]) if self.out == sum(map(len, weights)) else ()
        return len(rows) == len(weights) and all(map(_same_bits, rows, weights))


def _same_bits(numbers: Tensor, weight: Tensor) -> bool:
    """Return whether fp32 elements on the CPU equal a weight converted to fp32."""
    if weight.device.type != "cpu" or weight.shape != numbers.shape:
        return False
    one, other = (x.detach().float().contiguous().view(torch.int32).numpy() for x in (numbers, weight))
    return np.array_equal(one, other)


def _whole(weights: Sequence[Tensor]) -> Float[Tensor, "out d_in"]:
    """Concatenate the weights' rows, in fp32."""
    return (weights[0] if len(weights) == 1 else torch.cat([*weights])).detach().float()


def mark_of(weights: Sequence[Tensor]) -> list[tuple[torch.dtype, torch.Size, torch.device, int]]:
    """Return a fingerprint of each weight: its dtype, shape and device, and a checksum of its bytes.

    Two different weights have the same checksum with a probability of 1 in 2^32. A model's parameters change together,
    and each of them has its own checksum.
    """
    marks = []
    for weight in weights:
        read = weight.detach().cpu().contiguous().view(torch.uint8).numpy()
        marks.append((weight.dtype, weight.shape, weight.device, zlib.crc32(read.data)))
    return marks


_numbers = count()
_products: WeakValueDictionary[int, Product] = WeakValueDictionary()


@torch.library.custom_op(
    "companion::packed_product", mutates_args=(), schema="(Tensor x, Tensor number, int out) -> Tensor"
)
def packed_product(x: Tensor, number: Tensor, out: int) -> Tensor:
    """Multiply x, (row, d_in), by the matrix of the `Product` with this number; the result is (row, out)."""
    return _products[int(number)].compute(x)


@packed_product.register_fake
def _(x: Tensor, number: Tensor, out: int) -> Tensor:
    return x.new_empty(x.shape[0], out)


Compute = Callable[[Float[Tensor, "row d_in"]], Float[Tensor, "row out"]]


class Made(NamedTuple):
    """A weight in one of the formats.

    Attributes:
        function: computes the product from the stored tensors and x.
        stored: the tensors that the function reads.
        bytes: size of the matrix in bytes, including its scales.
        numbers: the matrix itself, (out, d_in), if it is stored without rounding.
    """

    function: Callable[..., Float[Tensor, "row out"]]
    stored: tuple[Tensor, ...]
    bytes: int
    numbers: Tensor | None = None


def _whole_blocks(weight: Tensor) -> Tensor:
    """Pad with rows of zeros to a multiple of the kernels' block size of 16."""
    return F.pad(weight, (0, 0, 0, -len(weight) % 16))


def _fp32(weight: Tensor) -> Made:
    stored = weight.t().contiguous()
    return Made(lambda stored, x: x @ stored, (stored,), stored.nbytes)


def _half(dtype: torch.dtype) -> Callable[[Tensor], Made]:
    def make(weight: Tensor) -> Made:
        stored = weight.to(dtype)
        return Made(lambda stored, x: F.linear(x.to(dtype), stored).float(), (stored,), stored.nbytes)

    return make


def _int8(weight: Tensor) -> Made:
    levels, scale = in_eight_bits(_whole_blocks(weight))
    # The kernel only takes scales in bf16, which is too coarse for a factor that applies to a whole row.
    ones = torch.ones_like(scale, dtype=torch.bfloat16)

    out = len(weight)

    def compute(levels: Tensor, ones: Tensor, scale: Tensor, x: Tensor) -> Tensor:
        return (torch._weight_int8pack_mm(x.to(torch.bfloat16), levels, ones) * scale)[:, :out]

    return Made(compute, (levels, ones, scale), levels.nbytes + scale.nbytes)


def _int4(weight: Tensor, rounded: FourBits | None = None) -> Made:
    *parts, factor = in_four_bits(weight) if rounded is None else rounded
    levels, scale, middle = map(_whole_blocks, parts)
    levels = torch._convert_weight_to_int4pack_for_cpu(levels.to(torch.int32), 1)
    scales = torch.stack((scale, middle), -1).transpose(0, 1).contiguous()

    out = len(weight)

    def compute(levels: Tensor, scales: Tensor, x: Tensor) -> Tensor:
        product = torch._weight_int4pack_mm_for_cpu(x.to(torch.bfloat16), levels, GROUP, scales)
        return product[:, :out].float()

    size = levels.nbytes + scales.nbytes
    if factor is None:
        return Made(compute, (levels, scales), size)
    balanced = lambda factor, levels, scales, x: compute(levels, scales, x * factor)  # noqa: E731
    return Made(balanced, (factor, levels, scales), size + factor.nbytes)


def _packed_fp16(weight: Tensor) -> Made:
    """Use a kernel that widens the weights as it reads them, and takes x in fp32."""
    matrix = torch.ops.quantized.linear_prepack_fp16(weight, None)
    product = torch.ops.quantized.linear_dynamic_fp16.default  # a packet of overloads takes longer to call
    return Made(lambda x: product(x, matrix), (), 2 * weight.numel())


def _packed_bf16(weight: Tensor) -> Made:
    matrix = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16), 1)
    product = torch.ops.mkldnn._linear_pointwise.default

    def compute(x: Tensor) -> Tensor:
        return product(x.to(torch.bfloat16), matrix, None, "none", [], "").float()

    return Made(compute, (), 2 * weight.numel())


def _numpy_fp32(weight: Tensor) -> Made:
    """Use one dot product per row of the matrix, which is then read sequentially; for many rows of x, use PyTorch.

    `np.vecdot` always uses one thread.
    """
    shared = _in_large_pages(weight)
    stored = torch.from_numpy(shared)

    most = FEW * weight.shape[1]

    def compute(x: Tensor) -> Tensor:
        if x.requires_grad or x.numel() > most:
            return F.linear(x, stored)
        return torch.from_numpy(np.vecdot(shared, x.numpy()[..., None, :]))

    return Made(compute, (), stored.nbytes, stored)


FEW = 6
"""Number of rows up to which dot products are faster. Each row reads the matrix again, mostly from the CPU caches."""
BLOCK = 2**22
"""Number of elements in a block of memory (16 MB). For blocks of 4 MB or more, NumPy asks Linux for pages of 2 MB,
which makes reading 10 to 20 % faster.
"""
_block: tuple[ref[np.ndarray], int] | None = None
_cutting = Lock()


def _in_large_pages(weight: Float[Tensor, "out d_in"]) -> np.ndarray:
    """Copy a weight; small weights share a block of memory, which lives as long as any of them."""
    global _block
    size = weight.numel()
    with _cutting:
        block, used = (None, 0) if _block is None else (_block[0](), _block[1])
        if block is None or len(block) - used < size:
            block, used = np.empty(max(BLOCK, size), np.float32), 0
        _block = ref(block), used + -(-size // 16) * 16  # align every matrix to a cache line
    copy = block[used : used + size].reshape(weight.shape)
    copy[:] = weight.numpy()
    return copy


def _packed_int8(weight: Tensor) -> Made:
    """Use an integer kernel.

    Each element of x is split into two digits of 7 bits, which form two rows, so that the weights are read only once.

    The rounding error is smaller than with bf16, and the result for a row does not depend on the other rows.
    """
    levels, scale = in_eight_bits(weight)
    zeros = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a later PyTorch will lack such tensors; the plain kernel is then used
        whole = torch._make_per_channel_quantized_tensor(levels, scale.double(), zeros, 0)
    matrix = torch.ops.quantized.linear_prepack(whole, None)
    product: Any = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    digits = torch.tensor([1 / LEVELS, 0.5 / LEVELS**2]).view(2, 1, 1)
    least = torch.tensor(1e-30)
    both = torch.tensor([[1, 0.5 / LEVELS]])

    def row(x: Tensor) -> Tensor:
        # A single row is the common case, where each small operation takes as long as a product with a small matrix.
        # NumPy's operations take half as long as PyTorch's.
        given = x.numpy()
        rows = np.empty((2, given.shape[1]), np.float32)
        second = rows[1:]
        np.abs(given, out=second)
        level = max(second.item(second.argmax()) / LEVELS, 1e-30)
        if not math.isfinite(level):
            return x.new_full((1, len(scale)), math.nan)
        np.multiply(given, 1 / level, out=second)
        np.rint(second, out=second)
        np.multiply(second, level, out=second)
        np.subtract(given, second, out=second)
        np.multiply(second, 2 * LEVELS, out=second)
        rows[0] = given  # the kernel rounds it to its first digit, as above
        return both.mm(product(torch.from_numpy(rows), level, LEVELS + 1, matrix))

    def compute(x: Tensor) -> Tensor:
        rows, width = x.shape
        if rows == 1 and not x.requires_grad:
            return row(x)
        # The value of one unit of the first and of the second digit, (digit, row, 1).
        level = torch.addcmul(least, torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True), digits)
        whole = x / level
        # The kernel rounds, so the second digit contains only the rounding error of the first.
        whole[1].sub_(whole[0].round(), alpha=2 * LEVELS)
        sums = product(whole.view(2 * rows, width), 1.0, LEVELS + 1, matrix).view(2, rows, -1)
        return torch.bmm(level.permute(1, 2, 0), sums.transpose(0, 1)).squeeze(1)

    return Made(compute, (), weight.numel() + scale.nbytes)


PLAIN: dict[str, Callable[[Tensor], Made]] = {
    "fp32": _fp32,
    "fp16": _half(torch.float16),
    "bf16": _half(torch.bfloat16),
    "int8": _int8,
    "int4": _int4,
}
PACKED: dict[str, Callable[[Tensor], Made]] = {
    "fp32": _numpy_fp32,
    "fp16": _packed_fp16,
    "bf16": _packed_bf16,
    "int8": _packed_int8,
}


@lru_cache
def possible(form: str, device: str) -> bool:
    """Try one product, and return whether this format can be computed correctly on this device."""
    return _right(form, device, None)


@lru_cache
def packs(form: str) -> bool:
    """Return whether the packing kernel is correct on this CPU, and for fp32 also faster."""
    if form not in PACKED or not _right(form, "cpu", True):
        return False
    return form != "fp32" or _is_quicker(PACKED[form], PLAIN[form])


@lru_cache
def quicker(form: str) -> bool:
    """Return whether this format multiplies one row faster than `nn.Linear` in the format's own dtype, on this CPU."""
    dtype = HALF.get(form, torch.float32)
    return possible(form, "cpu") and _is_quicker(PACKED[form] if packs(form) else PLAIN[form], _as_it_is(dtype))


def _as_it_is(dtype: torch.dtype) -> Callable[[Tensor], Made]:
    def make(weight: Tensor) -> Made:
        stored = weight.to(dtype)
        return Made(lambda stored, x: F.linear(x.to(dtype), stored), (stored,), stored.nbytes)

    return make


def _is_quicker(one: Callable[[Tensor], Made], other: Callable[[Tensor], Made]) -> bool:
    """Return whether one kernel is at least 10 % faster than the other over 16 MB, by the best of five runs of each."""
    weights = [torch.ones(1024, 512) for _ in range(8)]
    row = torch.ones(1, 512)
    seconds = []
    for make in (one, other):
        products = [partial(made.function, *made.stored) for made in map(make, weights)]
        times = []
        for _ in range(6):
            start = time.perf_counter()
            for product in products:
                product(row)
            times.append(time.perf_counter() - start)
        seconds.append(min(times[1:]))
    return seconds[0] < 0.9 * seconds[1]


def _right(form: str, device: str, packed: bool | None) -> bool:
    weight = torch.linspace(-1, 1, 32 * 64, device=device).sin().view(32, 64)
    x = torch.linspace(-2, 1, 2 * 64, device=device).cos().view(2, 64)
    try:
        found = Product(weight, form, packed)(x)
    except (RuntimeError, NotImplementedError, AttributeError):
        return False
    return bool((found - x @ weight.t()).abs().max() < 0.05 * (x.abs() @ weight.abs().t()).max())
