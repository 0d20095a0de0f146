"""Convert numbers below a million to their names in several languages, and names to numbers (lesson 09).

The names come from `num2words`, which is called for 2,000 numbers in each language. The name of 1000 k + r is the name
of 1000 k, followed by a text that only depends on r. So two tables suffice to write and to read a million names, and
reading is the exact inverse of writing. (A test checks that num2words gives the same names.)

One error is corrected: for 101,000, num2words 0.5 gives "einhunderteinstausend", and it makes the same mistake in all
numbers X01,xxx. The correct German form, used here, is "einhunderteintausend".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

MOST = 1_000_000
"""Names are known for 0 to MOST - 1."""
PieceKind = Literal["parts", "characters"]
"""How a name is divided: into its parts (the morphemes of a German compound, the words of other languages), or into
letters.
"""

_GERMAN = (
    "null|eins|zehn|elf|zwölf|dreizehn|vierzehn|fünfzehn|sechzehn|siebzehn|achtzehn|neunzehn|zwanzig|dreißig|vierzig|"
    "fünfzig|sechzig|siebzig|achtzig|neunzig|ein|zwei|drei|vier|fünf|sechs|sieben|acht|neun|und|hundert|tausend"
)
"""Longer parts are listed before the shorter parts that they begin with. Byte-pair encoding would not find these parts,
because its pieces are not morphemes.
"""
_GERMAN_VARIANTS = (
    ("^(?=hundert|tausend)", "ein"),
    ("tausend(?=hundert)", "tausendein"),
    ("einstausend", "eintausend"),
)
_WORDS = r"[^\W\d_]+|[-,]"


@dataclass(frozen=True)
class Language:
    """Number names in one language.

    Attributes:
        code: num2words' code for the language.
        title: the language's name in English.
        parts: a regular expression that matches the parts of a name.
        compound: whether parts are written together, as in German, or as words separated by spaces.
        variants: (regular expression, replacement) pairs that convert other accepted spellings to the one used here.
    """

    code: str
    title: str
    parts: str = _WORDS
    compound: bool = False
    variants: tuple[tuple[str, str], ...] = ()

    def name(self, number: int) -> str:
        """Return the name of a number from 0 to 999,999. Raises `ValueError` for a number outside this range."""
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MOST:
            raise ValueError(f"number={number!r}: expected a whole number from 0 to {MOST - 1:,}")
        small, thousands, added = self._tables
        k, rest = divmod(number, 1000)
        return thousands[k] + added[rest] if k else small[rest]

    def number(self, name: str) -> int:
        """Return the number with this name. This is the inverse of `name`.

        Capitals, extra spaces, "ss" for "ß", and a space instead of a hyphen or comma make no difference. In German,
        "hundert" is also accepted for "einhundert".

        Raises:
            ValueError: if the text is not a name; the message says where the name goes wrong.
        """
        key = _key(name).lstrip()
        for pattern, replacement in self.variants:
            key = re.sub(pattern, replacement, key)
        small, thousands, added = self._readers
        if key in small:
            return small[key]
        for end in range(1, len(key) + 1):
            k, rest = thousands.get(key[:end]), added.get(key[end:])
            if k is not None and rest is not None:
                return 1000 * k + rest
        article = "an" if self.title[0] in "AEIOU" else "a"
        raise ValueError(f"{_short(name)} is not {article} {self.title} number name: {self._fault(key)}")

    def split(self, name: str, kind: PieceKind = "parts") -> list[str]:
        """Split `name` into pieces; text that does not belong to any name stays together as one piece."""
        _check_kind(kind)
        if kind == "characters":
            return list(name)
        gaps_and_parts = re.split(f"({self.parts})", name)
        return [piece for piece in map(str.strip, gaps_and_parts) if piece]

    def join(self, pieces: Sequence[str], kind: PieceKind = "parts") -> str:
        """Join pieces into a text, so that `join(split(name)) == name` for every name."""
        _check_kind(kind)
        if kind == "characters" or self.compound:
            return "".join(pieces)
        return " ".join(pieces).replace(" - ", "-").replace(" ,", ",")

    def pieces(self, kind: PieceKind = "parts") -> list[str]:
        """Return the distinct pieces of all names, in the order of the smallest number whose name contains them."""
        return list(dict.fromkeys(piece for text in self.texts() for piece in self.split(text, kind)))

    def longest(self, kind: PieceKind = "parts") -> int:
        """Return the maximum number of pieces in a name."""
        small, thousands, added = (max(len(self.split(text, kind)) for text in texts) for texts in self._tables)
        return max(small, thousands + added)

    def texts(self) -> tuple[str, ...]:
        """Return the texts that all names are composed of; two languages with the same texts have the same names."""
        return tuple(text for texts in self._tables for text in texts)

    @cached_property
    def _tables(self) -> tuple[list[str], list[str], list[str]]:
        """Names of 0 to 999, names of 0 to 999,000 in steps of 1,000, and the texts that 0 to 999 append to the
        thousands."""
        from num2words import num2words  # installed by the extra "school"; nothing else in the package needs it

        def ask(number: int) -> str:
            text = str(num2words(number, lang=self.code))
            return text.replace("einstausend", "eintausend") if self.code == "de" else text

        thousand = ask(1000)
        return (
            [ask(r) for r in range(1000)],
            ["", *(ask(1000 * k) for k in range(1, 1000))],
            ["", *(ask(1000 + r).removeprefix(thousand) for r in range(1, 1000))],
        )

    @cached_property
    def _readers(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """The number for each text in `_tables`, in the form that `_key` returns."""
        small, thousands, added = ({_key(text): n for n, text in enumerate(texts)} for texts in self._tables)
        del thousands[""]
        return small, thousands, added

    def _fault(self, key: str) -> str:
        if not key:
            return "it is empty"
        if key.isdecimal() and len(key) < 10 and int(key) < MOST:
            return f"it is written in digits, and its name is {self.name(int(key))!r}"
        known = {_key(piece) for piece in self.pieces()}
        pieces = re.split(f"({self.parts.casefold()})", key) if self.compound else key.split()
        begun = ""
        for piece in filter(None, pieces):
            if piece not in known:
                return f"{_short(piece)} does not occur in the name of any number below a million"
            going = begun + piece if self.compound else f"{begun} {piece}".strip()
            if not self._begins(going):
                where = (
                    f"continues with {_short(piece)} after {_short(begun)}" if begun else f"begins with {_short(piece)}"
                )
                return f"no name of a number below a million {where}"
            begun = going
        return f"it is incomplete after {_short(begun)}"

    def _begins(self, text: str) -> bool:
        """Return whether any name begins with `text`; both are in the form that `_key` returns."""
        small, thousands, added = self._readers
        if any(name.startswith(text) for table in (small, thousands) for name in table):
            return True
        rests = [text[end:] for end in range(1, len(text)) if text[:end] in thousands]
        return any(name.startswith(rest) for rest in rests for name in added)


_LANGUAGES = {
    found.code: found
    for found in (
        Language("de", "German", _GERMAN, compound=True, variants=_GERMAN_VARIANTS),
        Language("en", "English"),
        Language("fr", "French"),
        Language("pt", "Portuguese"),
    )
}


def languages() -> tuple[Language, ...]:
    """Return the languages whose names are correct in num2words and can be divided into meaningful pieces."""
    return tuple(_LANGUAGES.values())


def language(code: str) -> Language:
    """Return the language of a code such as "de". Raises a `ValueError` that lists all codes if the code is unknown."""
    if code not in _LANGUAGES:
        known = ", ".join(f"{found.code} ({found.title})" for found in languages())
        raise ValueError(f"language {code!r}: expected one of {known}")
    return _LANGUAGES[code]


def _key(text: str) -> str:
    """Normalize spellings of a name. A leading space is kept, because it marks the beginning of an added part."""
    return re.sub(r"[\s,-]+", " ", unicodedata.normalize("NFC", text).casefold()).rstrip()


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _check_kind(kind: str) -> None:
    if kind not in get_args(PieceKind):
        raise ValueError(f"pieces {kind!r}: expected one of {', '.join(map(repr, get_args(PieceKind)))}")
