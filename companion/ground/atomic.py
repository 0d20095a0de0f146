"""Files that are written whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from companion.ground.display import readable_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotWritten(OSError):
    """Something could not be written, and nothing of it is there; the message says what, why and how much it needs."""


@contextmanager
def writing(path: str | Path, needed: int) -> Iterator[None]:
    """An `OSError` in this block becomes a `NotWritten` of `path`, of `needed` bytes; so does that of a part."""
    try:
        yield
    except OSError as raised:
        error = raised.__cause__ if isinstance(raised, NotWritten) else raised
        assert isinstance(error, OSError)
        why = (error.strerror or str(error)).lower()
        if error.errno in _FULL:
            why += f"; it takes {readable_bytes(needed)}"
            with suppress(OSError):
                home = next(folder for folder in Path(path).absolute().parents if folder.exists())
                why += f", and {readable_bytes(shutil.disk_usage(home).free)} are free"
        failure = NotWritten(f"{path} could not be written: {why}")
        failure.errno = error.errno
        raise failure from error


def sync_folder(folder: str | Path) -> None:
    """Flush the names in a folder to the disk: a file that was renamed there keeps its new name through a power cut.

    Does nothing where the system knows no such thing (Windows). Raises `OSError` when the disk fails.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems: they keep names in their own way
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to in the folder of `path`; renamed to `path` if the block succeeds, removed if it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield draft
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path` so that a reader, or a crash, never meets half of it.

    Missing folders are made. Raises `NotWritten`, with what was there before left as it was, and no draft behind.
    """
    data = data.encode() if isinstance(data, str) else data
    with writing(path, len(data)), _replacing(Path(path)) as draft:
        draft.write_bytes(data)
