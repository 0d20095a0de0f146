"""The table of notation, `pages/notation.toml`: the meaning of each letter in each lesson."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "pages" / "notation.toml"

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|"
    "upsilon|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega|ell"
)
_WORDS = re.compile(r"\\(?:text|operatorname\*?|mathrm|tag|begin|end|mathbb|textbf|textit)\s*\{[^{}]*\}")
_COMMAND = re.compile(rf"\\(?!(?:{_GREEK})(?![A-Za-z]))[A-Za-z]+")
_LETTER = rf"(?:\\(?:{_GREEK})(?![A-Za-z])|[A-Za-z])"
_SYMBOL = re.compile(rf"({_LETTER})(?:_(?:\{{([^{{}}]*)\}}|({_LETTER}|\d)))?")
_OPEN, _CLOSE = "([{", ")]}"


def atoms(cell: str) -> list[str]:
    r"""Return the symbols in a row's first cell, each in dollars: `$L$; $l = 1, \dots, L$` gives `$L$` and `$l$`."""
    found = []
    for formula in re.findall(r"\$([^$]+)\$", cell):
        for part in [formula] if "\\langle" in formula else _split(formula, ","):
            *left, last = [side.strip() for side in _split(part, "=")]
            found += left or [last]
    kept = [symbol for symbol in dict.fromkeys(found) if re.search(r"[A-Za-z]", symbol.replace("\\dots", ""))]
    return [f"${symbol}$" for symbol in kept]


def _split(text: str, separator: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == separator and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


@cache
def law() -> Mapping[str, Any]:
    """Return the contents of the file: `section`, whose entries are (symbol, meaning, axes, lessons), and `several`."""
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split())


def meanings() -> dict[str, dict[int, str]]:
    """Return the meaning of each symbol by lesson: `d_k` -> {2: "components of a query and key"}."""
    found: dict[str, dict[int, str]] = {}
    for symbol, words, _, named in (entry for part in law()["section"] for entry in part["entries"]):
        for atom in atoms(symbol):
            for number in numbers(named):
                found.setdefault(plain(atom), {})[number] = words
    return found


def plain(symbol: str) -> str:
    """Return a symbol without dollars or unnecessary braces: `$d_{k}$` becomes `d_k`."""
    return re.sub(r"_\{(\w|\\\w+)\}", r"_\1", symbol.strip("$")).replace(" ", "")


def symbols(formula: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    r"""Yield each letter of a formula with and without its subscript, and the letters in the subscript.

    Words (`\text`, `\operatorname`, `\mathrm`) do not count as letters.
    """
    formula = _COMMAND.sub(" ", _WORDS.sub(" ", formula)).replace("'", "")
    for found in _SYMBOL.finditer(formula):
        below = found[2] or found[3] or ""
        whole = f"{found[1]}_{{{below}}}" if found[2] else f"{found[1]}_{below}" if below else found[1]
        yield plain(whole), found[1], tuple(re.findall(_LETTER, below))


def unknown_letters(formula: str, known: set[str]) -> list[str]:
    """Return the unknown symbols in a formula.

    A symbol is known if it is in `known` or if all its letters are known: `q_i` is known if `q` and `i` are.
    """
    return [
        whole
        for whole, letter, below in symbols(formula)
        if whole not in known and not (letter in known and all(part in known for part in below))
    ]


def second_meanings(found: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    """Return the symbols with more than one meaning, and their meanings by lesson."""
    return {symbol: dict(by_lesson) for symbol, by_lesson in found.items() if len(set(by_lesson.values())) > 1}
