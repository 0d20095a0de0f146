"""What a run writes down about itself, sealed: run.json, result.json and state.json carry a digest of what they say, so
that whatever was edited, cut or swapped is noticed before it is used.

The digest of result.json and state.json covers that of their run, too: those of another run do not pass. Runs of before
there were digests have none in any file, and are taken as they are. Against somebody who wants to deceive this is no
guard.
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
"""In the run.json of a run that was made longer: the digest that it had before, which seals its other files."""
_WHOLE = ("updates", "evaluations", "parameters")
_TABLES = ("settings", "text", "versions", "sha256", "yardsticks", "model")


def seal_of(record: Mapping[str, Any]) -> str | None:
    """The digest that seals the other files of a run.json's run; a run of before there were digests has none."""
    found = record.get(SEAL, record.get(DIGEST))
    return None if found is None else str(found)


class Record(dict[str, Any]):
    """The fields of a file of a run. To ask for one that is missing is a `ValueError` that names file and field."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        super().__init__(
            {name: Record(value, path) if isinstance(value, dict) else value for name, value in fields.items()}
        )
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.path}: expected {name!r} in it, found none; it is damaged")


def sealed(fields: Mapping[str, Any], run: str = "") -> dict[str, Any]:
    """The fields with their digest. `run`: the digest of the run they belong to."""
    return {**fields, DIGEST: _digest(fields, run)}


def read_sealed(path: Path, remedy: str, run: str | None = "") -> Record:
    """What `sealed` gave and `path` keeps. `run`: as there; `None`: the run is of before there were digests.

    Raises `ValueError` for a file that is missing, no JSON object, or that says something else than was written.
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
            f"{path}: it belongs to a run.json with a digest, and the one there has none: that was changed; put it "
            "back from a copy"
        )
    if (
        run is not None
        and (digest is not None or run)
        and digest != _digest({name: fields[name] for name in fields if name != DIGEST}, run)
    ):
        raise ValueError(f"{path}: expected what this run wrote, found something else: it was changed; {remedy}")
    return record


def check_record(record: Record, remedy: str) -> None:
    """Raises `ValueError` for a field of run.json whose value is not of its kind."""

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
        ("yardsticks", float, "numbers"),
    ):
        values = record.get(name, {}).values()
        fits = all(is_number(value) if kind is float else isinstance(value, str) for value in values)
        require(fits, name, f"an object whose values are {expected}")
    for name in ("title", "fingerprint"):
        text = record.get("text", {})
        require(name not in text or isinstance(text[name], str), "text", f"a {name} that is text")


def check_result(result: Record, remedy: str) -> None:
    """Raises `ValueError` for a result that holds no number where one belongs."""
    for name, value in result.items():
        if name != DIGEST and not (is_number(value) or isinstance(value, (dict, list))):
            raise ValueError(f"{result.path}: {name}={shown(value)}: expected a finite number; {remedy}")


def digest_of(values: object) -> str:
    """A digest of values, as JSON has them: the same for the same values, whatever their order in an object."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _digest(fields: Mapping[str, Any], run: str) -> str:
    return digest_of([run, fields])
