"""notation.md: every symbol of the lessons with its meaning, and the letters that the deeper notebooks borrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from authoring.lesson import Lesson, LessonError
from authoring.notation import SOURCE, law, numbers

FILE = "notation.md"

AXES = (
    ("batch", "sequences computed together"),
    ("token", "places of a sequence; `query` where they look, `key` where they are looked at"),
    ("head, kv_head", "attention heads; those that have keys and values of their own"),
    ("d_model", "numbers of a token's vector"),
    ("d_head, d_v", "numbers of one head's query and key; of its value"),
    ("d_ff", "hidden numbers of a feed-forward network"),
    ("vocab", "tokens of the vocabulary"),
    ("expert", "experts of a mixture"),
)


@dataclass(frozen=True)
class Meaning:
    """The meaning of a symbol, with the lessons in which it has it."""

    symbol: str
    words: str
    axes: str
    lessons: tuple[int, ...]


def sections(lessons: Sequence[Lesson]) -> list[tuple[str, list[Meaning]]]:
    """Return the page's sections as in the TOML source, restricted to the lessons that are given.

    Raises:
        LessonError: If two entries explain the same symbol of a lesson.
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
        "Symbols and shapes of all lessons on one page; a number leads to its lesson. A "
        "vector is a *row*: a layer computes $xW$, row times matrix. Axes have one name in lessons and code:",
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
        "In the lessons a letter means one thing. Their deeper notebooks borrow these for a section, which says what "
        "they mean there:",
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
