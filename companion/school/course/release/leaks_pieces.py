"""Every text in a file, however it is put there: cells, their metadata and outputs, pages, archives, codings."""

from __future__ import annotations

import base64
import binascii
import gzip
import html
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-]{16,}\s*){2,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){20,}")
_DEEP = 4
"""How many codings may be inside each other."""


@dataclass(frozen=True)
class Piece:
    """A text, or bytes, and where it was found."""

    where: str
    text: str
    data: bytes


def pieces(folder: Path) -> Iterator[Piece]:
    """All texts of all files of a folder, and the files' names."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        yield Piece(f"{name}, its name", name, name.encode())
        if path.is_file():
            yield from _of_bytes(name, path.read_bytes(), 0)


def _of_bytes(where: str, data: bytes, depth: int) -> Iterator[Piece]:
    if depth > _DEEP:
        return
    if data[:2] == b"PK" and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield Piece(f"{where}: {name}, its name", name, name.encode())
                yield from _of_bytes(f"{where}: {name}", archive.read(name), depth + 1)
        return
    for unpacked in _unpacked(data):
        yield from _of_bytes(f"{where}, unpacked", unpacked, depth + 1)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\n".join(found.decode() for found in re.findall(rb"[\t\n\r -~]{6,}", data))
    if b"\0" in data:
        text = text.replace("\0", "\n")
    yield from _of_text(where, text, data, depth)


def _of_text(where: str, text: str, data: bytes, depth: int) -> Iterator[Piece]:
    if depth > _DEEP:
        return
    read = _json(text)
    if isinstance(read, dict) and "cells" in read:
        yield from _of_notebook(where, read, depth)
        return
    yield Piece(where, text, data)
    if read is not None:
        yield from (piece for inner in strings(read) for piece in _of_text(where, inner, inner.encode(), depth + 1))
        return
    if re.search(r"</?(?:html|body|div|span|pre|p|svg)\b", text):
        bare = html.unescape(re.sub(r"<!--|-->|<[^>]*>", "", text))
        yield Piece(f"{where}, without its tags", bare, b"")
    for pattern, decode in ((_BASE64, _from_base64), (_HEX, bytes.fromhex)):
        for match in pattern.finditer(text):
            decoded = decode(match[0])
            if decoded:
                yield from _of_bytes(f"{where}, decoded", decoded, depth + 1)


def _of_notebook(where: str, read: dict[str, Any], depth: int) -> Iterator[Piece]:
    for number, cell in enumerate(read["cells"], 1):
        if not isinstance(cell, dict):
            cell = {"source": json.dumps(cell)}
        for part, value in cell.items():
            name = f"{where}, cell {number}, {part}"
            if isinstance(value, list) and all(isinstance(line, str) for line in value):
                value = "".join(value)
            for text in strings(value):
                yield from _of_text(name, text, text.encode(), depth + 1)
    rest = {key: value for key, value in read.items() if key != "cells"}
    for text in strings(rest):
        yield from _of_text(f"{where}, notebook metadata", text, text.encode(), depth + 1)


def strings(value: Any) -> list[str]:
    """The texts in a JSON value; lines that Jupyter keeps in a list are one text."""
    found: list[str] = []

    def collect(part: Any) -> None:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            for key, inner in part.items():
                found.append(str(key))
                collect(inner)
        elif isinstance(part, list):
            if part and all(isinstance(line, str) for line in part):
                found.append("".join(part))
            else:
                for inner in part:
                    collect(inner)
        elif part is not None:
            found.append(str(part))

    collect(value)
    return found


def _json(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _unpacked(data: bytes) -> Iterator[bytes]:
    for unpack, begins in ((gzip.decompress, b"\x1f\x8b"), (zlib.decompress, b"\x78")):
        if data.startswith(begins):
            try:
                yield unpack(data)
            except (OSError, EOFError, zlib.error):
                continue


def _from_base64(text: str) -> bytes | None:
    plain = re.sub(r"\s", "", text).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
