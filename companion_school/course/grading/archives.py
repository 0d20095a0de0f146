"""Unpack students' zip files safely: only files of the wanted types, and only up to a maximum total size."""

from __future__ import annotations

import os
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from companion_school.course.grading.answers import LARGEST

_MOST_FILES, _LARGEST_INDEX, _LONGEST_NAME = 2000, 2**20, 255
_ZIP_FAULTS = (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeError)


def unpack(archive: Path, into: Path, kinds: Sequence[str], *, inner_zips: bool = False) -> Path:
    """Unpack the files of these types into a new folder, with the modification times stored in the archive.

    Args:
        archive: The zip file.
        into: Folder where the new folder is created.
        kinds: File name suffixes, such as ".py".
        inner_zips: True for the archive of a whole class, for which zip files and files with submission times (.yml,
            .txt) are unpacked too, and the size limit is 50 times larger.

    Returns:
        The new folder.

    Raises:
        ValueError: If the archive cannot be read, is encrypted, lists too many files, or the files to unpack exceed
            `answers.LARGEST` bytes.
    """
    place = Path(tempfile.mkdtemp(dir=into), archive.stem)  # the folder's name may appear on a page
    place.mkdir()
    kinds = (*kinds, ".zip", ".yml", ".txt") if inner_zips else kinds
    most = LARGEST * (50 if inner_zips else 1)
    try:
        if not inner_zips and _index_size(archive) > _LARGEST_INDEX:
            raise ValueError("it lists too many files")
        with zipfile.ZipFile(archive) as opened:
            wanted = [(one, parts) for one in opened.infolist() if (parts := _parts(one, kinds))]
            # If the archive includes a virtual environment, its files are nested deeper than the student's own.
            wanted.sort(key=lambda one: 0 if inner_zips else len(one[1]))
            for entry, parts in wanted if inner_zips else wanted[:_MOST_FILES]:
                with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):  # a folder already has this name
                    most -= _write(opened, entry, place.joinpath(*parts), most)
                if most < 0:
                    raise ValueError(f"its files are larger than {LARGEST // 2**20} MiB in total")
            if inner_zips:
                _stand_in(opened, place)
    except _ZIP_FAULTS as error:
        raise ValueError(f"{archive.name} cannot be unpacked: {str(error)[:200]}") from None
    return place


def _stand_in(opened: zipfile.ZipFile, place: Path) -> None:
    """If none of a student's files was unpacked, create one of them as an empty file, so that the student is found."""
    for entry in sorted(opened.infolist(), key=zipfile.ZipInfo.is_dir):
        parts = _parts(entry, ())
        if parts and not place.joinpath(parts[0]).exists():
            target = place.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if entry.is_dir() else target.touch()


def _parts(entry: zipfile.ZipInfo, kinds: Sequence[str]) -> list[str]:
    """Return an entry's path without parts that lead outside the folder, or [] if it should not be unpacked.

    If no types are given, only hidden entries are left out.
    """
    parts = [part for part in PurePosixPath(entry.filename.replace("\\", "/")).parts if part not in ("/", "..", ".")]
    is_hidden = any(part.startswith((".", "__")) for part in parts)
    is_other = entry.is_dir() or PurePosixPath(entry.filename).suffix.lower() not in kinds
    return [] if is_hidden or (kinds and is_other) else [_short(part) for part in parts]


def _short(name: str) -> str:
    """Shorten a name that is too long for the file system, keeping its end, which shows the file's type and owner."""
    data = os.fsencode(name)
    if len(data) <= _LONGEST_NAME:
        return name
    return f"{data[:100].decode('utf-8', 'ignore')}...{data[-100:].decode('utf-8', 'ignore')}"


def _write(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, most: int) -> int:
    """Write one file and return its size in bytes. A file that is too large to be graded is truncated."""
    with opened.open(entry) as read:
        data = read.read(min(most, LARGEST) + 1)  # the declared size of the entry may be wrong
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    changed = time.mktime((*entry.date_time, 0, 0, -1))
    os.utime(target, (changed, changed))
    return len(data)


def _index_size(archive: Path) -> int:
    """Return the size in bytes of a zip file's central directory, which `zipfile` would read into memory as a whole.

    A zip64 directory (for archives of more than 4 GB) is rejected, because `zipfile` would use it instead of the
    ordinary directory.
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
