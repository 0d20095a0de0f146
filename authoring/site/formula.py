"""Formulas as MathML, which browsers set without a script and screen readers read.

Pandoc converts them, all in one call; `mathml.py` puts in what browsers need besides. The number of an equation,
`\\tag{2.1}`, stands beside it.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

from authoring.markdown import TAG
from authoring.site.mathml import breakable, mended

API = [1, 23, 1]  # of Pandoc's documents
_MATH = re.compile(r"<math\b.*</math>", re.DOTALL)


@dataclass(frozen=True)
class Formula:
    """A formula without its dollars and its number, and whether it stands on lines of its own."""

    tex: str
    display: bool

    @classmethod
    def of(cls, text: str, display: bool) -> Formula:
        return cls(" ".join(TAG.sub("", text).split()), display)


@dataclass
class Formulas:
    """Formulas with the place where each stands first, and what became of them."""

    places: dict[Formula, str] = field(default_factory=dict)
    done: dict[Formula, str] = field(default_factory=dict)

    def add(self, formula: Formula, place: str) -> None:
        self.places.setdefault(formula, place)

    def convert(self) -> list[str]:
        """Convert all; what could not be, each with its place and why."""
        wanted = [formula for formula in self.places if formula not in self.done]
        faults = []
        for formula, (mathml, why) in zip(wanted, converted(wanted), strict=True):
            if mathml:
                self.done[formula] = mathml
            else:
                faults.append(f"{self.places[formula]}: the formula {formula.tex!r} does not convert: {why}")
        return faults

    def html(self, text: str, display: bool, place: str = "") -> str:
        """The formula as a page has it. Raises `ValueError` if it does not convert."""
        formula = Formula.of(text, display)
        if formula not in self.done:
            self.add(formula, place)
            if faults := self.convert():
                raise ValueError(faults[0])
        mathml = self.done[formula]
        if not display:
            return breakable(mathml)
        tag = TAG.search(text)
        number, name = "", ""
        if tag:
            anchor = f"equation-{tag[1]}"
            number = f'<a class="number" href="#{anchor}" title="A link to this equation">({html.escape(tag[1])})</a>'
            name = f' id="{anchor}"'
        return f'<div class="equation"{name}><div class="formula">{mathml}</div>{number}</div>'


def converted(formulas: Iterable[Formula]) -> list[tuple[str, str]]:
    """Each as MathML, or empty and why not."""
    formulas = list(formulas)
    blocks = [
        {"t": "Para", "c": [{"t": "Math", "c": [{"t": "DisplayMath" if f.display else "InlineMath"}, _kept(f.tex)]}]}
        for f in formulas
    ]
    page, said = pandoc({"pandoc-api-version": API, "meta": {}, "blocks": blocks})
    pieces = re.split(r"(?=<p>)", page)[1:]
    if len(pieces) != len(formulas):
        raise RuntimeError(f"Pandoc made {len(pieces)} formulas of {len(formulas)}: {said}")
    reasons = iter(re.findall(r"Could not convert TeX math (?:.*?):?\n((?:  .*\n?)+)", said))
    found = []
    for piece in pieces:
        math = _MATH.search(piece)
        found.append((mended(math[0]), "") if math else ("", _short(next(reasons, "unknown"))))
    return found


def _short(reason: str) -> str:
    """Pandoc's reason in a line, without the signs that it would have taken instead."""
    return " ".join(reason.split()).partition(" expecting ")[0]


def _kept(tex: str) -> str:
    """A formula with the spaces that Pandoc would lose: those after a sign in words, as in 2 \\% for."""
    return re.sub(r"(\\[%#&_]) ", r"\1~", tex)


def pandoc(document: dict[str, object]) -> tuple[str, str]:
    """The HTML of a document, and what Pandoc said."""
    import pypandoc

    command = [pypandoc.get_pandoc_path(), "--from=json", "--to=html", "--mathml", "--wrap=none"]
    run = subprocess.run(command, input=json.dumps(document), capture_output=True, text=True, encoding="utf-8")
    if run.returncode:
        raise RuntimeError(f"Pandoc failed: {run.stderr}")
    return run.stdout, run.stderr
