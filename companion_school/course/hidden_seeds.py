"""The instructor's secret, and the seeds for hidden cases that are derived from it.

A problem set is graded twice: on the public cases, which students can run, and on hidden cases, which check the same
properties but use seeds derived from the instructor's secret file. Each exercise has its own seeds, so a leaked seed
reveals nothing about the other exercises.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from companion.ground.fields import plain
from companion.ground.reading import read_file

PUBLIC_SEED = 0
HIDDEN_SEEDS = 2
LEAST = 16
"""Minimum size of a seed file in bytes, because a shorter secret could be guessed."""


def read_secret(path: Path | str) -> bytes:
    """Read a seed file and return its contents without surrounding whitespace.

    Raises:
        ValueError: If the file cannot be read or has fewer than `LEAST` bytes.
    """
    try:
        secret = read_file(path).strip()
    except OSError as error:
        raise ValueError(f"--seed-file {plain(str(path))}: cannot be read ({error.strerror})") from None
    if len(secret) < LEAST:
        raise ValueError(
            f"--seed-file {plain(str(path))}: expected at least {LEAST} random bytes, got {len(secret)}; "
            'for example from  python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return secret


def hidden_seed(secret: bytes, id: str, number: int = 0) -> int:
    """Return a seed for an exercise's hidden cases. Each `number` yields a different seed, never `PUBLIC_SEED`."""
    return int.from_bytes(keyed(secret, id, str(number))[:7], "big") + 1


def keyed(secret: bytes, *what: str) -> bytes:
    """Hash these words with keyed BLAKE2b to 64 bytes that cannot be predicted without the secret."""
    return hashlib.blake2b("\n".join(what).encode(), key=hashlib.sha256(secret).digest()).digest()


def hidden_seeds(secret: bytes, id: str) -> list[int]:
    """Return the seeds of an exercise's hidden cases."""
    return [hidden_seed(secret, id, number) for number in range(HIDDEN_SEEDS)]
