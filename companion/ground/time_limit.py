"""Limit the time and the memory of code that may never end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class OutOfTime(BaseException):
    """Raised when the code in an `at_most` block reaches the time limit.

    It is not a subclass of `Exception`, so code that catches every `Exception` does not catch it.
    """


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in a block that runs for too long, where this is possible (in the main thread, but not on
    Windows).

    Processor time is measured rather than elapsed time, so that a right answer does not fail because the machine is
    busy.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, end)
    left, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        signal.setitimer(signal.ITIMER_PROF, left)  # restore the remaining time of an enclosing block


@contextmanager
def within(size: int) -> Iterator[None]:
    """On Linux, raise `MemoryError` in a block that allocates more than `size` additional bytes.

    During the block the limit applies to all threads of the process, so the block should be short.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + size
    if soft != resource.RLIM_INFINITY and soft <= most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
