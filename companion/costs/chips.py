"""What decoding can reach on a chip: the makers' figures for some, a measurement for this machine (lessons 10 and 13).

A decode step of one row reads every weight that takes part, and the cache, once; it cannot be faster than the memory.
"""

from __future__ import annotations

import difflib
import math
from typing import NamedTuple

import torch

from companion.costs.account import Chip, cache_bytes, decode_bytes, measure_chip, published_peak, weights_bytes
from companion.config import ModelConfig


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


def decoding_table(config: ModelConfig, machine: Machine) -> str:
    """How many tokens a second one row can get at most, as text: the memory's limit, with an empty and a full context.

    In the column int8 the weights have one byte each and the cache two a number.
    Raises `ValueError` for a stack other than a decoder.
    """
    if config.stack != "decoder":
        raise ValueError(f"config has stack={config.stack!r}: expected a decoder")
    columns = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}

    def cache_dtype(dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16 if dtype == torch.int8 else dtype

    def limit(dtype: torch.dtype, cached: int) -> str:
        moved = decode_bytes(config, cached, dtype=dtype, cache_dtype=cache_dtype(dtype))
        return _readable(machine.chip.bandwidth / moved)

    rows = [("memory's limit on writing", [f"{name}" for name in columns])]
    rows += [("  tokens a second, empty context", [limit(dtype, 0) for dtype in columns.values()])]
    rows += [("  tokens a second, full context", [limit(dtype, config.context - 1) for dtype in columns.values()])]
    if machine.memory is not None:
        needed = [
            weights_bytes(config, dtype) + cache_bytes(config, config.context, dtype=cache_dtype(dtype))
            for dtype in columns.values()
        ]
        rows += [("  chips to hold it and its cache", [f"{math.ceil(size / machine.memory)}" for size in needed])]
    head = f"on {machine.name}: {machine.chip.bandwidth / 1e9:,.0f} GB/s"
    return "\n".join([head, *(f"{name:<36}" + "".join(f"{value:>14}" for value in values) for name, values in rows)])


def _readable(rate: float) -> str:
    """Three digits are more than the limit means."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
