"""One process at a time: a lock that the system takes back when its holder dies, however it dies."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from companion.files.atomic import writing

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Busy(ValueError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of the file `path` in this block; the file is made, and removed afterwards.

    A kill leaves the file, which locks nothing: what counts is the system's lock on it, and that ends with the process.
    On a file system without locks (some network ones) nothing is locked.

    Raises `Busy`, saying `what` the lock is for, if another process holds it, and `NotWritten` if the file cannot be
    made.
    """
    while True:
        with writing(path, 1):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise Busy(
                    f"{what}: another process{_holder(path)} is training into this folder; wait until it has ended, "
                    "stop it with Ctrl-C there, or choose another --out"
                ) from None
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                yield
                return
            raise
        if _is_still(descriptor, path):
            break
        os.close(descriptor)  # its holder removed it between our opening and our locking it: the name is another file's
    try:
        with suppress(OSError):  # who holds it is for people to read; a full disk does without
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            path.unlink()
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_still(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _holder(path: Path) -> str:
    with suppress(OSError, UnicodeError):
        if holder := path.read_text("utf-8").strip():
            return f" ({holder})"
    return ""
