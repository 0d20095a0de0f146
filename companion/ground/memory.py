"""Check the memory of this machine before allocating something that might not fit."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from companion.ground.display import readable_bytes


@cache
def memory(device: torch.device | str = "cpu") -> int | None:
    """Return the memory in bytes that a process can use on this machine, or `None` if the system does not report it.

    For a GPU, this is the GPU's memory; otherwise, it is the memory of the machine or of the container that the process
    runs in.
    """
    device = torch.device(device)
    if device.type == "meta":  # it stores only shapes
        return None
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    found: list[int] = []
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return min((size for size in found if size > 0), default=None)


def check_room(asked: str, what: str, needed: int, device: torch.device | str | None = None) -> None:
    """Check that `needed` bytes fit into the memory of a device.

    Args:
        asked: The argument or flag that requests the memory, with its value.
        what: What needs the memory, such as "this model".
        needed: Number of bytes.
        device: The device on which the memory is needed (default: the CPU). Fake tensors, which have only shapes, need
            no memory.

    Raises:
        ValueError: If the bytes do not fit.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return
    device = torch.device(device or "cpu")
    there = memory(device)
    if there is not None and needed > there:
        place = "this machine" if device.type != "cuda" else "this GPU"
        raise ValueError(f"{asked}: {what} needs {readable_bytes(needed)}, {place} has {readable_bytes(there)}")
