"""Memory that is kept: a block that is asked for again comes without the system's help."""

import os
import subprocess
import sys

FAULTS = """
import resource, sys, torch
from companion.ground.heap import keep_memory
kept = sys.argv[1] == "keep" and keep_memory()
def update():
    blocks = [torch.ones(size) for size in (3_000_000, 9_000_000, 200_000)]
for _ in range(6):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    update()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(asked: str, **more: str) -> tuple[str, int]:
    chosen = ("MALLOC_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(chosen)} | more
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, asked], env=environment, capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_what_is_freed_is_there_for_the_next_update() -> None:
    """9 million numbers are a block that the library gives back at once: without more, each page comes eight times."""
    left, plain = _faults("leave")
    kept, fewer = _faults("keep")
    assert (left, kept) == ("False", "True") and plain > 8 * 9_000_000 * 4 // 4096 / 2 and fewer < plain / 3


def test_a_choice_of_the_environment_stays() -> None:
    assert _faults("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
