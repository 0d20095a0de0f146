"""Other machines, as far as this one can play them: sets of environment variables, and how to ask whether they took.

A `Setting` is a column of the table that `run.py` prints.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"
SIMULATED = "COMPANION_MACHINE"


@dataclass(frozen=True)
class Setting:
    """A name, what it stands for in a line, the environment that makes it, and the Python that runs it."""

    name: str
    what: str
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def whole_environment(self) -> dict[str, str]:
        """This process's environment with the setting's: one thread and a drawn hash seed unless it says otherwise."""
        kept = {name: value for name, value in os.environ.items() if name not in _KERNELS and name != "PYTHONHASHSEED"}
        whole = {**kept, "OMP_NUM_THREADS": "1", **self.environment}
        if SIMULATED in self.environment:
            whole["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
        return whole


def _threads(count: int) -> Setting:
    # MKL_DYNAMIC: more threads than cores, too, where they are asked for
    many = {"OMP_NUM_THREADS": str(count), "MKL_DYNAMIC": "FALSE"}
    return Setting(f"threads-{count}", f"{count} thread{'s' * (count > 1)}, where a lesson does not ask for one", many)


SETTINGS = [
    Setting("plain", "PyTorch's kernels without vectors", {"ATEN_CPU_CAPABILITY": "default"}),
    Setting("avx2", "PyTorch's kernels for AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}),
    Setting("mkl-sse", "MKL's matrix products for SSE4.2", {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    Setting("mkl-avx2", "MKL's matrix products for AVX2", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    Setting("mkl-same", "MKL's products that are alike on all processors", {"MKL_CBWR": "COMPATIBLE"}),
    Setting("onednn-sse", "oneDNN's kernels for SSE4.1", {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    _threads(1),
    _threads(2),
    _threads(4),
    Setting("odd-loads", "weights read to addresses that are a multiple of 4 or 8 only", {SIMULATED: "odd-loads"}),
    Setting("other-sums", "simulated: sums cut elsewhere, last bits of exp and sin moved", {SIMULATED: "other-sums"}),
    Setting("hash-0", "sets and dicts of strings in one order", {"PYTHONHASHSEED": "0"}),
    Setting("hash-1", "and in another", {"PYTHONHASHSEED": "1"}),
    Setting("hash-2", "and in a third", {"PYTHONHASHSEED": "2"}),
]

# What each variable's values are called when the library says what it uses; more words than one: all must be there.
_KERNELS: dict[str, dict[str, str]] = {
    "ATEN_CPU_CAPABILITY": {"default": "DEFAULT NO_AVX", "avx2": "AVX2", "avx512": "AVX512"},
    "MKL_ENABLE_INSTRUCTIONS": {"SSE4_2": "SSE4.2", "AVX2": "AVX2", "AVX512": "AVX-512"},
    "MKL_CBWR": {
        "COMPATIBLE": "COMPATIBLE", "SSE4_2": "SSE4_2", "AVX2": "AVX2", "AVX512": "AVX512", "AUTO": "AUTO",
    },
    "ONEDNN_MAX_CPU_ISA": {
        "SSE41": "SSE4.1", "AVX": "AVX", "AVX2": "AVX2", "AVX512_CORE": "AVX-512", "ALL": "",
    },
}  # fmt: skip
_ASKED = """
import torch
print("aten", torch.backends.cpu.get_cpu_capability())
x = torch.randn(17, 20, dtype=torch.float64)
print("mkl", torch.backends.mkl.is_available(), x @ x.T is None)
torch.nn.functional.conv2d(torch.randn(8, 16, 32, 32), torch.randn(16, 16, 3, 3))
"""


def parse(text: str) -> Setting:
    """A setting by its name, one of its own as `VARIABLE=VALUE`, or several of them joined with `+`.

    Raises `ValueError` for a name that is not in `SETTINGS`, another variable, a value that it does not have, and for
    parts that set the same variable.
    """
    if "+" in text:
        return _joined(text, [parse(part) for part in text.split("+")])
    known = {setting.name: setting for setting in SETTINGS}
    if text in known:
        return known[text]
    variable, given, value = text.partition("=")
    if not given:
        raise ValueError(f"setting {text!r}: expected one of {', '.join(known)}, or VARIABLE=VALUE")
    if variable not in _KERNELS:
        raise ValueError(f"setting {text!r}: expected one of the variables {', '.join(_KERNELS)}")
    if value not in _KERNELS[variable]:
        raise ValueError(f"setting {text!r}: expected for {variable} one of {', '.join(_KERNELS[variable])}")
    return Setting(text, "asked for by hand", {variable: value})


def _joined(text: str, parts: Sequence[Setting]) -> Setting:
    environment: dict[str, str] = {}
    for part in parts:
        for variable in environment.keys() & part.environment.keys():
            raise ValueError(f"setting {text!r}: expected one part that sets {variable}, got two")
        environment |= part.environment
    return Setting(text, "; ".join(part.what for part in parts), environment)


def missing_here(setting: Setting) -> str | None:
    """Why this machine cannot play the setting, in a sentence; None where it can.

    The libraries are asked, in a process of its own, which kernels they use under it: each falls back in silence.
    """
    for variable, value in setting.environment.items():
        if variable in _KERNELS:
            said = _said(setting.python, variable, value)
            wanted = _KERNELS[variable][value]
            if said is None:
                return f"this PyTorch was built without the library that {variable} is for: leave {setting.name} out"
            if not any(word in said for word in wanted.split() or [""]):
                return f"this processor does not know the kernels {variable}={value}: leave {setting.name} out"
    return None


@cache
def _said(python: str, variable: str, value: str) -> str | None:
    """What a library says of its kernels; None where it is not there."""
    verbose = {"MKL_VERBOSE": "1"} if variable.startswith("MKL") else {"ONEDNN_VERBOSE": "1"}
    clean = {name: text for name, text in os.environ.items() if name not in _KERNELS}
    environment = {**clean, **({} if variable.startswith("ATEN") else verbose), variable: value}
    done = subprocess.run([python, "-c", _ASKED], env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise ValueError(f"{python}: expected a Python with PyTorch ({done.stderr.strip().splitlines()[-1]})")
    marks = {"ATEN": "aten ", "MKL_CBWR": "CNR:", "MKL_ENABLE": "MKL_VERBOSE oneMKL", "ONEDNN": "cpu,isa:"}
    mark = next(text for start, text in marks.items() if variable.startswith(start))
    line = next((line for line in done.stdout.splitlines() if mark in line), None)
    return line and line.split(mark, 1)[1]
