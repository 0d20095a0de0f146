"""Files that are written whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from companion.ground.display import readable_bytes

T = TypeVar("T")
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
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Give paths to write to in the folder of `paths`, which is made if it is missing.

    If the block succeeds, all are flushed to the disk and then renamed to `paths`; if it does not, all are removed. A
    reader that uses `read_together` meets all the old files or all the new ones.
    """
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    drafts = [path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp") for path in paths]
    try:
        yield drafts
        for draft in drafts:
            with open(draft, "rb+") as file:
                os.fsync(file.fileno())
        _rename(drafts, paths)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    sync_folder(folder)


_MARK = ".replacing"
"""A file that is there while several files of a folder are being replaced; after a kill in between it stays."""


def _rename(drafts: Sequence[Path], paths: Sequence[Path]) -> None:
    mark, done = paths[0].with_name(_MARK), 0
    if several := len(paths) > 1 and any(path.exists() for path in paths):
        mark.touch()
    try:
        for draft, path in zip(drafts, paths, strict=True):
            os.replace(draft, path)
            done += 1
    finally:
        if several and done in (0, len(paths)):
            mark.unlink(missing_ok=True)


def read_together(folder: Path, read: Callable[[], T], *, seconds: float = 5.0) -> T:
    """Return what `read` gives of a folder's .json and .safetensors files, as they were together at one moment.

    Where `replacing` gives them other contents meanwhile, they are read again.

    Raises what `read` raises, and `ValueError` where after so many seconds the files are still being replaced, or a
    kill has left some of the old beside some of the new.
    """
    end = time.monotonic() + seconds
    while True:
        before = _versions(folder)
        try:
            found = read()
        except Exception:
            if _MARK not in before and before == _versions(folder):
                raise
        else:
            if _MARK not in before and before == _versions(folder):
                return found
        if time.monotonic() > end:
            raise ValueError(
                f"{folder}: expected files that were saved together, found some that are being replaced, or whose "
                "replacement was interrupted; save the model there again"
            )
        time.sleep(0.01)


def _versions(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What tells each file from one that takes its name later."""
    found = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == _MARK or entry.name.endswith((".json", ".safetensors")):
                with suppress(OSError):
                    about = entry.stat()
                    found[entry.name] = about.st_ino, about.st_mtime_ns, about.st_size
    return found


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path` so that a reader, or a crash, never meets half of it.

    Missing folders are made. Raises `NotWritten`, with what was there before left as it was, and no draft behind.
    """
    data = data.encode() if isinstance(data, str) else data
    with writing(path, len(data)), replacing(Path(path)) as (draft,):
        draft.write_bytes(data)
