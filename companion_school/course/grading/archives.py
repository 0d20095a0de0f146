"""Unpack what students zipped: only files of the wanted kinds, and no more than a notebook may weigh."""

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
    """Unpack the files of these kinds into a new folder, which is returned; their times are those in the archive.

    Args:
        archive: the zip file.
        into: where the new folder is made.
        kinds: endings of files, such as ".py".
        inner_zips: also unpack zips and whatever tells times: the archive holds a whole class.

    Raises:
        ValueError: it cannot be read, is locked, or holds more than `answers.LARGEST` bytes.
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
    """Write one file, and return its size. A name that leads elsewhere is not followed."""
    parts = [part for part in PurePosixPath(entry.filename.replace("\\", "/")).parts if part not in ("/", "..", ".")]
    if entry.is_dir() or any(part.startswith((".", "__")) for part in parts):
        return 0
    with opened.open(entry) as read:
        data = read.read(most + 1)  # what the entry says of its size may be wrong
    if len(data) > most:
        raise ValueError(f"its files are larger than {LARGEST // 2**20} MiB together")
    target = place.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    changed = time.mktime((*entry.date_time, 0, 0, -1))
    os.utime(target, (changed, changed))
    return len(data)


def _index_size(archive: Path) -> int:
    """The bytes of the list of files at the end of a zip, all of which `zipfile` would read.

    A second list, for archives of more than 4 GB, is not a student's: `zipfile` would believe that one instead.
    """
    with archive.open("rb") as opened:
        opened.seek(max(0, archive.stat().st_size - 65_557))
        tail = opened.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise zipfile.BadZipFile("it is not a zip file")
    if b"PK\x06\x07" in tail[:at]:
        raise zipfile.BadZipFile("it is written for archives of more than 4 GB")
    return int(struct.unpack("<4s4H2LH", tail[at : at + 22])[5])
