"""What an instructor keeps secret: the seeds of the hidden cases, and what follows from the secret.

A problem set is graded twice: on the public cases, which a student can try, and on cases of the same properties drawn
from seeds that only the instructor's file knows. Each exercise has seeds of its own, so that one of them, if it gets
known, says nothing about another's.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from companion.ground.fields import plain
from companion.ground.reading import read_file

PUBLIC_SEED = 0
HIDDEN_SEEDS = 2
LEAST = 16
"""Bytes in a seed file: fewer can be guessed."""


def read_secret(path: Path | str) -> bytes:
    """The contents of a seed file. Raises `ValueError` if there is none, or too little in it."""
    try:
        secret = read_file(path).strip()
    except OSError as error:
        raise ValueError(f"--seed-file {plain(str(path))}: cannot be read ({error.strerror})") from None
    if len(secret) < LEAST:
        raise ValueError(
            f"--seed-file {plain(str(path))}: expected at least {LEAST} bytes that nobody guesses, got {len(secret)}; "
            'for example from  python -c "import secrets; print(secrets.token_hex(32))"'
        )
    return secret


def hidden_seed(secret: bytes, id: str, number: int = 0) -> int:
    """The seed of an exercise's hidden cases; another one for each `number`. Never that of the public ones."""
    return int.from_bytes(keyed(secret, id, str(number))[:7], "big") + 1


def keyed(secret: bytes, *what: str) -> bytes:
    """64 bytes that follow from these words, and that nobody can tell who does not have the secret."""
    return hashlib.blake2b("\n".join(what).encode(), key=hashlib.sha256(secret).digest()).digest()


def hidden_seeds(secret: bytes, id: str) -> list[int]:
    """The seeds on which an exercise's hidden cases are drawn."""
    return [hidden_seed(secret, id, number) for number in range(HIDDEN_SEEDS)]
