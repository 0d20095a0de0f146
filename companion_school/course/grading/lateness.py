"""What late work costs: a rule in the problem set's own file, PSET.toml, which `companion course release` writes.

due = "2026-11-30T23:59+00:00"
late = "10% a day, at most 50%"
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from companion.ground.fields import shown, why
from companion.ground.reading import read_text

_RULE = re.compile(r"(\d+(?:\.\d+)?)% an? (day|hour)(?:, at most (\d+(?:\.\d+)?)%)?")
_SECONDS = {"day": 86400, "hour": 3600}
_KNOWN = {"due", "late"}


@dataclass(frozen=True)
class Lateness:
    """When work is due, and which share of its points each day or hour that has begun since then costs.

    Raises `ValueError` for a time or a rule that is none.
    """

    due: str
    late: str

    def __post_init__(self) -> None:
        _time(self.due, "due")
        self._terms()

    def _terms(self) -> tuple[float, int, float]:
        found = _RULE.fullmatch(self.late.strip())
        rate, most = (float(found[1]) / 100, float(found[3] or 100) / 100) if found else (math.inf, math.inf)
        if found is None or rate > 1 or most > 1:
            raise ValueError(f"late={shown(self.late)}: expected a rule such as '10% a day, at most 50%', up to 100%")
        return rate, _SECONDS[found[2]], most

    def penalty(self, points: float, timestamp: str) -> float:
        """The points that work handed in at this time loses. Raises `ValueError` for a time that is none."""
        rate, unit, most = self._terms()
        late = (_time(timestamp, "timestamp") - _time(self.due, "due")).total_seconds()
        return points * min(most, rate * math.ceil(late / unit)) if late > 0 else 0.0


def read_rule(file: Path) -> Lateness | None:
    """The rule in a problem set's file; None where there is no file. Raises `ValueError` for one that holds none."""
    if not file.is_file():
        return None
    try:
        told = tomllib.loads(read_text(file))
        if set(told) != _KNOWN or not all(isinstance(value, str) for value in told.values()):
            raise ValueError(f"expected due and late, got {', '.join(map(str, told)) or 'nothing'}")
        return Lateness(**told)
    except (OSError, UnicodeError, ValueError) as error:
        raise ValueError(f"{file}: {why(error)}") from None


def as_toml(rule: Lateness) -> str:
    """The file that `read_rule` reads."""
    return f"due = {json.dumps(rule.due)}\nlate = {json.dumps(rule.late)}\n"


def _time(text: str, what: str) -> datetime:
    written = re.sub(r" ?(UTC|GMT)$", "+00:00", text.strip())
    try:
        time = datetime.fromisoformat(written)
    except ValueError:
        raise ValueError(
            f"{what}={shown(text)}: expected a time such as 2026-11-30T23:59 (UTC), or with +02:00"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
