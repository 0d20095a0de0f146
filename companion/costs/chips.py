"""Limits of chips: the manufacturers' figures for some of them, and a measurement for this machine (lessons 10 and 13).

To decode one token for a single row, the cache and all weights in use must be read, so the memory limits the speed.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from companion.ground.fields import shown


@dataclass(frozen=True)
class Chip:
    """A processor and its memory in the roofline model (Williams et al. 2009).

    Attributes:
        flops: maximum FLOPs per second in dense matrix products.
        bandwidth: bytes per second between memory and processor.
        memory: size of the memory in bytes; infinite if unknown.
        name: the chip's name, as returned by `torch.cuda.get_device_name`.
    """

    flops: float
    bandwidth: float
    memory: float = math.inf
    name: str = ""

    @property
    def balance(self) -> float:
        """Number of FLOPs per byte at which the two limits meet.

        Below this value, the memory sets the limit; above it, the arithmetic does.
        """
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Return the roof: the FLOPs per second that work of this intensity can reach."""
        return min(self.flops, intensity * self.bandwidth)

    def seconds(self, flops: float, bytes: float) -> float:
        """Return the minimum time for some work: the longer of the times for its arithmetic and its memory traffic."""
        return max(flops / self.flops, bytes / self.bandwidth)

    def bound(self, intensity: float) -> Literal["memory", "compute"]:
        """Return which of the two limits applies to work of this intensity."""
        return "memory" if intensity < self.balance else "compute"


CHIPS: dict[str, Chip] = {
    "a100-40gb": Chip(312e12, 1555e9, 40e9, "NVIDIA A100-SXM4-40GB"),
    "a100-80gb": Chip(312e12, 2039e9, 80e9, "NVIDIA A100-SXM4-80GB"),
    "a100-pcie-40gb": Chip(312e12, 1555e9, 40e9, "NVIDIA A100-PCIE-40GB"),
    "a100-pcie-80gb": Chip(312e12, 1935e9, 80e9, "NVIDIA A100 80GB PCIe"),
    "h100": Chip(989.4e12, 3350e9, 80e9, "NVIDIA H100 80GB HBM3"),
    "h100-pcie": Chip(756e12, 2000e9, 80e9, "NVIDIA H100 PCIe"),
    "h200": Chip(989.4e12, 4800e9, 141e9, "NVIDIA H200"),
    "l4": Chip(121e12, 300e9, 24e9, "NVIDIA L4"),
    "l40s": Chip(362.05e12, 864e9, 48e9, "NVIDIA L40S"),
    "rtx-4090": Chip(165.2e12, 1008e9, 24e9, "NVIDIA GeForce RTX 4090"),
}
"""Figures from the manufacturers' data sheets, keyed by short name: half-precision products accumulated in fp32 (the
figures printed there "with sparsity" are twice these), and the bandwidth and size of the memory.
"""


def published_chip(name: str) -> Chip:
    """Return a chip from the table by its short name or by PyTorch's name; raise `ValueError` for any other name."""
    for short, chip in CHIPS.items():
        if name.lower() in (short, chip.name.lower()):
            return chip
    near = difflib.get_close_matches(name.lower(), CHIPS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"chip={shown(name)}: expected one of {', '.join(CHIPS)}{hint}")


def this_chip() -> Chip:
    """Return the GPU that PyTorch would use, with figures from the table or measured; without a GPU, measure the CPU.

    A measurement takes one to two seconds and varies with what else is running.
    """
    if not torch.cuda.is_available():
        return replace(measure_chip(), name="this CPU, measured now")
    name = torch.cuda.get_device_name()
    if any(name == chip.name for chip in CHIPS.values()):
        return published_chip(name)
    memory = float(torch.cuda.get_device_properties(0).total_memory)
    return replace(measure_chip(torch.bfloat16, "cuda"), memory=memory, name=f"{name}, measured now")


class Peak(NamedTuple):
    """Peak FLOPs per second in matrix products, summed over all devices of a run, and the origin of this figure."""

    flops: float
    origin: str

    def __str__(self) -> str:
        return f"peak {self.flops / 1e12:,.4g} TFLOPs a second, {self.origin}"


def training_peak(device: torch.device, precision: str, devices: int = 1) -> Peak | None:
    """Return the combined peak of `devices` GPUs like `device`, or `None` if it is not a CUDA GPU.

    For a chip in the table, the peak is the manufacturer's figure; otherwise it is measured, which takes one to two
    seconds. A CPU has no meaningful peak, because its speed depends mostly on what else is running.

    Args:
        device: any one of the devices, which must be of the same kind.
        precision: precision of the matrix products, `"fp32"` or `"bf16"`; for `"tf32"` no peak is known, and the result
            is `None`.
        devices: number of devices.
    """
    if device.type != "cuda" or precision == "tf32":
        return None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    published = published_peak(torch.cuda.get_device_name(device), dtype)
    if published is not None:
        return Peak(devices * published, "the manufacturer's figure")
    return Peak(devices * measure_chip(dtype, device).flops, "measured now")


def measure_chip(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Chip:
    """Measure this machine's best rates over several matrix products and over several copies of a large tensor.

    A copy reads each byte once and writes it once. The measurement takes one to two seconds, and its result varies with
    what else is running.
    """
    device = torch.device(device)
    side, megabytes = (1024, 256) if device.type == "cpu" else (8192, 1024)
    a = torch.randn(side, side, device=device).to(dtype)
    table = torch.empty(megabytes * 2**20, dtype=torch.uint8, device=device).fill_(1)
    copy = torch.empty_like(table)
    product = _best_seconds(lambda: a @ a, device)
    copying = _best_seconds(lambda: copy.copy_(table), device)
    return Chip(flops=2 * side**3 / product, bandwidth=2 * table.nbytes / copying)


def measure_reading(device: torch.device | str = "cpu") -> float:
    """Measure this machine's memory bandwidth for reading, in bytes per second. A decode step reads the weights in the
    same way.

    The result is the best rate over several sums of a tensor far larger than any cache, and over several dot products
    of its halves. The measurement takes less than a second, and its result varies with what else is running.
    """
    device = torch.device(device)
    # This tensor is as large as the one copied above. Some servers' 256 MB caches are twice as fast to read as memory.
    numbers = torch.ones((512 if device.type == "cpu" else 1024) * 2**18, device=device)
    halves = numbers.chunk(2)
    adding = _best_seconds(numbers.sum, device, 0.3)
    pairing = _best_seconds(lambda: torch.dot(*halves), device, 0.3)
    return numbers.nbytes / min(adding, pairing)


def published_peak(device_name: str, dtype: torch.dtype) -> float | None:
    """Return the manufacturer's dense matrix-product rate in FLOPs per second for a GPU, given its PyTorch name.

    The result is `None` for a chip or dtype that is not in the table, because a fraction of another chip's peak would
    be meaningless.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return None
    return next((chip.flops for chip in CHIPS.values() if chip.name == device_name), None)


def peak_share(flops: float, seconds: float, peak: float) -> float:
    """Return the fraction of a chip's peak that was used (model FLOPs utilization; Chowdhery et al. 2022, appendix B).

    Args:
        flops: number of operations.
        seconds: their total duration.
        peak: the chip's maximum FLOPs per second.

    Raises:
        ValueError: if one of the arguments is not positive.
    """
    for name, value in (("flops", flops), ("seconds", seconds), ("peak", peak)):
        if not value > 0:
            raise ValueError(f"{name}={value!r}: expected a number > 0")
    return flops / seconds / peak


def _best_seconds(run: Callable[[], Any], device: torch.device, seconds: float = 0.5) -> float:
    """Run as often as fits into `seconds`, after a warm-up run, and return the shortest time.

    The shortest time is the best estimate, because other work on the machine can only add time.
    """
    best, deadline = float("inf"), 0.0
    while best == float("inf") or time.perf_counter() < deadline:
        start = time.perf_counter()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)  # kernels run asynchronously
        if deadline:
            best = min(best, time.perf_counter() - start)
        else:
            deadline = time.perf_counter() + seconds
    return best
