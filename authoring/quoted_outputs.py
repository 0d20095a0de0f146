"""Statements about outputs: numbers taken from a cell's output and quoted in a lesson's prose or questions.

    After 600 updates it is at {out}`0.33 <trained>`.

The reader sees "0.33". Each number in the quoted words must be one that the named cell printed or put into the table
under its figure, rounded to the number of decimals in the text: 0.331 may be quoted as "0.33" or as "33 %". Words
without a number must occur unchanged in the output.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

from nbformat import NotebookNode

_NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(\s?%)?")
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)

MOST = 600  # maximum number of characters of an output that a message quotes


@dataclass(frozen=True)
class Said:
    """Words in a source that must match a cell's output.

    Attributes:
        words: The words that must match the output.
        cell: Name of the cell.
        line: Line of the source, counted from 1.
    """

    words: str
    cell: str
    line: int


def numbers(text: str) -> list[tuple[Decimal, bool]]:
    """Return the numbers in a text, and whether each is a percentage.

    "1,024" is one number, "3 of 4" contains two, and a minus sign belongs to its number.
    """
    found = [(match[0], bool(match[1])) for match in _NUMBER.finditer(text)]
    return [(Decimal(re.sub(r"[,\s%]", "", digits).replace("−", "-")), share) for digits, share in found]


def printed(cell: NotebookNode) -> str:
    """Return what a cell shows, as text: the printed lines, and the words and tables in its HTML."""
    parts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        shown = "".join(data["text/html"]) if "text/html" in data else ""
        parts += ["".join(output.get("text", "")), html.unescape(_TAGS.sub(" ", shown))]
        parts += ["".join(data.get("text/plain", ""))] if not shown else []
    return "\n".join(parts)


def _bears_out(shown: str, words: str) -> bool:
    wanted, there = numbers(words), [number for number, _ in numbers(shown)]
    if not wanted:
        return " ".join(words.split()) in " ".join(shown.split())
    return all(
        any(_rounds_to(number, one) or (share and _rounds_to(100 * number, one)) for number in there)
        for one, share in wanted
    )


def _rounds_to(number: Decimal, short: Decimal) -> bool:
    """Return whether `number`, rounded to as many decimals as `short`, equals `short`. Ties may go either way."""
    step = Decimal(1).scaleb(min(0, int(short.as_tuple().exponent)))
    return any(number.quantize(step, way) == short for way in (ROUND_HALF_EVEN, ROUND_HALF_UP))


def faults(said: list[Said], cells: list[NotebookNode]) -> Iterator[tuple[int, str]]:
    """Yield the statements that the outputs do not support, as (line in the source, message)."""
    shown = {cell.metadata["name"]: printed(cell) for cell in cells if "name" in cell.metadata}
    for one in said:
        if not _bears_out(shown[one.cell], one.words):
            there = " ".join(shown[one.cell].split())
            yield one.line, f"the text says {one.words!r}, and the cell {one.cell!r} shows {there[:MOST]!r}"


# --- numbers without an {out} role


_UNSEEN = re.compile(
    r"\{\w+\}`[^`]*`|`[^`]*`|\$[^$\n]*\$|\]\([^)]*\)"
    r"|\(D?\d+\.\d+\)|\b(?:lessons?|[Ff]igures?|exercises?)\s+[\d.]*\d"
)
_LITERAL = re.compile(r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?:e-?\d+)?")
LEAST = 11  # smaller integers are too common to report


def by_hand(text: str, cells: list[NotebookNode]) -> Iterator[tuple[int, str, str]]:
    """Yield numbers in a source's prose that a cell in the same part printed but that are not in an `{out}` role.

    Numbers that also occur in the part's code are skipped, because they are probably inputs rather than results. Whole
    numbers below `LEAST` are skipped too.

    Yields:
        The line, the number as typed, and the name of the nearest cell that shows the number.
    """
    shown = {cell.metadata["name"]: printed(cell) for cell in cells if "name" in cell.metadata}
    for prose, code, named in _parts_of(text):
        inputs = {Decimal(found.replace("_", "")) for found in _LITERAL.findall(code)}
        there = {name: [number for number, _ in numbers(shown.get(name, ""))] for name in named}
        for line, words in prose:
            for match in _NUMBER.finditer(_UNSEEN.sub(lambda found: " " * len(found[0]), words)):
                [(number, share)] = numbers(match[0]) or [(Decimal(0), False)]
                whole = number == number.to_integral_value() and "." not in match[0]
                if abs(number) in inputs or (whole and not share and abs(number) < LEAST):
                    continue
                near = sorted(there, key=lambda name: abs(named[name] - line))
                for name in near:
                    if any(_said_by(one, number, share, whole) for one in there[name]):
                        yield line, match[0].strip(" ,"), name
                        break


def _said_by(shown: Decimal, number: Decimal, share: bool, whole: bool) -> bool:
    if share and _rounds_to(100 * shown, number):
        return True
    return shown == number if whole and not share else _rounds_to(shown, number)


def _parts_of(text: str) -> Iterator[tuple[list[tuple[int, str]], str, dict[str, int]]]:
    """For each part of a source (under an H2), yield its lines of prose, its code, and the lines of its named cells."""
    prose: list[tuple[int, str]] = []
    code: list[str] = []
    named: dict[str, int] = {}
    fence = math = given = False
    for line, words in enumerate(text.split("\n"), 1):
        if words.startswith("## ") and not fence:
            yield prose, "\n".join(code), named
            prose, code, named = [], [], {}
        if words.startswith("```{code-cell}"):
            fence = given = True
        elif fence and words == "```":
            fence = False
        elif fence and words.startswith(":name: "):
            named[words.removeprefix(":name: ").strip()] = line
        elif fence:
            # these cells only repeat results in order to check them
            given &= not words.startswith(("# checks ", "# draws "))
            code += [words] * given
        elif words.startswith("$$"):
            math = not math
        elif not math and not words.startswith(("= ", "~ ", "|---")):
            prose.append((line, words))
        elif not math and " | " in words:
            prose.append((line, " " * (words.index(" | ") + 3) + words[words.index(" | ") + 3 :]))
    yield prose, "\n".join(code), named
