"""Hand-ins graded side by side, each in a worker process that is confined, or said not to be."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from companion_school.course.grading.sandbox.parent import Limits, Worker

One = TypeVar("One")
Made = TypeVar("Made")


def side_by_side(
    many: Sequence[One],
    make: Callable[[Worker, One], Made],
    *,
    jobs: int,
    limits: Limits,
    require_sandbox: bool,
    done: Callable[[Made], None],
    warn: Callable[[str], None],
) -> list[Made]:
    """What `make` makes of each, in their order; `jobs` of them at once, each with a worker of its own.

    require_sandbox:  refuse to begin where the kernel does not keep answers to what they may do (Landlock and seccomp:
                      Linux 5.13 or newer, on x86-64 or 64-bit ARM).
    done:             gets each as it is made.
    warn:             gets a sentence on what this system does not guard.

    Raises `ValueError` for a system without fork, or without the sandbox that is required; `OSError` if the process for
    answers does not start.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(many)):
        waiting.put(number)
    found: dict[int, Made] = {}
    stop = threading.Event()

    def work(place: int) -> None:
        with Worker(limits, place) as worker:
            if require_sandbox and not worker.is_sandboxed:
                raise ValueError(f"--require-sandbox: expected a kernel that confines answers; {_missing(worker)}")
            if place == 0 and not worker.is_sandboxed:
                warn(f"{_missing(worker)}: what an answer may do is guarded by Python alone; use a container")
            while not stop.is_set():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                found[number] = make(worker, many[number])
                done(found[number])

    with ThreadPoolExecutor(min(jobs, len(many)) or 1) as pool:
        try:
            for future in [pool.submit(work, place) for place in range(min(jobs, len(many)))]:
                future.result()
        finally:
            stop.set()
    return [found[number] for number in range(len(many))]


def _missing(worker: Worker) -> str:
    """Which of the kernel's means this system does not have."""
    means = {"Landlock (files, connections, signals)": worker.landlock, "seccomp (calls)": worker.seccomp}
    return f"this system has no {' and no '.join(name for name, there in means.items() if not there)}"
