"""Read text files, and reject anything else.

A named pipe would block its reader, and binary data is not text.
"""

from __future__ import annotations

import codecs
import errno
import os
from pathlib import Path
from typing import Any

from companion.ground.fields import parse_json, why


def read_file(path: str | Path) -> bytes:
    """Return the contents of a file.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return Path(path).read_bytes()


def text_of(data: bytes) -> str:
    """Decode a UTF-8 file, leaving line endings unchanged and dropping the byte order mark that some editors write.

    Raises:
        UnicodeError: If the file is not text. For UTF-16 and UTF-32, which Windows programs write, the message names
            the encoding.
    """
    for mark, name in _OTHER.items():
        if data.startswith(mark):
            raise UnicodeError(f"it is in {name}; save it as UTF-8")
    if (nul := data.find(b"\0")) >= 0:
        raise UnicodeError(f"a NUL byte at offset {nul}")
    return data.decode("utf-8-sig")


_OTHER = {
    codecs.BOM_UTF32_LE: "UTF-32",  # check UTF-32 first, because its mark begins with that of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


_POINTER = b"version https://git-lfs.github.com/spec/"


def raise_pointer(path: str | Path) -> None:
    """Check that a file is not a Git LFS pointer, which takes the place of a large file that was not fetched.

    Raises:
        ValueError: If the file is such a pointer.
    """
    try:
        with open(path, "rb") as file:
            pointer = file.read(len(_POINTER)) == _POINTER
    except OSError:  # reading the file raises a clearer error
        return
    if pointer:
        raise ValueError(f"{path}: this is only a Git LFS pointer to the file; run `git lfs pull` to download it")


def read_text(path: str | Path) -> str:
    """Read a file and decode it with `text_of`.

    Raises:
        OSError: As in `read_file`.
        UnicodeError: As in `text_of`.
        ValueError: In the same cases as `raise_pointer`.
    """
    data = read_file(path)
    if data.startswith(_POINTER):
        raise_pointer(path)
    return text_of(data)


def lines_of(text: str) -> list[str]:
    """Split a text into lines at line ends only.

    `str.splitlines` also splits at form feeds, U+2028 and a few other characters, which do not end a line of JSON or
    prose.
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        ValueError: If the file is not JSON. The message names the file.
        OSError: If the file cannot be read.
    """
    raise_pointer(path)
    try:
        return parse_json(read_text(path))
    except UnicodeError as error:
        raise ValueError(f"{path}: expected JSON, but the file is not text ({why(error)})") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, but the file is damaged or truncated ({why(error)})") from None
