"""This machine's processor as the system describes it, and the variables that choose its kernels; without torch."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    "ATEN_CPU_CAPABILITY": {"default": "", "avx2": "avx2", "avx512": "avx512f"},
    "MKL_ENABLE_INSTRUCTIONS": {
        "SSE4_2": "sse4_2",
        "AVX": "avx",
        "AVX2": "avx2",
        "AVX2_E1": "avx_vnni",
        "AVX512": "avx512f",
        "AVX512_E1": "avx512_vnni",
        "AVX512_E2": "avx512_vnni",
        "AVX512_E3": "avx512_bf16",
        "AVX512_E4": "amx_bf16",
    },
    "MKL_CBWR": {
        "AUTO": "",
        "COMPATIBLE": "",
        "SSE4_2": "sse4_2",
        "AVX": "avx",
        "AVX2": "avx2",
        "AVX512": "avx512f",
        "AVX512_E1": "avx512_vnni",
    },
    "ONEDNN_MAX_CPU_ISA": {
        "ALL": "",
        "DEFAULT": "",
        "SSE41": "sse4_1",
        "AVX": "avx",
        "AVX2": "avx2",
        "AVX2_VNNI": "avx_vnni",
        "AVX512_CORE": "avx512bw",
        "AVX512_CORE_VNNI": "avx512_vnni",
        "AVX512_CORE_BF16": "avx512_bf16",
        "AVX512_CORE_FP16": "avx512_fp16",
        "AVX512_CORE_AMX": "amx_bf16",
    },
}
"""Variables that choose kernels on x86: each value, and the processor flag that it needs (empty: none)."""


def processor() -> str:
    """Return the manufacturer's name of the processor, if the system provides it."""
    if name := _told("model name"):
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


def processor_flags() -> set[str] | None:
    """Return the processor's features by their Linux names; `None` if the system does not provide them."""
    return set(_told("flags").split()) or None


@cache
def _told(field: str) -> str:
    """Return a field of the first processor in Linux's /proc/cpuinfo; empty if it is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == field), "")
