"""notation.md: every symbol of the lessons with its meaning, and the letters that the deeper notebooks borrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from authoring.lesson import Lesson, LessonError
from authoring.notation import SOURCE, law, numbers

FILE = "notation.md"

AXES = (
    ("batch", "sequences computed together"),
    ("token", "positions of a sequence; called `query` where they attend and `key` where they are attended to"),
    ("head, kv_head", "attention heads; heads with their own keys and values"),
    ("d_model", "components of a token's vector"),
    ("d_head, d_v", "components of one head's query and key, and of its value"),
    ("d_ff", "hidden units of a feed-forward network"),
    ("vocab", "tokens in the vocabulary"),
    ("expert", "experts in a mixture"),
)


@dataclass(frozen=True)
class Meaning:
    """A meaning of a symbol, with the lessons that use the symbol in this sense."""

    symbol: str
    words: str
    axes: str
    lessons: tuple[int, ...]


def sections(lessons: Sequence[Lesson]) -> list[tuple[str, list[Meaning]]]:
    """Return the page's sections as in the TOML source, restricted to the given lessons.

    Raises:
        LessonError: If two entries explain the same symbol for the same lesson.
    """
    there = {lesson.number for lesson in lessons}
    seen: set[tuple[str, int]] = set()
    result = []
    for section in law()["section"]:
        meanings = []
        for symbol, words, axes, named in section["entries"]:
            here = tuple(number for number in numbers(named) if number in there)
            for key in ((symbol, number) for number in here):
                if key in seen:
                    raise LessonError(f"{SOURCE.name}: {symbol} of lesson {key[1]:02d} is defined twice")
                seen.add(key)
            if here:
                meanings.append(Meaning(symbol, words, axes, here))
        result.append((section["title"], meanings))
    return result


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page as Markdown."""
    places = {lesson.number: lesson.link(lesson.label, lesson.cells[0].id) for lesson in lessons}
    parts = [
        "# Notation",
        "This page lists the symbols and shapes used in all lessons. Each number links to its lesson. A "
        "vector is a *row*, so a layer computes $xW$, row times matrix. Axes have the same names in lessons and code:",
        "\n".join(["| axis | counts |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in AXES)]),
    ]
    for title, meanings in sections(lessons):
        rows = [
            f"| {m.symbol} | {m.words} | {m.axes} | {' '.join(places[number] for number in m.lessons)} |"
            for m in meanings
        ]
        if rows:
            parts += [
                f"## {title}",
                "\n".join(["| symbol | what it is | axes | lessons |", "|---|---|---|---|", *rows]),
            ]
    borrowing = [lesson.deeper for lesson in lessons if lesson.deeper and lesson.deeper.borrows]
    rows = [f"| {part.link(part.label, part.cells[0].id)} | {' '.join(part.borrows)} |" for part in borrowing]
    parts += [
        "## One thing, several letters",
        "\n".join(_several(places)),
        "## Borrowed letters",
        "In the lessons, every letter has a single meaning. Some sections of the deeper notebooks use the following "
        "letters in another sense, and say what they mean there:",
        "\n".join(["| deeper notebook | letters |", "|---|---|", *rows]),
    ]
    return "\n\n".join(parts) + "\n"


def _several(places: dict[int, str]) -> Iterator[str]:
    for entry in law()["several"]:
        names = []
        for symbol, named in entry["names"]:
            here = [number for number in numbers(named) if number in places]
            names += [f"{symbol} ({' '.join(f'{number:02d}' for number in here)})"] if here else []
        if len(names) > 1:
            yield f"- {entry['thing']}: {', '.join(names)}"
