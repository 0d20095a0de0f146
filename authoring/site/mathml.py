"""Adjust a converter's MathML for browsers, which lay out formulas with less care than TeX."""

from __future__ import annotations

import re
from xml.etree import ElementTree

LONG = 18  # inline formulas with more elements than this may break across lines
OPENS, CLOSES = "([{⌈⌊⟨", ")]}⌉⌋⟩"
BREAKS = ("=", "<", ">", "≤", "≥", "≈", "≠", "∈", "→", "←", "⟶", "⟹", "⇒", "+", "−", "-", "⋅", "×", ",", ";", "⇔")
SCRIPTS = ("msup", "msub", "msubsup")
TWINS = "|∥‖"  # fences with the same sign on both sides
BRACES = ("⏟", "⏞")
_ANNOTATION = re.compile(r"<annotation.*?</annotation>|</?semantics>", re.DOTALL)
# The name of a function that is applied to something, where TeX puts a thin space (unless a bracket follows).
_APPLIED = re.compile(
    r"(<mi(?: mathvariant=\"normal\")?>[a-zA-Z]{2,}</mi><mo>)&#8289;(</mo>)(</mrow>)?(?!<mo[^>]*>[(\[]|</mrow>)"
)


def mended(math: str) -> str:
    """Return a converter's MathML after adjusting it for browsers.

    The TeX annotation is removed, function names are followed by a space, brackets are grouped with their content,
    subscripts under roots are kept small, and formulas with braces are marked.
    """
    math = _ANNOTATION.sub("", math).replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "").replace("\n", " ")
    root = ElementTree.fromstring(_APPLIED.sub(r'\1&#8289;\2\3<mspace width="0.167em"></mspace>', math))
    _close_fences(root)
    for radical in root.iter("msqrt"):
        _keep_small(radical)
    if any(sign.text in BRACES for sign in root.iter("mo")):
        root.set("class", "braced")
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _close_fences(row: ElementTree.Element) -> None:
    """Put large brackets and their content into one row, so that an exponent applies to the whole row.

    Otherwise, the bracket with the exponent would not grow along with the matching bracket.
    """
    kept: list[ElementTree.Element] = []
    opened: list[int] = []
    for child in row:
        _close_fences(child)
        sign = child[0] if child.tag in SCRIPTS else child
        fence = sign.tag == "mo" and "minsize" in sign.attrib
        text = sign.text or ""
        closes = fence and bool(opened) and (text in CLOSES or (text in TWINS and kept[opened[-1]].text == text))
        if fence and not closes and child is sign:
            opened.append(len(kept))
            sign.set("form", "prefix")
        elif closes:
            first = opened.pop()
            sign.set("form", "postfix")
            if child is not sign:
                group = ElementTree.Element("mrow")
                child.remove(sign)
                group.extend([*kept[first:], sign])
                child.insert(0, group)
                kept[first:] = []
        kept.append(child)
    row[:] = kept


def _keep_small(radical: ElementTree.Element) -> None:
    """Let a subscript under a root extend slightly below the root, as in print.

    Otherwise, a browser would use the next larger root sign, which extends far into the line below.
    """
    inside = [element for child in radical for element in child.iter()]
    scripts = [element for element in inside if element.tag == "msub"]
    plain = all(element.tag in ("msub", "mi", "mn", "mrow") for element in inside)
    if scripts and plain and all(part.tag in ("mi", "mn") for script in scripts for part in script):
        padded = ElementTree.Element("mpadded", {"depth": "0.1em"})
        padded.extend(radical)
        radical[:] = [padded]


def breakable(mathml: str) -> str:
    """Split a long inline formula into several, because browsers break lines only between formulas.

    As in print, a line may end after a relation, an operator or a comma outside brackets.
    """
    if mathml.count("</m") < LONG:
        return mathml
    root = ElementTree.fromstring(mathml)
    row = root[0] if len(root) == 1 and root[0].tag == "mrow" else root
    parts: list[list[ElementTree.Element]] = [[]]
    depth = 0
    for child in row:
        parts[-1].append(child)
        sign = child.text or ""
        depth += child.tag == "mo" and (sign in OPENS) - (sign in CLOSES)
        if child.tag == "mo" and sign in BREAKS and depth == 0 and len(parts[-1]) > 1 and child is not row[-1]:
            # at the end of its part, browsers would no longer treat the operator as infix
            child.set("form", "infix")
            parts.append([])
    pieces = []
    for part in parts:
        math = ElementTree.Element("math", {"display": "inline"})
        ElementTree.SubElement(math, "mrow").extend(part)
        pieces.append(ElementTree.tostring(math, encoding="unicode", short_empty_elements=False))
    return "<wbr>".join(pieces)
