"""Command `companion course slides`: a lesson's slides as a web page."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import must_be_writable
from companion.ground.waiting import waiting

REVEAL = "https://unpkg.com/reveal.js@4.6.1"
"""Default address of reveal.js. nbconvert 7 writes pages for its version 4."""


def parser() -> Parser:
    made = Parser(
        description=(
            "Make slides of lessons from their notebooks as they are stored, with nbconvert: a heading begins a slide, "
            "and each figure, piece of code and question is a step down. Go on with the space bar; slides longer than "
            "the screen scroll. Nothing is run. The page takes reveal.js and MathJax from their addresses when it is "
            "opened. To print it, add ?print-pdf to its address in a browser."
        ),
        epilog="examples:\n  companion course slides 05\n  companion course slides 05 06 --out slides/",
    )
    made.add_argument("lessons", type=str, nargs="+", metavar="NN", help="the lessons, as in 05")
    made.add_argument(
        "--notebooks",
        type=str,
        default=None,
        metavar="FOLDER",
        help="the lessons' notebooks (default: found where the course is)",
    )
    made.add_argument("--out", type=str, default="slides", metavar="FOLDER", help="output folder (created if missing)")
    made.add_argument(
        "--reveal", type=str, default=REVEAL, metavar="ADDRESS", help="reveal.js 4 (default: from unpkg.com)"
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
