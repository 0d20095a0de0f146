"""The pages of the site, their sources, and their reading order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from authoring.lesson import NOTEBOOKS, ROOT
from authoring.site.fault import Faults
from companion_school.build.stages import STAGES

START = "start.ipynb"
# Pages beside the lessons: the file, and the page's label in the contents.
BESIDE = (
    ("explorer.md", "The explorer"),
    ("glossary.md", "Glossary"),
    ("notation.md", "Notation"),
    ("where_texts_differ.md", "Where texts differ"),
    ("claims.md", "What is claimed"),
    ("map.md", "The map"),
    ("sizing.md", "Sizing"),
)
TEACHING = (
    ("exercises/INSTRUCTORS.md", "For instructors"),
    ("exercises/PLAN.md", "Two course schedules"),
    ("exercises/TUTOR.md", "For a tutor"),
)
# Pages that belong to a lesson: the kind, and the page's label in the contents.
PARTS = (("deeper", "Deeper"), ("exercises", "Exercises"))


@dataclass(frozen=True)
class Page:
    """A page made from a file in the notebooks' folder.

    Attributes:
        name: Path from the site's root without the extension, such as "deeper/02_deeper".
        source: The notebook or the Markdown file.
        kind: "lesson", "deeper", "exercises", "stage", "start" or "beside".
        label: Label in the contents.
        lesson: Number of the page's lesson, such as "02", or of its stage, such as "2"; empty for other pages.
    """

    name: str
    source: Path
    kind: str
    label: str
    lesson: str = ""

    @cached_property
    def notebook(self) -> NotebookNode:
        return nbformat.read(self.source, as_version=4)

    @property
    def place(self) -> str:
        """The source's path, as shown in messages."""
        return self.source.relative_to(self.source.parents[len(Path(self.name).parts)]).as_posix()

    @property
    def up(self) -> str:
        """The path from the page to the site's root."""
        return "../" * self.name.count("/")


@dataclass
class Course:
    """The pages made from files, by the path of the file in the notebooks' folder."""

    folder: Path = NOTEBOOKS
    root: Path = ROOT
    pages: dict[str, Page] = field(default_factory=dict)
    path: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, root: Path, faults: Faults) -> Course:
        """Read the course from a folder of notebooks, in the order of its start page.

        Raises:
            Broken: If a file is missing, unreadable or not listed.
        """
        course = cls(folder, root)
        if not (folder / START).exists():
            faults.add(f"{folder.name}/{START}", "has never been built. Run: make notebooks")
            faults.stop()
        course._add(START, "start", "Start", name="index")
        course.path = course.pages[START].notebook.metadata["path"]
        for lesson in course.path:
            number = lesson["number"]
            course._add(lesson["file"], "lesson", f"{number} {lesson['title']}", number)
            for kind, label in PARTS:
                if kind == "exercises" or (folder / f"{kind}/{number}_{kind}.ipynb").exists():
                    course._add(f"{kind}/{number}_{kind}.ipynb", kind, f"{label} {number}", number)
        for source in sorted(folder.glob("build/[0-9][0-9]_*.ipynb")):
            number = int(source.name[:2])
            title = f"Stage {number}: {STAGES[number].title}" if number in STAGES else "What you own"
            course._add(f"build/{source.name}", "stage", title, str(number))
        for file, label in (*BESIDE, *TEACHING):
            course._add(file, "beside", label)
        for page in course.pages.values():
            if not page.source.exists():
                faults.add(page.place, "has never been built. Run: make notebooks")
            elif page.source.suffix == ".ipynb" and not _readable(page):
                faults.add(page.place, "is not a notebook. Run: make notebooks")
        listed = {page.source for page in course.pages.values()}
        for source in sorted([*folder.glob("[0-9][0-9]_*.ipynb"), *folder.glob("deeper/*.ipynb")]):
            if source not in listed:
                faults.add(source.relative_to(folder.parent).as_posix(), f"is not in {START}. Run: make notebooks")
        faults.stop()
        return course

    def _add(self, file: str, kind: str, label: str, lesson: str = "", name: str = "") -> None:
        self.pages[file] = Page(name or file.rsplit(".", 1)[0], self.folder / file, kind, label, lesson)

    def of_kind(self, *kinds: str) -> Iterator[Page]:
        return (page for page in self.pages.values() if page.kind in kinds)

    def part(self, kind: str, lesson: str) -> Page | None:
        """Return the lesson's page of the given kind, or None if there is none."""
        return next((page for page in self.of_kind(kind) if page.lesson == lesson), None)


def _readable(page: Page) -> bool:
    try:
        return bool(page.notebook.cells)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError):
        return False
