"""Write the pages that are out of date, or list them with `--check`.

python -m authoring.pages [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from authoring.lesson import NOTEBOOKS, Lesson, LessonError, built_lessons
from authoring.pages import (
    claims,
    explorer,
    front,
    glossary,
    map,
    notation,
    plan,
    readme,
    sizing,
    start,
    where_texts_differ,
)
from authoring.pages.drawing import digest_in
from companion.ground.atomic import write_atomic


@dataclass(frozen=True)
class Page:
    """A file that is generated from the lessons.

    Attributes:
        file: Its path, relative to the notebooks' folder.
        make: Function that returns its content.
        inputs: For a picture, a function that returns the digest that the picture contains if it is up to date.
    """

    file: str
    make: Callable[[Sequence[Lesson]], str | bytes]
    inputs: Callable[[Sequence[Lesson]], str] | None = None

    @property
    def path(self) -> Path:
        return NOTEBOOKS / self.file

    def fresh(self, lessons: Sequence[Lesson]) -> bool:
        """Return whether the stored file is up to date with the lessons."""
        if not self.path.exists():
            return False
        stored = self.path.read_bytes()
        if self.inputs:
            return digest_in(stored) == self.inputs(lessons)
        return stored.decode() == self.make(lessons)


PAGES = (
    Page(front.FILE, front.draw, front.inputs),
    Page(map.COURSE, map.draw_course, map.course_inputs),
    Page(map.FILE, map.render),
    Page(where_texts_differ.FILE, where_texts_differ.render),
    Page(claims.FILE, claims.render),
    Page(notation.FILE, notation.render),
    Page(glossary.FILE, glossary.render),
    Page(readme.FILE, readme.render),
    Page(sizing.FILE, sizing.render),
    Page(explorer.FILE, explorer.render),
    Page(plan.FILE, plan.render),
    Page(start.FILE, start.render),
    Page(start.PATH, start.course),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m authoring.pages",
        description="Write the generated pages in notebooks/ (glossary, map, claims and others).",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; only report which pages are stale")
    options = parser.parse_args(arguments)
    try:
        lessons = built_lessons()
        stale = [page for page in PAGES if not page.fresh(lessons)]
        if not options.check:
            for page in stale:
                write_atomic(page.path, page.make(lessons))
    except LessonError as error:
        print(error, file=sys.stderr)
        return 1
    for page in stale:
        print(f"{page.path.name}: " + ("STALE. Run: make notebooks" if options.check else "written"))
    print(f"{len(PAGES) - len(stale)} of {len(PAGES)} pages were up to date")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
