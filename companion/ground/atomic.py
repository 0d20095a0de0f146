"""Write files completely or not at all, even if the process is interrupted."""

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
from companion.ground.fields import plain

T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotWritten(OSError):
    """Raised when a file cannot be written.

    The message gives the file's name, its size and the reason. No partial file remains.
    """


@contextmanager
def writing(path: str | Path, needed: int) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to a `NotWritten` for `path`, a file of `needed` bytes.

    A `NotWritten` for a part of `path` is converted too.
    """
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


def must_be_writable(place: str | Path, flag: str, given: str | None = None) -> None:
    """Check, before any work is done, that files can be written into a folder at `place`.

    Args:
        place: The path of the folder.
        flag: The flag that named the path, for messages.
        given: The text that the user typed (default: `place`).

    Raises:
        ValueError: If a parent is not a folder or cannot be written to.
    """
    name = f"{flag} {plain(str(place if given is None else given))}"
    path = Path(place).expanduser().absolute()
    try:
        above = next(folder for folder in (path, *path.parents) if folder.exists())
    except OSError as error:
        raise ValueError(f"{name}: cannot be written to ({(error.strerror or str(error)).lower()})") from None
    if not above.is_dir():
        raise ValueError(f"{name}: expected a folder or the path of a new one, but {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{name}: expected a writable folder, but {above} is not writable")


def sync_folder(folder: str | Path) -> None:
    """Flush the names in a folder to the disk, so that a renamed file keeps its new name after a power cut.

    On systems that do not support this (Windows), the function does nothing.

    Raises:
        OSError: If the disk fails.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems do not support this
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Yield temporary paths to write to, in the folder of `paths`, which is created if it is missing.

    If the block succeeds, all files are flushed to the disk and then renamed to `paths`; otherwise all are removed. A
    reader that uses `read_together` sees either all of the old files or all of the new ones.
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
"""Name of a file that exists while several files of a folder are being replaced, and stays if the process is killed."""


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
    """Return the result of `read` for a consistent state of a folder's .json and .safetensors files.

    If `replacing` changes the files in the meantime, they are read again.

    Args:
        folder: The folder whose files are read.
        read: Reads the files.
        seconds: How many seconds to keep trying.

    Raises:
        ValueError: If the files are still being replaced after this time, or an interrupted process has left a mixture
            of old and new files. Errors from `read` are propagated.
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
                f"{folder}: the files do not belong together; they are being replaced, or their "
                "replacement was interrupted; save the model there again"
            )
        time.sleep(0.01)


def _versions(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return, for each file name, the properties that distinguish a file from a later one with the same name."""
    found = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == _MARK or entry.name.endswith((".json", ".safetensors")):
                with suppress(OSError):
                    about = entry.stat()
                    found[entry.name] = about.st_ino, about.st_mtime_ns, about.st_size
    return found


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path` so that no reader ever sees an incomplete file, even after a crash.

    Missing folders are created.

    Raises:
        NotWritten: If the file could not be written. In this case its previous contents are unchanged, and no temporary
            file remains.
    """
    data = data.encode() if isinstance(data, str) else data
    with writing(path, len(data)), replacing(Path(path)) as (draft,):
        draft.write_bytes(data)
