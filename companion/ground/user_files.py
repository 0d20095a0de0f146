"""What is kept of a reader from day to day: small files in one folder, each a table of entries by key; and folders of
what could be made again, which are bounded.

The folder is the one that `COMPANION_HOME` names, or `.companion` of the home folder.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from companion.ground.atomic import write_atomic
from companion.ground.fields import plain, why
from companion.ground.reading import read_file

Entry = TypeVar("Entry")


def kept_file(name: str) -> Path:
    """Where the file of that name is, or will be."""
    home = os.environ.get("COMPANION_HOME")
    return (Path(home) if home else Path.home() / ".companion") / name


def read_kept(name: str, what: str, made: Callable[[Any], Entry]) -> dict[str, Entry]:
    """What the file keeps, by key; nothing if it is not there.

    what:  what is expected in it, for the message.
    made:  makes an entry of its JSON value; raises `ValueError`, `TypeError` or `AttributeError` for anything else.

    Raises `ValueError` naming the file if it cannot be read or understood.
    """
    file = kept_file(name)
    try:
        text = read_file(file).decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else why(error)
        raise ValueError(f"{plain(str(file))}: cannot be read ({reason})") from None
    try:
        return {str(key): made(value) for key, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{file}: expected {what}; move the file away to begin again") from None


def write_kept(name: str, entries: Mapping[str, Any]) -> None:
    """Keep these entries, which JSON can write, and no others."""
    write_atomic(kept_file(name), json.dumps(entries, indent=1))


def forget(folder: Path, *, keep: Path | None = None, most: int, days: float) -> int:
    """Remove folders of `folder` that hold what could be made again: those last used more than `days` days ago, and of
    the others those unused longest, until at most `most` bytes are left beside `keep`, which stays and counts as used
    now. Returns the bytes removed; what another process holds fast, and what is not there, is passed over."""
    now, found = time.time(), []
    if keep is not None:
        with suppress(OSError):
            os.utime(keep)
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry != keep and entry.is_dir() and not entry.is_symlink():
                size = sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
                found.append((entry.stat().st_mtime, size, entry))
    left = removed = 0
    for used, size, entry in sorted(found, reverse=True):
        if left + size <= most and now - used <= 86400 * days:
            left += size
        else:
            shutil.rmtree(entry, ignore_errors=True)
            removed += 0 if entry.exists() else size
    return removed
