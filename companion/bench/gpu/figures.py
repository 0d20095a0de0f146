"""What a part hands over: figures and remarks, each written down as soon as it is known, so that they survive it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One number.

    name:    what was measured.
    unit:    of `value`: tokens/s, FLOP/s, B/s, B, s, times, or what was counted.
    at:      where something is measured at several places (lengths, numbers of tokens): which of them.
    shares:  what it is a share of, and which share.
    goal:    what the project wants of it, in words; `met`: whether it is so.
    """

    name: str
    value: float
    unit: str
    at: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    goal: str = ""
    met: bool | None = None


@dataclass
class Part:
    """What became of a part.

    status:  done; failed; out of time (it was stopped, and what it had found counts); not here (what it needs is not
             installed); or not begun (no time was left).
    """

    name: str
    status: str = "not begun"
    why: str = ""
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Record:
    """Writes what a part finds to `path`, a line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: set[str] = set()

    def _write(self, kind: str, what: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: what}) + "\n")

    def figure(self, figure: Figure) -> None:
        """One more figure."""
        self._write("figure", asdict(figure))

    def remark(self, text: str) -> None:
        """Something to know beside the figures, such as what could not be measured and why; the same is said once."""
        text = " ".join(text.split())[:300]
        if text not in self._said:
            self._said.add(text)
            self._write("remark", text)

    def end(self, error: str = "") -> None:
        """The part is over: well, or with this error."""
        self._write("end", error)


def read(path: Path) -> tuple[list[Figure], list[str], str | None]:
    """The figures, the remarks and the error of a part ("": none); `None` if it never came to its end. A last line that
    was cut off counts for nothing."""
    figures: list[Figure] = []
    remarks: list[str] = []
    error: str | None = None
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "figure" in entry:
            figures.append(Figure(**entry["figure"]))
        elif "remark" in entry:
            remarks.append(entry["remark"])
        else:
            error = entry["end"]
    return figures, remarks, error
