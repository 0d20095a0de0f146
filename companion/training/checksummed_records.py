"""Checksummed records of a run.

run.json, result.json and state.json contain a digest of their contents, so that edited, truncated or swapped files are
noticed before they are used.

The digests of result.json and state.json include the digest of their run, so that files of another run are rejected.
Runs from before digests were introduced have no digest in any file. They are accepted. Digests do not protect against
deliberate forgery.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from companion.ground.fields import is_number, parse_json, shown, why
from companion.ground.reading import read_file
from companion.training.precision import PRECISIONS

DIGEST = "digest"
SEAL = "seal"
"""Field in the run.json of an extended run. It holds the digest from before the extension, which the run's other files
include."""
_WHOLE = ("updates", "evaluations", "parameters")
_TABLES = ("settings", "text", "versions", "sha256", "baselines", "model")


def checksum_of(record: Mapping[str, Any]) -> str | None:
    """Return the digest that a run's other files include, given its run.json, or `None` for a run without digests."""
    found = record.get(SEAL, record.get(DIGEST))
    return None if found is None else str(found)


class Record(dict[str, Any]):
    """Fields of a run's file. Accessing a missing field raises a `ValueError` that names the file and the field."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        super().__init__(
            {name: Record(value, path) if isinstance(value, dict) else value for name, value in fields.items()}
        )
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.path}: the entry {name!r} is missing; the file is damaged")


def checksummed(fields: Mapping[str, Any], run: str = "") -> dict[str, Any]:
    """Return the fields, including their digest. `run` is the digest of the run that the fields belong to."""
    return {**fields, DIGEST: _digest(fields, run)}


def read_checksummed(path: Path, remedy: str, run: str | None = "") -> Record:
    """Read the result of `checksummed` from `path`.

    Args:
        path: path of the file.
        remedy: advice for the error message.
        run: digest of the run, as in `checksummed`, or `None` for a run from before digests were introduced.

    Raises:
        ValueError: if the file is missing, is not a JSON object, or was changed since it was written.
    """
    try:
        fields = parse_json(read_file(path).decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({why(error)}); {remedy}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(fields).__name__}; {remedy}")
    record = Record(fields, path)
    digest = record.get(DIGEST)
    if run is None and digest is not None:
        raise ValueError(
            f"{path}: run.json should contain a digest of this file and does not, so run.json has been changed; "
            "restore run.json from a backup"
        )
    if (
        run is not None
        and (digest is not None or run)
        and digest != _digest({name: fields[name] for name in fields if name != DIGEST}, run)
    ):
        raise ValueError(f"{path}: the file was changed after this run wrote it; {remedy}")
    return record


def check_record(record: Record, remedy: str) -> None:
    """Raise `ValueError` if a field of run.json has the wrong type."""

    def require(good: bool, name: str, expected: str) -> None:
        if not good:
            raise ValueError(f"{record.path}: {name}={shown(record[name])}: expected {expected}; {remedy}")

    for name in (name for name in _WHOLE if name in record):
        require(type(record[name]) is int and record[name] >= 1, name, "a whole number >= 1")
    for name in (name for name in _TABLES if name in record):
        require(isinstance(record[name], dict), name, "an object with fields")
    if "precision" in record:
        require(record["precision"] in PRECISIONS, "precision", "one of " + ", ".join(map(repr, PRECISIONS)))
    if "bytes_per_token" in record:
        require(
            is_number(record["bytes_per_token"]) and record["bytes_per_token"] > 0, "bytes_per_token", "a number > 0"
        )
    if "data" in record:
        texts = isinstance(record["data"], list) and all(isinstance(path, str) for path in record["data"])
        require(texts, "data", "a list of texts")
    for name, kind, expected in (
        ("sha256", str, "texts"),
        ("versions", str, "texts"),
        ("baselines", float, "numbers"),
    ):
        values = record.get(name, {}).values()
        fits = all(is_number(value) if kind is float else isinstance(value, str) for value in values)
        require(fits, name, f"an object whose values are {expected}")
    for name in ("title", "fingerprint"):
        text = record.get("text", {})
        require(name not in text or isinstance(text[name], str), "text", f"a {name} that is text")


def check_result(result: Record, remedy: str) -> None:
    """Raise `ValueError` if a result contains something other than a number where a number is expected."""
    for name, value in result.items():
        if name != DIGEST and not (is_number(value) or isinstance(value, (dict, list))):
            raise ValueError(f"{result.path}: {name}={shown(value)}: expected a finite number; {remedy}")


def digest_of(values: object) -> str:
    """Return a digest of values as JSON; it does not depend on the order of an object's keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest(fields: Mapping[str, Any], run: str) -> str:
    return digest_of([run, fields])
