r"""Formulas as MathML, which browsers can render without scripts and screen readers can read aloud.

Pandoc converts all formulas in one call, and `mathml.py` adjusts the result for browsers. An equation's number,
`\tag{2.1}`, is placed beside the equation.
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

API = [1, 23, 1]  # version of Pandoc's document format
_MATH = re.compile(r"<math\b.*</math>", re.DOTALL)


@dataclass(frozen=True)
class Formula:
    """A formula without its dollars and number, and whether it is a display formula."""

    tex: str
    display: bool

    @classmethod
    def of(cls, text: str, display: bool) -> Formula:
        return cls(" ".join(TAG.sub("", text).split()), display)


@dataclass
class Formulas:
    """Formulas, the location of each formula's first use and, after the conversion, their MathML."""

    places: dict[Formula, str] = field(default_factory=dict)
    done: dict[Formula, str] = field(default_factory=dict)

    def add(self, formula: Formula, place: str) -> None:
        self.places.setdefault(formula, place)

    def convert(self) -> list[str]:
        """Convert all formulas, and return a message with the location of each formula that failed."""
        wanted = [formula for formula in self.places if formula not in self.done]
        faults = []
        for formula, (mathml, why) in zip(wanted, converted(wanted), strict=True):
            if mathml:
                self.done[formula] = mathml
            else:
                faults.append(f"{self.places[formula]}: the formula {formula.tex!r} does not convert: {why}")
        return faults

    def html(self, text: str, display: bool, place: str = "") -> str:
        """Return a formula's HTML for a page.

        Raises:
            ValueError: If the formula cannot be converted.
        """
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
    """Convert formulas with Pandoc.

    Returns:
        For each formula, its MathML and an empty string, or an empty string and the reason for the failure.

    Raises:
        RuntimeError: If Pandoc fails or returns a different number of formulas.
    """
    formulas = list(formulas)
    blocks = [
        {"t": "Para", "c": [{"t": "Math", "c": [{"t": "DisplayMath" if f.display else "InlineMath"}, _kept(f.tex)]}]}
        for f in formulas
    ]
    page, said = pandoc({"pandoc-api-version": API, "meta": {}, "blocks": blocks})
    pieces = re.split(r"(?=<p>)", page)[1:]
    if len(pieces) != len(formulas):
        raise RuntimeError(f"Pandoc returned {len(pieces)} formulas for {len(formulas)}: {said}")
    reasons = iter(re.findall(r"Could not convert TeX math (?:.*?):?\n((?:  .*\n?)+)", said))
    found = []
    for piece in pieces:
        math = _MATH.search(piece)
        found.append((mended(math[0]), "") if math else ("", _short(next(reasons, "unknown"))))
    return found


def _short(reason: str) -> str:
    """Return Pandoc's error on one line, without the list of tokens that it expected."""
    return " ".join(reason.split()).partition(" expecting ")[0]


def _kept(tex: str) -> str:
    r"""Protect spaces after an escaped character, as in 2 \% for, because Pandoc would drop them."""
    return re.sub(r"(\\[%#&_]) ", r"\1~", tex)


def pandoc(document: dict[str, object]) -> tuple[str, str]:
    """Convert a document in Pandoc's JSON format to HTML.

    Returns:
        The HTML and Pandoc's messages.

    Raises:
        RuntimeError: If Pandoc fails.
    """
    import pypandoc

    command = [pypandoc.get_pandoc_path(), "--from=json", "--to=html", "--mathml", "--wrap=none"]
    run = subprocess.run(command, input=json.dumps(document), capture_output=True, text=True, encoding="utf-8")
    if run.returncode:
        raise RuntimeError(f"Pandoc failed: {run.stderr}")
    return run.stdout, run.stderr
