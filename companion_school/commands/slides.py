"""The command `companion course slides`, which turns a lesson into slides on a web page."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.ground.atomic import must_be_writable
from companion.ground.waiting import waiting

REVEAL = "https://unpkg.com/reveal.js@4.6.1"
"""Default URL of reveal.js. nbconvert 7 writes pages for version 4 of reveal.js."""


def parser() -> Parser:
    made = Parser(
        description=(
            "Make slides from the stored notebooks of lessons with nbconvert. Each heading begins a slide, and "
            "each figure, code cell and question is a step down. Use the space bar to go forward; slides longer "
            "than the screen scroll. No code is run. When the page is opened, it loads reveal.js and MathJax from "
            "the internet. To print the slides, add ?print-pdf to the address in the browser."
        ),
        epilog="examples:\n  companion course slides 05\n  companion course slides 05 06 --out slides/",
    )
    made.add_argument("lessons", nargs="+", metavar="NN", help="lessons, such as 05")
    made.add_argument(
        "--notebooks", metavar="FOLDER", help="folder of the lessons' notebooks (default: found next to the package)"
    )
    made.add_argument("--out", default="slides", metavar="FOLDER", help="output folder (created if missing)")
    made.add_argument(
        "--reveal", default=REVEAL, metavar="URL", help="URL of reveal.js 4 (default: the copy on unpkg.com)"
    )
    return made


def run(flags: Namespace) -> int:
    from companion_school.course import slides

    folder, out = slides.lessons_folder(flags.notebooks), Path(flags.out)
    for lesson in flags.lessons:
        slides.read_lesson(lesson, folder)
    must_be_writable(out, "--out")
    for lesson in flags.lessons:
        with waiting(f"slides of lesson {lesson}"):
            file = slides.write(lesson, folder, out, flags.reveal)
        print(f"{file}: written")
    return 0
