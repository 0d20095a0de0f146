"""map.md: which lesson needs which, and which file of the companion belongs to which lesson."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path as Path2D

from authoring.imports import PACKAGE, modules_named
from authoring.lesson import Lesson, LessonError
from authoring.pages import drawing

FILE = "map.md"
EXERCISES = re.compile(r"school/exercises/lesson_\d\d")
COURSE, HOUSE = "figures/course.svg", "figures/package.svg"
COURSE_ALT = (
    "The lessons as boxes, from left to right. An arrow leads from each lesson to those that build on it. Lessons 00, "
    "one token by hand, and 02, attention, need no other."
)
PACKAGE_ALT = (
    "The files of the companion on its floors, the configuration at the bottom, the commands at the top; each file "
    "with the numbers of the lessons that import it."
)

# The floors of the house, from the ground up: a name, and what stands on it (folders end in a slash; a file's own name
# goes before its folder's). A file imports from its own floor and those below, and every file stands on one of them.
FLOORS = (
    ("the whole model on one page", ("page",)),
    ("the ground", ("ground/",)),
    ("what a model is", ("config/",)),
    ("one idea a file", ("layers/",)),
    ("the model", ("transformer",)),
    ("numbers of models", ("costs/",)),
    ("writing text", ("generation/",)),
    ("models on disk", ("files/",)),
    ("published models", ("families/",)),
    ("text and batches", ("data/",)),
    ("training", ("training/",)),
    ("the school", ("school/",)),
    ("measuring and proving", ("bench/", "selftest/")),
    ("commands", ("commands/",)),
    ("to begin from", ("examples/",)),
)


@dataclass(frozen=True)
class Graph:
    """Which lesson needs which: arrows (needed, by), without those that follow from two others, and where to draw them.

    A column holds lessons, and a bend (needed, by) of each arrow that passes it on its way.
    """

    arrows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int | tuple[int, int], ...], ...]

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> Graph:
        there = {lesson.number for lesson in lessons}
        needs = {lesson.number: {n for n in lesson.needs if n in there} for lesson in lessons}
        below: dict[int, set[int]] = {}
        depth: dict[int, int] = {}
        for number in sorted(needs):  # a lesson needs earlier ones only
            below[number] = needs[number].union(*(below[n] for n in needs[number]))
            depth[number] = 1 + max((depth[n] for n in needs[number]), default=-1)
        implied = {number: set().union(*(below[n] for n in needs[number])) for number in needs}
        arrows = tuple((n, number) for number in needs for n in sorted(needs[number] - implied[number]))
        columns = [
            [n for n in sorted(depth) if depth[n] == level] + [(a, b) for a, b in arrows if depth[a] < level < depth[b]]
            for level in range(max(depth.values()) + 1)
        ]
        return cls(arrows, _untangle(columns, arrows))

    def path(self, start: int, end: int) -> list[int | tuple[int, int]]:
        """The places that an arrow leads through."""
        return [start, *((start, end) for column in self.columns if (start, end) in column), end]


def _untangle(columns: list[list], arrows: Iterable[tuple[int, int]]) -> tuple[tuple, ...]:
    """The columns, each in the order whose lines to the column before it are short and cross little."""
    ordered: list[tuple] = []
    for column in columns:
        before = ordered[-1] if ordered else ()
        lines = [(a if a in before else (a, b), b if b in column else (a, b)) for a, b in arrows]
        starts = [
            [_height(before.index(start), len(before)) for start, end in lines if start in before and end == stop]
            for stop in column
        ]
        # Many orders are tried, so what a place costs, and one place above another, is reckoned only once.
        heights = [_height(at, len(column)) for at in range(len(column))]
        length = [[sum(abs(start - end) for start in here) for end in heights] for here in starts]
        crossed = [[3 * sum(a < b for a in upper for b in lower) for lower in starts] for upper in starts]

        ordered.append(tuple(column[stop] for stop in _cheapest(length, crossed)))
    return tuple(ordered)


def _cheapest(length: list[list[float]], crossed: list[list[int]]) -> tuple[int, ...]:
    """The first of the orders that cost least: what each stop costs at its place, and each above each other. An order
    that costs as much as the best before its end is not followed further."""
    best: tuple[float, tuple[int, ...]] = math.inf, ()

    def follow(order: tuple[int, ...], cost: float) -> None:
        nonlocal best
        if cost >= best[0]:
            return
        if len(order) == len(length):
            best = cost, order
        for stop in range(len(length)):
            if stop not in order:
                more = length[stop][len(order)] + sum(crossed[upper][stop] for upper in order)
                follow((*order, stop), cost + more)

    follow((), 0)
    return best[1]


def _height(index: int, count: int) -> float:
    """Where place `index` of `count` in a column stands, 0 being the middle."""
    return (count - 1) / 2 - index


def course_inputs(lessons: Sequence[Lesson]) -> str:
    """The digest of what the course's picture is drawn from."""
    graph = Graph.of(lessons)
    titles = [(lesson.number, lesson.title) for lesson in lessons]
    return drawing.digest(titles, [graph.arrows, graph.columns], Path(__file__), Path(drawing.__file__))


def draw_course(lessons: Sequence[Lesson]) -> bytes:
    """The course as SVG."""
    graph, titles = Graph.of(lessons), {lesson.number: lesson.title for lesson in lessons}
    wide, tall, gap, step = 1.42, 0.76, 0.36, 0.98
    rows = max(len(column) for column in graph.columns)
    width, height = len(graph.columns) * (wide + gap) + 0.05, rows * step + 0.1
    fig, ax = drawing.canvas(width, height)
    place = {
        number: (0.22 + at * (wide + gap), height / 2 + _height(i, len(column)) * step)
        for at, column in enumerate(graph.columns)
        for i, number in enumerate(column)
    }
    for start, end in graph.arrows:
        points = [place[stop] for stop in graph.path(start, end)]
        passed = [end for x, y in points[1:-1] for end in ((x, y), (x + wide, y))]
        _line(ax, [(points[0][0] + wide, points[0][1]), *passed, points[-1]])
    for number, title in titles.items():
        x, y = place[number]
        drawing.box(ax, x, y - tall / 2, wide, tall, "green" if number in graph.columns[0] else "blue")
        lines = textwrap.wrap(title, 18, break_long_words=False)[:3]
        ax.text(x + 0.09, y + tall / 2 - 0.09, f"{number:02d}", fontsize=9, weight="bold", va="top", color=drawing.INK)
        name = {"fontsize": 8.8, "ha": "center", "va": "center", "color": drawing.INK, "linespacing": 1.1}
        ax.text(x + wide / 2, y - (0.1 if len(lines) == 3 else 0.06), "\n".join(lines), **name)
    return drawing.svg(fig, course_inputs(lessons))


def _line(ax: Axes, points: list[tuple[float, float]]) -> None:
    """An arrow through the points: level at each of them, and curved between."""
    vertices, codes = [points[0]], [Path2D.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        vertices += [(middle, y0), (middle, y1), (x1, y1)]
        codes += [Path2D.CURVE4] * 3
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.1, "color": drawing.INK, "zorder": 0}
    ax.add_patch(FancyArrowPatch(path=Path2D(vertices, codes), **style))


# --- the package


def files(package: Path = PACKAGE) -> list[str]:
    """All modules of the package, as paths without `.py`."""
    paths = (path.relative_to(package) for path in package.rglob("*.py"))
    return sorted(path.with_suffix("").as_posix() for path in paths if not path.name.startswith("__"))


def floor(file: str) -> int:
    """The floor that a file stands on, 0 at the bottom. Raises `LessonError` for a file on none."""
    named = {name: at for at, (_, names) in enumerate(FLOORS) for name in names}
    places = [file, *(f"{folder}/" for folder in PurePosixPath(file).parents)]
    if found := [named[place] for place in places if place in named]:
        return found[0]
    raise LessonError(f"companion/{file}.py stands on no floor of the house: name it in FLOORS, authoring/pages/map.py")


def imports(file: str, package: Path = PACKAGE) -> set[str]:
    """The modules of the package that a file imports."""
    return {*_imported((package / f"{file}.py").read_text(encoding="utf-8"), package)}


@cache
def _imported(code: str, package: Path) -> frozenset[str]:
    return frozenset(modules_named(ast.parse(code), package))


def users(lessons: Sequence[Lesson]) -> dict[str, list[int]]:
    """Which lessons import a file; by file."""
    return {file: [x.number for x in lessons if file in x.imports] for file in files()}


def _runs(numbers: Sequence[int], everything: Sequence[int]) -> str:
    """Lesson numbers, with runs joined: 00, 03-05."""
    if list(numbers) == list(everything):
        return "all lessons"
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return " ".join(
        f"{g[0]:02d}" if len(g) == 1 else f"{g[0]:02d}–{g[-1]:02d}" if len(g) > 2 else f"{g[0]:02d} {g[1]:02d}"
        for g in groups
    )


def package_inputs(lessons: Sequence[Lesson]) -> str:
    """The digest of what the package's picture is drawn from."""
    return drawing.digest(users(lessons), [x.number for x in lessons], Path(__file__), Path(drawing.__file__))


def draw_package(lessons: Sequence[Lesson]) -> bytes:
    """The package as SVG, the ground floor at the bottom."""
    used, numbers = users(lessons), [lesson.number for lesson in lessons]
    wide, tall, left, per_row = 1.28, 0.34, 1.35, 7
    rows: list[tuple[str, list[tuple[str, str]]]] = []  # from the bottom: the floor's name or "", its boxes
    for at, (name, _) in enumerate(FLOORS):
        there = [file for file in used if floor(file) == at and not EXERCISES.fullmatch(file)]
        boxes = [(file, _runs(used[file], numbers) if used[file] else "") for file in there]
        if told := [file.split("/")[-1] for file in used if EXERCISES.fullmatch(file) and floor(file) == at]:
            boxes.append((f"{told[0]} … {told[-1]}", "the exercises"))
        lines = [boxes[start : start + per_row] for start in range(0, len(boxes), per_row)]
        rows += [(name if line is lines[0] else "", line) for line in reversed(lines)]
    step = tall + 0.1
    fig, ax = drawing.canvas(left + per_row * (wide + 0.1) + 0.1, len(rows) * step + 0.15)
    for at, (name, boxes) in enumerate(rows):
        y = 0.12 + at * step
        if name:
            ax.text(
                0.12,
                y + tall / 2,
                "\n".join(textwrap.wrap(name, 18)),
                fontsize=8.5,
                va="center",
                style="italic",
                color=drawing.INK,
            )
            if at + 1 < len(rows):
                ax.plot(
                    [0.12, left + per_row * (wide + 0.1)],
                    [y + tall + 0.05] * 2,
                    color="#dddddd",
                    linewidth=0.8,
                    marker="",
                    linestyle="-",
                )
        for i, (file, lessons_of) in enumerate(boxes):
            x = left + i * (wide + 0.1)
            mine = bool(used.get(file))
            drawing.box(ax, x, y, wide, tall, "blue" if mine else "grey")
            short = file.split("/")[-1]
            ax.text(
                x + wide / 2,
                y + (tall - 0.05 if lessons_of else tall / 2),
                short,
                fontsize=7.5,
                ha="center",
                va="top" if lessons_of else "center",
                color=drawing.INK,
                weight="bold" if mine else "normal",
            )
            ax.text(x + wide / 2, y + 0.05, lessons_of, fontsize=7, ha="center", va="bottom", color="#444444")
    return drawing.svg(fig, package_inputs(lessons))


def render(lessons: Sequence[Lesson]) -> str:
    """The page, as Markdown."""
    used = users(lessons)
    table = ["| file | lessons that import it |", "|---|---|"]
    for at, _ in enumerate(FLOORS):
        for file in used:
            if floor(file) == at and used[file]:
                links = " ".join(lesson.link(lesson.label) for lesson in lessons if lesson.number in used[file])
                table.append(f"| [{file}.py](../companion/{file}.py) | {links} |")
    reading = ["| lesson | minutes | builds on | takes a single thing from |", "|---|---|---|---|"]
    by_number = {lesson.number: lesson for lesson in lessons}
    for lesson in lessons:
        needs, touches = ([by_number[n].link(by_number[n].label) for n in group if n in by_number]
                          for group in (lesson.needs, lesson.touches))  # fmt: skip
        name = lesson.link(f"{lesson.label} {lesson.title}")
        reading.append(f"| {name} | {lesson.minutes} | {' '.join(needs)} | {' '.join(touches)} |")
    return (
        "\n\n".join(
            [
                "# The map",
                "## Which lesson needs which",
                "The lessons are in reading order, and reading them in that order always works. If you come for one "
                "thing, these are the lessons that lead to it. An arrow that follows from two others is left out.",
                f"![{COURSE_ALT}]({COURSE})",
                "\n".join(reading),
                "## Which file belongs to which lesson",
                "`companion/` is a house with floors: a file imports from its own floor and from those below. Read it "
                "from the bottom to the top; the numbers are the lessons that import a file.",
                f"![{PACKAGE_ALT}]({HOUSE})",
                "\n".join(table),
            ]
        )
        + "\n"
    )
