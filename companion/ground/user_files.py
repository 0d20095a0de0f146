"""Small files that are stored for a user, and size-limited folders of files that can be regenerated.

Each file is a table of entries by key. The files are in the folder that `COMPANION_HOME` names, or else in `.companion`
in the home folder.
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
    """Return the path of the file with this name, whether it exists or not."""
    home = os.environ.get("COMPANION_HOME")
    return (Path(home) if home else Path.home() / ".companion") / name


def read_kept(name: str, what: str, made: Callable[[Any], Entry]) -> dict[str, Entry]:
    """Return the entries of a file, keyed as in the file; a missing file has no entries.

    Args:
        name: Name of the file.
        what: Description of the expected contents, for the message.
        made: Makes an entry from its JSON value; raises `ValueError`, `TypeError` or `AttributeError` for an invalid
            value.

    Raises:
        ValueError: If the file cannot be read or understood. The message names the file.
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
        raise ValueError(f"{file}: expected {what}; to start over, move the file elsewhere") from None


def write_kept(name: str, entries: Mapping[str, Any]) -> None:
    """Replace the entries of a file with these, which must be representable in JSON."""
    write_atomic(kept_file(name), json.dumps(entries, indent=1))


def forget(folder: Path, *, keep: Path | None = None, most: int, days: float) -> int:
    """Remove subfolders of `folder` whose contents can be regenerated.

    First, folders that were last used more than `days` days ago are removed. Then the least recently used ones are
    removed until the folders other than `keep` have at most `most` bytes. Folders that another process holds open, or
    that no longer exist, are skipped.

    Args:
        folder: The folder to clean up.
        keep: A folder that is never removed and counts as used now.
        most: Maximum number of bytes left in folders other than `keep`.
        days: Maximum age in days since the last use.

    Returns:
        The number of bytes removed.
    """
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
