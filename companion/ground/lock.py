"""Allow only one process at a time, using a lock that the system releases when its holder ends for any reason."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from companion.ground.atomic import writing

_PATIENCE = 0.5
"""Seconds to keep trying, because a holder that has just ended may still be removing the file."""


class Busy(ValueError):
    """Raised when another process holds the lock."""


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock on the file `path` during the `with` block; the file is created first and removed afterwards.

    If the process is killed, the file remains but no longer locks anything, because the system ends the lock together
    with the process. On a file system without locks, such as some network file systems, nothing is locked.

    Raises:
        Busy: If another process holds the lock. The message says `what` the lock is for.
        NotWritten: If the file cannot be created.
    """
    lock = FileLock(path, mode=0o644)
    with writing(path, 1):
        try:
            lock.acquire(timeout=_PATIENCE, poll_interval=0.02)
        except Timeout:
            raise Busy(
                f"{what}: another process{_holder(path)} is training in this folder; wait until it ends, "
                "stop it with Ctrl-C, or choose another --out"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
    try:
        with suppress(OSError):  # The name only informs people, so a full disk does not matter
            path.write_text(f"{os.getpid()} on {socket.gethostname()}\n", "utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows does not remove open files
            path.unlink()
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError, UnicodeError):
        if holder := path.read_text("utf-8").strip():
            return f" ({holder})"
    return ""
