"""Reading a file that may be something else: a named pipe, which would keep its reader waiting, or no text."""

from __future__ import annotations

import codecs
import errno
import os
from pathlib import Path
from typing import Any

from companion.ground.fields import parse_json, why


def read_file(path: str | Path) -> bytes:
    """What a file holds. Raises `OSError` if it cannot be read, or something other than a file is there."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return Path(path).read_bytes()


def text_of(data: bytes) -> str:
    """The text of a file in UTF-8, line ends as they are, without the byte order mark that some editors put in front.

    Raises `UnicodeError` for what is no text, and for text in UTF-16 or UTF-32, which Windows writes, by this name.
    """
    for mark, name in _OTHER.items():
        if data.startswith(mark):
            raise UnicodeError(f"it is in {name}; save it in UTF-8")
    if (nul := data.find(b"\0")) >= 0:
        raise UnicodeError(f"a NUL byte at byte {nul}")
    return data.decode("utf-8-sig")


_OTHER = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins as that of UTF-16 does: first
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


_POINTER = b"version https://git-lfs.github.com/spec/"


def raise_pointer(path: str | Path) -> None:
    """Raise `ValueError` if a file is what Git has in place of a large file that was not fetched."""
    try:
        with open(path, "rb") as file:
            pointer = file.read(len(_POINTER)) == _POINTER
    except OSError:  # whoever reads it says why
        return
    if pointer:
        raise ValueError(
            f"{path}: expected the file, got Git's pointer to it (Git LFS), which says where the file is stored: "
            "`git lfs pull` fetches it"
        )


def read_text(path: str | Path) -> str:
    """`text_of` a file. Raises `OSError` as `read_file` does, `UnicodeError`, and `ValueError` as `raise_pointer`."""
    data = read_file(path)
    if data.startswith(_POINTER):
        raise_pointer(path)
    return text_of(data)


def lines_of(text: str) -> list[str]:
    """The lines of a text as files have them. `str.splitlines` also cuts where JSON and prose go on: at U+2028, a form
    feed, and a few more."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def read_json(path: Path) -> Any:
    """The value in a file. Raises `ValueError` naming it if it is not JSON, and `OSError` if it cannot be read."""
    raise_pointer(path)
    try:
        return parse_json(read_text(path))
    except UnicodeError as error:
        raise ValueError(f"{path}: expected JSON, got a file that is not text ({why(error)})") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON; it is damaged or was cut short ({why(error)})") from None
