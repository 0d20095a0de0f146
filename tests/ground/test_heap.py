"""Memory that is kept: a block that is asked for again comes without the system's help."""

import os
import subprocess
import sys

import pytest

from companion.ground import heap

FAULTS = """
import resource, torch
from companion.ground.heap import keep_memory
def update():
    blocks = [torch.ones(size) for size in (3_000_000, 9_000_000, 200_000)]
def faults():
    for _ in range(6):
        update()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        update()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_memory(), faults())
"""


def test_what_is_freed_is_there_for_the_next_update() -> None:
    """9 million numbers are a block that the library gives back at once: without more, each page comes eight times."""
    chosen = ("MALLOC_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(chosen)}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    plain, kept, fewer = done.stdout.split()
    assert kept == "True" and int(plain) > 8 * 9_000_000 * 4 // 4096 / 2 and int(fewer) < int(plain) / 3


def test_a_choice_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: pytest.fail("the library is set"))
    assert not heap.keep_memory()
