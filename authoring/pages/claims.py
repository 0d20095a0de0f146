"""claims.md: every claim of the ledger in a sentence, how it was decided, and the cell or test that decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from authoring.lesson import Lesson, with_deeper
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


def sentence(claim: str) -> str:
    """What is true of it: its own line in tests/claims.toml, or that of the correction which names it; of what no
    computation decides, what is often said and why nothing decides it."""
    entry = mapped()[claim]
    if "not_decidable" in entry:
        said = next((one["often"] for one in entries("undecided") if claim in one["claims"]), "")
        return f"{said}: {entry['not_decidable']}" if said else entry["not_decidable"]
    corrections = (Correction.of(one, mapped()) for one in entries() if claim in one["claims"])
    return entry.get("says") or next(one.true for one in corrections)


def decided(claim: str, lessons: Sequence[Lesson]) -> str:
    """Links to the cells of its lesson and of the deeper notebook that assert it, or to its test."""
    entry = mapped()[claim]
    if "test" in entry:
        path, *names = entry["test"].split("::")
        return f"[{'::'.join(names)}](../{path})"
    home = [lesson for lesson in lessons if lesson.name == entry.get("cell")]
    places = [(part, index) for part in with_deeper(home) for index in part.claims.get(claim, [])]
    return ", ".join(part.link(part.above(index)[-1].text, part.cells[index].id) for part, index in places)


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
        "the cell or the test that asserts it. *Corrected*, *said more exactly* and *holds under this condition* mean "
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
