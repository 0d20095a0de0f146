"""The contract of a deeper notebook, whose sections are self-contained and can be read in any order."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from authoring.imports import parsed
from authoring.lesson import Lesson
from authoring.lesson_contract import bound, claims, folded_code, notation, second_meaning, widths
from authoring.markdown import PARSER, headings
from authoring.notebook_contract import Fault, Known, fault, numbered, title


def sections(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that each section has a link target before its heading and begins with a sentence about its purpose."""
    targets = set(lesson.targets.values())
    second = [heading for heading in headings(lesson.built) if heading.level == 2]
    if not second:
        yield Fault("a deeper notebook has sections, `## ...`", 1)
    for heading in second:
        place = heading.index + 1, heading.line
        if heading.line or heading.cell not in targets:
            yield fault(lesson, f"the section {heading.text!r} needs a target on the line before it: (name)=", *place)
        # skip the heading and the minutes
        rows = lesson.built[heading.index].source.split("\n")[heading.line + 2 :]
        tokens = PARSER.parse("\n".join(rows))
        words = tokens[1].content if tokens and tokens[0].type == "paragraph_open" else ""
        if words.startswith("$$") or len(words.split()) < 4:
            yield fault(lesson, f"the section {heading.text!r} must begin with a sentence on what it is for", *place)


def alone(lesson: Lesson, known: Known) -> Iterator[Fault]:
    """Check that code uses no names from other sections, except those defined before the first section."""
    starts = [heading.index for heading in headings(lesson.built) if heading.level == 2]
    code = []
    for number, cell in numbered(lesson, "code"):
        tree = parsed(cell.source)
        code.append((sum(start < number for start in starts), number, tree, bound(tree)))
    for section, number, tree, _ in code:
        of_others = {name for other, *_, names in code if other not in (0, section) for name in names}
        own = {name for other, *_, names in code if other in (0, section) for name in names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in of_others - own:
                what = f"{node.id!r} comes from another section: a section stands alone"
                yield fault(lesson, what, number, node.lineno - 1)


RULES = [title, sections, alone, folded_code, claims, widths, notation, second_meaning]
