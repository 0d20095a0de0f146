"""The parts of `make gpu`, and what this machine has and has not for them. Only Python itself is needed to look."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys

PYTHON = (3, 11)
REQUIRED: dict[str, tuple[int, ...]] = {"torch": (2, 11), "numpy": (), "safetensors": (), "jaxtyping": ()}
"""Packages without which nothing runs, and their oldest versions."""
OPTIONAL = {
    "pytest": "the tests are left out",
    "triton": "the Triton kernel is left out, and on a GPU what is compiled",
    "transformers": "Mixtral's layer is left out",
    "fla": "the delta rule of flash-linear-attention is left out",
    "beartype": "the tests run without checking shapes",
}
"""What is used where it is there, and what its absence means."""
TITLES = {
    "ceiling": "what the chip reaches",
    "tests": "tests that need a GPU",
    "train": "training",
    "cache": "what the cache gains, after so many tokens",
    "kept": "steps by what is kept of a token",
    "batch": "many texts at a time, over one pool",
    "moe": "mixture of experts",
    "processes": "several processes, of which there is one",
    "attention": "attention, by length",
    "linear": "linear layers, in chunks and token by token",
    "decode": "decoding",
}
"""The parts of `make gpu`, in the order in which they run: last the one that waits for a compiler longest."""


def required() -> None:
    """Raises `ValueError` naming all that is missing of what nothing can do without."""
    wrong = []
    if sys.version_info[:2] < PYTHON:
        wrong.append(f"Python {PYTHON[0]}.{PYTHON[1]} or newer, found {sys.version.split()[0]}")
    for name, least in REQUIRED.items():
        if importlib.util.find_spec(name) is None:
            wrong.append(name)
        elif least and _version(name) < least:
            wrong.append(f"{name} {'.'.join(map(str, least))} or newer, found {importlib.metadata.version(name)}")
    if wrong:
        raise ValueError(f"this machine: expected {'; '.join(wrong)}")


def absent() -> dict[str, str]:
    """What is not here of what could be used, and what that means."""
    found = {name: why for name, why in OPTIONAL.items() if importlib.util.find_spec(name) is None}
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        found["a C compiler"] = "Triton and torch.compile need one"
    return found


def _version(name: str) -> tuple[int, ...]:
    numbers = importlib.metadata.version(name).split("+")[0].split(".")[:2]
    return tuple(int(number) if number.isdigit() else 0 for number in numbers)
