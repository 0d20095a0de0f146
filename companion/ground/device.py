"""Choose the device and the precision, and report the versions that results depend on."""

from __future__ import annotations

import platform

import torch

from companion.ground.fields import plain
from companion.ground.installed import installed


def find_device(name: str) -> torch.device:
    """Return the device with this name; `"auto"` means the first CUDA GPU, or the CPU if there is no GPU.

    Raises:
        ValueError: If this machine does not have the device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {plain(name)}: expected cpu, cuda, cuda:1, mps or auto") from None
    here = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not here.get(device.type, False):
        found = [kind for kind in ("cpu", "cuda", "mps") if here[kind]]
        raise ValueError(f"--device {plain(name)}: expected a device on this machine, which has {', '.join(found)}")
    return device


def find_precision(name: str, device: torch.device) -> str:
    """Resolve `"auto"` to bf16 on a GPU that supports it, and otherwise to fp32.

    Raises:
        ValueError: If the precision is `"tf32"` and the device is not a CUDA GPU.
    """
    if name == "tf32" and device.type != "cuda":
        raise ValueError(f"--precision tf32: expected fp32 or bf16 on {device.type}; TF32 needs a CUDA GPU")
    if name != "auto":
        return name
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def versions() -> dict[str, str]:
    """Return the versions and settings that a measurement on this machine depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": installed("tokenizers") or "not installed",
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }
