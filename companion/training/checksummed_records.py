"""Checksummed records of a run.

run.json, result.json and state.json contain a digest of their contents, so that edited, truncated or swapped files are
noticed before they are used.

The digests of result.json and state.json include the digest of their run, so that files of another run are rejected.
Digests do not protect against deliberate forgery.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from companion.ground.fields import parse_json, why
from companion.ground.reading import read_file

DIGEST = "digest"
SEAL = "seal"
"""Field in the run.json of an extended run. It holds the digest from before the extension, which the run's other files
include."""


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the digest that a run's other files include, given the contents of its run.json."""
    return str(record.get(SEAL, record[DIGEST]))


class Record(dict[str, Any]):
    """Fields in one of a run's files. Accessing a missing field raises a `ValueError` that names the file and the
    field."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        super().__init__(
            {name: Record(value, path) if isinstance(value, dict) else value for name, value in fields.items()}
        )
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.path}: the entry {name!r} is missing; the file is damaged")


def checksummed(fields: Mapping[str, Any], run: str = "") -> dict[str, Any]:
    """Return the fields with their digest added. `run` is the digest of the run that the fields belong to."""
    return {**fields, DIGEST: _digest(fields, run)}


def read_checksummed(path: Path, remedy: str, run: str = "") -> Record:
    """Read the result of `checksummed` from `path`.

    Args:
        path: path of the file.
        remedy: advice for the error message.
        run: digest of the run, as in `checksummed`.

    Raises:
        ValueError: if the file is missing, is not a JSON object, or was changed since it was written.
    """
    try:
        fields = parse_json(read_file(path).decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({why(error)}); {remedy}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(fields).__name__}; {remedy}")
    found = fields.pop(DIGEST, None)
    if found != (digest := _digest(fields, run)):
        older = "" if found else ", or an earlier version wrote it, without a digest"
        raise ValueError(f"{path}: the file was changed after this run wrote it{older}; {remedy}")
    return Record({**fields, DIGEST: digest}, path)


def digest_of(values: object) -> str:
    """Return a digest of values as JSON; it does not depend on the order of an object's keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest(fields: Mapping[str, Any], run: str) -> str:
    return digest_of([run, fields])
