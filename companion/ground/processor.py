"""Read the system's description of this machine's processor, without importing torch."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path


def processor() -> str:
    """Return the manufacturer's name for the processor, if the system provides it."""
    with suppress(OSError):
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines())
        if name := next((value for name, _, value in pairs if name.strip() == "model name"), "").strip():
            return " ".join(name.split())
    if platform.system() == "Darwin":
        with suppress(OSError):
            asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
            if name := subprocess.run(asked, capture_output=True, text=True).stdout.strip():
                return name
    return platform.processor() or "unknown processor"


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
