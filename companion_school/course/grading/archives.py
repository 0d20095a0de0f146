"""Unpack students' zip files safely: only files of the wanted types, and only up to a maximum size."""

from __future__ import annotations

import os
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from companion_school.course.grading.answers import LARGEST

_MOST_FILES, _LARGEST_INDEX = 2000, 2**20
_ZIP_FAULTS = (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeError)


def unpack(archive: Path, into: Path, kinds: Sequence[str], *, inner_zips: bool = False) -> Path:
    """Unpack the files of these types into a new folder, and give them the times stored in the archive.

    Args:
        archive: The zip file.
        into: Folder where the new folder is created.
        kinds: File name suffixes, such as ".py".
        inner_zips: True for an archive of a whole class. Zip files and the files that record submission times
            (.yml, .txt) are then unpacked too, and the size limit is 50 times larger.

    Returns:
        The new folder.

    Raises:
        ValueError: If the archive cannot be read, is encrypted, lists too many files, or holds more than
            `answers.LARGEST` bytes of these files.
    """
    place = Path(tempfile.mkdtemp(dir=into))
    kinds = (*kinds, ".zip", ".yml", ".txt") if inner_zips else kinds
    most = LARGEST * (50 if inner_zips else 1)
    try:
        if not inner_zips and _index_size(archive) > _LARGEST_INDEX:
            raise ValueError("it lists too many files")
        with zipfile.ZipFile(archive) as opened:
            wanted = [one for one in opened.infolist() if PurePosixPath(one.filename).suffix.lower() in kinds]
            for entry in wanted[:_MOST_FILES]:
                most -= _write(opened, entry, place, most)
    except _ZIP_FAULTS as error:
        raise ValueError(f"{archive.name} cannot be unpacked: {str(error)[:200]}") from None
    return place


def _write(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, place: Path, most: int) -> int:
    """Write one file and return its size in bytes. Parts of its name that lead out of the folder are dropped."""
    parts = [part for part in PurePosixPath(entry.filename.replace("\\", "/")).parts if part not in ("/", "..", ".")]
    if entry.is_dir() or any(part.startswith((".", "__")) for part in parts):
        return 0
    with opened.open(entry) as read:
        data = read.read(most + 1)  # the size that the entry declares may be wrong
    if len(data) > most:
        raise ValueError(f"its files are larger than {LARGEST // 2**20} MiB in total")
    target = place.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    changed = time.mktime((*entry.date_time, 0, 0, -1))
    os.utime(target, (changed, changed))
    return len(data)


def _index_size(archive: Path) -> int:
    """Return the size in bytes of a zip's central directory, because `zipfile` would read all of it into memory.

    A zip64 directory (for archives of more than 4 GB) is rejected, because `zipfile` would use that one instead.
    """
    with archive.open("rb") as opened:
        opened.seek(max(0, archive.stat().st_size - 65_557))
        tail = opened.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise zipfile.BadZipFile("it is not a zip file")
    if b"PK\x06\x07" in tail[:at]:
        raise zipfile.BadZipFile("it is a Zip64 archive (for more than 4 GB)")
    return int(struct.unpack("<4s4H2LH", tail[at : at + 22])[5])
