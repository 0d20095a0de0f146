"""where_texts_differ.md: common statements, what is true instead, and the cell that shows it, by lesson."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from authoring.lesson import ROOT, Lesson, LessonError, with_deeper

FILE = "where_texts_differ.md"
SOURCE = Path(__file__).with_name("where_texts_differ.toml")
CORRECTED = frozenset("WIC")  # verdicts that require a tested correction


@dataclass(frozen=True)
class Correction:
    """A common statement and its correction.

    Attributes:
        claims: Names of the claims in the ledger.
        often: The common statement.
        true: What is true.
    """

    claims: tuple[str, ...]
    often: str
    true: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Correction:
        says = mapped().get(entry["claims"][0], {})
        true = entry.get("true") or says.get("says") or says.get("not_decidable")
        if not true:
            raise LessonError(f"{SOURCE.name}: {entry['claims'][0]} has no `true`, and tests/claims.toml no `says`")
        return cls(tuple(entry["claims"]), entry["often"], true)


@cache
def ledger() -> dict[str, str]:
    """Return the verdict of each claim."""
    with (ROOT / "tests" / "ledger.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["verdict"] for row in csv.DictReader(file)}


@cache
def mapped() -> dict[str, dict[str, Any]]:
    """Return the entries of tests/claims.toml, which say where each claim is tested and what is true."""
    read = tomllib.loads((ROOT / "tests" / "claims.toml").read_text(encoding="utf-8"))
    return {claim: entry for claim, entry in read.items() if isinstance(entry, dict)}


@cache
def entries(kind: str = "correction") -> list[dict[str, Any]]:
    """Return the entries of one kind, `correction` or `undecided`, from the TOML source, in order."""
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))[kind]


def due() -> set[str]:
    """Return the claims that this page must correct."""
    return {claim for claim, verdict in ledger().items() if verdict in CORRECTED}


def home(correction: Correction, lessons: Sequence[Lesson]) -> Lesson | None:
    """Return the lesson that lists a correction.

    This is the lesson that tests/claims.toml names, or else the first lesson with a cell that names one of its claims.
    """
    wanted = {mapped()[claim].get("cell") for claim in correction.claims[:1] if claim in mapped()}
    for lesson in lessons:
        if lesson.name in wanted:
            return lesson
    return next((lesson for lesson in lessons if _cells(correction, lesson)), None)


def _cells(correction: Correction, lesson: Lesson) -> list[tuple[Lesson, int]]:
    """Return the cells that show a correction, first in the lesson and then in its deeper notebook."""
    found = []
    for part in with_deeper([lesson]):
        indices = {index for claim in correction.claims for index in part.claims.get(claim, [])}
        found += [(part, index) for index in sorted(indices)]
    return found


def shown(correction: Correction, lesson: Lesson) -> str:
    """Return a link to the best cell: a cell under "Where texts differ" or "Break it", or else the first cell."""

    def order(place: tuple[Lesson, int]) -> tuple[bool, int, int]:
        part, index = place
        names = [heading.part for heading in part.above(index)]
        at = next((at for at, name in enumerate(("Where texts differ", "Break it")) if name in names), 2)
        return part.is_deeper, at, index

    part, index = min(_cells(correction, lesson), key=order)
    return part.link(part.above(index)[-1].text, part.cells[index].id)


def where(correction: Correction, at: Lesson, lessons: Iterable[Lesson]) -> str:
    """Return the links for a correction: to the best cell of its lesson, its tests, and cells of other lessons."""
    links = [shown(correction, at)] if _cells(correction, at) else []
    tests = {mapped()[claim]["test"].split("::")[0] for claim in correction.claims if "test" in mapped().get(claim, {})}
    links += [f"[a test](../{path})" for path in sorted(tests)]
    others = [(lesson, _cells(correction, lesson)) for lesson in lessons if lesson != at]
    also = [part.link(lesson.label, part.cells[index].id) for lesson, cells in others for part, index in cells[-1:]]
    return ", ".join(links) + (f"; also {', '.join(also)}" if also else "")


def _at_home(corrections: Iterable[Correction], lessons: Sequence[Lesson]) -> Iterator[tuple[Lesson, Correction]]:
    """Yield each correction with its lesson or, if only a test checks it, the lesson of the previous correction."""
    before = lessons[0]
    for correction in corrections:
        lesson = home(correction, lessons)
        if not lesson and any("test" in mapped().get(claim, {}) for claim in correction.claims):
            lesson = before
        if lesson:
            before = lesson
            yield lesson, correction


def escaped(text: str) -> str:
    """Escape text for a Markdown table cell."""
    return text.replace("|", "\\|")


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page as Markdown."""
    corrections = [Correction.of(entry) for entry in entries()]
    listed = list(_at_home(corrections, lessons))
    count, places = len(listed), len({lesson.name for lesson, _ in listed})
    parts = [
        "# Where texts differ",
        "Texts about the transformer contain statements that are not quite right. Some are slips, some leave out a "
        "condition, and some are wrong. The course tests the correction of each by running code, and the last column "
        "links to the cell that shows it. In JupyterLab, a link leads directly to the cell once the notebook has "
        "loaded; elsewhere, look for the section named in the link. "
        f"There are {count} corrections, from {places} lessons.",
    ]
    for lesson in lessons:
        rows = [correction for at, correction in listed if at == lesson]
        if rows:
            parts.append(f"## {lesson.label} {lesson.title}")
            table = ["| often written | what is true | where it runs |", "|---|---|---|"]
            table += [
                f"| {escaped(c.often)} | {escaped(c.true)} | {escaped(where(c, lesson, lessons))} |" for c in rows
            ]
            parts.append("\n".join(table))
    undecided = [Correction.of(entry) for entry in entries("undecided") if entry["claims"][0] in mapped()]
    parts += [
        "## What no computation decides",
        "These statements are common too. No code in this course can show whether they are right or wrong, so the "
        "course does not teach them.",
        "\n".join(["| often written | why it is left out |", "|---|---|"]
                  + [f"| {escaped(c.often)} | {escaped(c.true)} |" for c in undecided]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
