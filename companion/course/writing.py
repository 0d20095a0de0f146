"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, content: str | bytes) -> None:
    """Write a file beside its place, then move it there; folders are made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
