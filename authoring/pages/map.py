"""map.md: which lessons build on which others."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path as Path2D

from authoring.lesson import Lesson
from authoring.pages import drawing

FILE = "map.md"
COURSE = "figures/course.svg"
COURSE_ALT = (
    "The lessons as boxes, from left to right. An arrow leads from each lesson to those that build on it. Lessons 00, "
    "one token by hand, and 02, attention, need no other."
)


@dataclass(frozen=True)
class Graph:
    """The graph that shows which lessons build on which, and its layout.

    An arrow is a pair (needed lesson, lesson that needs it). Arrows that are implied by two others are omitted. A
    column contains lessons and, for each arrow that passes through it, a bend in the form of that arrow's pair.
    """

    arrows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int | tuple[int, int], ...], ...]

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> Graph:
        there = {lesson.number for lesson in lessons}
        needs = {lesson.number: {n for n in lesson.needs if n in there} for lesson in lessons}
        below: dict[int, set[int]] = {}
        depth: dict[int, int] = {}
        for number in sorted(needs):  # a lesson only needs earlier lessons
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
        """Return the positions through which an arrow passes."""
        return [start, *((start, end) for column in self.columns if (start, end) in column), end]


def _untangle(columns: list[list], arrows: Iterable[tuple[int, int]]) -> tuple[tuple, ...]:
    """Return the columns, each ordered for the shortest lines and the fewest crossings to the previous column."""
    ordered: list[tuple] = []
    for column in columns:
        before = ordered[-1] if ordered else ()
        lines = [(a if a in before else (a, b), b if b in column else (a, b)) for a, b in arrows]
        starts = [
            [_height(before.index(start), len(before)) for start, end in lines if start in before and end == stop]
            for stop in column
        ]
        # Many orders are tried, so the costs of positions and of pairs of stops are computed only once.
        heights = [_height(at, len(column)) for at in range(len(column))]
        length = [[sum(abs(start - end) for start in here) for end in heights] for here in starts]
        crossed = [[3 * sum(a < b for a in upper for b in lower) for lower in starts] for upper in starts]

        ordered.append(tuple(column[stop] for stop in _cheapest(length, crossed)))
    return tuple(ordered)


def _cheapest(length: list[list[float]], crossed: list[list[int]]) -> tuple[int, ...]:
    """Return the first of the cheapest orders, given each stop's cost at each position and above every other stop."""
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
    """Return the vertical position of entry `index` of `count` in a column, where 0 is the middle."""
    return (count - 1) / 2 - index


def course_inputs(lessons: Sequence[Lesson]) -> str:
    """Return a digest of everything that affects the picture of the course."""
    graph = Graph.of(lessons)
    titles = [(lesson.number, lesson.title) for lesson in lessons]
    return drawing.digest(titles, [graph.arrows, graph.columns], Path(__file__), Path(drawing.__file__))


def draw_course(lessons: Sequence[Lesson]) -> bytes:
    """Return the picture of the course as SVG."""
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
    """Draw an arrow through the points that is horizontal at each of them and curved in between."""
    vertices, codes = [points[0]], [Path2D.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        vertices += [(middle, y0), (middle, y1), (x1, y1)]
        codes += [Path2D.CURVE4] * 3
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.1, "color": drawing.INK, "zorder": 0}
    ax.add_patch(FancyArrowPatch(path=Path2D(vertices, codes), **style))


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page as Markdown."""
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
                "You can always read the lessons in this order. If you are interested in a single lesson, the arrows "
                "show which lessons lead to it. An arrow is left out if it follows from two others.",
                f"![{COURSE_ALT}]({COURSE})",
                "\n".join(reading),
            ]
        )
        + "\n"
    )
