"""Messages about unusable paths, and a check that the disk is writable, made before a long command starts."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from companion.ground.fields import plain

REFUSED = frozenset(
    {
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.ENOENT, errno.EEXIST, errno.EINVAL, errno.ENXIO, errno.EILSEQ, errno.ENOTEMPTY),
    }
)
"""Error codes that mean that a path given by the user is unusable, as opposed to a disk that is full or failing."""


def refusal(error: OSError, given: Mapping[str, Any]) -> str:
    """Return the error sentence about an unusable path.

    Args:
        error: The error that the path caused.
        given: The values of the flags, named as the user types them. If the value of a flag is the path itself or a
            folder above it, the sentence begins with that flag.
    """
    if error.filename is None:
        return str(error)
    place = os.fsdecode(error.filename)
    inside = Path(os.path.abspath(place))
    texts = [(name, text) for name, value in given.items() for text in (value if isinstance(value, list) else [value])]
    named = {
        len(around.parts): f"{name} "
        for name, text in reversed(texts)
        if isinstance(text, str)
        and text
        and (around := Path(os.path.abspath(os.path.expanduser(text)))) in (inside, *inside.parents)
    }
    flag = named[max(named)] if named else ""
    reason = (error.strerror or str(error)).lower()
    return f"{flag}{plain(place)}: cannot be used ({reason}); expected a usable path"


def try_to_write(place: Path, flag: str) -> None:
    """Write a temporary file into the folder at `place`, then remove it together with any folders created for it.

    Some disks report that they are read-only or full only when something is written to them.

    Raises:
        ValueError: If the file or a folder cannot be written.
    """
    path = place.absolute()
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise ValueError(f"{flag} {place}: cannot be written to ({(error.strerror or str(error)).lower()})") from None
    finally:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
