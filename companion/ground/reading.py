"""Reading a file that may be something else: a named pipe, which would keep its reader waiting for ever, or no JSON."""

from __future__ import annotations

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


def read_json(path: Path) -> Any:
    """The value in a file. Raises `ValueError` naming it if it is not JSON, and `OSError` if it cannot be read."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON; it is damaged or was cut short ({why(error)})") from None
