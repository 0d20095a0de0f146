"""companion/README.md: the rooms of the package, and a tour of eight stops with a link to each line, between marks."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from authoring.imports import PACKAGE
from authoring.lesson import Lesson, LessonError
from authoring.pages import map
from authoring.pages.readme import between

FILE = "../companion/README.md"
ROOMS, END_ROOMS = "<!-- the rooms, by make notebooks -->", "<!-- end of the rooms -->"
TOUR, END_TOUR = "<!-- the tour, by make notebooks -->", "<!-- end of the tour -->"
WIDTH = 98
"""Columns of the drawing."""

# A stop: what it is called, where it is (file and name), what happens there, and the lesson that derives it.
STOPS = (
    ("Embed", "transformer.py", "Transformer._embed", "A row of a table for each id, (batch, token, d_model)", 1),
    ("Block", "layers/block.py", "Block.forward", "A norm, a part, and the sum with what came in; twice a block", 6),
    ("Attend", "layers/attention.py", "Attention.forward", "Project, split, turn, `attend`, merge", 3),
    ("Turn", "layers/positions.py", "Rotary.turn", "Queries and keys, by an angle that grows with their place", 5),
    ("Remember", "layers/cache.py", "LayerCache.write", "Keys and values stay for the tokens that come", 10),
    ("Feed forward", "layers/feedforward.py", "FeedForward.forward", "Every token alone; or `layers/moe.py`", 6),
    ("Out", "transformer.py", "Transformer.head", "Logits over the vocabulary, (batch, token, vocab)", 1),
    ("Choose", "generation/sampling.py", "Sampling.probabilities", "Temperature, top-k, top-p; `logit_rules.py`", 10),
)  # fmt: skip


def line_of(file: str, name: str, package: Path = PACKAGE) -> int:
    """The line on which a function of a file begins, or a class's method. Raises `LessonError` where there is none."""
    path = package / file
    inside: Sequence[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else ()
    found: ast.stmt | None = None
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = next((node for node in inside if isinstance(node, kinds) and node.name == part), None)
        if found is None:
            raise LessonError(
                f"the tour stops at {name} in companion/{file}, and it is not there: authoring/pages/tour.py"
            )
        inside = found.body  # type: ignore[attr-defined]
    assert found is not None
    return found.lineno


def tour() -> str:
    """The stops, in the order of a token."""
    lines = []
    for number, (title, file, name, what, lesson) in enumerate(STOPS, 1):
        line = line_of(file, name)
        lines.append(f"{number}. **{title}**: [`{name}`, {file}:{line}]({file}#L{line}). {what} (lesson {lesson:02d}).")
    return "\n".join(lines)


def levels(package: Path = PACKAGE) -> list[list[int]]:
    """The rooms (places in `map.FLOORS`), each one level above the highest that it imports from; the lowest first."""
    needs: dict[int, set[int]] = {at: set() for at in range(len(map.FLOORS))}
    for file in map.files(package):
        needs[map.floor(file)] |= {map.floor(other) for other in map.imports(file, package)} - {map.floor(file)}
    level: dict[int, int] = {}
    for room in needs:  # floors import from those below them alone
        level[room] = 1 + max((level[other] for other in needs[room]), default=-1)
    return [[room for room in needs if level[room] == at] for at in range(max(level.values()) + 1)]


def rooms() -> str:
    """The house as a drawing: a level imports from those below it, and from no other."""
    drawn = []
    for level in reversed(levels()):
        cells = []
        for room in level:
            what, names = map.FLOORS[room]
            called = ", ".join(name.rstrip("/") for name in names)
            cells.append(called if what in (called, f"the {called}") else f"{called}: {what}")
        inner = WIDTH - 2 - 3 * (len(cells) - 1) - 2
        widths = [inner // len(cells)] * len(cells)
        widths[-1] += inner - sum(widths)
        drawn.append("│ " + " │ ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " │")
    rule = "─" * (WIDTH - 2)
    return "\n".join(["```text", f"┌{rule}┐", f"\n├{rule}┤\n".join(drawn), f"└{rule}┘", "```"])


def render(lessons: Sequence[Lesson]) -> str:
    """The page with both made anew. Raises `LessonError` if a mark is missing, or a stop is."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    text = between(text, ROOMS, rooms(), END_ROOMS, "the drawing of the rooms")
    return between(text, TOUR, tour(), END_TOUR, "the tour")
