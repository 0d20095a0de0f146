"""`companion doctor`: describe this machine and its kernels, and check which results match those of other machines."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.ground.display import columns, count, readable_bytes
from companion.ground.installed import CHECKOUT, NAME, install_line, installed, missing
from companion.ground.processor import processor, processors

if TYPE_CHECKING:
    from companion.commands.same_everywhere import Finding

EXTRAS = ("school", "colab", "lab", "published", "course", "test", "bench", "site", "dev")
WIDTH = 79
"""Width of the report in columns."""

NOTED = (
    *("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"),
)
"""Environment variables that the report shows."""


JSON = (
    "print the report as JSON: an object with the keys course, python, versions, extras, wrong, machine, comparisons "
    "and holds. Later versions may add keys but will not change these"
)


def parser() -> Parser:
    parser = Parser(
        description=(
            "Describe this machine, for example for a bug report: processor, memory, kernels, threads, GPU, installed "
            "versions and missing packages. Then compute, within seconds, some results that must be the same on every "
            "machine and some that may differ by rounding, and report which of them differ here.\n\n"
            "The exit code is 0 if everything is in order, and 1 if a result is wrong or a package is missing."
        ),
        epilog=(
            "examples:\n"
            "  companion doctor\n"
            "  OMP_NUM_THREADS=1 companion doctor            on one thread\n"
            "  ATEN_CPU_CAPABILITY=default companion doctor  without vector kernels\n"
            "  MKL_CBWR=COMPATIBLE companion doctor          a fixed order of sums\n"
            "  companion doctor --json                       as JSON"
        ),
    )
    parser.add_argument("--json", action="store_true", help=JSON)
    return parser


def run(flags: Namespace) -> int:
    """Print the report.

    Returns:
        The exit code: 0 if everything is in order, or 1 if a required result is wrong or something is not installed
            properly.
    """
    wrong = missing_requirements()
    torchless = any("torch" in sentence for sentence in wrong)
    if flags.json:
        machine = None if torchless else hardware()
        pairs = [] if torchless else list(compared())
        found = [
            {"must_hold": must_hold, "claim": one.claim, "same": one.same, "found": one.found}
            for must_hold, one in pairs
        ]
        holds = not wrong and all(one.same for must_hold, one in pairs if must_hold)
        said = {**software(), "wrong": wrong, "machine": machine, "comparisons": found, "holds": holds}
        print(json.dumps(said, indent=2))
        return 0 if holds else 1
    print("\n".join(software_lines()))
    if torchless:
        print("\n".join(wrong))
        return 1
    print("\n".join(hardware_lines()), flush=True)
    holds = comparisons()
    for sentence in wrong:
        print(sentence)
    return 0 if holds and not wrong else 1


# Installed software


def software() -> dict[str, Any]:
    """Return the versions of Python, the course and its main libraries, and the extras that are installed or
    missing."""
    names = ("torch", "numpy", "safetensors", "tokenizers", "transformers")
    return {
        "course": course(),
        "python": platform.python_version(),
        "versions": {name: number for name in names if (number := installed(name))},
        "extras": {
            "here": [extra for extra in EXTRAS if not missing(extra)],
            "not_here": [extra for extra in EXTRAS if missing(extra)],
        },
    }


def software_lines() -> list[str]:
    """Format the result of `software` as lines of the report."""
    found = software()
    here, gone = found["extras"].values()
    extras = ", ".join(here) or "none"
    if gone:
        extras += f"; not here: {', '.join(gone)} ({install_line(gone[0])})"
    return [
        _line("course", f"{found['course']}, Python {found['python']}"),
        _line("versions", ", ".join(f"{name} {number}" for name, number in found["versions"].items())),
        _line("extras", extras),
    ]


def course() -> str:
    """Return the version of this package and, in a checkout, the commit."""
    number = installed(NAME)
    text = f"companion {number}" if number else "companion, not installed"
    try:
        described = subprocess.run(
            ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=, changed"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return text
    inside = described.returncode == 0 and (CHECKOUT / ".git").exists()
    return f"{text} ({described.stdout.strip()})" if inside else text


def missing_requirements() -> list[str]:
    """Return a sentence for each missing requirement of the package, with the command that installs it."""
    sentences = []
    for asked in missing():
        number = installed(asked.name)
        got = f"{asked.name} {number} is too old or too new" if number else f"{asked.name} is not installed"
        sentences.append(f"{got}: run pip install '{asked}'")
    if installed(NAME) is None:
        sentences.append(f"The course runs {course_version()}")
    return sentences


def course_version() -> str:
    """Return the installed version or, if nothing is installed, instructions for installing the course."""
    how = f"run pip install -e .  in {_short(CHECKOUT)}" if (CHECKOUT / "pyproject.toml").is_file() else "install it"
    return installed(NAME) or f"from its folder and is not installed: run `make lab` there, or {how}"


# Hardware and kernels


def hardware() -> dict[str, Any]:
    """Return facts about the machine, its kernels, threads and GPUs; `set` lists the relevant environment variables."""
    import torch

    from companion.ground.memory import memory

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "memory": "not known" if (size := memory()) is None else readable_bytes(size),
        "processors": processors(),
        "threads": torch.get_num_threads(),
        "kernels": kernels(),
        "set": {name: os.environ[name] for name in NOTED if name in os.environ},
        "gpu": gpu(),
    }


def hardware_lines() -> list[str]:
    """Format the result of `hardware` as lines of the report."""
    found = hardware()
    chosen = [f"{name}={value}" for name, value in found["set"].items()]
    how_many = f"{count(found['processors'], 'processor')}, {count(found['threads'], 'thread')}"
    return [
        _line("machine", f"{found['system']}, {found['processor']}"),
        _line("memory", f"{found['memory']}; {how_many}"),
        _line("kernels", ", ".join(found["kernels"]) + (f"; set: {', '.join(chosen)}" if chosen else "")),
        _line("GPU", found["gpu"]),
    ]


def kernels() -> list[str]:
    """Return the libraries that multiply matrices on this machine."""
    import torch

    built = torch.__config__.show()
    found = [f"{torch.backends.cpu.get_cpu_capability()} (ATen)"]
    for name, pattern in (("MKL", r"Math Kernel Library Version (\S+?)(?:-Product)? "), ("oneDNN", r"MKL-DNN v(\S+)")):
        if match := re.search(pattern, built):
            found.append(f"{name} {match[1]}")
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    if blas and blas[1] != "mkl":
        found.append(f"BLAS: {blas[1]}")
    if not torch.backends.mkldnn.enabled:
        found.append("oneDNN switched off")
    if (precision := torch.get_float32_matmul_precision()) != "highest":
        found.append(f"float32 products: {precision}")
    return found


def gpu() -> str:
    """Describe the GPUs, or say why no GPU is available."""
    import torch

    if torch.backends.mps.is_available():
        return "mps (Apple)"
    if torch.version.cuda is None and torch.version.hip is None:
        return "none: this PyTorch is built for the CPU only"
    if not torch.cuda.is_available():
        return f"none found; this PyTorch is built for CUDA {torch.version.cuda}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    first = torch.cuda.get_device_properties(0)
    many = f"{len(names)} x " if len(names) > 1 else ""
    half = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
    return f"{many}{names[0]}, {first.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}, {half}"


# Comparisons


def compared() -> Iterator[tuple[bool, Finding]]:
    """Run all comparisons, required ones first; for each, yield whether it must hold on every machine, and its result.

    The results of the others may differ by rounding.
    """
    from companion.commands.same_everywhere import MUST_HOLD, may_differ

    for must_hold, some in ((True, MUST_HOLD), (False, may_differ())):
        for compare in some:
            yield must_hold, compare()


def comparisons() -> bool:
    """Run all comparisons, print their results, and return whether all required ones hold."""
    holds, differs = True, False
    for must_hold, some in groupby(compared(), key=lambda pair: pair[0]):
        print("must hold on every machine" if must_hold else "may differ by rounding")
        for _, one in some:
            holds &= one.same or not must_hold
            differs |= not one.same and not must_hold
            word = ("holds" if one.same else "FAILS") if must_hold else ("same" if one.same else "differs")
            print(f"  {word:<8} {one.claim:<50} {one.found}", flush=True)
    print("All required results are correct." if holds else "A required result is wrong: please report this output.")
    if differs:
        print("Results that may differ are compared with a tolerance, never bit for bit.")
    return holds


def _line(name: str, value: str) -> str:
    return textwrap.fill(f"{name:<9} {value}", columns(WIDTH), subsequent_indent=" " * 10, break_on_hyphens=False)


def _short(path: Path) -> str:
    """Return a path with the home folder abbreviated to ~, so that the path does not reveal the user's name."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
