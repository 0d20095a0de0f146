"""claims.md: every claim of the ledger in a sentence, how it was decided, and the assertion or test that decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from authoring.lesson import Lesson, LessonError, asserted, with_deeper
from authoring.pages.differ import Correction, entries, escaped, ledger, mapped

FILE = "claims.md"
VERDICTS = {
    "H": "holds",
    "C": "holds under this condition",
    "I": "said more exactly",
    "W": "corrected",
    "A": "added",
    "N": "not decided",
}
"""What the ledger's letters mean to a reader."""
CUT = " ..."
"""Ends an assertion in tests/claims.toml of which only the beginning is written down."""
LONG = 100
"""Letters of an assertion that the page shows."""


def sentence(claim: str) -> str:
    """What is true of it: its own line in tests/claims.toml, or that of the correction which names it; of what no
    computation decides, what is often said and why nothing decides it."""
    entry = mapped()[claim]
    if "not_decidable" in entry:
        said = next((one["often"] for one in entries("undecided") if claim in one["claims"]), "")
        return f"{said}: {entry['not_decidable']}" if said else entry["not_decidable"]
    corrections = (Correction.of(one, mapped()) for one in entries() if claim in one["claims"])
    return entry.get("says") or next(one.true for one in corrections)


@dataclass(frozen=True)
class Decision:
    """An assertion that decides a claim.

    part, index:  the notebook and its cell.
    says:         the assertion, as `asserted` has it.
    """

    part: Lesson
    index: int
    says: str


def decisions(claim: str, lessons: Sequence[Lesson]) -> list[Decision]:
    """The assertions that tests/claims.toml names for a claim, each found in one of the cells that name the claim.

    Raises `LessonError` for one that no such cell has, or that could be several. Where a lesson and its deeper notebook
    assert the same, the lesson decides.
    """
    entry = mapped()[claim]
    home = [lesson for lesson in lessons if lesson.name == entry.get("cell")]
    there = [
        Decision(part, index, says)
        for part in with_deeper(home)
        for index in part.claims.get(claim, [])
        for says in asserted(part.cells[index].source)
    ]
    found = []
    for named in entry.get("asserts", []):
        begin = named.removesuffix(CUT)
        meant = [one for one in there if one.says == named or (begin != named and one.says.startswith(begin))]
        if len({one.says for one in meant}) != 1:
            raise LessonError(
                f"tests/claims.toml: {claim}: {named!r}: expected one assertion of a cell of {entry.get('cell')} that "
                f"says `:claims: {claim}`, found {len(meant)}; there are {[one.says for one in there]}"
            )
        found.append(meant[0])
    return found


def decided(claim: str, lessons: Sequence[Lesson]) -> str:
    """Its assertions, each with a link to its cell, or its test."""
    entry = mapped()[claim]
    if "test" in entry:
        path, *names = entry["test"].split("::")
        return f"[{'::'.join(names)}](../{path})"
    said = []
    for place, found in groupby(decisions(claim, lessons), key=lambda one: (one.part, one.index)):
        part, index = place
        link = part.link(part.above(index)[-1].text, part.cells[index].id)
        said.append(f"{link}: {', '.join(code_span(one.says) for one in found)}")
    return "; ".join(said)


def code_span(text: str) -> str:
    """An assertion as code in a table's cell, cut where it is long."""
    return f"`{escaped(text if len(text) <= LONG else text[:LONG].rsplit(' ', 1)[0] + CUT)}`"


def _by_home(lessons: Sequence[Lesson]) -> Mapping[str, list[str]]:
    """The claims under each lesson that decides them; under the empty name those that a test decides, or nothing."""
    names = {lesson.name for lesson in lessons}
    found: dict[str, list[str]] = {}
    for claim in ledger():
        home = mapped()[claim].get("cell", "")
        if home in names or not home:
            found.setdefault(home, []).append(claim)
    return found


def render(lessons: Sequence[Lesson]) -> str:
    """The page, as Markdown."""
    by_home = _by_home(lessons)
    count = sum(map(len, by_home.values()))
    parts = [
        "# What is claimed, and what decides it",
        f"The {count} claims about the transformer that this course answers for, each in a sentence that is true, with "
        "the assertions that decide it and a link to their cell, or with the test. *Corrected*, *said more exactly* "
        "and *holds under this condition* mean "
        "that texts often say it otherwise: [where texts differ](where_texts_differ.md) says how. Your browser's "
        "search finds words on this page; in JupyterLab a link goes to that very cell.",
    ]
    titles = [(lesson.name, f"{lesson.label} {lesson.title}") for lesson in lessons]
    for name, title in [*titles, ("", "Decided by a test, or by nothing that can be run")]:
        if name in by_home:
            rows = [
                f"| {claim} | {escaped(sentence(claim))} | {VERDICTS[ledger()[claim]]} | {decided(claim, lessons)} |"
                for claim in by_home[name]
            ]
            parts.append(f"## {title}")
            parts.append("\n".join(["| | what is true | verdict | decided by |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"
