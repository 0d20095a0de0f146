"""Plans for the self-test's runs: at which moments each is killed, and how one run is told from another."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows knows one way only


@dataclass(frozen=True)
class Plan:
    """What a process of a run does besides training.

    notes:    a folder for what it tells: `pid-RANK`; `moment`, just before the kill.
    witness:  write the digest of the weights after each update to `digests`.
    number:   of the file operation in the run's folder that is the moment; 0: none.
    wait:     announce the moment and go on, for somebody else to do the killing; otherwise do it here, at once.
    """

    notes: str
    witness: bool = False
    number: int = 0
    wait: bool = False


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors on the CPU: of names and bytes."""
    made = hashlib.sha256()
    for name in sorted(tensors):
        made.update(name.encode() + b"\0" + tensors[name].detach().flatten().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()
