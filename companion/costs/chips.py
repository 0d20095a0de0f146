"""What decoding can reach on a chip: the makers' figures for some, a measurement for this machine (lessons 10 and 13).

A decode step of one row reads every weight that takes part, and the cache, once; it cannot be faster than the memory.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch


class PublishedChip(NamedTuple):
    """device: as `torch.cuda.get_device_name` calls it; bandwidth: bytes per second; memory: bytes."""

    device: str
    bandwidth: float
    memory: float


CHIPS: dict[str, PublishedChip] = {
    "a100-40gb": PublishedChip("NVIDIA A100-SXM4-40GB", 1555e9, 40e9),
    "a100-80gb": PublishedChip("NVIDIA A100-SXM4-80GB", 2039e9, 80e9),
    "a100-pcie-40gb": PublishedChip("NVIDIA A100-PCIE-40GB", 1555e9, 40e9),
    "a100-pcie-80gb": PublishedChip("NVIDIA A100 80GB PCIe", 1935e9, 80e9),
    "h100": PublishedChip("NVIDIA H100 80GB HBM3", 3350e9, 80e9),
    "h100-pcie": PublishedChip("NVIDIA H100 PCIe", 2000e9, 80e9),
    "h200": PublishedChip("NVIDIA H200", 4800e9, 141e9),
    "l4": PublishedChip("NVIDIA L4", 300e9, 24e9),
    "l40s": PublishedChip("NVIDIA L40S", 864e9, 48e9),
    "rtx-4090": PublishedChip("NVIDIA GeForce RTX 4090", 1008e9, 24e9),
}
"""Makers' data sheets: the bandwidth and size of each chip's memory. Peaks of arithmetic are `PUBLISHED_PEAKS`."""


class Machine(NamedTuple):
    """A chip to reckon with. memory: its bytes; `None`: not known."""

    name: str
    chip: Chip
    memory: float | None


def published_machine(name: str) -> Machine:
    """A chip of the table, by its short name or by PyTorch's. Raises `ValueError` for any other."""
    for short, known in CHIPS.items():
        if name.lower() in (short, known.device.lower()):
            peak = published_peak(known.device, torch.bfloat16)
            assert peak is not None
            return Machine(known.device, Chip(peak, known.bandwidth), known.memory)
    near = difflib.get_close_matches(name.lower(), CHIPS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"chip={name!r}: expected one of {', '.join(CHIPS)}{hint}")


def this_machine() -> Machine:
    """The GPU that PyTorch would use, from the table if it is there, else measured; without a GPU the CPU, measured.
    A measurement takes one to two seconds and varies with what else is running."""
    if not torch.cuda.is_available():
        return Machine("this CPU, measured now", measure_chip(), None)
    device = torch.cuda.get_device_name()
    if any(device == known.device for known in CHIPS.values()):
        return published_machine(device)
    memory = float(torch.cuda.get_device_properties(0).total_memory)
    return Machine(f"{device}, measured now", measure_chip(torch.bfloat16, "cuda"), memory)


class Peak(NamedTuple):
    """What all devices of a run could reach in matrix products, and how that is known.

    flops: FLOPs per second, of all together.
    """

    flops: float
    origin: str

    def __str__(self) -> str:
        return f"peak {self.flops / 1e12:,.4g} TFLOPs a second, {self.origin}"


def training_peak(device: torch.device, precision: str, devices: int = 1) -> Peak | None:
    """The peak of `devices` GPUs like `device`: the maker's for a chip in the table, else measured, in one to two
    seconds. `None` for anything but a CUDA GPU: what a CPU reaches depends most on what else it does.

    precision: of matrix products, `"fp32"` or `"bf16"`.
    """
    if device.type != "cuda":
        return None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    published = published_peak(torch.cuda.get_device_name(device), dtype)
    if published is not None:
        return Peak(devices * published, "the maker's figure")
    return Peak(devices * measure_chip(dtype, device).flops, "measured now")


PUBLISHED_PEAKS: dict[str, dict[torch.dtype, float]] = {
    name: {torch.bfloat16: half, torch.float16: half}
    for name, half in {
        "NVIDIA A100-SXM4-40GB": 312e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA A100-PCIE-40GB": 312e12,
        "NVIDIA A100 80GB PCIe": 312e12,
        "NVIDIA H100 80GB HBM3": 989.4e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H200": 989.4e12,
        "NVIDIA L4": 121e12,
        "NVIDIA L40S": 362.05e12,
        "NVIDIA GeForce RTX 4090": 165.2e12,
    }.items()
}


@dataclass(frozen=True)
class Chip:
    """A processor on the roofline (Williams et al. 2009): `flops` per second at most, `bandwidth` bytes per second."""

    flops: float
    bandwidth: float

    @property
    def balance(self) -> float:
        """FLOPs per byte at which both limits meet: below it the memory decides, above it the arithmetic."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """The roof: FLOPs per second that work of this intensity can reach."""
        return min(self.flops, intensity * self.bandwidth)

    def seconds(self, flops: float, bytes: float) -> float:
        """The least time that work can take: the longer of its arithmetic and its memory traffic."""
        return max(flops / self.flops, bytes / self.bandwidth)

    def bound(self, intensity: float) -> Literal["memory", "compute"]:
        """Which of the two limits work of this intensity."""
        return "memory" if intensity < self.balance else "compute"


def measure_chip(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Chip:
    """What this machine reaches: its best rate over some matrix products, and over some copies of a large tensor (each
    byte is read once and written once). Takes one to two seconds; the result varies with what else is running.
    """
    device = torch.device(device)
    side, megabytes = (1024, 64) if device.type == "cpu" else (8192, 1024)
    a = torch.randn(side, side, device=device).to(dtype)
    table = torch.empty(megabytes * 2**20, dtype=torch.uint8, device=device).fill_(1)
    copy = torch.empty_like(table)
    product = _best_seconds(lambda: a @ a, device)
    copying = _best_seconds(lambda: copy.copy_(table), device)
    return Chip(flops=2 * side**3 / product, bandwidth=2 * table.nbytes / copying)


def published_peak(device_name: str, dtype: torch.dtype) -> float | None:
    """The makers' dense matrix-product rate in FLOPs per second for exactly this name of `torch.cuda.get_device_name`;
    `None` for a chip or a dtype that is not in the table: a share of another chip's peak would mean nothing."""
    return PUBLISHED_PEAKS.get(device_name, {}).get(dtype)


def peak_share(flops: float, seconds: float, peak: float) -> float:
    """The share of a chip's peak that was used (model FLOPs utilisation; Chowdhery et al. 2022, appendix B).

    flops:    counted operations.
    seconds:  in which they were done.
    peak:     of the chip, FLOPs a second.

    Raises `ValueError` unless all three are > 0.
    """
    for name, value in (("flops", flops), ("seconds", seconds), ("peak", peak)):
        if not value > 0:
            raise ValueError(f"{name}={value!r}: expected a number > 0")
    return flops / seconds / peak


def _best_seconds(run: Callable[[], Any], device: torch.device, seconds: float = 0.5) -> float:
    """The shortest of the runs that fit into `seconds`, after one to warm up. The shortest, because whatever else the
    machine does only adds time."""
    best, deadline = float("inf"), 0.0
    while best == float("inf") or time.perf_counter() < deadline:
        start = time.perf_counter()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)  # kernels run on while Python goes ahead
        if deadline:
            best = min(best, time.perf_counter() - start)
        else:
            deadline = time.perf_counter() + seconds
    return best
