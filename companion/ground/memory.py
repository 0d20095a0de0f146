"""What this machine can hold, asked before anything is made that it cannot."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from companion.ground.display import readable_bytes


@cache
def memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes of memory that a process here can have at most: of a GPU its own, else the machine's, or those of the
    container around the process. `None` where the system does not say."""
    device = torch.device(device)
    if device.type == "meta":  # which holds shapes alone
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
        asked: the argument or flag that asks for them, with its value.
        what: what takes them, as in "this model".
        needed: their number.
        device: where they are needed (default: the CPU). Fake tensors, which have shapes only, need none.

    Raises:
        ValueError: if they do not fit.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return
    device = torch.device(device or "cpu")
    there = memory(device)
    if there is not None and needed > there:
        place = "this machine" if device.type != "cuda" else "this GPU"
        raise ValueError(f"{asked}: {what} needs {readable_bytes(needed)}, {place} has {readable_bytes(there)}")
