"""claims.md: every claim in the ledger as one sentence, with its verdict and the assertion or test that decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from authoring.lesson import Lesson, LessonError, asserted, with_deeper
from authoring.pages.where_texts_differ import Correction, entries, escaped, ledger, mapped

FILE = "claims.md"
VERDICTS = {
    "H": "holds",
    "C": "holds under this condition",
    "I": "said more exactly",
    "W": "corrected",
    "A": "added",
    "N": "not decided",
}
"""The ledger's verdicts in words."""
CUT = " ..."
"""Ends an assertion in tests/claims.toml of which only the beginning is given."""
LONG = 100
"""Maximum characters of an assertion on the page."""


def sentence(claim: str) -> str:
    """Return the true sentence for a claim.

    It comes from the claim's entry in tests/claims.toml or from the correction that names the claim. If no computation
    can decide the claim, return the common statement and the reason why it cannot be decided.
    """
    entry = mapped()[claim]
    if "not_decidable" in entry:
        said = next((one["often"] for one in entries("undecided") if claim in one["claims"]), "")
        return f"{said}: {entry['not_decidable']}" if said else entry["not_decidable"]
    corrections = (Correction.of(one) for one in entries() if claim in one["claims"])
    return entry.get("says") or next(one.true for one in corrections)


@dataclass(frozen=True)
class Decision:
    """An assertion that decides a claim.

    Attributes:
        part: The lesson or deeper notebook.
        index: Index of the cell that contains the assertion.
        says: The assertion in the form that `asserted` returns.
    """

    part: Lesson
    index: int
    says: str


def decisions(claim: str, lessons: Sequence[Lesson]) -> list[Decision]:
    """Find the assertions that tests/claims.toml names for a claim, in the cells that name the claim.

    If a lesson and its deeper notebook contain the same assertion, the one in the lesson is used.

    Raises:
        LessonError: If an assertion is in none of these cells, or if several assertions match it.
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
                f"tests/claims.toml: {claim}: {named!r}: expected exactly one assertion in the cells of "
                f"{entry.get('cell')} that says `:claims: {claim}`, found {len(meant)}; "
                f"there are {[one.says for one in there]}"
            )
        found.append(meant[0])
    return found


def decided(claim: str, lessons: Sequence[Lesson]) -> str:
    """Return a link to a claim's test or, if there is none, its assertions with links to their cells."""
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
    """Return an assertion as code for a table cell, shortened if it is long."""
    return f"`{escaped(text if len(text) <= LONG else text[:LONG].rsplit(' ', 1)[0] + CUT)}`"


def _by_home(lessons: Sequence[Lesson]) -> Mapping[str, list[str]]:
    """Return the claims, keyed by the name of the lesson that decides them, or by "" if no lesson does."""
    names = {lesson.name for lesson in lessons}
    found: dict[str, list[str]] = {}
    for claim in ledger():
        home = mapped()[claim].get("cell", "")
        if home in names or not home:
            found.setdefault(home, []).append(claim)
    return found


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page as Markdown."""
    by_home = _by_home(lessons)
    count = sum(map(len, by_home.values()))
    parts = [
        "# What is claimed, and what decides it",
        f"This page lists the {count} claims about the transformer that this course has checked. Each is stated as a "
        "true sentence, with the assertions that decide it and a link to their cell, or with the test that decides it. "
        "*Corrected*, *said more exactly* and *holds under this condition* mean that many texts say something else, as "
        "[Where texts differ](where_texts_differ.md) explains. Use your browser's search to find words on this page. "
        "In JupyterLab, a link leads directly to the cell.",
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
