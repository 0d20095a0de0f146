"""Reading a file that may be something else: a named pipe in its place would keep its reader waiting for ever."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def read_file(path: str | Path) -> bytes:
    """What a file holds. Raises `OSError` if it cannot be read, or something other than a file is there."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return Path(path).read_bytes()
