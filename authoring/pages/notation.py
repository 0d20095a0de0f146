"""notation.md: every symbol of the lessons' tables, what it means where, and which of them mean two things."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from authoring.lesson import Lesson, LessonError
from authoring.notation import SOURCE, atoms, law, numbers

FILE = "notation.md"
_SHAPES = ("axes", "axes or value", "axes or values", "axis name", "shape", "shape or value")
_WORDS = ("what it is", "what it counts", "meaning")

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
    """What a symbol stands for, in which lessons."""

    symbol: str
    words: str
    axes: str
    lessons: tuple[int, ...]


def of_lessons(lessons: Sequence[Lesson]) -> dict[tuple[str, int], dict[str, str]]:
    """The row of a lesson's table for each (symbol, lesson)."""
    return {
        (symbol, lesson.number): row for lesson in lessons for row in lesson.symbols for symbol in atoms(row["symbol"])
    }


def sections(lessons: Sequence[Lesson]) -> list[tuple[str, list[Meaning]]]:
    """The page's sections: those of the TOML source, and one of all symbols that stand in no entry of it.

    Raises `LessonError` if an entry names a lesson whose table has no such symbol, or two entries explain one of its
    symbols.
    """
    rows, there = of_lessons(lessons), {lesson.number for lesson in lessons}
    without_tables = {lesson.number for lesson in lessons if lesson.edition == 2}
    seen: set[tuple[str, int]] = set()
    result = []
    for section in law()["section"]:
        meanings = []
        for symbol, words, axes, named in section["entries"]:
            here = tuple(number for number in numbers(named) if number in there)
            for key in ((symbol, number) for number in here):
                if (key not in rows and key[1] not in without_tables) or key in seen:
                    fault = "is explained twice" if key in seen else "is not in its table"
                    raise LessonError(f"{SOURCE.name}: {symbol} of lesson {key[1]:02d} {fault}")
                seen.add(key)
            if here:
                meanings.append(Meaning(symbol, words, axes, here))
        result.append((section["title"], meanings))
    return [*result, ("In one lesson", _others(rows, seen))]


def _others(rows: dict[tuple[str, int], dict[str, str]], seen: set[tuple[str, int]]) -> list[Meaning]:
    """The rows of the lessons' tables with a symbol that no entry explains, as they are.

    Not the names of a matrix's rows and entries, where the matrix itself is explained: "$Z$, entry $z_{ij}$".
    """
    left: dict[tuple[int, str], Meaning] = {}
    for (symbol, number), row in rows.items():
        first = atoms(row["symbol"])[0]
        part = re.search(r"\b(row|entry)\b", row["symbol"]) and symbol != first and (first, number) in seen
        if (symbol, number) not in seen and not part:
            words = next((row[name] for name in _WORDS if row.get(name)), "")
            axes = next((row[name] for name in _SHAPES if row.get(name)), "")
            left[number, row["symbol"]] = Meaning(row["symbol"], words, axes, (number,))
    return sorted(left.values(), key=lambda meaning: meaning.lessons)


def clashes(found: Sequence[tuple[str, list[Meaning]]]) -> dict[str, list[Meaning]]:
    """The symbols that mean several things, with what."""
    by_symbol: dict[str, list[Meaning]] = {}
    for _, meanings in found:
        for meaning in meanings:
            for symbol in atoms(meaning.symbol):
                before = by_symbol.setdefault(symbol, [])
                if not any(set(meaning.lessons) <= set(other.lessons) and _is_row(meaning) for other in before):
                    before.append(meaning)
    return {symbol: meanings for symbol, meanings in by_symbol.items() if len(meanings) > 1}


def _is_row(meaning: Meaning) -> bool:
    """Is this a row of a lesson's table, which may name symbols that an entry explains already?"""
    return len(atoms(meaning.symbol)) > 1


def render(lessons: Sequence[Lesson]) -> str:
    """The page, as Markdown."""
    found = sections(lessons)
    places = {lesson.number: lesson.link(lesson.label, _table_cell(lesson)) for lesson in lessons}
    parts = [
        "# Notation",
        "Symbols and shapes of all lessons on one page; a number leads to its lesson. A "
        "vector is a *row*: a layer computes $xW$, row times matrix. Axes have one name in lessons and code:",
        "\n".join(["| axis | counts |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in AXES)]),
    ]
    for title, meanings in found:
        rows = [
            f"| {m.symbol} | {m.words} | {m.axes} | {' '.join(places[number] for number in m.lessons)} |"
            for m in meanings
        ]
        if rows:
            parts += [
                f"## {title}",
                "\n".join(["| symbol | what it is | axes | lessons |", "|---|---|---|---|", *rows]),
            ]
    lines = []
    for symbol, meanings in sorted(clashes(found).items(), key=lambda item: item[0].strip("$\\").lower()):
        said = "; ".join(f"{m.words} ({' '.join(f'{n:02d}' for n in m.lessons)})" for m in meanings)
        lines.append(f"- {symbol}: {said}")
    if lines:
        several = "Letters are few. These mean different things in different lessons."
        parts += ["## One letter, several things", several, "\n".join(lines)]
    parts += [
        "## One thing, several letters",
        "\n".join(_several(lessons, places)),
        "## Borrowed letters",
        "In the lessons a letter means one thing. Their deeper notebooks borrow letters for a section, and say there "
        "what they mean.",
    ]
    return "\n\n".join(parts) + "\n"


def _several(lessons: Sequence[Lesson], places: dict[int, str]) -> Iterator[str]:
    rows = of_lessons(lessons)
    without_tables = {lesson.number for lesson in lessons if lesson.edition == 2}
    for entry in law()["several"]:
        names = []
        for symbol, named in entry["names"]:
            here = [number for number in numbers(named) if number in places]
            absent = [number for number in here if (symbol, number) not in rows and number not in without_tables]
            if absent:
                raise LessonError(f"{SOURCE.name}: {symbol} of lesson {absent[0]:02d} is not in its table")
            names += [f"{symbol} ({' '.join(f'{number:02d}' for number in here)})"] if here else []
        if len(names) > 1:
            yield f"- {entry['thing']}: {', '.join(names)}"


def _table_cell(lesson: Lesson) -> str:
    """The id of the cell with the lesson's table of symbols (the last, if it has several)."""
    holding = [c.id for c in lesson.cells if c.cell_type == "markdown" and re.search(r"^\| symbol \|", c.source, re.M)]
    return holding[-1] if holding else lesson.cells[0].id
